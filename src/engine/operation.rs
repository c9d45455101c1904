//! One run of a prepared call: what it is, and who executes its steps.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Instant;

use crate::engine::execution::{Execution, MEMORY, Reduction, Run};
use crate::engine::prepared::{Combine, Identity, Prepared};
use crate::engine::ready::OnEnd;
use crate::error::{Error, ErrorKind, Result};
use crate::messaging::Messenger;
use crate::publications::Members;

/// A run that the engine knows of.
pub struct Operation {
    /// What it is.
    pub id: Identity,
    /// The error, if it has failed.
    pub failed: Option<Error>,
    /// The call, and what executes its steps in the engine. `None` if the thread that has made the call executes them:
    /// it says here for which peers it waits.
    steps: Option<(Arc<Prepared>, Box<Execution>)>,
    /// The members whose publications that thread needs next.
    pub awaited: Members,
    /// Whether any thread that waits on the context may call its function.
    pub shares_function: bool,
    /// The thread that calls its function, if any thread may.
    pub caller: Option<ThreadId>,
    /// See [`Binding::in_order`](super::Binding::in_order).
    pub in_order: bool,
    /// Is told of its end, once.
    pub on_end: Option<Arc<dyn OnEnd>>,
}

impl Operation {
    /// One that has not failed.
    pub fn new(id: Identity, steps: Option<(Arc<Prepared>, Box<Execution>)>) -> Self {
        Self {
            id,
            failed: None,
            steps,
            awaited: 0,
            shares_function: false,
            caller: None,
            in_order: false,
            on_end: None,
        }
    }

    /// Whether it has completed or failed.
    pub fn is_over(&self) -> bool {
        self.failed.is_some() || self.steps().is_some_and(Execution::is_done)
    }

    /// After a change: whether a thread may wait for this, since the run is over or wants its function.
    pub fn note(&mut self, now: Instant) -> bool {
        let is_over = self.is_over();
        if is_over && !self.is_reducing() {
            self.on_end.take().into_iter().for_each(|on_end| on_end.ended(now));
        }
        is_over || self.wants_function()
    }

    /// Whether the caller's function is running.
    pub fn is_reducing(&self) -> bool {
        self.steps().is_some_and(|steps| steps.reducing)
    }

    /// Whether a segment is to be reduced by the caller's function.
    pub fn wants_function(&self) -> bool {
        self.steps().is_some_and(Execution::wants_function)
    }

    /// Whether a function of the caller combines its elements.
    pub fn has_function(&self) -> bool {
        self.steps.as_ref().is_some_and(|(call, _)| matches!(call.combine, Combine::User))
    }

    /// Whether its steps wait in the engine for what a peer does in shared memory.
    pub fn waits_in_memory(&self) -> bool {
        self.failed.is_none() && self.steps().is_some_and(Execution::waits_in_memory)
    }

    /// The members whose publications it may need. If the engine executes its steps, these change while another thread
    /// sleeps.
    pub fn awaited(&self) -> Members {
        if self.uses_memory() { Members::MAX } else { self.awaited }
    }

    /// Whether the engine executes steps on shared memory for it.
    pub fn uses_memory(&self) -> bool {
        self.steps().is_some_and(Execution::uses_memory)
    }

    fn steps(&self) -> Option<&Execution> {
        self.steps.as_ref().map(|(_, steps)| &**steps)
    }

    /// Calls `act` with the steps, if the engine executes them, unless the run has failed. It fails if that does.
    fn execute<R: Default>(&mut self, act: impl FnOnce(&mut Execution, Run<'_>) -> Result<R>) -> R {
        let Some((call, steps)) = self.steps.as_mut().filter(|_| self.failed.is_none()) else { return R::default() };
        act(steps, (call, &self.id)).unwrap_or_else(|error| {
            self.failed = Some(error);
            R::default()
        })
    }

    /// Posts all segments without unmet dependencies.
    pub fn begin(&mut self, messenger: &mut Messenger) {
        self.execute(|steps, run| steps.post(run, messenger, true));
    }

    /// A posted segment of step `detail` is done. Posts segments that depended on it.
    pub fn segment_done(&mut self, detail: u32, bytes: usize, messenger: &mut Messenger) {
        self.execute(|steps, run| steps.segment_done(run, detail, bytes, messenger));
    }

    /// One of its messages or waits has failed.
    pub fn message_failed(&mut self, detail: u32, error: Error, messenger: &mut Messenger) {
        // A peer for which it waits in shared memory may have done before what it waits for.
        if detail != MEMORY || !self.look(messenger) {
            self.failed.get_or_insert(error);
        }
    }

    /// Looks for what it waits for in shared memory. Returns whether there was anything to do, or the run has failed.
    pub fn look(&mut self, messenger: &mut Messenger) -> bool {
        self.execute(|steps, run| steps.look(run, messenger)) || self.failed.is_some()
    }

    /// The segment that the caller's function is to reduce next, on this thread. Pass the result to
    /// [`Operation::reduced`].
    pub fn next_reduction(&mut self) -> Option<Reduction> {
        let (call, steps) = self.steps.as_mut()?;
        if self.shares_function {
            self.caller = Some(std::thread::current().id());
        }
        steps.next_reduction(call)
    }

    /// The caller's function has returned `status`. Posts segments that depended on the reduction, unless the run has
    /// failed.
    pub fn reduced(&mut self, reduction: &Reduction, status: i32, messenger: &mut Messenger) {
        self.caller = None;
        if let Some((_, steps)) = &mut self.steps {
            steps.reducing = false;
        }
        self.execute(|steps, run| match status {
            0 => steps.reduced(run, reduction, messenger),
            _ => {
                let text = format!("the caller's reduction function returned {status}");
                Err(Error::new(ErrorKind::Callback, text))
            }
        });
    }

    /// Ends it: its memory is not accessed afterwards. Returns what has executed its steps in the engine.
    pub fn end(&mut self) -> Option<Box<Execution>> {
        let well = self.failed.is_none() && self.is_over();
        let (_, mut steps) = self.steps.take()?;
        steps.leave_memory(well);
        Some(steps)
    }
}
