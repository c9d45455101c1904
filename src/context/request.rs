//! Persistent requests: a collective call that is checked and prepared once, and then started and waited for any number
//! of times.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::collective::Uses;
use crate::context::Context;
use crate::context::call::Call;
use crate::context::operation::Operation;
use crate::context::run::Run;
use crate::context::shared::{Begun, SharedCall};
use crate::context::staging::Staging;
use crate::engine::cache::CallKey;
use crate::engine::plan::boxed;
use crate::engine::prepared::Function;
use crate::engine::shared::{Attempted, BackgroundOperation, Claim, Progress, Shared};
use crate::engine::{Binding, Prepared};
use crate::error::{Error, ErrorKind, Result};
use crate::transport;

/// A prepared collective call. It is inactive until it is started, and again after the wait for it. Thread-safe: calls
/// that its state does not allow are refused.
pub struct Request {
    body: Arc<Body>,
    /// The memory that all ranks share, if the call can be started in few steps there.
    quick: Option<Arc<Shared>>,
    /// A [`State`].
    state: AtomicU8,
    /// That of a call on shared memory that has ended, until the wait has.
    claim: Claim,
}

/// What is needed to go on with the call.
struct Body {
    context: Arc<Context>,
    call: Arc<Prepared>,
    /// The call with its plan, from the first start on, if the plan depends on counts that only other ranks have.
    counted: OnceLock<Arc<Prepared>>,
    function: Option<Function>,
    inputs: Box<[*const u8]>,
    outputs: Box<[*mut u8]>,
    /// Whose buffers these are, where they are not the caller's.
    staging: Option<Staging>,
    /// The first of each; null if there is none.
    first: (*const u8, *mut u8),
    tag: u64,
    timeout: Option<Duration>,
    /// The call that was started, unless it has ended in its start. Locked by the thread that has made the request
    /// busy, and by threads that progress the context while they go on with the call.
    running: Attempted<Option<(Operation, Times)>>,
}

// SAFETY: the caller of `Context::request` keeps the buffers valid, on whichever thread they are used, and passes a
// function that the thread that waits may call; `state` allows one call at a time.
unsafe impl Send for Body {}
// SAFETY: as above.
unsafe impl Sync for Body {}

#[derive(Clone, Copy)]
#[repr(u8)]
enum State {
    Inactive,
    /// A thread is in a call of `start`, `wait` or `test`.
    Busy,
    /// Started, and not waited for.
    Active,
    /// The request is active, and the call has ended.
    Complete,
    /// See [`Request::retire`].
    Retired,
}

/// When a call was started, and when it fails.
#[derive(Clone, Copy)]
struct Times {
    at: Instant,
    deadline: Instant,
    timeout: Duration,
}

impl Context {
    /// Prepares a call: checks it, selects the algorithm, and makes the plan. Does not communicate. The context must be
    /// connected.
    ///
    /// # Safety
    /// From each start until the wait for it has returned, or until the request is dropped, the pointers of `call` are
    /// valid as [`Context::run`] demands, and only the library uses them. A reduction function may be called by the
    /// thread that waits.
    pub unsafe fn request(self: &Arc<Self>, call: &Call<'_>) -> Result<Request> {
        let key = self.key_of(call);
        let cached = self.check(call, key.as_ref())?;
        // SAFETY: the caller guarantees the pointers, and `check` has accepted this call.
        unsafe { self.request_checked(call, key.as_ref(), cached) }
    }

    /// [`Context::request`] for a call that `check` has accepted; `cached` is what that returned.
    ///
    /// # Safety
    /// See [`Context::request`]; `check` has accepted this very call.
    pub(crate) unsafe fn request_checked(
        self: &Arc<Self>,
        call: &Call<'_>,
        key: Option<&CallKey<'_>>,
        cached: Option<Arc<Prepared>>,
    ) -> Result<Request> {
        call.check_buffers()?;
        if self.is_staged(call)? {
            let staging = self.stage(call)?;
            let on_host = staging.call(call);
            let key = self.key_of(&on_host);
            let cached = self.check(&on_host, key.as_ref())?;
            let mut request = self.request_on_host(&on_host, key.as_ref(), cached)?;
            if !staging.is_quick() {
                request.quick = None;
            }
            // Nobody else has the body yet.
            if let Some(body) = Arc::get_mut(&mut request.body) {
                body.staging = Some(staging);
            }
            return Ok(request);
        }
        self.request_on_host(call, key, cached)
    }

    /// [`Context::request_checked`] for a call that the host makes as it is.
    fn request_on_host(
        self: &Arc<Self>,
        call: &Call<'_>,
        key: Option<&CallKey<'_>>,
        cached: Option<Arc<Prepared>>,
    ) -> Result<Request> {
        let prepared = cached.map_or_else(|| self.prepare(call, key), Ok)?;
        {
            let guard = self.lock()?;
            let broken = guard.broken.as_ref().map(|error| error.context("the context is broken"));
            if let Some(error) = self.unconnected(&guard).or(broken) {
                let run = self.run_of(call.binding(&prepared), call.timeout, guard.now);
                return Err(self.described(&run, &error));
            }
        }
        let shared = self.shared_memory.get().filter(|_| prepared.quick_start.is_some()).cloned();
        let first = call.binding(&prepared).first();
        let body = Body {
            context: self.clone(),
            call: prepared,
            counted: OnceLock::new(),
            function: call.function(),
            inputs: boxed(call.inputs)?,
            outputs: boxed(call.outputs)?,
            staging: None,
            first,
            tag: call.tag,
            timeout: call.timeout,
            running: Attempted::default(),
        };
        Ok(Request {
            body: Arc::new(body),
            quick: shared,
            state: AtomicU8::new(State::Inactive as u8),
            claim: Claim::default(),
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
        self.enter(State::Inactive).ok()?;
        // SAFETY: by the contract of `Context::request`, the buffers are valid until the call has ended.
        match unsafe { body.context.begin_quick(shared, (call, quick), body.tag, body.first, &self.claim) } {
            Some(Begun::Ended) => {
                self.leave(State::Complete);
                Some(Ok(()))
            }
            Some(Begun::Runs(call)) => Some(self.begin(Some(Operation::Thread(call)))),
            None => Some(self.begin(None)),
        }
    }

    /// Starts any call; may wait.
    #[inline(never)]
    pub(crate) fn start_any(&self) -> Result<()> {
        self.enter(State::Inactive).map_err(|state| self.refuse(state, "start"))?;
        self.begin(None)
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
        let has_ended = is_quick && self.enter(State::Complete).is_ok();
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
        transport::check_process(self.body.context.device().as_ref())?;
        self.enter_active("wait")?;
        self.complete()
    }

    /// Whether the call that was started is complete; if so, or if it has failed, this is the wait for it. Does what
    /// can be done without waiting. Once the timeout has expired, fails as the wait does.
    pub fn test(&self) -> Result<bool> {
        transport::check_process(self.body.context.device().as_ref())?;
        self.enter_active("test")?;
        if self.is_complete()? {
            return self.complete().map(|()| true);
        }
        self.leave(State::Active);
        Ok(false)
    }

    /// Refuses an active request; all later calls on an inactive one are refused. For a handle that is about to be
    /// freed.
    pub(crate) fn retire(&self) -> Result<()> {
        // In a forked child, the call is the parent's.
        if !self.body.context.is_inherited() {
            self.enter(State::Inactive).map_err(|state| self.refuse(state, "free"))?;
        }
        self.leave(State::Retired);
        Ok(())
    }

    /// Starts the call, unless it has `begun`, and does what can be done without waiting. The request is not busy
    /// afterwards.
    #[inline(never)]
    fn begin(&self, begun: Option<Operation>) -> Result<()> {
        let has_ended = self.begin_any(begun);
        self.leave(match has_ended {
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
        let operation = if is_prepared { None } else { context.begin_rounds_of(&mut run)? };
        if context.compares_calls() {
            context.compare_calls(&run)?;
        }
        let call = match body.executed() {
            Some(call) => call,
            None => {
                let counted = body.call.with_plan(context.plan_in_rounds(&run)?)?;
                body.counted.get_or_init(|| Arc::new(counted))
            }
        };
        run.binding.call = call;
        let admitted = context.admit(&run)?;
        let mut started = match begun {
            Some(begun) => begun,
            None => {
                let (guard, started) = context.begin(&run, call)?;
                guard.into_iter().for_each(|guard| context.engine().leave(guard));
                started
            }
        };
        started.in_thread().into_iter().for_each(SharedCall::make_claim);
        // Peers find what it publishes.
        if context.progress(&run, &mut started, || false) == Progress::Ended {
            context.complete(&run, None, &mut started)?;
            started.keep(&self.claim);
            return Ok(true);
        }
        drop((admitted, operation));
        let times = Times { at: run.started, deadline: run.deadline, timeout: run.timeout };
        let shared = context.shared_memory.get().filter(|_| started.in_thread().is_some());
        *body.running.lock() = Some((started, times));
        if let Some(shared) = shared {
            // Whoever progresses the context goes on with it.
            shared.leave(self.body.clone());
            context.engine().arm();
            let progress = self.body.progress();
            shared.pass_on(progress);
            if progress == Progress::Ended {
                // What it waited for may have come without a ring, so nobody else may find out that it has ended.
                self.attend();
            }
        }
        Ok(false)
    }

    /// Nobody else goes on with the call.
    fn attend(&self) {
        if let Some(shared) = self.body.context.shared_memory.get() {
            shared.attend(Arc::as_ptr(&self.body).cast());
        }
    }

    /// Does what can be done without waiting. Returns whether the run is over, or its deadline has passed.
    fn is_complete(&self) -> Result<bool> {
        let (body, context) = (&*self.body, &self.body.context);
        let mut running = body.running.lock();
        let Some((operation, times)) = &mut *running else { return Ok(true) };
        if context.test(&body.run(times), operation)? {
            return Ok(true);
        }
        drop(running);
        let progress = body.running.attempt_if_wanted(|running| body.progress_with(running));
        context.shared_memory.get().into_iter().for_each(|shared| shared.pass_on(progress));
        Ok(false)
    }

    /// Waits for the run, and ends it. The request becomes inactive.
    fn complete(&self) -> Result<()> {
        let (body, context) = (&*self.body, &self.body.context);
        let running = body.running.lock().take();
        let result = running.map_or(Ok(()), |(mut operation, times)| {
            let quick = self.quick.as_ref().zip(body.call.quick_start.as_ref());
            let has_ended = operation.in_thread().is_some_and(|call| {
                self.attend();
                // SAFETY: these are the arguments of the start.
                quick.is_some_and(|(memory, quick)| unsafe { call.finish(memory, quick, body.first.1) })
            });
            if !has_ended {
                let _stay = context.engine().stay();
                context.complete(&body.run(&times), None, &mut operation)?;
            }
            operation.keep(&self.claim);
            Ok(())
        });
        let result = result.and_then(|()| {
            // SAFETY: the outputs are valid for their lengths in the shape, by the contract of `Context::request`,
            // until the request is inactive.
            unsafe { body.call.settle(&body.outputs) };
            // SAFETY: as above; the call has ended.
            body.stage(|staging| unsafe { staging.copy_out() })
        });
        self.leave_inactive();
        result
    }

    /// Another call of its kind may start on its tag.
    #[inline]
    fn leave_inactive(&self) {
        // SAFETY: the context keeps the memory that its ranks share.
        unsafe { self.claim.release() };
        self.leave(State::Inactive);
    }

    /// Makes the request busy if its state is `allowed`; else returns the state.
    #[inline]
    fn enter(&self, allowed: State) -> std::result::Result<(), u8> {
        let (from, to) = (allowed as u8, State::Busy as u8);
        self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).map(drop)
    }

    fn enter_active(&self, doing: &str) -> Result<()> {
        let entered = self.enter(State::Active).or_else(|_| self.enter(State::Complete));
        entered.map_err(|state| self.refuse(state, doing))
    }

    /// Ends what [`Request::enter`] has begun.
    #[inline]
    fn leave(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    #[cold]
    fn refuse(&self, state: u8, doing: &str) -> Error {
        const INACTIVE: u8 = State::Inactive as u8;
        const BUSY: u8 = State::Busy as u8;
        const RETIRED: u8 = State::Retired as u8;
        let why = match state {
            INACTIVE => "the request is inactive: start it first",
            BUSY => "another thread is in a call on the request",
            RETIRED => "the request was freed",
            _ => "the request is active: wait for it first",
        };
        let Body { context, call, tag, .. } = &*self.body;
        let text = format!("{}: cannot {doing}: {why}", call.describe(context.rank, *tag));
        Error::new(ErrorKind::InvalidOperation, text).during(call.collective().name())
    }
}

impl Body {
    /// The call with its plan, if it has one.
    fn executed(&self) -> Option<&Arc<Prepared>> {
        match self.call.algorithm.uses {
            Uses::Counts => self.counted.get(),
            _ => Some(&self.call),
        }
    }

    fn binding(&self) -> Binding<'_> {
        let call = self.executed().unwrap_or(&self.call);
        Binding { call, inputs: &self.inputs, outputs: &self.outputs, function: self.function, tag: self.tag }
    }

    fn run(&self, times: &Times) -> Run<'_> {
        let Times { at, deadline, timeout } = *times;
        Run { deadline, timeout, ..self.context.run_of(self.binding(), self.timeout, at) }
    }

    /// Copies what the call reads or has written, where its buffers are not the caller's. A failure breaks the context.
    fn stage(&self, copy: impl FnOnce(&Staging) -> Result<()>) -> Result<()> {
        let Some(staging) = &self.staging else { return Ok(()) };
        self.context.check_process()?;
        copy(staging).map_err(|error| {
            let text = self.call.describe(self.context.rank, self.tag);
            self.context.fail_staged(&(text, self.call.collective().name()), &error)
        })
    }

    /// Goes on with the call that is `running`, without waiting.
    fn progress_with(&self, running: &mut Option<(Operation, Times)>) -> Progress {
        let Some((operation, times)) = running else { return Progress::Ended };
        // A call without any time may do what needs no waiting.
        let is_late = || !times.timeout.is_zero() && self.context.engine().now() >= times.deadline;
        self.context.progress(&self.run(times), operation, is_late)
    }
}

impl BackgroundOperation for Body {
    fn progress(&self) -> Progress {
        self.running.attempt(|running| self.progress_with(running))
    }
}

impl Drop for Request {
    /// The other ranks would wait for an active request in vain, so the context is broken.
    fn drop(&mut self) {
        let state = *self.state.get_mut();
        // In a forked child, the call is the parent's.
        if state != State::Active as u8 && state != State::Complete as u8 || self.body.context.is_inherited() {
            return;
        }
        let running = self.body.running.lock().take();
        let mut operation = running.map(|(operation, _)| operation);
        let in_thread = operation.as_mut().and_then(Operation::in_thread);
        if let Some((call, shared)) = in_thread.zip(self.body.context.shared_memory.get()) {
            self.attend();
            call.withdraw(shared);
        }
        let Ok(mut guard) = self.body.context.lock() else { return };
        let text = format!("rank {} has dropped an active request", self.body.context.rank);
        let error = Error::new(ErrorKind::Closed, text);
        guard.break_with(&error, Some(&error));
        operation.and_then(|operation| operation.index()).into_iter().for_each(|index| drop(guard.end(index)));
        self.body.context.finish_closing(guard);
    }
}
