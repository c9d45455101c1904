//! The steps of a run on memory that ranks of one host share.

use std::sync::Arc;

use super::{Execution, Run, internal, is_past};
use crate::engine::errors::{no_room, uncounted};
use crate::engine::plan::Plan;
use crate::engine::prepared::{Binding, Identity};
use crate::engine::shared::part::Part;
use crate::engine::shared::steps::SharedSteps;
use crate::engine::shared::{Refused, Shared, Work};
use crate::error::Result;
use crate::messaging::{Messenger, Token};
use crate::publications::each;

/// The detail in the token of a wait for what a peer does in shared memory. Others are indices of steps.
pub const MEMORY: u32 = u32::MAX;

impl Execution {
    /// Starts the steps of a run on shared memory, if there are any.
    pub(super) fn enter_memory(
        &mut self,
        binding: &Binding<'_>,
        id: &Identity,
        shared: Option<&Arc<Shared>>,
    ) -> Result<()> {
        let plan = &binding.call.plan;
        let Some(steps) = &plan.shared_steps else { return Ok(()) };
        let shared = shared.ok_or_else(|| internal("a schedule uses shared memory, which this rank does not have"))?;
        let work = Work { shared, program: &steps.program, binding };
        let part = Part::start(&work, id.fingerprint).map_err(|refused| match refused {
            Refused::NoMemory => no_room(plan.scratch, binding.call.element),
            Refused::Uncounted => uncounted(binding.tag),
            Refused::Running(_) | Refused::Unusable => internal("a call with its tag uses the shared memory"),
        })?;
        (self.part, self.shared) = (Some(part), Some(shared.clone()));
        Ok(())
    }

    /// Executes a step on shared memory if it is the next one, or waits for what it needs.
    pub(super) fn step_in_memory(&mut self, run: Run<'_>, index: u32) -> Result<()> {
        let (deadline, clock) = (self.deadline, self.clock.clone());
        let is_late = || is_past(deadline, clock.as_ref());
        let is_next = |part: &Part, steps: &SharedSteps| part.next(steps) == Some(index);
        let act = |part: &mut Part, steps: &SharedSteps, work: &Work<'_>| {
            if is_next(part, steps) { part.execute(work, is_late) } else { Ok(false) }
        };
        let none = || Err(internal("a schedule uses shared memory, which this run does not"));
        if self.in_memory(run, act).unwrap_or_else(none)? {
            let plan = &*run.0.plan;
            let len = plan.steps[index as usize].len;
            self.progress[index as usize].posted = len;
            self.advance_done(plan, index, len);
            self.work.extend(self.next_in_memory(plan));
        }
        Ok(())
    }

    fn next_in_memory(&self, plan: &Plan) -> Option<u32> {
        self.part.as_ref()?.next(plan.shared_steps.as_ref()?)
    }

    /// Whether it has steps on shared memory, which may wait for what a peer does there.
    pub fn uses_memory(&self) -> bool {
        self.part.is_some()
    }

    /// Whether it waits for what a peer does in shared memory.
    pub fn waits_in_memory(&self) -> bool {
        self.part.as_ref().is_some_and(Part::waits)
    }

    /// Looks for what it waits for in shared memory, and writes on what others read piece by piece. If there was
    /// anything to do, goes on, and returns true.
    pub fn look(&mut self, run: Run<'_>, messenger: &mut Messenger) -> Result<bool> {
        let found = self.in_memory(run, |part, _, work| part.look(work)) == Some(true);
        if found {
            messenger.end_wait_for_publication(memory_token(run.1));
            self.work.extend(self.next_in_memory(&run.0.plan));
            self.post(run, messenger, false)?;
        }
        Ok(found)
    }

    /// Ends the use of shared memory; `well`: all steps are done.
    pub fn leave_memory(&mut self, well: bool) {
        if let (Some(part), Some(shared)) = (self.part.take(), self.shared.take()) {
            if well { part.end(&shared) } else { part.withdraw(&shared) }
        }
    }

    /// Lets peers know of the last steps on shared memory, and waits for those without which it does not go on.
    pub(super) fn settle_memory(&mut self, run: Run<'_>, messenger: &mut Messenger) {
        if self.part.is_none() {
            return;
        }
        let (token, bytes) = (memory_token(run.1), run.1.count * self.element);
        self.in_memory(run, |part, _, work| {
            part.announce(work);
            if let Some(awaited) = part.awaited(work) {
                messenger.end_wait_for_publication(token);
                each(awaited).for_each(|member| messenger.wait_for_publication(work.shared.rank(member), bytes, token));
            }
        });
    }

    /// Calls `act` for the steps on shared memory, if there are any.
    fn in_memory<R>(
        &mut self,
        (call, id): Run<'_>,
        act: impl FnOnce(&mut Part, &SharedSteps, &Work<'_>) -> R,
    ) -> Option<R> {
        let (part, shared, steps) = (self.part.as_mut()?, self.shared.as_ref()?, call.plan.shared_steps.as_ref()?);
        let (inputs, outputs, function, tag) = (&*self.inputs, &*self.outputs, self.function, id.tag);
        let binding = Binding { call, inputs, outputs, function, tag, in_order: false };
        Some(act(part, steps, &Work { shared, program: &steps.program, binding: &binding }))
    }
}

fn memory_token(id: &Identity) -> Token {
    Token { owner: id.index, detail: MEMORY }
}

// Miri knows no shared memory, and the threads are not loom's.
#[cfg(all(test, not(any(miri, loom))))]
#[path = "memory_tests.rs"]
mod tests;
