//! Collectives of ranks that share memory, executed by the thread that makes the call.
//!
//! A schedule whose steps all use shared memory needs no events, queues or lock of the context: the calling thread
//! executes [operations](program) one after the other. Where it must wait for a peer it polls the peer's publication
//! table for a short time; the caller of [`Call::advance`] then waits with the context's lock, as for messages.

mod claim;
mod combine;
#[cfg(any(test, fuzzing))]
#[path = "../../testing/fuzz/shared_memory.rs"]
pub mod fuzz;
pub mod part;
pub mod program;
mod publishing;
mod quick;
pub mod quick_start;
mod run;
mod started;
pub mod steps;
#[cfg(all(test, not(loom)))]
pub(super) mod tests;
mod wait;

pub use claim::Claim;
pub use run::{Call, Work};
pub use started::{Attempted, BackgroundOperation, Progress};
pub use wait::Wait;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cache::{CallCache, CallKey};
use super::numbers::Numbers;
use super::prepared::Prepared;
use super::recorder::{Awaited, Link, Recorder, Run, Writer};
use super::scratch::{Kept, Scratch};
use crate::publications::{EntryAllocator, EntryHandle, Full, Members, Outgoing, PublicationTable};
use crate::reduce::last_level_cache;
use crate::sys::ForkMark;
use crate::transport::LocalRanks;
use crate::transport::local::InPlace;
use crate::types::Rank;
use crate::wire::fingerprint::{COMPARISON, replaces};
use combine::Source;
use program::Memory;
use started::StartedCalls;

/// Maximum number of bytes that are copied of a publication that lies in memory which the publisher's context has
/// allocated: readers read longer ones there, without the system's help.
const COPIED_IN_PLACE_BYTES: usize = 8 << 10;

/// The memory that a context's ranks on this host share.
pub struct Shared {
    local: Arc<dyn LocalRanks>,
    /// The process that may write to the memory. A copy of what `local` has, like the following fields, since calls
    /// look here at first.
    mark: Arc<ForkMark>,
    publications: PublicationTable,
    /// Whether ranks read the memory of each other's processes.
    reads: bool,
    /// Bytes of the last-level cache.
    cache_bytes: usize,
    /// Whether calls may start.
    usable: AtomicBool,
    /// Whether a call waits for memory that another call of this rank has in the publication table.
    awaits_memory: AtomicBool,
    /// The index in the engine, plus 1, of a call that was registered there, and has ended without the engine's lock; 0
    /// if there is none.
    ended_registration: AtomicU64,
    state: Mutex<State>,
    started: StartedCalls,
    kept: Arc<Kept>,
    recorder: Writer,
}

#[derive(Default)]
struct State {
    allocator: EntryAllocator,
    numbers: Numbers,
    begun: u64,
    /// The prepared calls of the context.
    cache: CallCache,
    calls: Calls,
    /// Calls in progress that send messages: kind and tag, whether they are [in order](super::Binding::in_order), and
    /// fingerprint.
    elsewhere: Vec<(Line, bool, u64)>,
    /// Memory for what is read from other processes, used by no thread.
    staging: Vec<Scratch>,
}

/// After so many calls with messages of one kind on one tag, ended calls are removed from the publication table: far
/// fewer than there are numbers, so that no later call has the number of one of them.
const FORGOTTEN: u32 = 1 << 20;

/// Kind and tag of a call.
pub type Line = (u8, u64);

/// The list of calls.
#[derive(Default)]
struct Calls {
    /// Calls in progress, and those that have ended, until the next call begins. Owned; the workspace of each is used
    /// by its call as long as that is [`RUNNING`].
    begun: Vec<NonNull<Entry>>,
    /// Owned, and of no call.
    spare: Vec<NonNull<Entry>>,
}

// SAFETY: the pointers are owned, and to values that may be sent; see `Calls::begun`. Those in `Outgoing` are to the
// caller's buffers.
unsafe impl Send for Calls {}

/// A call is in progress.
const RUNNING: u8 = 0;
/// It has ended, and still excludes others: see [`Claim`].
const CLAIMED: u8 = 1;
/// It has ended.
const ENDED: u8 = 2;

/// See [`Entry::number`]: the highest bit, so that one look at the number's sign tells calls that are recorded in few
/// steps from others.
const WAITED: u64 = 1 << 63;

/// A call in the list, which later calls reuse: what other threads read of it, and its workspace. While it is
/// [`RUNNING`], there is no `&mut` but to the workspace.
#[derive(Default)]
struct Entry {
    /// The fingerprint of the call, if it waited for a peer when a thread last went on with it that does not wait for
    /// it.
    awaits_peer: AtomicU64,
    /// What the call does. Set, as its last access to this, by the thread that makes the call; then by the one that
    /// ends its claim.
    stage: AtomicU8,
    line: Line,
    /// See [`Binding::in_order`](super::Binding::in_order).
    in_order: bool,
    fingerprint: u64,
    /// Its number in the [`Recorder`], with [`WAITED`] if it has waited; 0 if it is not recorded there.
    number: AtomicU64,
    /// Bytes of the call, for the recorder.
    bytes: usize,
    /// If it has waited: when it began to, in ticks of the recorder.
    waits_since: AtomicU64,
    /// If it has waited: the rank for which it has waited last, as [`Awaited`].
    waited_for: AtomicU32,
    /// Whether the call is from the cache, and uses what that has of it.
    is_cached: bool,
    workspace: Workspace,
}

/// Memory that a call alone uses.
#[derive(Default)]
struct Workspace {
    /// Whether it has an entry of the publication table that must be given back.
    has_entry: bool,
    /// Whether it had one from the beginning, with memory for copies of all that may be copied.
    copies: bool,
    /// Who reads what the call publishes.
    readers: Members,
    /// Who may wait for what the call does.
    peers: Members,
    /// How its publications use the publication table's memory.
    memory: Memory,
    handle: EntryHandle,
    /// Publications that are not written to their end.
    outgoing: Vec<Outgoing>,
    /// Elements of the next operation that are done.
    done: usize,
    /// Bytes of results since the last look at the clock.
    touched: usize,
    scratch: Scratch,
    /// The operands of an operation: as published, and of a piece that was read from other processes.
    sources: Vec<Source>,
    staged: Vec<Source>,
    /// Keeps memory of peers mapped while an operation reads it.
    in_place: Vec<InPlace>,
}

/// Why a call does not start.
pub enum Refused {
    /// The context is broken or closed.
    Unusable,
    /// The call with this fingerprint is in progress; see [`excludes`].
    Running(u64),
    /// There is no memory for what the algorithm keeps aside.
    NoMemory,
    /// The call has got no number, without which its publications are not told from those of an earlier one.
    Uncounted,
}

impl Shared {
    /// The memory that `local` share. `kept`: the scratch memory of the context; `recorder`: its last calls; `begun`:
    /// number of those that have started.
    pub fn new(local: Arc<dyn LocalRanks>, kept: Arc<Kept>, recorder: Arc<Recorder>, begun: u64) -> Self {
        let bases: Vec<*mut u8> = (0..local.ranks().len()).map(|member| local.table(member)).collect();
        // SAFETY: `local` keeps the mappings of all members as long as it lives, which is as long as this does. Only
        // this publications writes to the own one.
        let publications = unsafe { PublicationTable::new(&bases, local.index()) };
        let (reads, mark) = (local.reads_memory(), local.mark().clone());
        Self {
            local,
            mark,
            publications,
            reads,
            cache_bytes: last_level_cache(),
            usable: AtomicBool::new(true),
            awaits_memory: AtomicBool::new(false),
            ended_registration: AtomicU64::new(0),
            state: Mutex::new(State { allocator: EntryAllocator::new(reads), begun, ..State::default() }),
            started: StartedCalls::default(),
            kept,
            recorder: Writer::new(recorder),
        }
    }

    /// The memory that `local` share, with a recorder of its own.
    #[cfg(test)]
    pub fn in_test(local: Arc<dyn LocalRanks>, kept: Arc<Kept>) -> Self {
        let recorder = Recorder::new(Arc::new(crate::transport::SystemClock), std::time::Instant::now()).unwrap();
        Self::new(local, kept, Arc::new(recorder), 0)
    }

    /// Whether ranks read the memory of each other's processes.
    pub fn reads(&self) -> bool {
        self.reads
    }

    /// No call starts any more. Calls in progress find out when they wait.
    pub fn close(&self) {
        self.usable.store(false, Ordering::Release);
    }

    /// What is known of the calls in progress that only threads of the program go on with.
    #[cold]
    pub fn runs(&self) -> Vec<Run> {
        self.state().calls.runs()
    }

    /// The record of the last calls.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Number of collectives of the context that were started.
    pub fn begun(&self) -> u64 {
        self.state().begun
    }

    /// The fingerprint of a call in progress that a new one on `line`, which is `in_order` or not, excludes.
    pub fn running(&self, line: Line, in_order: bool) -> Option<u64> {
        let state = self.state();
        state.calls.running(line, in_order)
    }

    /// The tags and fingerprints of the calls in progress, and whether each waited for a peer when a thread last went
    /// on with it that does not wait for it.
    pub fn in_progress(&self) -> Vec<(u64, u64, bool)> {
        self.state().calls.in_progress()
    }

    /// Claims the line of a call that sends messages: no call that it excludes starts from now on, until
    /// [`Shared::release`]. If it is `counted`, returns its number on the line, and among all of the context; else
    /// zeros. Fails with the fingerprint of one that is in progress.
    pub fn claim(
        &self,
        line: Line,
        in_order: bool,
        digest: u64,
        counted: bool,
    ) -> std::result::Result<(u32, u64), u64> {
        let mut state = self.state();
        if let Some(running) = state.calls.running(line, in_order) {
            return Err(running);
        }
        state.elsewhere.push((line, in_order, digest));
        if !counted {
            return Ok((0, 0));
        }
        state.begun += 1;
        let (number, sequence) = (state.numbers.next(line), state.begun);
        if number != 0 && number.is_multiple_of(FORGOTTEN) {
            let State { calls, allocator, .. } = &mut *state;
            calls.leave(allocator);
            allocator.forget(&self.publications);
        }
        Ok((number, sequence))
    }

    /// Claims the lines of calls in order with these digests, until [`Shared::release`] of each: only calls in order
    /// begin there. Fails with the fingerprint of one that is in progress, and the position of the line.
    pub fn reserve(&self, lines: &[(Line, u64)]) -> std::result::Result<(), (usize, u64)> {
        let mut state = self.state();
        let mut all = lines.iter().enumerate();
        if let Some(running) = all.find_map(|(at, (line, _))| Some((at, state.calls.running(*line, true)?))) {
            return Err(running);
        }
        state.elsewhere.extend(lines.iter().map(|(line, digest)| (*line, true, *digest)));
        Ok(())
    }

    /// Tag and fingerprint of the last call that was started, if it has published anything.
    pub fn last_call(&self) -> Option<(u64, u64)> {
        self.state().allocator.last(&self.publications)
    }

    /// The number of the last call on a line that was started; 0 if there was none, or the line is not counted.
    pub fn last_number(&self, line: Line) -> u32 {
        self.state().numbers.last(line)
    }

    /// A member that makes another call in place of that with this tag and fingerprint, and the fingerprint of its
    /// call.
    #[cold]
    pub fn other_call(&self, tag: u64, fingerprint: u64) -> Option<(Rank, u64)> {
        let differs = |theirs| replaces(theirs, fingerprint);
        let other = |member| Some((self.rank(member), self.publications.other_call(tag, member, differs)?));
        (0..self.publications.members()).filter(|member| *member != self.publications.index()).find_map(other)
    }

    /// Ends what [`Shared::claim`] has begun.
    pub fn release(&self, line: Line) {
        let calls = &mut self.state().elsewhere;
        let claimed = calls.iter().position(|(other, ..)| *other == line);
        if let Some(at) = claimed {
            calls.swap_remove(at);
        }
    }

    /// Leaves it to whoever has the engine's lock next to end the registration with this index, of a call that has
    /// ended: a thread that takes the lock for that needs half a microsecond longer. Returns false if the caller must
    /// do it.
    pub fn end_registration_later(&self, index: u32) -> bool {
        let (none, ended) = (0, u64::from(index) + 1);
        self.ended_registration.compare_exchange(none, ended, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The index of a registration that is left to be ended.
    #[inline]
    pub fn take_ended_registration(&self) -> Option<u32> {
        let any = self.ended_registration.load(Ordering::Relaxed) != 0;
        let ended = || self.ended_registration.swap(0, Ordering::Relaxed);
        any.then(ended).and_then(|ended| ended.checked_sub(1)).map(|index| index as u32)
    }

    /// Goes on with `call` whenever the context progresses, until it has ended, or [`Shared::attend`]. The caller then
    /// goes on with it once.
    pub fn leave(&self, call: Arc<dyn BackgroundOperation>) {
        self.started.add(self.local.waiting(), call);
    }

    /// Ends what [`Shared::leave`] has begun, if anything.
    pub fn attend(&self, call: *const ()) {
        self.started.remove(self.local.waiting(), call);
    }

    /// Goes on with the calls for which no thread waits. Returns what was done.
    pub fn progress(&self) -> Progress {
        let progress = self.started.progress(self.local.waiting());
        self.pass_on(progress);
        progress
    }

    /// After an attempt to go on: if there is more to do, the device does it, unless another thread comes first.
    pub fn pass_on(&self, progress: Progress) {
        if progress == Progress::More {
            self.local.wake_self();
        }
    }

    /// See [`StartedCalls::want_function`].
    pub fn want_function(&self) {
        self.started.want_function();
    }

    /// See [`StartedCalls::give_notice`].
    pub fn give_notice(&self) {
        self.started.give_notice();
    }

    /// See [`StartedCalls::take_notice`].
    #[inline]
    pub fn take_notice(&self) -> bool {
        self.started.take_notice()
    }

    /// See [`StartedCalls::next_function`].
    #[inline]
    pub fn next_function(&self) -> Option<Arc<dyn BackgroundOperation>> {
        self.started.next_function()
    }

    /// See [`StartedCalls::enter`].
    #[inline]
    pub fn enter(&self) -> bool {
        self.started.enter(self.local.waiting())
    }

    /// See [`StartedCalls::exit`].
    pub fn exit(&self) {
        self.pass_on(self.started.exit(self.local.waiting()));
    }

    /// Called before this rank sleeps: its calls for which threads wait need publications of `members` only.
    pub fn sleep(&self, members: Members) {
        self.started.sleep(self.local.waiting(), members);
    }

    /// A call for which a thread waits needs publications of `members`, too. That thread must look for them once more:
    /// this rank may sleep.
    pub fn wait_also_for(&self, members: Members) {
        self.local.waiting().wait_also_for(members);
    }

    /// Whether a call has started, has not ended, and no thread waits for it.
    pub fn has_started_calls(&self) -> bool {
        !self.started.is_empty()
    }

    /// Whether more ranks than cores take part, so that a waiting thread keeps a core from a rank that it waits for.
    pub fn shares_cores(&self) -> bool {
        self.local.shares_cores()
    }

    /// Adds a call to the cache, if it `is_current` still. Later calls with the same arguments start by
    /// [`Call::start_cached`].
    pub fn remember(&self, key: &CallKey<'_>, call: Arc<Prepared>, is_current: impl FnOnce() -> bool) {
        let mut state = self.state();
        if is_current() {
            let is_used = state.calls.use_cache();
            state.cache.set(key, call, !is_used);
        }
    }

    /// Removes all calls from the cache.
    pub fn forget_calls(&self) {
        let mut state = self.state();
        let is_used = state.calls.use_cache();
        state.cache.clear(!is_used);
    }

    /// The call with these arguments, if the cache has it.
    pub fn cached(&self, key: &CallKey<'_>) -> Option<Arc<Prepared>> {
        self.state().cache.get_any(key).cloned()
    }

    /// The scratch memory that no call uses, nor has needed all of since the last time.
    pub fn release_scratch(&self) -> Vec<Scratch> {
        let (mut state, mut released) = (self.state(), Vec::new());
        let State { calls, staging, .. } = &mut *state;
        calls.release_scratch(&mut released);
        staging.iter_mut().for_each(|own| own.release(&mut released));
        staging.retain(|own| own.bytes() > 0);
        released
    }

    /// Whether this process inherited the memory by fork.
    pub fn is_inherited(&self) -> bool {
        self.mark.is_child()
    }

    /// The rank of a member.
    pub fn rank(&self, member: usize) -> Rank {
        self.local.ranks()[member] as Rank
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    /// The fingerprint of a call in progress that a new one on `line` excludes.
    fn running(&self, line: Line, in_order: bool) -> Option<u64> {
        self.begun.iter().find_map(|call| {
            let call = call.as_ptr();
            // SAFETY: the list owns it. Line, order and fingerprint do not change while a call uses it, and `stage` is
            // atomic.
            let (stage, other, fingerprint) =
                unsafe { (&(*call).stage, ((*call).line, (*call).in_order), (*call).fingerprint) };
            (excludes((line, in_order), other) && stage.load(Ordering::Acquire) != ENDED).then_some(fingerprint)
        })
    }

    /// See [`Shared::in_progress`].
    #[cold]
    fn in_progress(&self) -> Vec<(u64, u64, bool)> {
        let of = |call: &NonNull<Entry>| {
            let call = call.as_ptr();
            // SAFETY: the list owns it. Line and fingerprint do not change while a call uses it, and the others are
            // atomic.
            let (stage, awaits, line, fingerprint) =
                unsafe { (&(*call).stage, &(*call).awaits_peer, (*call).line, (*call).fingerprint) };
            let runs = stage.load(Ordering::Acquire) == RUNNING;
            runs.then(|| (line.1, fingerprint, awaits.load(Ordering::Relaxed) == fingerprint))
        };
        self.begun.iter().filter_map(of).collect()
    }

    /// See [`Shared::runs`].
    fn runs(&self) -> Vec<Run> {
        let of = |call: &NonNull<Entry>| {
            // SAFETY: the list owns it, and `stage` is atomic.
            let stage = unsafe { &(*call.as_ptr()).stage };
            // SAFETY: while a call uses it, all that this reads does not change, or is atomic.
            (stage.load(Ordering::Acquire) == RUNNING).then(|| unsafe { run_of(*call) })
        };
        self.begun.iter().filter_map(of).collect()
    }

    /// Whether a call from the cache is in progress.
    fn use_cache(&self) -> bool {
        self.begun.iter().any(|call| {
            // SAFETY: the list owns it. `is_cached` does not change while a call uses it, and `stage` is atomic.
            let (stage, is_cached) = unsafe { (&(*call.as_ptr()).stage, (*call.as_ptr()).is_cached) };
            is_cached && stage.load(Ordering::Acquire) == RUNNING
        })
    }

    fn release_scratch(&mut self, released: &mut Vec<Scratch>) {
        for call in self.begun.iter().chain(&self.spare) {
            // SAFETY: the lists own it, and `stage` is atomic.
            if unsafe { &(*call.as_ptr()).stage }.load(Ordering::Acquire) != RUNNING {
                // SAFETY: its call has ended, and the lists are locked; whoever ends the claim uses `stage` alone.
                unsafe { &mut (*call.as_ptr()).workspace.scratch }.release(released);
            }
        }
    }

    /// Gives back the entries of calls that have ended.
    #[cold]
    fn leave(&mut self, allocator: &mut EntryAllocator) {
        for call in &self.begun {
            // SAFETY: the list owns it, and `stage` is atomic.
            if unsafe { &(*call.as_ptr()).stage }.load(Ordering::Acquire) != RUNNING {
                // SAFETY: its call has ended, and the list is locked.
                unsafe { leave(*call, allocator) };
            }
        }
    }

    /// The entry of a new call on `line`. Fails with the fingerprint of a call in progress that it excludes.
    #[inline(always)] // On the path of small collectives.
    fn begin(
        &mut self,
        allocator: &mut EntryAllocator,
        line: Line,
        in_order: bool,
    ) -> std::result::Result<NonNull<Entry>, u64> {
        let entry = match *self.begun {
            // SAFETY: the list owns it, and `stage` is atomic.
            [only] if unsafe { &(*only.as_ptr()).stage }.load(Ordering::Acquire) == ENDED => {
                // SAFETY: its call has ended, and the list is locked.
                unsafe { leave(only, allocator) };
                only
            }
            _ => self.find(allocator, line, in_order)?,
        };
        // SAFETY: no call uses it, so only this list does.
        let free = unsafe { &mut *entry.as_ptr() };
        *free.stage.get_mut() = RUNNING;
        (free.line, free.in_order) = (line, in_order);
        Ok(entry)
    }

    /// An entry for [`Calls::begin`], in the list of calls in progress.
    #[cold]
    fn find(
        &mut self,
        allocator: &mut EntryAllocator,
        line: Line,
        in_order: bool,
    ) -> std::result::Result<NonNull<Entry>, u64> {
        let (mut at, mut free) = (0, None);
        while let Some(call) = self.begun.get(at).copied() {
            let pointer = call.as_ptr();
            // SAFETY: the list owns it, and `stage` is atomic.
            let stage = unsafe { &(*pointer).stage }.load(Ordering::Acquire);
            if stage != RUNNING {
                // SAFETY: its call has ended, and the list is locked.
                unsafe { leave(call, allocator) };
            }
            if stage != ENDED {
                // SAFETY: the list owns it. Line, order and fingerprint do not change as long as they exclude others.
                let (other, fingerprint) = unsafe { (((*pointer).line, (*pointer).in_order), (*pointer).fingerprint) };
                if excludes((line, in_order), other) {
                    return Err(fingerprint);
                }
                at += 1;
                continue;
            }
            if free.is_none() {
                // Stays in the list for the new call.
                free = Some(call);
                at += 1;
            } else {
                self.begun.swap_remove(at);
                self.spare.push(call);
            }
        }
        Ok(free.unwrap_or_else(|| {
            let spare = self.spare.pop();
            let entry = spare.unwrap_or_else(|| NonNull::from(Box::leak(Box::<Entry>::default())));
            self.begun.push(entry);
            entry
        }))
    }
}

/// What the recorder says of a call.
///
/// # Safety
/// `entry` is that of a call in progress, and the list that owns it is locked, or this thread executes the call.
unsafe fn run_of(entry: NonNull<Entry>) -> Run {
    let entry = entry.as_ptr();
    // SAFETY: by the contract, only atomics may change.
    unsafe {
        let number = (*entry).number.load(Ordering::Acquire);
        let waited = number & WAITED != 0;
        let since = if waited { (*entry).waits_since.load(Ordering::Relaxed) } else { 0 };
        Run {
            number: number & !WAITED,
            fingerprint: (*entry).fingerprint,
            tag: (*entry).line.1,
            bytes: (*entry).bytes,
            link: Link::SharedMemory,
            created: since,
            started: since,
            waited_for: Awaited(if waited { (*entry).waited_for.load(Ordering::Relaxed) } else { 0 }),
        }
    }
}

/// Gives back the entry of a call that has ended.
///
/// # Safety
/// The list that owns the entry is locked, and its call is not [`RUNNING`].
#[inline]
unsafe fn leave(entry: NonNull<Entry>, allocator: &mut EntryAllocator) {
    // SAFETY: by the contract, only this thread uses the workspace; whoever ends the claim uses `stage` alone.
    let own = unsafe { &mut (*entry.as_ptr()).workspace };
    if std::mem::take(&mut own.has_entry) {
        allocator.release(&own.handle, own.readers);
    } else {
        allocator.stop_waiting(&mut own.handle);
    }
}

/// Whether a call on the line `new` cannot start while one on `other` is in progress: calls of one kind need different
/// tags, unless both are [in order](super::Binding::in_order), and a comparison of calls needs a tag on which nothing
/// runs.
#[inline]
pub fn excludes((new, new_in_order): (Line, bool), (other, other_in_order): (Line, bool)) -> bool {
    new.1 == other.1 && (new.0 == other.0 || new.0 == COMPARISON) && !(new_in_order && other_in_order)
}

impl Drop for Calls {
    fn drop(&mut self) {
        for entry in self.begun.drain(..).chain(self.spare.drain(..)) {
            // SAFETY: the lists own what they contain, and no call is left that could use it.
            drop(unsafe { Box::from_raw(entry.as_ptr()) });
        }
    }
}
