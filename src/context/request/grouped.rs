//! Requests that start in a group: between their join and its end, no other call on them is allowed but to free them.

use std::sync::Arc;
use std::time::Instant;

use super::Request;
use super::body::{Body, Times};
use super::state::State;
use crate::collective::Collective;
use crate::context::fused::Part;
use crate::context::operation::Operation;
use crate::context::run::Run;
use crate::context::shared::SharedCall;
use crate::engine::Guard;
use crate::engine::shared::Call;
use crate::error::{Error, ErrorKind, Result};

/// What a request was before it joined a group.
#[derive(Clone, Copy)]
pub enum Joined {
    /// Inactive.
    Inactive,
    /// Inactive, and attached to a queue.
    Attached,
}

impl Joined {
    fn state(self) -> State {
        match self {
            Self::Inactive => State::Inactive,
            Self::Attached => State::Attached,
        }
    }
}

impl Request {
    /// Joins a group, which starts the call at its end.
    pub(in crate::context) fn join(&self) -> Result<Joined> {
        if !self.body.in_order {
            return Err(self.refused(
                "start",
                "a group takes requests of gloo_rs_group_collective_start and \
                                              gloo_rs_collective_start only",
            ));
        }
        if self.body.executed().is_none() {
            let text = "its first start waits for the counts of other ranks: start it once outside of groups";
            return Err(self.refused("start", text));
        }
        let joins = |joined: &Joined| self.state.occupy(joined.state()).is_ok();
        let joined = [Joined::Inactive, Joined::Attached].into_iter().find(joins);
        let joined = joined.ok_or_else(|| self.refuse_now("start"))?;
        self.state.leave(State::Grouped);
        Ok(joined)
    }

    /// The group ends: until [`Request::activate`] or [`Request::leave_group`], this thread is in a call on the
    /// request. Returns false if the request was freed.
    pub(in crate::context) fn enter_group(&self) -> bool {
        self.state.occupy(State::Grouped).is_ok()
    }

    /// The group has begun nothing.
    pub(in crate::context) fn leave_group(&self, joined: Joined) {
        self.state.leave(joined.state());
    }

    /// Retires a request that is in a group, which fails then. Returns whether it was.
    pub(super) fn retire_from_group(&self) -> bool {
        let was_in_group = self.enter_group();
        if let Some((queue, number)) = self.place().filter(|_| was_in_group) {
            queue.detach(number);
        }
        was_in_group
    }

    /// Tag and kind of its calls.
    pub(in crate::context) fn line(&self) -> (u64, u8) {
        (self.body.tag, self.body.call.kind())
    }

    /// Copies the inputs, where the call does not read the caller's buffers.
    pub(in crate::context) fn stage(&self) -> Result<()> {
        // SAFETY: by the contract of `Context::request`, the buffers are valid until the call has ended.
        self.body.stage(|staging| unsafe { staging.copy_in() })
    }

    /// The run of the call that starts at `now`.
    pub(in crate::context) fn run_from(&self, now: Instant) -> Run<'_> {
        self.body.context.run_of(self.body.binding(), self.body.timeout, now)
    }

    /// What a call has of this one that it is fused with others of the group into. `None` if this is an allreduce of
    /// several inputs or outputs.
    pub(in crate::context) fn part(&self) -> Option<Part> {
        let Body { call, inputs, outputs, first: (input, output), tag, timeout, .. } = &*self.body;
        let input = if inputs.is_empty() { output.cast_const() } else { *input };
        let part = Part { call: call.clone(), input, tag: *tag, timeout: *timeout, on_end: self.body.clone() };
        let is_other = call.collective() != Collective::Allreduce;
        (is_other || inputs.len() <= 1 && outputs.len() <= 1).then_some(part)
    }

    /// Bytes of the call.
    pub(in crate::context) fn bytes(&self) -> usize {
        self.body.call.bytes
    }

    /// The group has begun a call that has the elements of this one.
    pub(in crate::context) fn has_begun(&self, run: &Run<'_>) {
        self.body.has_started(&Times::of(run));
    }

    /// Begins `run` with the lock on the context.
    pub(in crate::context) fn begin_in(&self, guard: &mut Guard<'_>, run: &Run<'_>) -> Result<Operation> {
        let (body, context) = (&self.body, &self.body.context);
        if let Some(work) = context.shared_work(&run.binding) {
            let call = Call::start(&work).map_err(|refused| run.why_refused(guard, &refused))?;
            return Ok(Operation::Thread(SharedCall::new(call)));
        }
        let call = body.executed().ok_or_else(|| Error::new(ErrorKind::Internal, "a group's call has no plan"))?;
        // A call without any time may do what needs no waiting.
        let deadline = (!run.timeout.is_zero()).then_some(run.deadline);
        let index = guard.start(call.clone(), &run.binding, deadline)?;
        body.has_started(&Times::of(run));
        guard.share_function(index);
        guard.tell(index, Arc::clone(body) as _);
        Ok(Operation::Engine(index))
    }

    /// The group has begun the call, which goes on.
    pub(in crate::context) fn activate(&self, mut operation: Operation, times: Times, joined: Joined) {
        self.leave_begun(&mut operation, times);
        self.body.leave_running(operation, times);
        let place = match joined {
            Joined::Attached => self.begin_in_queue(),
            Joined::Inactive => None,
        };
        match place {
            Some((queue, number)) => self.leave_queued(&queue, number, false),
            None => self.state.leave(State::Active),
        }
    }

    /// The group has begun the call, but not all of its calls, and the context is broken.
    pub(in crate::context) fn end_early(&self, mut operation: Operation, times: Times) {
        self.leave_begun(&mut operation, times);
        self.body.leave_running(operation, times);
        // Why it fails is said by the call that has ended the group.
        let _ = self.complete_run(None);
    }

    fn leave_begun(&self, operation: &mut Operation, times: Times) {
        if let Some(call) = operation.in_thread() {
            self.body.has_started(&times);
            call.make_claim(!self.body.in_order);
        }
    }
}
