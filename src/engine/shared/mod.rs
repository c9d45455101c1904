//! Collectives of ranks that share memory, executed by the thread that makes the call.
//!
//! A schedule whose steps all use shared memory needs no events, queues or lock of the context: the calling thread
//! executes [operations](program) one after the other. Where it must wait for a peer it polls the peer's publication
//! table for a short time; the caller of [`Call::advance`] then waits with the context's lock, as for messages.

mod calls;
mod claim;
mod combine;
#[cfg(any(test, fuzzing))]
#[path = "../../testing/fuzz/shared_memory.rs"]
pub mod fuzz;
mod number;
pub mod part;
pub mod program;
mod publishing;
mod quick;
pub mod quick_start;
mod run;
mod source;
mod start;
mod started;
pub mod steps;
#[cfg(all(test, not(loom)))]
pub(super) mod tests;
mod wait;

pub use super::numbers::Line;
pub use calls::excludes;
pub use claim::Claim;
pub use run::{Call, Work};
pub use started::{Attempted, BackgroundOperation, Progress};
pub use wait::Wait;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cache::{CallCache, CallKey};
use super::numbers::Numbers;
use super::prepared::Prepared;
use super::recorder::{Recorder, Run, Writer};
use super::scratch::{Kept, Scratch};
use crate::publications::{EntryAllocator, Members, PublicationTable};
use crate::reduce::last_level_cache;
use crate::sys::ForkMark;
use crate::transport::LocalRanks;
use crate::types::Rank;
use crate::wire::fingerprint::replaces;
use calls::Calls;
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
const CALLS_PER_CLEANUP: u32 = 1 << 20;

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
        if number != 0 && number.is_multiple_of(CALLS_PER_CLEANUP) {
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
