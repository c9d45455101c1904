//! The steps on shared memory of a call that also sends messages, which the engine executes in the order of the list,
//! beside its messages. Where one of them must wait for a peer, whoever progresses the context looks for what it needs.
//! Publications that are streams are written on at the same time: whatever the next step waits for, also for messages,
//! peers may wait for them.

use super::start::Start;
use super::steps::SharedSteps;
use super::{Call, Refused, Shared, Wait, Work};
use crate::engine::errors::too_slow;
use crate::error::Result;
use crate::publications::Members;
use crate::wire::fingerprint::number;

/// The steps on shared memory of a call in progress. All methods are called with the same work. Ends by [`Part::end`]
/// or [`Part::withdraw`].
pub struct Part {
    call: Call,
    /// What its next step waits for.
    wait: Option<Wait>,
    /// Whether peers may not know of the last steps.
    unannounced: bool,
    /// See [`Part::awaited`].
    awaited: Members,
}

impl Part {
    /// Starts the steps of a call for which [`Shared::claim`] has succeeded.
    pub fn start(work: &Work<'_>, fingerprint: u64) -> std::result::Result<Self, Refused> {
        if work.binding.call.counted && number(fingerprint) == 0 {
            return Err(Refused::Uncounted);
        }
        Ok(Self { call: Call::join(work, fingerprint)?, wait: None, unannounced: false, awaited: 0 })
    }

    /// The index of the step that is executed next, unless it waits.
    pub fn next(&self, steps: &SharedSteps) -> Option<u32> {
        steps.indices.get(self.call.next).copied().filter(|_| self.wait.is_none())
    }

    /// Executes the next step. Returns whether it is done; otherwise it waits. Fails if `is_late` while it waits for
    /// nobody.
    pub fn execute(&mut self, work: &Work<'_>, is_late: impl Fn() -> bool) -> Result<bool> {
        self.wait = self.call.execute_next(work)?;
        while self.wait == Some(Wait::Clock) {
            if is_late() {
                return Err(too_slow());
            }
            self.wait = self.call.execute_next(work)?;
        }
        self.unannounced |= self.wait.is_none();
        Ok(self.wait.is_none())
    }

    /// Lets peers know what this rank has published, and what it does not read any more.
    pub fn announce(&mut self, work: &Work<'_>) {
        if std::mem::take(&mut self.unannounced) {
            self.call.acknowledge_finished(work);
        } else {
            self.call.announce(work);
        }
    }

    /// Whether it waits for peers: the next step, or a stream.
    pub fn waits(&self) -> bool {
        self.wait.is_some() || self.call.is_writing()
    }

    /// The members for which it waits, if others than at the last time, or since [`Part::look`] has found something:
    /// that for which the next step waits, and those that delay streams. If one of these ends, it may be that nobody
    /// else waits for it.
    pub fn awaited(&mut self, work: &Work<'_>) -> Option<Members> {
        let of_step = self.wait.and_then(Wait::member).map_or(0, |member| 1 << member);
        let awaited = of_step | self.call.slow_readers(work);
        (std::mem::replace(&mut self.awaited, awaited) != awaited).then_some(awaited)
    }

    /// Looks for what the next step waits for, which then waits no more, and writes streams on. Looks everywhere, since
    /// whoever looked in vain may sleep. Returns whether anything was found or written.
    pub fn look(&mut self, work: &Work<'_>) -> bool {
        let found = match self.wait {
            Some(wait) => {
                self.call.look_around(work, wait);
                self.call.is_ready(work, wait)
            }
            None => self.call.write_streams(work),
        };
        if found {
            (self.wait, self.awaited) = (None, 0);
        }
        found
    }

    /// The memory that the call keeps aside.
    pub fn scratch(&self) -> *mut u8 {
        self.call.scratch
    }

    /// Ends a call of which all steps are done.
    pub fn end(mut self, shared: &Shared) {
        self.call.end(shared);
    }

    /// Ends a call that fails.
    pub fn withdraw(mut self, shared: &Shared) {
        self.call.withdraw(shared);
    }
}

impl Call {
    /// Starts the steps on shared memory of a call that also sends messages, and for which [`Shared::claim`] has
    /// succeeded. `work` has the program of these steps.
    fn join(work: &Work<'_>, fingerprint: u64) -> std::result::Result<Self, Refused> {
        let Work { shared, binding, .. } = *work;
        let start = Start::new(work);
        let mut call = {
            let state = &mut *shared.state();
            let entry =
                state.calls.begin(&mut state.allocator, start.line, start.in_order).map_err(Refused::Running)?;
            // SAFETY: nothing is published.
            unsafe { start.occupy(shared, state, entry, fingerprint, None) };
            // The engine records the call.
            // SAFETY: as in `occupy`.
            unsafe { *(*entry.as_ptr()).number.get_mut() = 0 };
            Self::new((entry, fingerprint))
        };
        if !call.workspace().scratch.reserve(&shared.kept, binding.call.plan.scratch, binding.call.element) {
            call.withdraw(shared);
            return Err(Refused::NoMemory);
        }
        call.scratch = call.workspace().scratch.pointer();
        Ok(call)
    }

    /// Executes the next operation, if there is one. Returns what it waits for, or `None` when it is done.
    fn execute_next(&mut self, work: &Work<'_>) -> Result<Option<Wait>> {
        if !self.workspace().has_entry
            && let Some(wait) = self.acquire(work)?
        {
            return Ok(Some(wait));
        }
        work.program.ops.get(self.next).map_or(Ok(None), |op| self.execute(work, op))
    }

    /// Lets peers know what was published, and that this rank does not read any more from those of which it has fetched
    /// all.
    fn acknowledge_finished(&mut self, work: &Work<'_>) {
        let (last_fetch, next) = (&work.program.last_fetch, self.next);
        work.shared.publications.acknowledge(&mut self.workspace().handle, |member| last_fetch[member] < next);
        work.shared.local.wake_members(work.program.peers);
        self.unannounced = false;
    }
}
