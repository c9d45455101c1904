//! Persistent requests: a collective call that is checked and prepared once, and then started and waited for any number of times.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::collective::Uses;
use crate::context::Context;
use crate::context::call::{Call, Reduction, Run};
use crate::context::prepared::Selection;
use crate::context::shared::SharedCall;
use crate::engine::plan::{OwnedShape, Plan};
use crate::error::{Error, ErrorKind, Result};
use crate::transport;
use crate::types::ElementType;

/// A prepared collective call. It is inactive until it is started, and again after the wait for it. Thread-safe: calls that its
/// state does not allow are refused.
pub struct Request {
    context: Arc<Context>,
    shape: OwnedShape,
    dtype: ElementType,
    reduction: Reduction,
    inputs: Box<[*const u8]>,
    outputs: Box<[*mut u8]>,
    tag: u64,
    timeout: Option<Duration>,
    selection: Selection,
    /// Empty until the first start if the plan depends on counts of other ranks.
    plan: OnceLock<Arc<Plan>>,
    state: Mutex<State>,
    /// The call that was started, if the ranks share memory.
    shared: Mutex<Option<SharedCall>>,
}

// SAFETY: the caller of `Context::request` keeps the buffers valid, on whichever thread they are used, and passes a function that
// the thread that waits may call; `state` allows one call at a time.
unsafe impl Send for Request {}
// SAFETY: as above.
unsafe impl Sync for Request {}

#[derive(Clone, Copy)]
enum State {
    Inactive,
    /// A thread is in a call of `start`, `wait` or `test`.
    Busy,
    /// Started, and not waited for.
    Active(Started),
    /// See [`Request::retire`].
    Retired,
}

/// A run of a request.
#[derive(Clone, Copy)]
struct Started {
    /// Its index in the engine; `None` if the ranks share memory.
    index: Option<u32>,
    at: Instant,
    deadline: Instant,
    timeout: Duration,
}

impl Context {
    /// Prepares a call: checks it, selects the algorithm, and makes the plan. Does not communicate. The context must be connected.
    ///
    /// # Safety
    /// From each start until the wait for it has returned, or until the request is dropped, the pointers of `call` are valid as
    /// [`Context::run`] demands, and only the library uses them. A reduction function may be called by the thread that waits.
    pub unsafe fn request(self: &Arc<Self>, call: &Call<'_>) -> Result<Request> {
        self.check(call)?;
        // SAFETY: the caller guarantees the pointers, and `check` has accepted this call.
        unsafe { self.request_checked(call) }
    }

    /// [`Context::request`] for a call that `check` has accepted.
    ///
    /// # Safety
    /// As for `request`; `check` has accepted this very call.
    pub(crate) unsafe fn request_checked(self: &Arc<Self>, call: &Call<'_>) -> Result<Request> {
        call.check_buffers()?;
        let (call, selection) = self.select(call)?;
        let run = self.run_of(&call, selection, self.engine().now());
        {
            let guard = self.lock()?;
            let broken = guard.broken.as_ref().map(|error| error.context("the context is broken"));
            if let Some(error) = self.unconnected(&guard).or(broken) {
                return Err(self.described(&run, &error));
            }
        }
        let is_local = selection.algorithm.uses != Uses::Counts;
        let plan = is_local.then(|| self.plan_of(&run)).transpose()?;
        Ok(Request {
            context: self.clone(),
            shape: OwnedShape::new(&call.shape),
            dtype: call.dtype,
            reduction: call.reduction,
            inputs: call.inputs.into(),
            outputs: call.outputs.into(),
            tag: call.tag,
            timeout: call.timeout,
            selection,
            plan: plan.map_or_else(OnceLock::new, OnceLock::from),
            state: Mutex::new(State::Inactive),
            shared: Mutex::default(),
        })
    }
}

impl Request {
    /// Starts the call, with what the buffers contain now, and returns without waiting for it. Its timeout begins now. What other
    /// ranks must send first is an exception: with `check_calls`, every start waits until all ranks have started the call; so does
    /// the first start if the algorithm depends on counts that only other ranks have.
    pub fn start(&self) -> Result<()> {
        self.enter("start", |state| matches!(state, State::Inactive).then_some(()))?;
        let started = self.begin();
        *self.state() = started.as_ref().map_or(State::Inactive, |started| State::Active(*started));
        started.map(drop)
    }

    /// Waits until the call that was started is complete, or has failed. The request is inactive afterwards.
    pub fn wait(&self) -> Result<()> {
        self.wait_and(|| ())
    }

    /// As [`Request::wait`]. After a success, calls `last` while the buffers are still the library's.
    pub(crate) fn wait_and(&self, last: impl FnOnce()) -> Result<()> {
        transport::check_process(self.context.device().as_ref())?;
        let started = self.leave_active("wait")?;
        self.complete(started, last)
    }

    /// Whether the call that was started is complete; if so, or if it has failed, this is the wait for it. Does what can be done
    /// without waiting. Once the timeout has expired, fails as the wait does.
    pub fn test(&self) -> Result<bool> {
        self.test_and(|| ())
    }

    /// As [`Request::test`]. If the call is complete, calls `last` while the buffers are still the library's.
    pub(crate) fn test_and(&self, last: impl FnOnce()) -> Result<bool> {
        transport::check_process(self.context.device().as_ref())?;
        let started = self.leave_active("test")?;
        if self.is_complete(&started)? {
            return self.complete(started, last).map(|()| true);
        }
        *self.state() = State::Active(started);
        Ok(false)
    }

    /// Refuses an active request; all later calls on an inactive one are refused. For a handle that is about to be freed.
    pub(crate) fn retire(&self) -> Result<()> {
        // In a forked child, the call is the parent's.
        if !self.context.is_inherited() {
            self.enter("free", |state| matches!(state, State::Inactive).then_some(()))?;
        }
        *self.state() = State::Retired;
        Ok(())
    }

    fn begin(&self) -> Result<Started> {
        let (context, call) = (&*self.context, self.call());
        let run = context.run_of(&call, self.selection, context.engine().now());
        if context.compares_calls() {
            context.compare_calls(&run)?;
        }
        let plan = match self.plan.get() {
            Some(plan) => plan.clone(),
            None => {
                let plan = context.plan_of(&run)?;
                self.plan.get_or_init(|| plan).clone()
            }
        };
        let index = match context.shared_work(&plan, &run.binding) {
            Some(work) => {
                let mut call = context.begin_shared(&run, &work)?;
                // Peers find what it publishes.
                if !context.advance_shared(&run, &work, &mut call)? {
                    *self.shared_call() = Some(call);
                }
                None
            }
            None => {
                let (guard, index) = context.begin(&run, plan)?;
                context.engine().leave(guard);
                Some(index)
            }
        };
        Ok(Started { index, at: run.started, deadline: run.deadline, timeout: run.timeout })
    }

    /// Does what can be done without waiting. Returns whether the run is over, or its deadline has passed.
    fn is_complete(&self, started: &Started) -> Result<bool> {
        let engine = self.context.engine();
        let Some(index) = started.index else {
            let (mut shared, call) = (self.shared_call(), self.call());
            let run = self.run(&call, started);
            let done = match (self.plan.get(), &mut *shared) {
                (Some(plan), Some(call)) => match self.context.shared_work(plan, &run.binding) {
                    Some(work) => self.context.test_shared(&run, &work, call),
                    None => Ok(true),
                },
                _ => Ok(true),
            };
            if !matches!(done, Ok(false)) {
                *shared = None;
            }
            return done.inspect_err(|_| *self.state() = State::Inactive);
        };
        let guard = self.context.lock()?;
        let now = guard.now;
        let (guard, over) = engine.finish(guard, index, now);
        engine.hand_over(guard);
        Ok(over || now >= started.deadline)
    }

    fn run<'a>(&self, call: &'a Call<'a>, started: &Started) -> Run<'a> {
        let Started { at, deadline, timeout, .. } = *started;
        Run { deadline, timeout, ..self.context.run_of(call, self.selection, at) }
    }

    fn shared_call(&self) -> MutexGuard<'_, Option<SharedCall>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the run, and ends it. The request becomes inactive.
    fn complete(&self, started: Started, last: impl FnOnce()) -> Result<()> {
        let call = self.call();
        let run = self.run(&call, &started);
        let result = match (started.index, self.plan.get()) {
            (Some(index), _) => self.context.lock().and_then(|guard| self.context.complete(&run, guard, index)),
            (None, Some(plan)) => match (self.shared_call().take(), self.context.shared_work(plan, &run.binding)) {
                (Some(mut call), Some(work)) => self.context.complete_shared(&run, &work, &mut call),
                // It has ended already.
                _ => Ok(()),
            },
            (None, None) => Ok(()),
        };
        if result.is_ok() {
            // SAFETY: the outputs are valid for their lengths in the shape, by the contract of `Context::request`, until the
            // request is inactive.
            unsafe { call.settle() };
            last();
        }
        *self.state() = State::Inactive;
        result
    }

    /// The call, which owns nothing.
    fn call(&self) -> Call<'_> {
        Call {
            shape: self.shape.get(),
            algorithm: None,
            dtype: self.dtype,
            reduction: self.reduction,
            inputs: &self.inputs,
            outputs: &self.outputs,
            tag: self.tag,
            timeout: self.timeout,
            max_segment_bytes: None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave_active(&self, doing: &str) -> Result<Started> {
        self.enter(doing, |state| if let State::Active(started) = state { Some(started) } else { None })
    }

    /// Makes the request busy if `allowed` returns a result for its state.
    #[inline]
    fn enter<T>(&self, doing: &str, allowed: impl FnOnce(State) -> Option<T>) -> Result<T> {
        let mut state = self.state();
        let result = allowed(*state).ok_or_else(|| self.refuse(*state, doing))?;
        *state = State::Busy;
        Ok(result)
    }

    #[cold]
    fn refuse(&self, state: State, doing: &str) -> Error {
        let why = match state {
            State::Inactive => "the request is inactive: start it first",
            State::Active(_) => "the request is active: wait for it first",
            State::Busy => "another thread is in a call on the request",
            State::Retired => "the request was freed",
        };
        let (rank, algorithm) = (self.context.rank, self.selection.algorithm.name);
        let text = format!("{}: cannot {doing}: {why}", self.call().describe(rank, algorithm));
        Error::new(ErrorKind::InvalidOperation, text).during(self.shape.get().collective.name())
    }
}

impl Drop for Request {
    /// The other ranks would wait for an active request in vain, so the context is broken.
    fn drop(&mut self) {
        let State::Active(started) = *self.state() else { return };
        if let Some(call) = &mut *self.shared_call() {
            self.context.drop_shared(call);
        }
        let Ok(mut guard) = self.context.lock() else { return };
        let text = format!("rank {} has dropped an active request", self.context.rank);
        let error = Error::new(ErrorKind::Closed, text);
        guard.break_with(&error, Some(&error));
        started.index.map(|index| guard.end(index));
        self.context.finish_closing(guard);
    }
}
