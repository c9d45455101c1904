//! Waits for several requests, of one context or of several.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::context::request::Request;
use crate::engine::ready::{Ends, FIRST_LOOK, Ready};
use crate::engine::{Idle, Waker};
use crate::error::{Error, Result};

/// Waits for `requests`; those that are `None` or inactive are ignored. `ended` is told of each that has ended, and
/// says whether to stop.
/// Returns whether all have ended, or it was told to stop; false if `time` is over first. The requests that have ended
/// are inactive then; the others are active.
pub fn wait_for_several(
    requests: &[Option<&Request>],
    time: Option<Duration>,
    ended: impl FnMut(usize, Result<()>) -> bool,
) -> Result<bool> {
    Wait::begin(requests)?.run(time, ended)
}

struct Wait<'a> {
    requests: &'a [Option<&'a Request>],
    /// Whether this wait has made the request busy, and it has not ended.
    pending: Vec<bool>,
    left: usize,
    ready: Arc<Ready>,
    /// The contexts of the requests, and whether each was found broken.
    contexts: Vec<(&'a Arc<Context>, bool)>,
    /// What wakes this thread, if it waits on several contexts.
    waker: Option<Arc<Waker>>,
    /// The earliest deadline of a request that may be pending.
    deadline: Option<Instant>,
}

impl<'a> Wait<'a> {
    fn begin(requests: &'a [Option<&'a Request>]) -> Result<Self> {
        for request in requests.iter().flatten() {
            request.check_thread("wait")?;
        }
        let mut wait = Self {
            requests,
            pending: vec![false; requests.len()],
            left: 0,
            ready: Arc::default(),
            contexts: Vec::new(),
            waker: None,
            deadline: None,
        };
        for (number, request) in requests.iter().enumerate() {
            let Some(request) = request.filter(|request| request.is_active()) else { continue };
            // Ends what was begun for those before, when it is dropped.
            request.enter_active("wait")?;
            wait.pending[number] = true;
            wait.left += 1;
            let context = request.context();
            if wait.contexts.iter().all(|(other, _)| !Arc::ptr_eq(other, context)) {
                wait.contexts.push((context, false));
            }
            // Each is looked at once.
            wait.ready.add(number);
        }
        wait.find_deadline();
        if wait.contexts.len() > 1 {
            let waker = Arc::new(Waker::new().map_err(|error| Error::io("cannot wait for requests", &error))?);
            wait.contexts.iter().for_each(|(context, _)| context.engine().listen(&waker));
            wait.waker = Some(waker);
        }
        Ok(wait)
    }

    /// The requests that have not ended, and their numbers.
    fn pending(&self) -> impl Iterator<Item = (usize, &'a Request)> {
        let requests = self.requests.iter().zip(&self.pending).enumerate();
        requests.filter_map(|(number, (request, pending))| Some((number, (*request)?)).filter(|_| *pending))
    }

    fn find_deadline(&mut self) {
        self.deadline = self.pending().filter_map(|(_, request)| request.deadline()).min();
    }

    fn run(&mut self, time: Option<Duration>, mut ended: impl FnMut(usize, Result<()>) -> bool) -> Result<bool> {
        let Some((first, _)) = self.contexts.first() else { return Ok(true) };
        let (engine, waker, until) =
            (first.engine(), self.waker.clone(), time.map(|time| first.deadline(Some(time)).0));
        let (mut look_in, mut idle) = (FIRST_LOOK, Idle::default());
        let mut next_look = engine.now() + look_in;
        loop {
            for number in self.ready.take() {
                let request = self.requests[number].filter(|_| self.pending[number]);
                let Some(result) = request.and_then(|request| self.end(request, number)) else { continue };
                self.pending[number] = false;
                self.left -= 1;
                if ended(number, result) {
                    return Ok(true);
                }
            }
            if self.left == 0 {
                return Ok(true);
            }
            let now = engine.now();
            if self.deadline.is_some_and(|deadline| now >= deadline) {
                let late = self.pending().filter(|(_, request)| request.deadline().is_none_or(|at| now >= at));
                late.for_each(|(number, _)| self.ready.add(number));
                self.find_deadline();
                // One that another thread is going on with stays late.
                self.deadline = self.deadline.map(|deadline| deadline.max(now + FIRST_LOOK));
                continue;
            }
            if until.is_some_and(|until| now >= until) {
                return Ok(false);
            }
            if now >= next_look {
                self.pending().filter(|(_, request)| request.is_quiet()).for_each(|(number, _)| self.ready.add(number));
                look_in *= 2;
                next_look = now + look_in;
                continue;
            }
            let sleep_until = [until, self.deadline].into_iter().flatten().fold(next_look, Ord::min);
            match &waker {
                None => self.wait_on_one(&mut idle, sleep_until),
                Some(waker) => self.wait_on_all(waker, sleep_until),
            }
        }
    }

    /// The result of a request, if it has ended: then it is inactive.
    fn end(&self, request: &Request, number: usize) -> Option<Result<()>> {
        if let Ok(false) = request.is_complete() {
            request.enter(self.ready.clone(), number);
            return None;
        }
        Some(request.complete(None).map(drop))
    }

    /// Progresses the only context until a request may have ended, or until `until`.
    fn wait_on_one(&mut self, idle: &mut Idle, until: Instant) {
        let (context, was_broken) = self.contexts[0];
        let (engine, ready) = (context.engine(), &self.ready);
        let _stay = engine.stay();
        let (mut guard, function) = engine.wait_for(engine.lock(), None, idle, until, |core| {
            if ready.is_any() || core.broken.is_some() != was_broken {
                return Some(None);
            }
            core.next_function().map(Some)
        });
        let is_broken = guard.broken.is_some();
        if let Some(function) = function.flatten() {
            guard = engine.call_function(guard, function);
            *idle = Idle::default();
        }
        engine.hand_over(guard);
        self.note_broken(0, is_broken);
    }

    /// Waits until a request of any of the contexts, which their devices progress, may have ended, or until `until`.
    fn wait_on_all(&mut self, waker: &Waker, until: Instant) {
        for at in 0..self.contexts.len() {
            let engine = self.contexts[at].0.engine();
            engine.call_functions();
            let is_broken = engine.lock().broken.is_some();
            self.note_broken(at, is_broken);
        }
        if !self.ready.is_any() {
            self.contexts[0].0.engine().sleep(waker, until);
        }
    }

    /// If the context with this index is broken, its calls on shared memory are to be looked at.
    fn note_broken(&mut self, at: usize, is_broken: bool) {
        let (context, was_broken) = self.contexts[at];
        if is_broken && !was_broken {
            self.contexts[at].1 = true;
            let on_it = self.pending().filter(|(_, request)| Arc::ptr_eq(request.context(), context));
            on_it.for_each(|(number, _)| self.ready.add(number));
        }
    }
}

impl Drop for Wait<'_> {
    /// The requests that have not ended are active.
    fn drop(&mut self) {
        self.pending().for_each(|(_, request)| request.stay_active());
        for (waker, (context, _)) in self.waker.iter().flat_map(|waker| self.contexts.iter().map(move |of| (waker, of)))
        {
            context.engine().ignore(waker);
        }
    }
}
