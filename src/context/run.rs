//! A run of a call: what it executes, on which context, until when, and what its errors say.

use std::time::{Duration, Instant};

use crate::context::Context;
use crate::engine::{Binding, Core, Guard, Prepared};
use crate::error::{Error, ErrorKind};

/// A call in progress, or an exchange that prepares one.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    /// The context on which it runs.
    pub context: &'a Context,
    /// The caller's call, which errors describe.
    pub call: &'a Prepared,
    /// The call that is executed, and its buffers.
    pub binding: Binding<'a>,
    pub started: Instant,
    pub deadline: Instant,
    pub timeout: Duration,
    /// The timeout of the call, if it has one, else the context's counts.
    pub own_timeout: Option<Duration>,
    /// Whether it is a round of an operation that excludes others; see [`rounds`](super::rounds).
    pub is_round: bool,
}

impl Run<'_> {
    /// `error` of this run, as the caller is told it.
    #[cold]
    pub fn described(&self, error: &Error) -> Error {
        let error = error.context(self.call.describe(self.context.rank, self.binding.tag));
        self.context.amended(self.own_timeout, self.deadline, error.during(self.call.collective().name()))
    }

    /// The error for a call that does not start.
    #[cold]
    pub fn refused(&self, guard: Guard<'_>, error: &Error) -> Error {
        let error = self.described(error);
        // The other ranks wait for this one, so they are sent the reason.
        if guard.broken.is_some() || error.kind() == ErrorKind::ResourceExhausted {
            let reason = guard.broken.clone().unwrap_or_else(|| error.clone());
            self.context.break_for(guard, &error, &reason);
        }
        error
    }
}

impl Context {
    /// The run with `binding`, which starts at `started`; `own_timeout` is the call's, if it has one.
    #[inline(always)] // Otherwise the result would be built in one place and copied to another.
    pub(super) fn run_of<'a>(
        &'a self,
        binding: Binding<'a>,
        own_timeout: Option<Duration>,
        started: Instant,
    ) -> Run<'a> {
        let (deadline, timeout) = self.timeout.deadline(started, own_timeout);
        Run { context: self, call: binding.call, binding, started, deadline, timeout, own_timeout, is_round: false }
    }

    /// The error for a collective if the context was never connected.
    #[inline]
    pub(super) fn unconnected(&self, core: &Core) -> Option<Error> {
        let unconnected = self.size > 1 && core.messenger.is_isolated() && core.broken.is_none();
        let text = "the context is not connected: connect it first, over a store or by its pairs";
        unconnected.then(|| Error::new(ErrorKind::InvalidOperation, text))
    }

    /// Breaks the context with `error`. Connected ranks are sent `reason`, and the flight recorder is written if the
    /// options ask for that.
    #[cold]
    pub(super) fn break_for(&self, mut guard: Guard<'_>, error: &Error, reason: &Error) {
        let failure = self.snapshot_of_failure(&mut guard, reason);
        guard.break_with(error, Some(reason));
        self.finish_closing(guard);
        self.dump_failure(failure);
    }

    /// Whether the ranks compare their calls.
    pub(super) fn compares_calls(&self) -> bool {
        self.check_calls && self.size > 1
    }
}
