//! Completion queues: any threads take the ends of requests, of one context or of several.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::context::queued::{Completion, Queue};
use crate::context::request::HasRequest;
use crate::context::unbound_buffer::UnboundBuffer;
use crate::engine::completion_queue::HasEngine;
use crate::engine::ready::OnTime;
use crate::engine::{Engine, Idle};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::ForkMark;
use crate::transport::{Clock, SystemClock};

/// How long a thread sleeps that has no deadline, before it sleeps again.
const LONG_SLEEP: Duration = Duration::from_secs(3600);

/// A completion queue. Thread-safe.
pub struct Completions {
    /// The first field, so that it is dropped before the descriptor is closed.
    #[cfg(target_os = "linux")]
    not_inherited: Mutex<Option<crate::sys::NotInherited>>,
    queue: Arc<Queue>,
    mark: ForkMark,
}

impl Completions {
    /// An empty queue, for contexts of real devices.
    pub fn new() -> Result<Self> {
        Self::by(Arc::new(SystemClock))
    }

    /// An empty queue, for contexts with this clock.
    pub fn by(clock: Arc<dyn Clock>) -> Result<Self> {
        let mark = ForkMark::new().map_err(|error| Error::io("cannot create a queue", &error))?;
        Ok(Self {
            #[cfg(target_os = "linux")]
            not_inherited: Mutex::default(),
            queue: Arc::new(Queue::new(clock)),
            mark,
        })
    }

    /// Reports the ends of all calls of a request from now on, that of the call in progress included, with `user`.
    /// `own` is who has the request.
    pub fn attach(&self, own: Arc<dyn HasRequest>, user: u64) -> Result<()> {
        self.check_process()?;
        let request = own.request();
        request.check_thread("attach")?;
        let queue: Arc<dyn OnTime> = self.queue.clone();
        request.context().engine().will_remind(&queue);
        request.attach(own.clone(), &self.queue, user)
    }

    /// Reports the ends of all operations of a buffer from now on, with `user`, those included that no wait has
    /// reported.
    pub fn attach_buffer(&self, buffer: &UnboundBuffer, user: u64) -> Result<()> {
        self.check_process()?;
        buffer.attach(&self.queue, user)
    }

    /// Waits until a request has ended, and takes its entry: it is inactive then. `None` if `time` is over first.
    /// Without a time, waits for ever. Calls the reduction functions of the calls in progress.
    pub fn wait(&self, time: Option<Duration>) -> Result<Option<Completion>> {
        self.check_process()?;
        let queue = &self.queue;
        let (mut until, mut idle, mut has_looked) = (None, Idle::default(), false);
        loop {
            while let Some((number, source, user)) = queue.take() {
                if let Some(result) = source.end_in(queue, number) {
                    return Ok(Some(Completion { user, kind: source.kind(), result }));
                }
            }
            let view = queue.view();
            if view.is_closed {
                return Err(closed());
            }
            let now = queue.now();
            let until = *until.get_or_insert_with(|| time.and_then(|time| now.checked_add(time)));
            if view.next_look.is_some_and(|at| now >= at) {
                queue.look(now).wake();
                continue;
            }
            if until.is_some_and(|until| now >= until) {
                if has_looked {
                    return Ok(None);
                }
                view.contexts.iter().for_each(|context| context.engine().call_functions());
                has_looked = true;
                continue;
            }
            let sleep_until = [until, view.next_look].into_iter().flatten().fold(now + LONG_SLEEP, Ord::min);
            queue.rest(&view, &mut idle, sleep_until).map_err(|error| Error::io("cannot wait for a queue", &error))?;
            has_looked = true;
        }
    }

    /// Number of calls in progress.
    pub fn count(&self) -> usize {
        self.queue.view().calls
    }

    /// A descriptor that is readable while an entry is there. The queue closes it.
    #[cfg(target_os = "linux")]
    pub fn descriptor(&self) -> Result<i32> {
        use crate::sys::{AsRaw, NotInherited};
        self.check_process()?;
        if self.queue.view().is_closed {
            return Err(closed());
        }
        let bell = self.queue.bell(|bell| bell.raw());
        let (descriptor, after) = bell.map_err(|error| Error::io("cannot create a queue's descriptor", &error))?;
        let mut registered = self.not_inherited.lock().unwrap_or_else(PoisonError::into_inner);
        registered.get_or_insert_with(|| NotInherited::new(descriptor));
        drop(registered);
        for context in self.queue.view().contexts {
            after.remind_at.into_iter().for_each(|at| context.engine().remind_at(at));
        }
        Ok(descriptor)
    }

    /// A descriptor that is readable while an entry is there.
    #[cfg(not(target_os = "linux"))]
    pub fn descriptor(&self) -> Result<i32> {
        Err(Error::new(ErrorKind::Unsupported, "queues have descriptors on Linux only"))
    }

    /// Ends all waits. Requests that are attached are not any more. Refused while one is active.
    pub fn close(&self) -> Result<()> {
        self.check_process()?;
        #[cfg(target_os = "linux")]
        let mut registered = self.not_inherited.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = self.queue.close(|| {
            #[cfg(target_os = "linux")]
            drop(registered.take());
        });
        let (attached, after) = closed.map_err(|calls| {
            let which = if calls == 1 { "1 request is".to_owned() } else { format!("{calls} requests are") };
            let text = format!("cannot close the queue: {which} active that it reports: take their entries first");
            Error::new(ErrorKind::InvalidOperation, text)
        })?;
        attached.iter().for_each(|source| source.leave_queue());
        after.wake();
        Ok(())
    }

    /// Whether this process inherited the queue by fork.
    pub fn is_inherited(&self) -> bool {
        self.mark.is_child()
    }

    fn check_process(&self) -> Result<()> {
        if !self.is_inherited() {
            return Ok(());
        }
        let text = "this process is a child by fork of the process that created the queue, and cannot use it; it may \
                    destroy it and create its own";
        Err(Error::new(ErrorKind::InvalidOperation, text))
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the queue is closed")
}

impl HasEngine for Context {
    fn engine(&self) -> &Engine {
        self.engine()
    }
}

impl OnTime for Queue {
    fn reminded(&self, now: Instant) -> Option<Instant> {
        let after = self.look(now);
        after.wake();
        after.remind_at
    }
}
