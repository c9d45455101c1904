//! Persistent requests: a collective call that is checked and prepared once, and then started and waited for any number
//! of times.

mod attachment;
mod body;
mod grouped;
mod state;

pub use attachment::HasRequest;
pub use body::Progressed;
pub(super) use body::Times;
pub(super) use grouped::Joined;
pub(super) use state::SET_CALLBACK;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::context::call::Call;
use crate::context::operation::Operation;
use crate::context::rounds::Exclusion;
use crate::context::shared::{Begun, SharedCall};
use crate::engine::Prepared;
use crate::engine::cache::CallKey;
use crate::engine::plan::boxed;
use crate::engine::ready::{Ends, Entry};
use crate::engine::shared::{Claim, Progress, Shared};
use crate::error::{Error, ErrorKind, Result, after};
use crate::transport;
use attachment::Attachment;
use body::Body;
use state::{AtomicState, State};

/// A prepared collective call. It is inactive until it is started, and again after the wait for it. Thread-safe: calls
/// that its state does not allow are refused.
pub struct Request {
    body: Arc<Body>,
    /// The memory that all ranks share, if the call can be started in few steps there.
    quick: Option<Arc<Shared>>,
    state: AtomicState,
    /// That of a call on shared memory that has ended, until the wait has.
    claim: Claim,
    /// The queue that reports its ends, if one does.
    attachment: Attachment,
}

impl Context {
    /// Prepares a call: checks it, selects the algorithm, and makes the plan. Does not communicate. The context must be
    /// connected.
    ///
    /// # Safety
    /// From each start until the wait for it has returned, or until the request is dropped, the pointers of `call` are
    /// valid as [`Context::run`] demands, and only the library uses them. A reduction function may be called by any
    /// thread that waits on the context.
    pub unsafe fn request(self: &Arc<Self>, call: &Call<'_>) -> Result<Request> {
        let key = self.key_of(call);
        let cached = self.check(call, key.as_ref())?;
        // SAFETY: the caller guarantees the pointers, and `check` has accepted this call.
        unsafe { self.request_checked(call, key.as_ref(), cached, false) }
    }

    /// [`Context::request`] for a call that `check` has accepted; `cached` is what that returned. `in_order`: see
    /// [`Binding::in_order`](crate::engine::Binding::in_order).
    ///
    /// # Safety
    /// See [`Context::request`]; `check` has accepted this very call.
    pub(crate) unsafe fn request_checked(
        self: &Arc<Self>,
        call: &Call<'_>,
        key: Option<&CallKey<'_>>,
        cached: Option<Arc<Prepared>>,
        in_order: bool,
    ) -> Result<Request> {
        call.check_buffers()?;
        if self.is_staged(call)? {
            let staging = self.stage(call)?;
            let on_host = staging.call(call);
            let key = self.key_of(&on_host);
            let cached = self.check(&on_host, key.as_ref())?;
            let mut request = self.request_on_host(&on_host, key.as_ref(), cached, in_order)?;
            if !staging.is_quick() {
                request.quick = None;
            }
            // Nobody else has the body yet.
            if let Some(body) = Arc::get_mut(&mut request.body) {
                body.staging = Some(staging);
            }
            return Ok(request);
        }
        self.request_on_host(call, key, cached, in_order)
    }

    /// [`Context::request_checked`] for a call that the host makes as it is.
    fn request_on_host(
        self: &Arc<Self>,
        call: &Call<'_>,
        key: Option<&CallKey<'_>>,
        cached: Option<Arc<Prepared>>,
        in_order: bool,
    ) -> Result<Request> {
        let prepared = cached.map_or_else(|| self.prepare(call, key), Ok)?;
        {
            let guard = self.lock()?;
            let broken = guard.broken.as_ref().map(|error| error.context("the context is broken"));
            if let Some(error) = self.unconnected(&guard).or(broken) {
                let run = self.run_of(call.binding(&prepared), call.timeout, guard.now);
                return Err(run.described(&error));
            }
        }
        let is_quick = prepared.quick_start.is_some() && !in_order;
        let shared = self.shared_memory.get().filter(|_| is_quick).cloned();
        let buffers = (boxed(call.inputs)?, boxed(call.outputs)?);
        let body = Body::new(self.clone(), prepared, call.function(), buffers, (call.tag, in_order), call.timeout);
        Ok(Request {
            body: Arc::new(body),
            quick: shared,
            state: AtomicState::new(),
            claim: Claim::default(),
            attachment: Attachment::default(),
        })
    }
}

impl Request {
    /// Starts the call, with what the buffers contain now, and returns without waiting for it. Its timeout begins now.
    /// What other ranks must send first is an exception: with `check_calls`, every start waits until all ranks have
    /// started the call; so does the first start if the algorithm depends on counts that only other ranks have.
    pub fn start(&self) -> Result<()> {
        self.start_quick().unwrap_or_else(|| self.start_any())
    }

    /// Starts the call if that takes few steps. If not, does nothing: [`Request::start_any`] starts it, or fails.
    #[inline(always)] // On the path of small collectives.
    pub(crate) fn start_quick(&self) -> Option<Result<()>> {
        let shared = self.quick.as_ref().filter(|shared| !shared.is_inherited())?;
        let (body, call) = (&*self.body, &*self.body.call);
        let quick = call.quick_start.as_ref()?;
        self.state.occupy(State::Inactive).ok()?;
        // SAFETY: by the contract of `Context::request`, the buffers are valid until the call has ended.
        match unsafe { SharedCall::begin_quick(shared, (call, quick), body.tag, body.first, &self.claim) } {
            Some(Begun::Ended) => {
                body.has_ended_at_once();
                self.state.leave(State::Complete);
                Some(Ok(()))
            }
            Some(Begun::Runs(call)) => Some(self.begin(Some(Operation::Thread(call)))),
            None => Some(self.begin(None)),
        }
    }

    /// Starts any call; may wait.
    #[inline(never)]
    pub(crate) fn start_any(&self) -> Result<()> {
        if self.state.occupy(State::Inactive).is_ok() {
            return self.begin(None);
        }
        self.state.occupy(State::Attached).map_err(|state| self.refuse(state, "start"))?;
        self.start_attached()
    }

    /// Waits until the call that was started is complete, or has failed. The request is inactive afterwards.
    pub fn wait(&self) -> Result<()> {
        if self.wait_quick() { Ok(()) } else { self.wait_any() }
    }

    /// The wait for a call that has ended in few steps. For another one, does nothing and returns false:
    /// [`Request::wait_any`] waits, or fails.
    #[inline(always)] // On the path of small collectives.
    pub(crate) fn wait_quick(&self) -> bool {
        let is_quick = self.quick.as_ref().is_some_and(|shared| !shared.is_inherited());
        let has_ended = is_quick && self.state.occupy(State::Complete).is_ok();
        if has_ended {
            if let Some(staging) = &self.body.staging {
                // SAFETY: by the contract of `Context::request`, the output is valid until the request is inactive.
                unsafe { staging.copy_own_block() };
            }
            self.leave_inactive();
        }
        has_ended
    }

    /// Waits for any call.
    #[inline(never)]
    pub(crate) fn wait_any(&self) -> Result<()> {
        self.check_thread("wait")?;
        self.enter_active("wait")?;
        self.complete(None).map(drop)
    }

    /// [`Request::wait_any`] for at most `time`: if the call has not ended then, returns false, and it goes on.
    #[inline(never)]
    pub fn wait_for(&self, time: Duration) -> Result<bool> {
        self.check_thread("wait")?;
        self.enter_active("wait")?;
        let (until, _) = self.body.context.deadline(Some(time));
        self.complete(Some(until))
    }

    /// The error of a wait that has ended after `time`, before the call.
    #[cold]
    pub fn not_yet(&self, time: Duration) -> Error {
        let Body { context, call, tag, .. } = &*self.body;
        let what = call.describe(context.rank, *tag);
        not_yet(1, &after(time)).context(what).during(call.collective().name())
    }

    /// What is known of the last call that was started. Never waits.
    pub fn progressed(&self) -> Progressed {
        let state = self.state.get();
        self.body.progressed(state.is_active(), state.is_complete())
    }

    /// Whether the call that was started is complete; if so, or if it has failed, this is the wait for it. Does what
    /// can be done without waiting. Once the timeout has expired, fails as the wait does.
    pub fn test(&self) -> Result<bool> {
        self.check_thread("test")?;
        self.enter_active("test")?;
        if self.is_complete()? {
            return self.complete(None);
        }
        self.state.leave(State::Active);
        Ok(false)
    }

    /// Refuses an active request, unless a queue reports its end; all later calls on an inactive one are refused. For a
    /// handle that is about to be freed.
    pub(crate) fn retire(&self) -> Result<()> {
        // In a forked child, the call is the parent's.
        let is_inactive = || self.state.occupy(State::Inactive).is_ok() || self.retire_from_group();
        if !self.body.context.is_inherited() && !is_inactive() {
            return self.retire_attached();
        }
        self.state.leave(State::Retired);
        Ok(())
    }

    /// Starts the call, unless it has `begun`, and does what can be done without waiting. The request is not busy
    /// afterwards.
    #[inline(never)]
    fn begin(&self, begun: Option<Operation>) -> Result<()> {
        let has_ended = self.begin_any(begun);
        self.state.leave(match has_ended {
            Ok(true) => State::Complete,
            Ok(false) => State::Active,
            Err(_) => State::Inactive,
        });
        has_ended.map(drop)
    }

    /// Returns whether the call has ended.
    fn begin_any(&self, begun: Option<Operation>) -> Result<bool> {
        let (body, context) = (&*self.body, &*self.body.context);
        // SAFETY: by the contract of `Context::request`, the buffers are valid until the call has ended.
        body.stage(|staging| unsafe { staging.copy_in() })?;
        let mut run = context.run_of(body.binding(), body.timeout, context.engine().now());
        let is_prepared = body.executed().is_some() && !context.compares_calls();
        let exclusion = if is_prepared { None } else { Exclusion::begin(context, &mut run)? };
        if context.compares_calls() {
            run.compare()?;
        }
        let call = match body.executed() {
            Some(call) => call,
            None => {
                let plan = run.plan()?;
                let counter = context.counter(&body.call, &plan);
                let counted = body.call.with_plan(plan, counter)?;
                body.counted.get_or_init(|| Arc::new(counted))
            }
        };
        run.binding.call = call;
        let times = Times::of(&run);
        let admitted = run.admit()?;
        let mut started = match begun {
            Some(begun) => begun,
            None => {
                let (guard, started) = Operation::begin(&run, call)?;
                if let Some(mut guard) = guard {
                    body.has_started(&times);
                    if let Some(index) = started.index() {
                        guard.share_function(index);
                        guard.tell(index, self.body.clone());
                    }
                    context.engine().leave(guard);
                }
                started
            }
        };
        if let Some(call) = started.in_thread() {
            body.has_started(&times);
            call.make_claim(!body.in_order);
        }
        // Peers find what it publishes.
        if started.progress(&run, || false) == Progress::Ended {
            let ended = started.complete(&run, None);
            body.was_waited_for(ended.as_ref().err());
            ended?;
            started.keep(&self.claim);
            return Ok(true);
        }
        drop((admitted, exclusion));
        self.body.leave_running(started, times);
        Ok(false)
    }

    /// Does what can be done without waiting. Returns whether the run is over, or its deadline has passed.
    pub(super) fn is_complete(&self) -> Result<bool> {
        let (body, context) = (&*self.body, &self.body.context);
        // Another thread goes on with the call, and may be calling its function.
        let Some(mut running) = body.running.try_lock() else { return Ok(false) };
        let Some((operation, times)) = &mut *running else { return Ok(true) };
        body.wants_function.store(false, Ordering::Release);
        let run = body.run(times);
        if operation.advance(&run, None)? {
            return Ok(true);
        }
        body.look_for_function(&run, operation);
        drop(running);
        let progress = body.running.attempt_if_wanted(|running| body.progress_with(running));
        context.shared_memory.get().into_iter().for_each(|shared| shared.pass_on(progress));
        Ok(false)
    }

    /// Waits for the run, and ends it: the request becomes inactive. If it is not over at `until`, it becomes active
    /// again, and this returns false.
    pub(super) fn complete(&self, until: Option<Instant>) -> Result<bool> {
        let has_ended = self.complete_run(until);
        match has_ended {
            Ok(false) => self.state.leave(State::Active),
            _ => self.leave_inactive(),
        }
        has_ended
    }

    /// Waits for the run, and ends it. Returns false if it is not over at `until`: it goes on then.
    fn complete_run(&self, until: Option<Instant>) -> Result<bool> {
        let body = &*self.body;
        let running = body.running.lock().take();
        let had_ended = running.is_none();
        let mut result = Ok(());
        if let Some((mut operation, times)) = running {
            result = match self.run_to_end(&mut operation, &times, until) {
                Ok(false) => {
                    self.body.leave_running(operation, times);
                    return Ok(false);
                }
                ended => ended.map(drop),
            };
        }
        let result = result.and_then(|()| {
            // SAFETY: the outputs are valid for their lengths in the shape, by the contract of `Context::request`,
            // until the request is inactive.
            unsafe { body.call.settle(&body.outputs) };
            // SAFETY: as above; the call has ended.
            body.stage(|staging| unsafe { staging.copy_out() })
        });
        if !had_ended || result.is_err() {
            body.was_waited_for(result.as_ref().err());
        }
        result.map(|()| true)
    }

    /// Executes the run until it is over, and ends it. Returns false if it is not over at `until`.
    fn run_to_end(&self, operation: &mut Operation, times: &Times, until: Option<Instant>) -> Result<bool> {
        let (body, context) = (&*self.body, &self.body.context);
        let quick = self.quick.as_ref().zip(body.call.quick_start.as_ref());
        let has_ended = operation.in_thread().is_some_and(|call| {
            self.body.attend();
            // SAFETY: these are the arguments of the start.
            quick.is_some_and(|(memory, quick)| unsafe { call.finish(memory, quick, body.first.1) })
        });
        if !has_ended {
            let _stay = context.engine().stay();
            let run = body.run(times);
            if let Some(until) = until
                && !operation.advance(&run, Some(until))?
            {
                return Ok(false);
            }
            operation.complete(&run, None)?;
        }
        operation.keep(&self.claim);
        Ok(true)
    }

    /// The context on which the call is made.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.body.context
    }

    /// Whether a function of the caller reduces.
    pub(super) fn has_function(&self) -> bool {
        self.body.function.is_some()
    }

    /// Whether the request is active, or a thread is in a call on it.
    pub fn is_active(&self) -> bool {
        self.state.get().is_active()
    }

    /// Notes the end of the call in `ends`, as `number`. For the only thread that waits for it.
    pub(super) fn enter(&self, ends: Arc<dyn Ends>, number: usize) {
        let body = &self.body;
        let entry = Entry { ends, number };
        // Another thread may be calling the function.
        let Some(mut running) = body.running.try_lock() else { return body.enter(entry) };
        let Some((operation, _)) = &mut *running else { return entry.note() };
        body.enter(entry);
        // The engine knows of the failures of a call on shared memory that has waited there.
        if let Some(index) = operation.in_thread().and_then(|call| call.index) {
            body.context.engine().lock().tell(index, body.clone());
        }
    }

    /// Ends what [`Request::enter`] has begun: the call goes on.
    pub(super) fn stay_active(&self) {
        self.body.leave();
        self.state.leave(State::Active);
    }

    /// When the call fails; `None` if another thread is going on with it, or it has ended.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.body.running.try_lock()?.as_ref().map(|(_, times)| times.deadline)
    }

    /// Whether the call does not tell of failures of ranks by itself.
    pub(super) fn is_quiet(&self) -> bool {
        let running = self.body.running.try_lock();
        running
            .is_some_and(|mut running| running.as_mut().is_some_and(|(operation, _)| operation.in_thread().is_some()))
    }

    /// Another call of its kind may start on its tag.
    #[inline]
    fn leave_inactive(&self) {
        // SAFETY: the context keeps the memory that its ranks share.
        unsafe { self.claim.release() };
        self.state.leave(State::Inactive);
    }

    /// Refuses a call in another process, or by the request's own function, which would wait for itself.
    pub(super) fn check_thread(&self, doing: &str) -> Result<()> {
        transport::check_process(self.body.context.device().as_ref())?;
        if self.body.function.is_some() && self.body.is_called_here() {
            return Err(self.refused(doing, "its reduction function is running on this thread"));
        }
        Ok(())
    }

    pub(super) fn enter_active(&self, doing: &str) -> Result<()> {
        let entered = self.state.occupy(State::Active).or_else(|_| self.state.occupy(State::Complete));
        entered.map_err(|state| self.refuse(state, doing))
    }

    #[cold]
    fn refuse(&self, state: State, doing: &str) -> Error {
        self.refused(doing, state.why_refused(doing, self.attachment.calls_back()))
    }

    #[cold]
    fn refused(&self, doing: &str, why: &str) -> Error {
        let Body { context, call, tag, .. } = &*self.body;
        let text = format!("{}: cannot {doing}: {why}", call.describe(context.rank, *tag));
        Error::new(ErrorKind::InvalidOperation, text).during(call.collective().name())
    }
}

impl Drop for Request {
    /// The other ranks would wait for an active request in vain, so the context is broken.
    fn drop(&mut self) {
        // In a forked child, the call is the parent's.
        if !self.state.get().is_started() || self.body.context.is_inherited() {
            return;
        }
        let running = self.body.running.lock().take();
        let mut operation = running.map(|(operation, _)| operation);
        let text = format!("rank {} has dropped an active request", self.body.context.rank);
        let error = Error::new(ErrorKind::Closed, text);
        let in_thread = operation.as_mut().and_then(Operation::in_thread);
        if let Some((call, shared)) = in_thread.zip(self.body.context.shared_memory.get()) {
            self.body.attend();
            call.withdraw(shared, &error);
        }
        let Ok(mut guard) = self.body.context.lock() else { return };
        guard.break_with(&error, Some(&error));
        // One that is shared ends with its last request, without the lock.
        if let Some(index) = operation.as_ref().and_then(Operation::index) {
            guard = self.body.context.engine().withdraw_function(guard, index);
            drop(guard.end(index));
        }
        self.body.context.finish_closing(guard);
    }
}

/// The error of a wait that ends before the calls of `left` requests.
pub fn not_yet(left: usize, time: &str) -> Error {
    let which = if left == 1 { "1 request has".to_owned() } else { format!("{left} requests have") };
    Error::new(ErrorKind::Timeout, format!("{which} not ended {time}; what was started goes on"))
}
