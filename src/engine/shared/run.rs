//! One run of a program.

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use super::calls::{CLAIMED, ENDED, Entry, Workspace, run_of};
use super::program::Program;
use super::started::Progress;
use super::wait::Wait;
use super::{Shared, State, number};
use crate::engine::prepared::{Binding, Combine, Prepared};
use crate::engine::recorder::{Awaited, Run};
use crate::error::{Error, ErrorKind, Result};
use crate::publications::{ENTRIES, EntryAllocator, Full, Place};
use crate::schedule::compiled::Op;
use crate::schedule::{Buffer, Span};

/// What a call executes, on which memory.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// The shared memory.
    pub shared: &'a Shared,
    /// The program of the call's plan, or of its steps on shared memory.
    pub program: &'a Program,
    /// The call and its buffers.
    pub binding: &'a Binding<'a>,
}

/// The state of a call that the calling thread executes. All methods are called with the same work. Ends when all
/// operations are executed, or by [`Call::withdraw`].
pub struct Call {
    /// Not used after the call has ended.
    pub(super) entry: NonNull<Entry>,
    pub(super) fingerprint: u64,
    /// The next operation.
    pub(super) next: usize,
    /// The scratch memory, or what takes its place.
    pub(super) scratch: *mut u8,
    /// Whether peers that sleep may not know of the last publication or acknowledgement.
    pub(super) unannounced: bool,
    /// Whether [`QuickStart::first`](super::quick_start::QuickStart::first) was published.
    pub(super) is_quick: bool,
    /// How often the call still looks for a publication before it returns what it waits for.
    pub looks: u32,
    /// Whether the call excludes others after its end, until [`Claim::release`](super::Claim::release): that of a
    /// request does, until the wait for it has ended.
    pub claims: bool,
}

// SAFETY: the workspace in the entry belongs to the call until that has ended, and may be sent; `scratch` is in it or
// in a buffer of the caller.
unsafe impl Send for Call {}

impl Call {
    pub(super) fn new((entry, fingerprint): (NonNull<Entry>, u64)) -> Self {
        Self {
            entry,
            fingerprint,
            next: 0,
            scratch: std::ptr::null_mut(),
            unannounced: false,
            is_quick: false,
            looks: 0,
            claims: false,
        }
    }

    /// The call's fingerprint.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(super) fn workspace(&mut self) -> &mut Workspace {
        // SAFETY: the call alone uses the workspace until it has ended, and calls no method afterwards that uses it.
        unsafe { &mut (*self.entry.as_ptr()).workspace }
    }

    /// Counts the call, which is one of `call`, and notes its bytes for the recorder. Other threads read both with the
    /// lock on the state, which this one has.
    #[inline(always)] // On the path of small collectives.
    pub(super) fn count_call(&self, call: &Prepared) {
        call.counter.count();
        // SAFETY: the list of calls owns the entry, which is this call's.
        unsafe { (*self.entry.as_ptr()).bytes = call.bytes };
    }

    /// What the recorder says of the call, which has not ended.
    pub fn run(&self) -> Run {
        // SAFETY: the call has not ended, and this thread executes it.
        unsafe { run_of(self.entry) }
    }

    /// The call, which has not ended, begins to wait, or waits for something else.
    pub fn note_wait(&self, shared: &Shared, wait: Wait) {
        let entry = self.entry.as_ptr();
        // SAFETY: the list of calls owns the entry, which is this call's; these are atomic.
        let (own, since, rank) = unsafe { (&(*entry).number, &(*entry).waits_since, &(*entry).waited_for) };
        let awaited = Awaited::from(wait.member().map(|member| shared.rank(member)));
        // Only this thread changes it.
        let number = own.load(Ordering::Relaxed);
        let is_first = !number::has_waited(number);
        if awaited != Awaited::default() || is_first {
            rank.store(awaited.0, Ordering::Relaxed);
        }
        if is_first {
            since.store(shared.recorder.now(), Ordering::Relaxed);
            own.store(number::waited(number), Ordering::Release);
        }
    }

    /// Executes the call as far as possible without waiting. Returns what it waits for, or `None` when it is done.
    #[inline]
    pub fn advance(&mut self, work: &Work<'_>) -> Result<Option<Wait>> {
        if let Some(wait) = self.advance_while(work, |_| true)? {
            return Ok(Some(wait));
        }
        self.end(work.shared);
        Ok(None)
    }

    /// Executes operations as long as `allowed` says so of the next one, and none must wait. Returns what the call
    /// waits for.
    #[inline(always)] // On the path of small collectives.
    fn advance_while(&mut self, work: &Work<'_>, allowed: impl Fn(&Op) -> bool) -> Result<Option<Wait>> {
        if !self.workspace().has_entry
            && let Some(wait) = self.acquire(work)?
        {
            return Ok(Some(wait));
        }
        while let Some(op) = work.program.ops.get(self.next).filter(|op| allowed(op)) {
            if let Some(wait) = self.execute(work, op)? {
                return Ok(Some(wait));
            }
        }
        Ok(None)
    }

    /// [`Call::advance`] for a thread that does not wait for the call: it does not call the caller's function, looks
    /// around, and peers that sleep find what was published. Returns what was done.
    pub fn progress(&mut self, work: &Work<'_>) -> Result<Progress> {
        let before = self.next;
        let progress = |call: &Self| if call.next == before { Progress::None } else { Progress::Some };
        let is_local = |op: &Op| !matches!(op, Op::Combine { operands, .. } if operands.len() > 1);
        loop {
            let wait = match work.binding.call.combine {
                Combine::User => self.advance_while(work, is_local)?,
                _ => match self.advance(work)? {
                    None => return Ok(Progress::Ended),
                    wait => wait,
                },
            };
            let Some(wait) = wait else {
                if self.next == work.program.ops.len() {
                    self.end(work.shared);
                    return Ok(Progress::Ended);
                }
                self.write_streams(work);
                self.announce(work);
                return Ok(progress(self));
            };
            self.look_around(work, wait);
            if wait == Wait::Clock {
                return Ok(Progress::More);
            }
            if !self.is_ready(work, wait) {
                let fingerprint = if wait.member().is_some() { self.fingerprint } else { 0 };
                // SAFETY: as for the workspace; it is atomic.
                unsafe { &(*self.entry.as_ptr()).awaits_peer }.store(fingerprint, Ordering::Relaxed);
                self.note_wait(work.shared, wait);
                return Ok(progress(self));
            }
        }
    }

    /// Whether the call has an entry, and the next operation calls the caller's function.
    pub fn is_at_function(&mut self, work: &Work<'_>) -> bool {
        let combines = |op: &Op| matches!(op, Op::Combine { operands, .. } if operands.len() > 1);
        matches!(work.binding.call.combine, Combine::User)
            && self.workspace().has_entry
            && work.program.ops.get(self.next).is_some_and(combines)
    }

    /// Executes `op`, the next operation, or returns what it waits for.
    #[inline(always)] // On the path of small collectives.
    pub(super) fn execute(&mut self, work: &Work<'_>, op: &Op) -> Result<Option<Wait>> {
        // No result is moved that says nothing: the moves would wait for the stores of publications before them.
        match op {
            Op::Publish(from) => self.publish(work, from),
            Op::Combine { operands, into } => {
                if let Some(wait) = self.combine(work, operands, into)? {
                    return Ok(Some(wait));
                }
            }
            Op::Divide { span, by } => {
                if let Some(wait) = self.divide(work, span, *by)? {
                    return Ok(Some(wait));
                }
            }
            Op::AwaitReaders => {
                if let Some(wait) = self.await_readers(work) {
                    return Ok(Some(wait));
                }
            }
        }
        self.next += 1;
        Ok(None)
    }

    /// Occupies an entry, where there was none when the call started. Returns what the call waits for, if there is none
    /// now.
    #[cold]
    pub(super) fn acquire(&mut self, work: &Work<'_>) -> Result<Option<Wait>> {
        let (fingerprint, shared) = (self.fingerprint, work.shared);
        let mut state = shared.state();
        let State { allocator, calls, .. } = &mut *state;
        // What this call lacks, another one that has ended may have.
        calls.leave(allocator);
        // SAFETY: the list owns the entry. The line does not change while the call uses it.
        let (_, tag) = unsafe { (*self.entry.as_ptr()).line };
        let own = self.workspace();
        let mut open = |allocator: &mut EntryAllocator| {
            allocator.acquire(&shared.publications, &mut own.handle, tag, fingerprint, own.memory.room)
        };
        let mut opened = open(allocator);
        if opened == Err(Full::Cells) {
            // The call that ends next wakes this rank. One that has ended just now may not have seen that this one
            // waits.
            shared.awaits_memory.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            calls.leave(allocator);
            opened = open(allocator);
        }
        own.has_entry = opened.is_ok();
        if opened.is_ok() && allocator.has_queue() {
            // Another cell may be free for the next call in the queue, which looks when it is woken.
            shared.local.wake_self();
        }
        match opened {
            Ok(_) => Ok(None),
            Err(Full::Unread(member)) => Ok(Some(Wait::Earlier { member })),
            // The call waits for another call of this rank, which may wait for any member. One of them stands for all.
            Err(Full::Cells) => Ok(Some(Wait::Earlier { member: usize::from(shared.publications.index() == 0) })),
            Err(Full::Occupied) => Err(too_many()),
        }
    }

    /// Whether `wait` is over, or may be. The next wait may be of the same kind for another member: a member is waited
    /// for by itself, so that its end is noticed.
    #[inline]
    pub fn is_ready(&mut self, work: &Work<'_>, wait: Wait) -> bool {
        let publications = &work.shared.publications;
        if self.write_streams(work) {
            // A peer may sleep until there is more. As long as it reads, this rank does not sleep.
            self.announce(work);
            return true;
        }
        match wait {
            Wait::Publication { member, number } => {
                publications.find(&mut self.workspace().handle, member, number).is_some()
            }
            Wait::Piece { member, number, bytes } => {
                let found = publications.find(&mut self.workspace().handle, member, number).flatten();
                let place = found.map(|publication| publication.place);
                let Some(Place::Stream { cell }) = place else { return place.is_some() || bytes > 0 };
                publications.incoming(member, number, cell).is_none_or(|stream| publications.written(&stream) >= bytes)
            }
            Wait::SlowReader { member, from, number, bytes } => {
                self.is_ready(work, Wait::Piece { member: from, number, bytes }) || !self.is_delayed_by(work, member)
            }
            Wait::Reader { .. } => self.missing_reader(work) != Some(wait),
            Wait::Earlier { .. } => !matches!(self.acquire(work), Ok(Some(other)) if other == wait),
            Wait::Reason { .. } => false,
            // The caller looks at the clock.
            Wait::Clock => true,
        }
    }

    /// Looks for the peer in an entry that is not the expected one, and wakes peers that sleep. For a thread that has
    /// waited a while.
    #[cold]
    pub fn look_around(&mut self, work: &Work<'_>, wait: Wait) {
        self.announce(work);
        if let Wait::Publication { member, .. } | Wait::SlowReader { from: member, .. } = wait {
            work.shared.publications.search(&mut self.workspace().handle, member);
        }
    }

    #[inline(always)] // On the path of small collectives.
    pub(super) fn pointer(&self, work: &Work<'_>, span: &Span) -> *mut u8 {
        let base = match span.buffer {
            Buffer::Input(n) => work.binding.inputs[n as usize].cast_mut(),
            Buffer::Output(n) => work.binding.outputs[n as usize],
            Buffer::Scratch => self.scratch,
        };
        // The base of an empty buffer may be null.
        base.wrapping_add(span.offset * work.binding.call.element)
    }

    /// Ends the call: it has read all that it needed.
    #[inline(always)] // On the path of small collectives.
    pub fn end(&mut self, shared: &Shared) {
        let own = self.workspace();
        debug_assert!(own.outgoing.is_empty(), "the caller may free what is not written yet");
        shared.publications.acknowledge(&mut own.handle, |_| true);
        shared.local.wake_members(own.peers);
        // SAFETY: the call has not ended, and this thread executes it.
        let (number, tag, bytes) = unsafe {
            let entry = self.entry.as_ptr();
            ((*entry).number.load(Ordering::Relaxed), (*entry).line.1, (*entry).bytes)
        };
        if number::ends_quickly(number) {
            shared.recorder.completed_at_once(number, self.fingerprint, tag, bytes);
        } else {
            self.record_end(shared);
        }
        self.set_stage(if self.claims { CLAIMED } else { ENDED });
        shared.leave_memory();
    }

    /// Records the end of a call, if it is recorded.
    #[inline(never)]
    fn record_end(&self, shared: &Shared) {
        let run = self.run();
        if run.number != 0 {
            shared.recorder.completed(&run);
        }
    }

    /// Ends a call that fails: its publications are withdrawn, and its entry is never used again.
    #[cold]
    pub fn withdraw(&mut self, shared: &Shared) {
        let own = self.workspace();
        // A child by fork must leave the parent's memory alone.
        if std::mem::take(&mut own.has_entry) && !shared.is_inherited() {
            shared.publications.withdraw(&own.handle);
        }
        own.outgoing.clear();
        own.done = 0;
        self.set_stage(ENDED);
        shared.leave_memory();
    }

    /// The last access to the entry.
    #[inline(always)] // On the path of small collectives.
    fn set_stage(&self, stage: u8) {
        // SAFETY: the list of calls owns the entry, and gives it to no other call before this; it is atomic.
        unsafe { &(*self.entry.as_ptr()).stage }.store(stage, Ordering::Release);
    }
}

impl Shared {
    /// After the end of a call, whose memory in the publication table another one may have now: wakes this rank if one
    /// waits for it. Where ranks read each other's memory, none does.
    #[inline]
    fn leave_memory(&self) {
        if !self.reads {
            // Between the end and this look; a call that waits has the counterpart between its flag and its look at
            // what has ended.
            fence(Ordering::SeqCst);
            if self.awaits_memory.load(Ordering::Relaxed) && self.awaits_memory.swap(false, Ordering::Relaxed) {
                self.local.wake_self();
            }
        }
    }
}

#[cold]
fn too_many() -> Error {
    let text = format!(
        "{ENTRIES} calls of this context in shared memory are in progress or unread by other ranks: the most that can be"
    );
    Error::new(ErrorKind::ResourceExhausted, text)
}
