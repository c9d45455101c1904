//! One run of a prepared call on buffers, from its start to its end, whoever executes its steps.

use std::sync::Arc;
use std::time::Instant;

use crate::context::fused::Fused;
use crate::context::outcome::Outcome;
use crate::context::run::Run;
use crate::context::shared::SharedCall;
use crate::engine::shared::{Claim, Progress};
use crate::engine::{Guard, Prepared};
use crate::error::Result;

/// A run that has started. Its methods are passed the run with which it was started.
pub(super) enum Operation {
    /// The engine executes its steps: its index there.
    Engine(u32),
    /// All its steps are on shared memory, and the thread that goes on with it executes them.
    Thread(SharedCall),
    /// Its elements are those from this byte on of a call that it shares with others.
    Fused(Arc<Fused>, usize),
}

impl Operation {
    /// Starts `call`, which is that of the binding of `run`: posts what can be posted without waiting. Returns the
    /// lock, if it was taken.
    #[inline(always)] // Both this and `complete` are parts of `execute`, which costs no more for being in two.
    pub fn begin<'a>(run: &Run<'a>, call: &Arc<Prepared>) -> Result<(Option<Guard<'a>>, Self)> {
        let context = run.context;
        if let Some(work) = context.shared_work(&run.binding) {
            return Ok((None, Self::Thread(SharedCall::begin(run, &work)?)));
        }
        let mut guard = context.lock()?;
        if let Some(error) = context.unconnected(&guard) {
            return Err(run.described(&error));
        }
        // A call without any time may do what needs no waiting.
        let deadline = (!run.timeout.is_zero()).then_some(run.deadline);
        match guard.start(call.clone(), &run.binding, deadline) {
            Ok(index) => Ok((Some(guard), Self::Engine(index))),
            Err(error) => Err(run.refused(guard, &error)),
        }
    }

    /// Goes on without waiting, for a thread that does not wait for the run. If that is `is_late` while there is more
    /// to do, it fails. Those whose steps the engine executes go on with it.
    pub fn progress(&mut self, run: &Run<'_>, is_late: impl Fn() -> bool) -> Progress {
        let work = self.in_thread().zip(run.context.shared_work(&run.binding));
        work.map_or(Progress::None, |(call, work)| call.progress(&work, is_late))
    }

    /// Executes a run until it is over, its deadline has passed, or `until`; without that, as far as possible without
    /// waiting. Returns whether it is over, or its deadline has passed.
    pub fn advance(&mut self, run: &Run<'_>, until: Option<Instant>) -> Result<bool> {
        let context = run.context;
        match self {
            Self::Engine(index) => {
                let guard = context.lock()?;
                let until = until.map_or(guard.now, |until| until.min(run.deadline));
                let (guard, over) = context.engine().finish(guard, *index, until);
                context.engine().hand_over(guard);
                Ok(over || context.engine().now() >= run.deadline)
            }
            Self::Thread(call) => {
                context.shared_work(&run.binding).map_or(Ok(true), |work| call.advance(run, &work, until))
            }
            Self::Fused(fused, _) => fused.advance(until),
        }
    }

    /// Executes a run until it is over, and ends it; `guard`: the lock, if the thread has it. A failure breaks the
    /// context.
    #[inline(always)] // See `begin`.
    pub fn complete(&mut self, run: &Run<'_>, guard: Option<Guard<'_>>) -> Result<()> {
        let context = run.context;
        match self {
            Self::Engine(index) => {
                let guard = guard.map_or_else(|| context.lock(), Ok)?;
                let (guard, over) = context.engine().finish(guard, *index, run.deadline);
                Outcome { run, guard, index: *index, is_over: over }.conclude()
            }
            Self::Thread(call) => context.shared_work(&run.binding).map_or(Ok(()), |work| call.complete(run, &work)),
            Self::Fused(fused, at) => {
                fused.complete()?;
                // SAFETY: by the contract of `Context::request`, the output is valid until the request is inactive, and
                // these are its elements.
                run.binding.outputs.iter().for_each(|output| unsafe { fused.copy_out(*at, *output, run.call.bytes) });
                Ok(())
            }
        }
    }

    /// Its index in the engine, if that knows of it.
    pub fn index(&self) -> Option<u32> {
        match self {
            Self::Engine(index) => Some(*index),
            Self::Thread(call) => call.index,
            // Each thread that waits knows it by what they share.
            Self::Fused(..) => None,
        }
    }

    /// The call that a thread executes.
    pub fn in_thread(&mut self) -> Option<&mut SharedCall> {
        match self {
            Self::Engine(_) | Self::Fused(..) => None,
            Self::Thread(call) => Some(call),
        }
    }

    /// Sets the claim of a run that a thread has executed, and that has ended well.
    pub fn keep(&mut self, claim: &Claim) {
        self.in_thread().into_iter().for_each(|call| call.keep(claim));
    }
}

impl Run<'_> {
    /// Executes `call`, which is that of the binding.
    #[inline(never)]
    pub fn execute(&self, call: &Arc<Prepared>) -> Result<()> {
        let admitted = self.admit()?;
        let (guard, mut operation) = Operation::begin(self, call)?;
        drop(admitted);
        operation.complete(self, guard)
    }
}
