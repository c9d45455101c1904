//! Who calls the reduction functions of callers.
//!
//! That of a plain call is called by the thread that makes it. That of a call which was started is called by any thread
//! that waits on the context: otherwise ranks that wait for several calls in different orders would wait for each
//! other.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::engine::operation::Operation;
use crate::engine::shared::BackgroundOperation;
use crate::engine::{Core, Engine, Guard, Reduction};

/// How long a thread waits that has no deadline, before it waits again.
const LONG_WAIT: Duration = Duration::from_secs(3600);

/// A call of a reduction function of the caller.
pub enum FunctionCall {
    /// It combines a segment of the run with this index.
    Segment(u32, Reduction),
    /// It combines in the next steps of a call on shared memory that was started.
    Started(Arc<dyn BackgroundOperation>),
}

impl Core {
    /// The next call of a function that any thread may make that waits on the context: of one of the calls that were
    /// started. Else ranks that wait for several calls in different orders would wait for each other.
    pub fn next_function(&mut self) -> Option<FunctionCall> {
        if self.shared_functions > 0 {
            let wants = |operation: &Operation| operation.shares_function && operation.wants_function();
            let mut all = self.operations.iter_mut();
            let segment = all.find(|(_, operation)| wants(operation) && !operation.is_over());
            let segment = segment.and_then(|(index, operation)| Some((index, operation.next_reduction()?)));
            if let Some((index, reduction)) = segment {
                return Some(FunctionCall::Segment(index, reduction));
            }
        }
        self.shared.as_ref().and_then(|shared| shared.next_function()).map(FunctionCall::Started)
    }

    /// Any thread that waits on the context may call the function of the run `index`, if it has one, until
    /// [`Engine::withdraw_function`].
    pub fn share_function(&mut self, index: u32) {
        let operation = &mut self.operations[index];
        if operation.has_function() {
            operation.shares_function = true;
            self.shared_functions += 1;
            self.ended |= operation.wants_function();
        }
    }

    /// Ends what [`Core::share_function`] has begun, if anything.
    pub(super) fn keep_function(&mut self, index: u32) {
        let shared = std::mem::take(&mut self.operations[index].shares_function);
        self.shared_functions -= usize::from(shared);
    }

    /// Threads that wait are told, if calls on shared memory have ended or begun to want their functions.
    pub(super) fn take_notice(&mut self) {
        self.ended |= self.shared.as_ref().is_some_and(|shared| shared.take_notice());
    }

    /// The reduction function of the run `index` has returned `status`.
    pub(super) fn reduced(&mut self, index: u32, reduction: &Reduction, status: i32) {
        let operation = &mut self.operations[index];
        let is_shared = operation.caller.is_some();
        operation.reduced(reduction, status, &mut self.messenger);
        operation.note(self.now);
        if is_shared {
            // Another thread may wait for the run, for the end of this call, or be able to make the next one.
            self.ended = true;
            self.dispatch();
        }
    }

    /// Whether the function of the run `index` is running.
    pub(super) fn is_reducing(&self, index: u32) -> bool {
        self.operations[index].is_reducing()
    }

    /// The thread that calls the function of the run `index`, if any thread may call it.
    pub fn caller(&self, index: u32) -> Option<ThreadId> {
        self.operations[index].caller
    }
}

impl Engine {
    /// Calls a function without the lock.
    pub fn call_function<'a>(&'a self, mut guard: Guard<'a>, function: FunctionCall) -> Guard<'a> {
        // Sends what was posted before the function is called, which may take long.
        guard.dispatch();
        self.hand_over(guard);
        match function {
            FunctionCall::Segment(index, reduction) => {
                let status = reduction.call();
                guard = self.lock();
                guard.reduced(index, &reduction, status);
            }
            FunctionCall::Started(call) => {
                call.call_function();
                guard = self.lock();
                guard.take_notice();
            }
        }
        guard
    }

    /// [`Engine::finish`] for a run without a function that any thread may end: until it `is_over`, or until `deadline`.
    pub fn finish_other<'a>(
        &'a self,
        mut guard: Guard<'a>,
        deadline: Instant,
        is_over: impl Fn() -> bool,
    ) -> Guard<'a> {
        loop {
            let next = |core: &mut Core| if is_over() { Some(None) } else { core.next_function().map(Some) };
            let (core, next) = self.wait(guard, deadline, next);
            let Some(Some(function)) = next else { return core };
            guard = self.call_function(core, function);
            if guard.now >= deadline {
                return guard;
            }
        }
    }

    /// No other thread calls the function of the run `index` any more. Waits for the end of a call that one makes.
    #[cold]
    pub fn withdraw_function<'a>(&'a self, mut guard: Guard<'a>, index: u32) -> Guard<'a> {
        guard.keep_function(index);
        while guard.is_reducing(index) {
            let until = guard.now + LONG_WAIT;
            guard = self.wait(guard, until, |core| (!core.is_reducing(index)).then_some(())).0;
        }
        guard
    }

    /// Calls the functions that are wanted, and leaves the context to whoever else progresses it. For a thread that
    /// waits on several contexts.
    pub fn call_functions(&self) {
        let mut guard = self.lock();
        loop {
            guard.serve();
            let Some(function) = guard.next_function() else { break };
            guard = self.call_function(guard, function);
        }
        guard.is_lazy = false;
        self.hand_over(guard);
    }
}
