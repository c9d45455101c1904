//! The calls of this rank that are in progress on shared memory: which of them exclude which, and what each uses.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::number;
use super::program::Memory;
use super::source::Source;
use crate::engine::numbers::Line;
use crate::engine::recorder::{Awaited, Link, Run};
use crate::engine::scratch::Scratch;
use crate::publications::{EntryAllocator, EntryHandle, Members, Outgoing};
use crate::transport::local::InPlace;
use crate::wire::fingerprint::COMPARISON;

/// The list of calls.
#[derive(Default)]
pub(super) struct Calls {
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
/// It has ended, and still excludes others: see [`Claim`](super::Claim).
pub(super) const CLAIMED: u8 = 1;
/// It has ended.
pub(super) const ENDED: u8 = 2;

/// A call in the list, which later calls reuse: what other threads read of it, and its workspace. While it is
/// [`RUNNING`], there is no `&mut` but to the workspace.
#[derive(Default)]
pub(super) struct Entry {
    /// The fingerprint of the call, if it waited for a peer when a thread last went on with it that does not wait for
    /// it.
    pub awaits_peer: AtomicU64,
    /// What the call does. Set, as its last access to this, by the thread that makes the call; then by the one that
    /// ends its claim.
    pub stage: AtomicU8,
    pub line: Line,
    /// See [`Binding::in_order`](crate::engine::Binding::in_order).
    pub in_order: bool,
    pub fingerprint: u64,
    /// Its number in the [`Recorder`](crate::engine::recorder::Recorder), in the form of [`number`]; 0 if it is not
    /// recorded there.
    pub number: AtomicU64,
    /// Bytes of the call, for the recorder.
    pub bytes: usize,
    /// If it has waited: when it began to, in ticks of the recorder.
    pub waits_since: AtomicU64,
    /// If it has waited: the rank for which it has waited last, as [`Awaited`].
    pub waited_for: AtomicU32,
    /// Whether the call is from the cache, and uses what that has of it.
    pub is_cached: bool,
    pub workspace: Workspace,
}

/// Memory that a call alone uses.
#[derive(Default)]
pub(super) struct Workspace {
    /// Whether it has an entry of the publication table that must be given back.
    pub has_entry: bool,
    /// Whether it had one from the beginning, with memory for copies of all that may be copied.
    pub copies: bool,
    /// Who reads what the call publishes.
    pub readers: Members,
    /// Who may wait for what the call does.
    pub peers: Members,
    /// How its publications use the publication table's memory.
    pub memory: Memory,
    pub handle: EntryHandle,
    /// Publications that are not written to their end.
    pub outgoing: Vec<Outgoing>,
    /// Elements of the next operation that are done.
    pub done: usize,
    /// Bytes of results since the last look at the clock.
    pub touched: usize,
    pub scratch: Scratch,
    /// The operands of an operation: as published, and of a piece that was read from other processes.
    pub sources: Vec<Source>,
    pub staged: Vec<Source>,
    /// Keeps memory of peers mapped while an operation reads it.
    pub in_place: Vec<InPlace>,
}

impl Calls {
    /// The fingerprint of a call in progress that a new one on `line` excludes.
    pub fn running(&self, line: Line, in_order: bool) -> Option<u64> {
        self.begun.iter().find_map(|call| {
            let call = call.as_ptr();
            // SAFETY: the list owns it. Line, order and fingerprint do not change while a call uses it, and `stage` is
            // atomic.
            let (stage, other, fingerprint) =
                unsafe { (&(*call).stage, ((*call).line, (*call).in_order), (*call).fingerprint) };
            (excludes((line, in_order), other) && stage.load(Ordering::Acquire) != ENDED).then_some(fingerprint)
        })
    }

    /// See [`Shared::in_progress`](super::Shared::in_progress).
    #[cold]
    pub fn in_progress(&self) -> Vec<(u64, u64, bool)> {
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

    /// See [`Shared::runs`](super::Shared::runs).
    pub fn runs(&self) -> Vec<Run> {
        let of = |call: &NonNull<Entry>| {
            // SAFETY: the list owns it, and `stage` is atomic.
            let stage = unsafe { &(*call.as_ptr()).stage };
            // SAFETY: while a call uses it, all that this reads does not change, or is atomic.
            (stage.load(Ordering::Acquire) == RUNNING).then(|| unsafe { run_of(*call) })
        };
        self.begun.iter().filter_map(of).collect()
    }

    /// Whether a call from the cache is in progress.
    pub fn use_cache(&self) -> bool {
        self.begun.iter().any(|call| {
            // SAFETY: the list owns it. `is_cached` does not change while a call uses it, and `stage` is atomic.
            let (stage, is_cached) = unsafe { (&(*call.as_ptr()).stage, (*call.as_ptr()).is_cached) };
            is_cached && stage.load(Ordering::Acquire) == RUNNING
        })
    }

    pub fn release_scratch(&mut self, released: &mut Vec<Scratch>) {
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
    pub fn leave(&mut self, allocator: &mut EntryAllocator) {
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
    pub fn begin(
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

impl Drop for Calls {
    fn drop(&mut self) {
        for entry in self.begun.drain(..).chain(self.spare.drain(..)) {
            // SAFETY: the lists own what they contain, and no call is left that could use it.
            drop(unsafe { Box::from_raw(entry.as_ptr()) });
        }
    }
}

/// What the recorder says of a call.
///
/// # Safety
/// `entry` is that of a call in progress, and the list that owns it is locked, or this thread executes the call.
pub(super) unsafe fn run_of(entry: NonNull<Entry>) -> Run {
    let entry = entry.as_ptr();
    // SAFETY: by the contract, only atomics may change.
    unsafe {
        let number = (*entry).number.load(Ordering::Acquire);
        let waited = number::has_waited(number);
        let since = if waited { (*entry).waits_since.load(Ordering::Relaxed) } else { 0 };
        Run {
            number: number::of(number),
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
/// tags, unless both are [in order](crate::engine::Binding::in_order), and a comparison of calls needs a tag on which
/// nothing runs.
#[inline]
pub fn excludes((new, new_in_order): (Line, bool), (other, other_in_order): (Line, bool)) -> bool {
    new.1 == other.1 && (new.0 == other.0 || new.0 == COMPARISON) && !(new_in_order && other_in_order)
}
