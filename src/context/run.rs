//! Runs a collective call: finds or prepares it, executes it, and says what went wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::collective::{Algorithm, Collective, Shape, Uses};
use crate::context::Context;
use crate::context::call::Call;
use crate::context::digest::{explain, explain_kind};
use crate::engine::cache::CallKey;
use crate::engine::plan::{self, Plan};
use crate::engine::{Binding, Core, Guard, Prepared};
use crate::error::{Details, Error, ErrorKind, Result, after};
use crate::messaging::{Replies, Unmatched};
use crate::tuner::Explanation;
use crate::tuner::file::Tuning;
use crate::tuner::model::Topology;
use crate::tuner::overrides::{self, Override};
use crate::types::{DataType, Rank};
use crate::wire::fingerprint::{MEASUREMENT, differs, digest, is_earlier, kind, number};

impl Context {
    /// The algorithm that `run` selects for `shape` and `dtype` with `auto`.
    pub fn choose(&self, shape: &Shape<'_>, dtype: DataType) -> &'static str {
        // Only the name of an algorithm can be invalid, and none is given.
        self.tuner_of(dtype.size()).decide(shape, dtype.size(), None).map_or("", |decision| decision.algorithm.name)
    }

    /// The tuning that the ranks agreed on when they connected: constants, measured or from a file, and recorded
    /// choices.
    pub fn tuning(&self) -> &Tuning {
        self.tuner().tuning()
    }

    /// The distribution of the ranks over hosts, and whether they share memory, as known to the selection of
    /// algorithms.
    pub fn topology(&self) -> &Topology {
        self.tuner().topology()
    }

    /// The algorithm that `run` selects for a call of so many bytes (as the benchmark counts them), and why.
    pub fn explain(&self, collective: Collective, bytes: usize) -> Explanation {
        self.tuner().explain(collective, bytes)
    }

    /// Runs a collective, and returns when this rank's part is done.
    ///
    /// An invalid call is refused before anything is sent. A call that fails later leaves the ranks in undefined
    /// states, so the context is broken from then on: connected peers are notified, and every later collective on it
    /// fails; see [`Context::broken`].
    ///
    /// # Safety
    /// Every pointer of `call` is valid for the elements that the shape says ([`Shape::input_len`],
    /// [`Shape::output_len`]) until this returns. Outputs overlap no other buffer.
    pub unsafe fn run(&self, call: &Call<'_>) -> Result<()> {
        let key = self.key_of(call);
        let cached = self.check(call, key.as_ref())?;
        // SAFETY: the caller guarantees the pointers, and `check` has accepted this call.
        unsafe { self.run_checked(call, key.as_ref(), cached) }
    }

    /// Checks the shape, see [`Shape::check`]. Returns an equal call that was prepared before, if the cache has one by
    /// `key`.
    pub(crate) fn check(&self, call: &Call<'_>, key: Option<&CallKey<'_>>) -> Result<Option<Arc<Prepared>>> {
        let cached = key.and_then(|key| self.cached(key));
        if cached.is_none() {
            call.shape.check()?;
            plan::check_size(&call.shape)?;
        }
        Ok(cached)
    }

    /// [`Context::run`] for a call that `check` has accepted; `cached` is what that returned.
    ///
    /// # Safety
    /// See [`Context::run`]; `check` has accepted this very call.
    pub(crate) unsafe fn run_checked(
        &self,
        call: &Call<'_>,
        key: Option<&CallKey<'_>>,
        cached: Option<Arc<Prepared>>,
    ) -> Result<()> {
        call.check_buffers()?;
        if self.is_staged(call)? {
            // SAFETY: by the contract.
            return unsafe { self.run_staged(call, key, cached) };
        }
        // SAFETY: by the contract.
        unsafe { self.run_on_host(call, key, cached) }
    }

    /// [`Context::run_checked`] for a call on buffers of the library.
    ///
    /// # Safety
    /// See [`Context::run_checked`].
    #[cold]
    unsafe fn run_staged(
        &self,
        call: &Call<'_>,
        key: Option<&CallKey<'_>>,
        cached: Option<Arc<Prepared>>,
    ) -> Result<()> {
        let staging = self.stage(call)?;
        let failed = |error: Error| self.fail_staged(&self.text_of(call), &error);
        // SAFETY: by the contract, the buffers are valid until this returns.
        unsafe { staging.copy_in() }.map_err(failed)?;
        let on_host = staging.call(call);
        // SAFETY: the buffers of the library are there until this returns, and the caller guarantees the others.
        unsafe {
            if on_host.shape == call.shape {
                self.run_on_host(&on_host, key, cached)?;
            } else {
                // With another number of buffers it is another call.
                let key = self.key_of(&on_host);
                let cached = self.check(&on_host, key.as_ref())?;
                self.run_on_host(&on_host, key.as_ref(), cached)?;
            }
        }
        // SAFETY: as above; the call has ended.
        unsafe { staging.copy_out() }.map_err(failed)?;
        self.unstage(staging);
        Ok(())
    }

    /// [`Context::run_checked`] for a call that the host makes as it is.
    ///
    /// # Safety
    /// See [`Context::run_checked`].
    #[inline]
    unsafe fn run_on_host(
        &self,
        call: &Call<'_>,
        key: Option<&CallKey<'_>>,
        cached: Option<Arc<Prepared>>,
    ) -> Result<()> {
        let started = self.engine().now();
        let prepared = match cached {
            Some(prepared) => {
                let binding = call.binding(&prepared);
                // SAFETY: the caller guarantees the pointers.
                let ended = unsafe { self.run_quick(&binding, call.timeout) };
                ended.unwrap_or_else(|| self.execute(&self.run_of(binding, call.timeout, started), &prepared))?;
                prepared
            }
            None => self.prepare_and_run(call, key, started)?,
        };
        // SAFETY: the caller guarantees that the outputs are valid for their lengths in the shape, which `check` has
        // accepted.
        unsafe { prepared.settle(call.outputs) };
        Ok(())
    }

    /// Runs a call that is not in the cache. Returns the call.
    fn prepare_and_run(&self, call: &Call<'_>, key: Option<&CallKey<'_>>, started: Instant) -> Result<Arc<Prepared>> {
        let (tuner, selected) = (self.tuner(), self.select(call)?);
        let mut run = self.run_of(call.binding(&selected), call.timeout, started);
        let _operation = self.begin_rounds_of(&mut run)?;
        if self.compares_calls() {
            self.compare_calls(&run)?;
        }
        let (plan, is_round) = (self.plan_in_rounds(&run)?, run.is_round);
        let prepared = self.planned(selected, plan, key, tuner)?;
        let run = self.run_of(call.binding(&prepared), call.timeout, started);
        self.execute(&Run { is_round, ..run }, &prepared)?;
        Ok(prepared)
    }

    /// The run with `binding`, which starts at `started`; `own_timeout` is the call's, if it has one.
    #[inline(always)] // Otherwise the result would be built in one place and copied to another.
    pub(super) fn run_of<'a>(&self, binding: Binding<'a>, own_timeout: Option<Duration>, started: Instant) -> Run<'a> {
        let (deadline, timeout) = self.deadline_after(started, own_timeout);
        Run { call: binding.call, binding, started, deadline, timeout, own_timeout, is_round: false }
    }

    /// `shape`, for elements of `element` bytes and an algorithm with `uses`, with the context's defaults for fields
    /// that the caller has not set.
    pub(super) fn complete_shape<'a>(
        &'a self,
        shape: &Shape<'a>,
        element: usize,
        base: Option<usize>,
        uses: Uses,
    ) -> Shape<'a> {
        let tuner = self.tuner_of(element);
        let or = |given: &'a [u32], known: &'a [u32]| if given.is_empty() { known } else { given };
        Shape {
            base: base.unwrap_or(shape.base),
            groups: or(shape.groups, self.hosts()),
            shared: match uses {
                Uses::Groups => tuner.topology().shared && (shape.groups.is_empty() || shape.groups == self.hosts()),
                _ => tuner.shares_memory(),
            },
            // On one host, the groups that a caller passes are the caches.
            domains: or(shape.groups, &tuner.topology().domains),
            links: or(shape.links, tuner.links()),
            ..*shape
        }
    }

    /// The plan of `algorithm` for `shape`; `by_function`: a function of the caller combines elements.
    pub(super) fn plan(
        &self,
        shape: &Shape<'_>,
        algorithm: &'static Algorithm,
        by_function: bool,
    ) -> Result<Arc<Plan>> {
        let plan = self.plans.get(shape, algorithm, by_function);
        plan.map_err(|error| self.unplanned(shape.collective, algorithm, error))
    }

    /// The error of an algorithm that these ranks cannot execute: with its name, and the variable that may have
    /// selected it.
    #[cold]
    fn unplanned(&self, collective: Collective, algorithm: &'static Algorithm, error: Error) -> Error {
        if error.kind() != ErrorKind::Unsupported {
            return error;
        }
        let is_this = |part: &Override| {
            part.collective == collective && part.algorithm().is_some_and(|other| std::ptr::eq(other, algorithm))
        };
        let by = if self.tuner().overrides().iter().any(is_this) {
            format!(", which {} of rank 0 names", overrides::VARIABLE)
        } else {
            String::new()
        };
        error.context(format_args!("the algorithm {}{by}", algorithm.name))
    }

    /// Ends the run `index`, which is over or has timed out, and returns its result. If it has failed, the context is
    /// broken.
    pub(super) fn conclude(&self, run: &Run<'_>, guard: Guard<'_>, index: u32, over: bool) -> Result<()> {
        let (mut guard, mut over, engine) = (guard, over, self.engine());
        let now = guard.now;
        if !over {
            guard = engine.withdraw_function(guard, index);
            guard.detect_other_calls();
            over = guard.is_over(index);
        }
        // If a peer is known to be in another call, this rank fails at once, before its peers. A call with a zero
        // timeout does not wait for replies.
        if !over
            && !run.timeout.is_zero()
            && !unexpected(&guard, index).is_some_and(|unexpected| unexpected.awaited)
            && let call = guard.call(index)
            && guard.messenger.query(index, (call.1, call.0), now)
        {
            // The replies show which rank caused the timeout, so waiting for them is worth the time.
            let known = |core: &mut Core| {
                core.is_over(index)
                    || core.elsewhere(index).is_some()
                    || core.messenger.diagnosis().replies(index) == Replies::Cause
            };
            let until = engine.now() + REPLY_TIME;
            guard = engine.wait(guard, until, |core| known(core).then_some(())).0;
            if guard.messenger.diagnosis().replies(index) == Replies::AllWaiting {
                // A rank that waits for the cause directly should fail first, so that its error is the one that
                // spreads.
                guard = engine.wait(guard, until + INDIRECT_REPLY_TIME, |core| known(core).then_some(())).0;
            }
            if let Some((rank, theirs)) = guard.elsewhere(index).filter(|_| !guard.is_over(index)) {
                guard.mismatch(index, rank, theirs);
            }
            over = guard.is_over(index);
        }
        let well = over && !guard.has_failed(index);
        let waits = match over {
            _ if well => String::new(),
            true => guard.messenger.diagnosis().describe(index, guard.now),
            false => self.waits(&guard, index),
        };
        let (unexpected, before) = if over { (None, index) } else { (unexpected(&guard, index), guard.before(index)) };
        let blame =
            if over { Details::default() } else { guard.messenger.diagnosis().blame(|token| token.owner == before) };
        let left_over = if well { self.left_over(run, &guard, index) } else { None };
        let late = (!over).then(|| {
            let (timed_out, begun) = (after(run.timeout), guard.begun());
            let found = unexpected.as_ref().map_or(String::new(), |unexpected| format!("; {}", unexpected.text));
            let text =
                format!("timed out {timed_out}, in collective number {begun} of this context, waiting {waits}{found}");
            match unexpected.filter(|unexpected| unexpected.awaited) {
                Some(unexpected) => Error::new(ErrorKind::Mismatch, text).with_rank(unexpected.from),
                None => Error::new(ErrorKind::Timeout, text).about(blame),
            }
        });
        late.iter().for_each(|error| guard.time_out(index, error));
        let recorded = guard.recorded(index);
        let ended = guard.end(index);
        left_over.iter().for_each(|error| guard.recorder.failed(&recorded, error));
        let error = match ended {
            _ if late.is_some() || left_over.is_some() => late.or(left_over),
            Some(error) if error.is_reported_by_peer() && !waits.is_empty() => {
                Some(error.and(format_args!("; meanwhile this rank waited {waits}")))
            }
            ended => ended,
        };
        let Some(error) = error else {
            engine.hand_over(guard);
            return Ok(());
        };
        // The context names one rank to blame, that of the failure which has broken it.
        let earlier = guard.ended_by().filter(|earlier| earlier.details().rank != error.details().rank).cloned();
        let error = earlier.unwrap_or(error);
        let error = self.described(
            run,
            &error.context(format_args!("after {:.3} s", engine.now().duration_since(run.started).as_secs_f64())),
        );
        let failure = self.snapshot_of_failure(&mut guard, &error);
        guard.break_with(&error, Some(&error));
        self.finish_closing(guard);
        self.dump_failure(failure);
        Err(error)
    }

    /// The error for a collective if the context was never connected.
    #[inline]
    pub(super) fn unconnected(&self, core: &Core) -> Option<Error> {
        let unconnected = self.size > 1 && core.messenger.is_isolated() && core.broken.is_none();
        let text = "the context is not connected: connect it first, over a store or by its pairs";
        unconnected.then(|| Error::new(ErrorKind::InvalidOperation, text))
    }

    #[cold]
    pub(super) fn described(&self, run: &Run<'_>, error: &Error) -> Error {
        let error = error.context(run.call.describe(self.rank, run.binding.tag));
        self.amended(run.own_timeout, run.deadline, error.during(run.call.collective().name()))
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

    /// The error for a completed run if a peer has sent more messages for it, or for an earlier run on its tag, than
    /// expected. Only needed for gatherv, scatterv and alltoallv; other collectives detect a wrong count by the
    /// messages themselves.
    fn left_over(&self, run: &Run<'_>, guard: &Guard<'_>, index: u32) -> Option<Error> {
        if !matches!(run.call.collective(), Collective::Gatherv | Collective::Scatterv | Collective::Alltoallv) {
            return None;
        }
        // Not an error: messages for later calls, since a peer may be ahead, and for calls without a number.
        let (own, tag) = guard.call(index);
        let is_past = |other: u64| number(own) != 0 && number(other) != 0 && !is_earlier(own, other);
        let mut unmatched = guard.messenger.diagnosis().unmatched(tag).filter(|unmatched| unmatched.kind == kind(own));
        let (rank, other, bytes) = unmatched.find_map(|unmatched| {
            unmatched.message.filter(|(other, _)| is_past(*other)).map(|(other, bytes)| (unmatched.from, other, bytes))
        })?;
        let (peer, what) = (guard.messenger.peer_name(rank), explain(digest(other)));
        let text = format!(
            "{peer} has sent {bytes} bytes of {what}, where none were expected from it: the counts that it was called with \
             differ from those here"
        );
        Some(Error::new(ErrorKind::Mismatch, text).with_rank(rank))
    }

    /// Describes what the run `index` waits for, and why peers may be unable to connect.
    fn waits(&self, guard: &Guard<'_>, index: u32) -> String {
        let before = guard.before(index);
        let mut waits = guard.messenger.diagnosis().describe(before, guard.now);
        if before != index {
            waits.insert_str(0, "for an earlier call with its tag, which waits ");
        } else if waits.is_empty() {
            // Only the reduction function can have taken the time.
            waits.push_str("for the caller's reduction function");
        }
        waits + &self.accept_error()
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

/// The most significant message or grant on the tag of the run `index` that matches no call of this rank, if any.
fn unexpected(guard: &Guard<'_>, index: u32) -> Option<Unexpected> {
    let (own, tag) = guard.call(index);
    let is_unexpected = |unmatched: &Unmatched| match unmatched.message {
        // Messages for later calls are expected, since a peer may be ahead.
        Some((other, _)) if unmatched.kind == kind(own) => {
            differs(own, other) && (digest(own) != digest(other) || is_earlier(other, own))
        }
        _ => unmatched.kind != MEASUREMENT && !guard.runs(unmatched.kind, tag),
    };
    let unmatched = guard.messenger.diagnosis().unmatched(tag).filter(is_unexpected);
    let with_wait =
        unmatched.map(|unmatched| (!guard.messenger.diagnosis().waits_for(index, unmatched.from), unmatched));
    let (elsewhere, Unmatched { from, kind, message }) =
        with_wait.min_by_key(|(elsewhere, unmatched)| (*elsewhere, unmatched.message.is_none(), unmatched.from))?;
    let peer = guard.messenger.peer_name(from);
    let what = match message {
        Some((other, bytes)) => format!("has sent {bytes} bytes of {}", explain(digest(other))),
        None => format!("waits to receive a message of {}", explain_kind(kind)),
    };
    Some(Unexpected {
        from,
        awaited: !elsewhere,
        text: format!("{peer} {what} with this tag, which no thread here has called"),
    })
}

/// A call in progress, or an exchange that prepares one.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
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

/// How long after a timeout this rank waits for the replies of its peers.
const REPLY_TIME: Duration = Duration::from_millis(400);
/// How much longer it waits if all those peers wait for other ranks.
const INDIRECT_REPLY_TIME: Duration = Duration::from_millis(250);
