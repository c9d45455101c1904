//! One run of a prepared call on buffers, from its start to its end, whoever executes its steps.

use std::sync::Arc;
use std::time::Instant;

use crate::context::Context;
use crate::context::run::Run;
use crate::context::shared::SharedCall;
use crate::engine::shared::{Claim, Progress};
use crate::engine::{Guard, Prepared};
use crate::error::{Error, ErrorKind, Result};

/// A run that has started. Every method of the context is passed the run with which it was started.
pub(super) enum Operation {
    /// The engine executes its steps: its index there.
    Engine(u32),
    /// All its steps are on shared memory, and the thread that goes on with it executes them.
    Thread(SharedCall),
}

impl Operation {
    /// Its index in the engine, if that knows of it.
    pub fn index(&self) -> Option<u32> {
        match self {
            Self::Engine(index) => Some(*index),
            Self::Thread(call) => call.index,
        }
    }

    /// The call that a thread executes.
    pub fn in_thread(&mut self) -> Option<&mut SharedCall> {
        match self {
            Self::Engine(_) => None,
            Self::Thread(call) => Some(call),
        }
    }

    /// Sets the claim of a run that a thread has executed, and that has ended well.
    pub fn keep(&mut self, claim: &Claim) {
        self.in_thread().into_iter().for_each(|call| call.keep(claim));
    }
}

impl Context {
    /// Starts `call`, which is that of the binding of `run`: posts what can be posted without waiting. Returns the
    /// lock, if it was taken.
    #[inline(always)] // Both this and `complete` are parts of `execute`, which costs no more for being in two.
    pub(super) fn begin(&self, run: &Run<'_>, call: &Arc<Prepared>) -> Result<(Option<Guard<'_>>, Operation)> {
        if let Some(work) = self.shared_work(&run.binding) {
            return Ok((None, Operation::Thread(self.begin_shared(run, &work)?)));
        }
        let mut guard = self.lock()?;
        if let Some(error) = self.unconnected(&guard) {
            return Err(self.described(run, &error));
        }
        // A call without any time may do what needs no waiting.
        let deadline = (!run.timeout.is_zero()).then_some(run.deadline);
        match guard.start(call.clone(), &run.binding, deadline) {
            Ok(index) => Ok((Some(guard), Operation::Engine(index))),
            Err(error) => Err(self.refused(run, guard, &error)),
        }
    }

    /// The error for a call that does not start.
    #[cold]
    pub(super) fn refused(&self, run: &Run<'_>, mut guard: Guard<'_>, error: &Error) -> Error {
        let error = self.described(run, error);
        // The other ranks wait for this one, so they are sent the reason.
        if guard.broken.is_some() || error.kind() == ErrorKind::ResourceExhausted {
            let reason = guard.broken.clone().unwrap_or_else(|| error.clone());
            let failure = self.snapshot_of_failure(&mut guard, &reason);
            guard.break_with(&error, Some(&reason));
            self.finish_closing(guard);
            self.dump_failure(failure);
        }
        error
    }

    /// Goes on without waiting, for a thread that does not wait for the run. If that is `is_late` while there is more
    /// to do, it fails. Those whose steps the engine executes go on with it.
    pub(super) fn progress(&self, run: &Run<'_>, operation: &mut Operation, is_late: impl Fn() -> bool) -> Progress {
        let work = operation.in_thread().zip(self.shared_work(&run.binding));
        work.map_or(Progress::None, |(call, work)| call.progress(&work, is_late))
    }

    /// Executes a run until it is over, its deadline has passed, or `until`; without that, as far as possible without
    /// waiting. Returns whether it is over, or its deadline has passed.
    pub(super) fn advance(&self, run: &Run<'_>, operation: &mut Operation, until: Option<Instant>) -> Result<bool> {
        match operation {
            Operation::Engine(index) => {
                let guard = self.lock()?;
                let until = until.map_or(guard.now, |until| until.min(run.deadline));
                let (guard, over) = self.engine().finish(guard, *index, until);
                self.engine().hand_over(guard);
                Ok(over || self.engine().now() >= run.deadline)
            }
            Operation::Thread(call) => {
                self.shared_work(&run.binding).map_or(Ok(true), |work| self.advance_shared(run, &work, call, until))
            }
        }
    }

    /// Executes a run until it is over, and ends it; `guard`: the lock, if the thread has it. A failure breaks the
    /// context.
    #[inline(always)] // See `begin`.
    pub(super) fn complete(&self, run: &Run<'_>, guard: Option<Guard<'_>>, operation: &mut Operation) -> Result<()> {
        match operation {
            Operation::Engine(index) => {
                let guard = guard.map_or_else(|| self.lock(), Ok)?;
                let (guard, over) = self.engine().finish(guard, *index, run.deadline);
                self.conclude(run, guard, *index, over)
            }
            Operation::Thread(call) => {
                self.shared_work(&run.binding).map_or(Ok(()), |work| self.complete_shared(run, &work, call))
            }
        }
    }
}
