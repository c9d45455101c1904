//! A request's call while it is started: whoever progresses the context goes on with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::collective::Uses;
use crate::context::Context;
use crate::context::operation::Operation;
use crate::context::run::Run;
use crate::context::staging::Staging;
use crate::engine::prepared::Function;
use crate::engine::ready::{Entry, OnEnd};
use crate::engine::shared::{Attempted, BackgroundOperation, Progress};
use crate::engine::{Binding, Prepared};
use crate::error::{Error, Result};

/// What is needed to go on with the call of a request.
pub(super) struct Body {
    pub context: Arc<Context>,
    pub call: Arc<Prepared>,
    /// The call with its plan, from the first start on, if the plan depends on counts that only other ranks have.
    pub counted: OnceLock<Arc<Prepared>>,
    pub function: Option<Function>,
    pub inputs: Box<[*const u8]>,
    pub outputs: Box<[*mut u8]>,
    /// Whose buffers these are, where they are not the caller's.
    pub staging: Option<Staging>,
    /// The first of each; null if there is none.
    pub first: (*const u8, *mut u8),
    pub tag: u64,
    pub timeout: Option<Duration>,
    /// See [`Binding::in_order`].
    pub in_order: bool,
    /// When the request was made.
    pub made: Instant,
    /// The call that was started, unless it has ended in its start. Locked by the thread that has made the request
    /// busy, and by threads that progress the context while they go on with the call.
    pub running: Attempted<Option<(Operation, Times)>>,
    /// Whether a call on shared memory can go on only if `function` is called.
    pub wants_function: AtomicBool,
    /// The thread that has locked `running` to call `function`, without waiting for this request.
    caller: Mutex<Option<ThreadId>>,
    record: Mutex<Record>,
    /// Whether the record is that of the last start, which has not ended at once.
    is_recorded: AtomicBool,
}

// SAFETY: the caller of `Context::request` keeps the buffers valid, on whichever thread they are used, and passes a
// function that any thread that waits may call; the request's state allows one call at a time.
unsafe impl Send for Body {}
// SAFETY: as above.
unsafe impl Sync for Body {}

/// When a call was started, and when it fails.
#[derive(Clone, Copy)]
pub(in crate::context) struct Times {
    pub at: Instant,
    pub deadline: Instant,
    pub timeout: Duration,
}

impl Times {
    /// Those of `run`.
    pub fn of(run: &Run<'_>) -> Self {
        Self { at: run.started, deadline: run.deadline, timeout: run.timeout }
    }
}

/// What is known of the last start that has not ended at once.
#[derive(Default)]
struct Record {
    started: Option<Instant>,
    /// When it fails.
    deadline: Option<Instant>,
    /// When the call has ended on this rank.
    ended: Option<Instant>,
    failed: Option<Error>,
    /// Where its end is to be noted.
    entry: Option<Entry>,
}

/// When a request was made, and what is known of its last call. A call that has ended at once has no times.
#[derive(Clone, Debug)]
pub struct Progressed {
    /// Whether a call was started that was not waited for.
    pub is_active: bool,
    /// Whether the call has ended; of an inactive request, whether any has.
    pub has_ended: bool,
    /// When the request was made.
    pub made: Instant,
    /// When the call was started.
    pub started: Option<Instant>,
    /// When the call has ended.
    pub ended: Option<Instant>,
    /// Why the call has failed, if it has, and was waited for.
    pub failed: Option<Error>,
}

impl Body {
    /// That of `call` on these buffers, of which the caller has the pointers.
    pub fn new(
        context: Arc<Context>,
        call: Arc<Prepared>,
        function: Option<Function>,
        (inputs, outputs): (Box<[*const u8]>, Box<[*mut u8]>),
        (tag, in_order): (u64, bool),
        timeout: Option<Duration>,
    ) -> Self {
        let made = context.engine().now();
        let mut body = Self {
            context,
            call,
            counted: OnceLock::new(),
            function,
            inputs,
            outputs,
            staging: None,
            first: (std::ptr::null(), std::ptr::null_mut()),
            tag,
            timeout,
            in_order,
            made,
            running: Attempted::default(),
            wants_function: AtomicBool::new(false),
            caller: Mutex::new(None),
            record: Mutex::default(),
            is_recorded: AtomicBool::new(false),
        };
        body.first = body.binding().first();
        body
    }

    /// The call with its plan, if it has one.
    pub fn executed(&self) -> Option<&Arc<Prepared>> {
        match self.call.algorithm.uses {
            Uses::Counts => self.counted.get(),
            _ => Some(&self.call),
        }
    }

    pub fn binding(&self) -> Binding<'_> {
        let call = self.executed().unwrap_or(&self.call);
        let Self { inputs, outputs, function, tag, in_order, .. } = self;
        Binding { call, inputs, outputs, function: *function, tag: *tag, in_order: *in_order }
    }

    pub fn run(&self, times: &Times) -> Run<'_> {
        let Times { at, deadline, timeout } = *times;
        Run { deadline, timeout, ..self.context.run_of(self.binding(), self.timeout, at) }
    }

    /// Copies what the call reads or has written, where its buffers are not the caller's. A failure breaks the context.
    pub fn stage(&self, copy: impl FnOnce(&Staging) -> Result<()>) -> Result<()> {
        let Some(staging) = &self.staging else { return Ok(()) };
        self.context.check_process()?;
        copy(staging).map_err(|error| {
            let text = self.call.describe(self.context.rank, self.tag);
            self.context.fail_staged(&(text, self.call.collective().name()), &error)
        })
    }

    /// The call goes on while no thread waits for it.
    pub fn leave_running(self: &Arc<Self>, mut operation: Operation, times: Times) {
        let context = &*self.context;
        let shared = context.shared_memory.get().filter(|_| operation.in_thread().is_some());
        self.wants_function.store(false, Ordering::Release);
        *self.running.lock() = Some((operation, times));
        if let Some(shared) = shared {
            // Whoever progresses the context goes on with it.
            shared.leave(self.clone());
            context.engine().arm();
            let progress = self.progress();
            shared.pass_on(progress);
            if self.wants_function() {
                // Other threads may wait on the context.
                context.engine().wake();
            }
            if progress == Progress::Ended {
                // What it waited for may have come without a ring, so nobody else may find out that it has ended.
                self.attend();
            }
        }
    }

    /// Nobody else goes on with the call.
    pub fn attend(&self) {
        if let Some(shared) = self.context.shared_memory.get() {
            shared.attend(std::ptr::from_ref(self).cast());
        }
    }

    /// Goes on with the call that is `running`, without waiting.
    pub fn progress_with(&self, running: &mut Option<(Operation, Times)>) -> Progress {
        let Some((operation, times)) = running else { return Progress::Ended };
        // A call without any time may do what needs no waiting.
        let is_late = || !times.timeout.is_zero() && self.context.engine().now() >= times.deadline;
        let run = self.run(times);
        let progress = operation.progress(&run, is_late);
        self.look_for_function(&run, operation);
        self.note_end(progress)
    }

    /// Whether the call can go on only if its function is called, which another thread may do from now on. For the
    /// thread that has locked `running`.
    pub fn look_for_function(&self, run: &Run<'_>, operation: &mut Operation) {
        if self.function.is_some()
            && let Some((call, work)) = operation.in_thread().zip(self.context.shared_work(&run.binding))
        {
            let wants = call.wants_function(&work);
            if !self.wants_function.swap(wants, Ordering::AcqRel) && wants {
                work.shared.want_function();
            }
        }
    }

    /// Whether this thread is calling the function, without waiting for this request.
    pub fn is_called_here(&self) -> bool {
        let here = Some(std::thread::current().id());
        if *self.caller.lock().unwrap_or_else(PoisonError::into_inner) == here {
            return true;
        }
        match self.running.try_lock().as_deref() {
            Some(Some((Operation::Engine(index), _))) => self.context.engine().lock().caller(*index) == here,
            _ => false,
        }
    }

    /// Goes on with the call that is `running`, and calls its function.
    fn call_function_of(&self, running: &mut Option<(Operation, Times)>) -> Progress {
        self.wants_function.store(false, Ordering::Release);
        let Some((operation, times)) = running else { return Progress::Ended };
        let run = self.run(times);
        let Some((call, work)) = operation.in_thread().zip(self.context.shared_work(&run.binding)) else {
            return Progress::None;
        };
        let caller = |thread| *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = thread;
        caller(Some(std::thread::current().id()));
        let has_ended = call.call_function(&work);
        caller(None);
        self.look_for_function(&run, operation);
        self.note_end(if has_ended { Progress::Ended } else { Progress::Some })
    }

    fn note_end(&self, progress: Progress) -> Progress {
        if progress == Progress::Ended {
            self.ended(self.context.engine().now());
            self.context.shared_memory.get().into_iter().for_each(|shared| shared.give_notice());
        }
        progress
    }

    /// The call was started, and has not ended at once.
    pub fn has_started(&self, times: &Times) {
        *self.record() = Record { started: Some(times.at), deadline: Some(times.deadline), ..Record::default() };
        self.is_recorded.store(true, Ordering::Release);
    }

    /// A call has ended in its start, in few steps.
    #[inline]
    pub fn has_ended_at_once(&self) {
        self.is_recorded.store(false, Ordering::Release);
    }

    /// The wait for the call has ended.
    pub fn was_waited_for(&self, failed: Option<&Error>) {
        let now = self.context.engine().now();
        let mut record = self.record();
        record.ended.get_or_insert(now);
        (record.failed, record.entry) = (failed.cloned(), None);
    }

    /// Notes the end of the call in `entry`, at once if it has ended. The call was started, and has not ended at once.
    pub fn enter(&self, entry: Entry) {
        let mut record = self.record();
        match record.ended {
            Some(_) => entry.note(),
            None => record.entry = Some(entry),
        }
    }

    /// When the last call that has not ended at once fails, or has.
    pub fn deadline(&self) -> Option<Instant> {
        self.record().deadline
    }

    /// Ends what [`Body::enter`] has begun.
    pub fn leave(&self) {
        self.record().entry = None;
    }

    /// What is known of the last call.
    pub fn progressed(&self, is_active: bool, has_ended: bool) -> Progressed {
        let none = Progressed { is_active, has_ended, made: self.made, started: None, ended: None, failed: None };
        if !self.is_recorded.load(Ordering::Acquire) {
            return none;
        }
        let record = self.record();
        let (started, ended) = (record.started, record.ended);
        Progressed { has_ended: ended.is_some(), started, ended, failed: record.failed.clone(), ..none }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnEnd for Body {
    fn ended(&self, at: Instant) {
        let mut record = self.record();
        record.ended.get_or_insert(at);
        record.entry.take().into_iter().for_each(|entry| entry.note());
    }
}

impl BackgroundOperation for Body {
    fn progress(&self) -> Progress {
        self.running.attempt(|running| self.progress_with(running))
    }

    fn wants_function(&self) -> bool {
        self.wants_function.load(Ordering::Acquire)
    }

    fn call_function(&self) {
        self.running.attempt(|running| self.call_function_of(running));
    }
}
