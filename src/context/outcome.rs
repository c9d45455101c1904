//! The outcome of a run of which the engine knows: whether it has failed, for what it waited, and which rank is to
//! blame.

use std::time::Duration;

use crate::collective::Collective;
use crate::context::digest::{explain, explain_kind};
use crate::context::run::Run;
use crate::engine::{Core, Guard};
use crate::error::{Error, ErrorKind, Result, after};
use crate::messaging::{Replies, Unmatched};
use crate::types::Rank;
use crate::wire::fingerprint::{MEASUREMENT, differs, digest, is_earlier, kind, number};

/// How long after a timeout this rank waits for the replies of its peers.
const REPLY_TIME: Duration = Duration::from_millis(400);
/// How much longer it waits if all those peers wait for other ranks.
const INDIRECT_REPLY_TIME: Duration = Duration::from_millis(250);

/// A run that is over, or has timed out.
pub(super) struct Outcome<'a> {
    pub run: &'a Run<'a>,
    /// The lock on the context of `run`.
    pub guard: Guard<'a>,
    /// Its index in the engine.
    pub index: u32,
    /// Whether it has completed or failed, and has not timed out.
    pub is_over: bool,
}

impl Outcome<'_> {
    /// Ends the run and returns its result. If it has failed, the context is broken.
    pub fn conclude(mut self) -> Result<()> {
        if !self.is_over {
            self = self.find_cause();
        }
        let error = match self.is_over {
            true if !self.guard.has_failed(self.index) => self.end_completed(),
            true => self.end_failed(),
            false => Some(self.end_late()),
        };
        match error {
            None => {
                self.run.context.engine().hand_over(self.guard);
                Ok(())
            }
            Some(error) => Err(self.break_context(error)),
        }
    }

    /// After a timeout: looks which rank has caused it. If that rank is in another call, or the cause is an end of the
    /// run that this rank did not know yet, the run is over.
    #[cold]
    fn find_cause(mut self) -> Self {
        let now = self.guard.now;
        self.guard = self.run.context.engine().withdraw_function(self.guard, self.index);
        self.guard.detect_other_calls();
        self.is_over = self.guard.is_over(self.index);
        // If a peer is known to be in another call, this rank fails at once, before its peers. A call with a zero
        // timeout does not wait for replies.
        if !self.is_over
            && !self.run.timeout.is_zero()
            && !self.unexpected().is_some_and(|unexpected| unexpected.awaited)
            && let call = self.guard.call(self.index)
            && self.guard.messenger.query(self.index, (call.1, call.0), now)
        {
            self = self.await_replies();
            if let Some((rank, theirs)) = self.guard.elsewhere(self.index).filter(|_| !self.guard.is_over(self.index)) {
                self.guard.mismatch(self.index, rank, theirs);
            }
            self.is_over = self.guard.is_over(self.index);
        }
        self
    }

    /// Waits for the replies of peers that were asked what they are doing: they show which rank has caused the timeout,
    /// so they are worth the time.
    fn await_replies(mut self) -> Self {
        let (index, engine) = (self.index, self.run.context.engine());
        let is_answered = |core: &mut Core| {
            core.is_over(index)
                || core.elsewhere(index).is_some()
                || core.messenger.diagnosis().replies(index) == Replies::Cause
        };
        let until = engine.now() + REPLY_TIME;
        self.guard = engine.wait(self.guard, until, |core| is_answered(core).then_some(())).0;
        if self.guard.messenger.diagnosis().replies(index) == Replies::AllWaiting {
            // A rank that waits for the cause directly should fail first, so that its error is the one that spreads.
            let until = until + INDIRECT_REPLY_TIME;
            self.guard = engine.wait(self.guard, until, |core| is_answered(core).then_some(())).0;
        }
        self
    }

    /// Ends a run that has completed. Returns the error if a peer has sent more than was expected.
    fn end_completed(&mut self) -> Option<Error> {
        let left_over = self.left_over();
        let recorded = left_over.as_ref().map(|error| (self.guard.recorded(self.index), error));
        let ended = self.guard.end(self.index);
        recorded.iter().for_each(|(run, error)| self.guard.recorder.failed(run, error));
        left_over.or(ended)
    }

    /// Ends a run that has failed. Returns its error.
    #[cold]
    fn end_failed(&mut self) -> Option<Error> {
        let waits = self.guard.messenger.diagnosis().describe(self.index, self.guard.now);
        self.guard.end(self.index).map(|error| match error.is_reported_by_peer() && !waits.is_empty() {
            true => error.and(format_args!("; meanwhile this rank waited {waits}")),
            false => error,
        })
    }

    /// Ends a run that has timed out. Returns its error.
    #[cold]
    fn end_late(&mut self) -> Error {
        let (waits, unexpected, before) = (self.waits(), self.unexpected(), self.guard.before(self.index));
        let blame = self.guard.messenger.diagnosis().blame(|token| token.owner == before);
        let (timed_out, begun) = (after(self.run.timeout), self.guard.begun());
        let found = unexpected.as_ref().map_or(String::new(), |unexpected| format!("; {}", unexpected.text));
        let text =
            format!("timed out {timed_out}, in collective number {begun} of this context, waiting {waits}{found}");
        let error = match unexpected.filter(|unexpected| unexpected.awaited) {
            Some(unexpected) => Error::new(ErrorKind::Mismatch, text).with_rank(unexpected.from),
            None => Error::new(ErrorKind::Timeout, text).about(blame),
        };
        self.guard.time_out(self.index, &error);
        self.guard.end(self.index);
        error
    }

    /// Breaks the context with `error`. Returns the error that the caller is told.
    #[cold]
    fn break_context(self, error: Error) -> Error {
        let Run { context, started, .. } = *self.run;
        // The context names one rank to blame, that of the failure which has broken it.
        let earlier = self.guard.ended_by().filter(|earlier| earlier.details().rank != error.details().rank).cloned();
        let seconds = context.engine().now().duration_since(started).as_secs_f64();
        let error = earlier.unwrap_or(error).context(format_args!("after {seconds:.3} s"));
        let error = self.run.described(&error);
        context.break_for(self.guard, &error, &error);
        error
    }

    /// The error for a completed run if a peer has sent more messages for it, or for an earlier run on its tag, than
    /// expected. Only needed for gatherv, scatterv and alltoallv; other collectives detect a wrong count by the
    /// messages themselves.
    fn left_over(&self) -> Option<Error> {
        let collective = self.run.call.collective();
        if !matches!(collective, Collective::Gatherv | Collective::Scatterv | Collective::Alltoallv) {
            return None;
        }
        // Not an error: messages for later calls, since a peer may be ahead, and for calls without a number.
        let (own, tag) = self.guard.call(self.index);
        let is_past = |other: u64| number(own) != 0 && number(other) != 0 && !is_earlier(own, other);
        let messenger = &self.guard.messenger;
        let mut unmatched = messenger.diagnosis().unmatched(tag).filter(|unmatched| unmatched.kind == kind(own));
        let (rank, other, bytes) = unmatched.find_map(|unmatched| {
            unmatched.message.filter(|(other, _)| is_past(*other)).map(|(other, bytes)| (unmatched.from, other, bytes))
        })?;
        let (peer, what) = (messenger.peer_name(rank), explain(digest(other)));
        let text = format!(
            "{peer} has sent {bytes} bytes of {what}, where none were expected from it: the counts that it was called with \
             differ from those here"
        );
        Some(Error::new(ErrorKind::Mismatch, text).with_rank(rank))
    }

    /// Describes what the run waits for, and why peers may be unable to connect.
    fn waits(&self) -> String {
        let before = self.guard.before(self.index);
        let mut waits = self.guard.messenger.diagnosis().describe(before, self.guard.now);
        if before != self.index {
            waits.insert_str(0, "for an earlier call with its tag, which waits ");
        } else if waits.is_empty() {
            // Only the reduction function can have taken the time.
            waits.push_str("for the caller's reduction function");
        }
        waits + &self.run.context.accept_error()
    }

    /// The most significant message or grant on the run's tag that matches no call of this rank, if any.
    fn unexpected(&self) -> Option<Unexpected> {
        let (guard, index) = (&self.guard, self.index);
        let (own, tag) = guard.call(index);
        let is_unexpected = |unmatched: &Unmatched| match unmatched.message {
            // Messages for later calls are expected, since a peer may be ahead.
            Some((other, _)) if unmatched.kind == kind(own) => {
                differs(own, other) && (digest(own) != digest(other) || is_earlier(other, own))
            }
            _ => unmatched.kind != MEASUREMENT && !guard.runs(unmatched.kind, tag),
        };
        let diagnosis = guard.messenger.diagnosis();
        let unmatched = diagnosis.unmatched(tag).filter(is_unexpected);
        let with_wait = unmatched.map(|unmatched| (!diagnosis.waits_for(index, unmatched.from), unmatched));
        let (elsewhere, Unmatched { from, kind, message }) =
            with_wait.min_by_key(|(elsewhere, unmatched)| (*elsewhere, unmatched.message.is_none(), unmatched.from))?;
        let peer = guard.messenger.peer_name(from);
        let what = match message {
            Some((other, bytes)) => format!("has sent {bytes} bytes of {}", explain(digest(other))),
            None => format!("waits to receive a message of {}", explain_kind(kind)),
        };
        let text = format!("{peer} {what} with this tag, which no thread here has called");
        Some(Unexpected { from, awaited: !elsewhere, text })
    }
}

/// A message or grant that matches no call of this rank.
struct Unexpected {
    from: Rank,
    /// Whether the run waits for this peer, which must be in another call then.
    awaited: bool,
    /// Describes the peer and the message.
    text: String,
}
