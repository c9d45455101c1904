//! How a call starts: it gets its number, its place among the calls of this rank, and an entry of the publication table
//! if there is one.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::calls::{ENDED, Entry, excludes};
use super::program::Memory;
use super::quick_start::QuickStart;
use super::run::{Call, Work};
use super::{Line, Refused, Shared, State};
use crate::engine::plan::Plan;
use crate::engine::prepared::Prepared;
use crate::publications::Members;
use crate::wire::fingerprint::{fingerprint, kind};

/// What a call needs to start.
#[derive(Clone, Copy)]
pub struct Start {
    /// Kind and tag.
    pub line: (u8, u64),
    /// Digest of the call.
    pub digest: u64,
    /// Whether calls of this kind are counted.
    pub counted: bool,
    /// See [`Binding::in_order`](crate::engine::Binding::in_order).
    pub in_order: bool,
    /// Whether the call is from the cache.
    pub is_cached: bool,
    /// How the publications use the publication table's memory.
    pub memory: Memory,
    /// Who reads this rank's publications.
    pub readers: Members,
    /// Who may wait for what it does.
    pub peers: Members,
}

impl Start {
    /// What the call in `work` needs.
    #[inline]
    pub fn new(work: &Work<'_>) -> Self {
        let Work { shared, program, binding, .. } = *work;
        let Prepared { digest, counted, element, .. } = *binding.call;
        let (memory, readers, peers) = (program.memory(element, shared.reads), program.readers, program.peers);
        let (line, in_order) = ((kind(digest), binding.tag), binding.in_order);
        Self { line, digest, counted, in_order, is_cached: false, memory, readers, peers }
    }

    /// What a call with `quick` needs. All of these are counted.
    #[inline(always)] // On the path of small collectives.
    pub(super) fn quick(call: &Prepared, quick: &QuickStart, tag: u64, is_cached: bool) -> Self {
        let QuickStart { memory, readers, peers, .. } = *quick;
        let (line, digest) = ((quick.kind, tag), call.digest);
        Self { line, digest, counted: true, in_order: false, is_cached, memory, readers, peers }
    }

    /// Begins a call, and makes its publication `first`, if that is given, and if it has got an entry.
    ///
    /// # Safety
    /// See [`EntryAllocator::acquire_and_publish`](crate::publications::EntryAllocator::acquire_and_publish).
    #[inline(always)] // On the path of small collectives.
    pub(super) unsafe fn begin(
        &self,
        shared: &Shared,
        state: &mut State,
        first: Option<(*const u8, usize)>,
    ) -> std::result::Result<(NonNull<Entry>, u64), Refused> {
        if !shared.usable.load(Ordering::Acquire) {
            return Err(Refused::Unusable);
        }
        let may_not =
            |(line, in_order, _): &&(Line, bool, u64)| excludes((self.line, self.in_order), (*line, *in_order));
        if let Some((.., other)) = state.elsewhere.iter().find(may_not) {
            return Err(Refused::Running(*other));
        }
        let entry = state.calls.begin(&mut state.allocator, self.line, self.in_order).map_err(Refused::Running)?;
        let number = if self.counted { state.numbers.next(self.line) } else { 0 };
        if self.counted && number == 0 {
            return Err(refuse_uncounted(entry));
        }
        let fingerprint = fingerprint(self.digest, number);
        // SAFETY: by the contract.
        unsafe { self.occupy(shared, state, entry, fingerprint, first) };
        state.begun += u64::from(self.counted);
        // SAFETY: as in `occupy`.
        unsafe { *(*entry.as_ptr()).number.get_mut() = if self.counted { state.begun } else { 0 } };
        Ok((entry, fingerprint))
    }

    /// Uses `entry` for a call, which gets a publication entry if there is one. `first`: see [`Start::begin`].
    ///
    /// # Safety
    /// `first` is as [`Start::begin`] demands.
    #[inline(always)] // As above.
    pub(super) unsafe fn occupy(
        &self,
        shared: &Shared,
        state: &mut State,
        entry: NonNull<Entry>,
        fingerprint: u64,
        first: Option<(*const u8, usize)>,
    ) {
        // SAFETY: other threads read the entry only with the state's lock, which this one has, and the call uses it
        // from now on.
        let entry = unsafe { &mut *entry.as_ptr() };
        let own = &mut entry.workspace;
        let Start { line: (_, tag), is_cached, memory, readers, peers, .. } = *self;
        // SAFETY: by the contract.
        let opened = unsafe {
            state.allocator.acquire_and_publish(
                &shared.publications,
                &mut own.handle,
                (tag, fingerprint),
                memory.room,
                first,
            )
        };
        (entry.fingerprint, entry.is_cached, own.memory) = (fingerprint, is_cached, memory);
        (own.readers, own.peers) = (readers, peers);
        (own.has_entry, own.copies) = (opened.is_ok(), opened.is_ok_and(|copies| copies));
    }
}

impl Call {
    /// Starts a call.
    #[inline]
    pub fn start(work: &Work<'_>) -> std::result::Result<Self, Refused> {
        let Work { shared, program, binding } = *work;
        let element = binding.call.element;
        let mut state = shared.state();
        // SAFETY: nothing is published.
        let mut call = Self::new(unsafe { Start::new(work).begin(shared, &mut state, None) }?);
        call.count_call(binding.call);
        drop(state);
        let copy = program.skips_copy(element).filter(|_| call.workspace().copies);
        let copy = copy.map(|span| call.pointer(work, &span));
        if !call.make_scratch(shared, copy, &binding.call.plan, element) {
            call.withdraw(shared);
            return Err(Refused::NoMemory);
        }
        Ok(call)
    }

    /// Makes scratch memory, unless it is not needed because `copy` takes its place. Returns whether there is enough
    /// memory.
    pub(super) fn make_scratch(&mut self, shared: &Shared, copy: Option<*mut u8>, plan: &Plan, element: usize) -> bool {
        if let Some(copy) = copy {
            // The first operation is the copy.
            (self.scratch, self.next) = (copy, 1);
            return true;
        }
        let own = self.workspace();
        let made = own.scratch.reserve(&shared.kept, plan.scratch, element);
        self.scratch = own.scratch.pointer();
        made
    }
}

#[cold]
fn refuse_uncounted(entry: NonNull<Entry>) -> Refused {
    // SAFETY: the list of calls owns the entry, and the call does not begin.
    unsafe { &(*entry.as_ptr()).stage }.store(ENDED, Ordering::Release);
    Refused::Uncounted
}
