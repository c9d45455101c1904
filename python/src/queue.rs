//! Completion queues: requests that have ended are taken by any threads and event loops.

use crate::abi::*;
use crate::arguments::milliseconds;
use crate::error::{check, detached, ended_with};
use crate::interrupt::{is_main_thread, waiting_on};
use crate::request::Request;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the main thread looks for signals while it waits for an entry.
const LOOK: Duration = Duration::from_millis(20);

/// What a queue and its requests share.
pub struct Shared {
    queue: *mut gloo_rs_queue_t,
    /// The active requests, by their numbers: the library uses their buffers.
    active: Mutex<HashMap<u64, Py<Request>>>,
    next: AtomicU64,
}

// SAFETY: queues are thread-safe, by the header.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Where a request is attached.
pub struct Attachment {
    shared: Arc<Shared>,
    number: u64,
    /// What the entries are to have; none for the request itself, which would keep itself alive.
    pub value: Option<Py<PyAny>>,
}

impl Attachment {
    /// Runs `start`, which starts the call of `request`. It is active from then on, until its entry is taken.
    pub fn start(&self, request: &Bound<'_, Request>, start: impl FnOnce() -> PyResult<()>) -> PyResult<()> {
        let is_new = self.shared.enter(request, self.number);
        let started = start();
        if started.is_err() && is_new {
            drop(self.shared.leave(request.py(), self.number));
        }
        started
    }
}

impl Shared {
    /// Whether it is new.
    fn enter(&self, request: &Bound<'_, Request>, number: u64) -> bool {
        let py = request.py();
        let mut active = self.active.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let old = active.insert(number, request.clone().unbind());
        drop(active);
        old.is_none()
    }

    fn leave(&self, py: Python<'_>, number: u64) -> Option<Py<Request>> {
        self.active.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).remove(&number)
    }

    fn count(&self, py: Python<'_>) -> usize {
        self.active.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: whoever drops it has the only reference. No request is active, since these have references.
        let _ = unsafe { gloo_rs_queue_destroy(self.queue) };
    }
}

/// Reports the ends of requests, of one context or of several, to any threads and event loops.
#[pyclass(frozen, module = "gloo_rs")]
pub struct Queue(Arc<Shared>);

/// What was attached with a request, and the exception by which its call has failed.
type Completion = (Py<PyAny>, Option<Py<PyAny>>);

#[pymethods]
impl Queue {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let mut queue = std::ptr::null_mut();
        // SAFETY: the place for the handle lives.
        check(py, unsafe { gloo_rs_queue_create(&mut queue) })?;
        Ok(Self(Arc::new(Shared { queue, active: Mutex::default(), next: AtomicU64::new(1) })))
    }

    /// Has the queue report the end of each call of a request from now on, that of the call in progress included. Entries have
    /// `value`, or the request if that is None.
    #[pyo3(signature = (request, value = None))]
    fn attach(&self, py: Python<'_>, request: &Bound<'_, Request>, value: Option<Py<PyAny>>) -> PyResult<()> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let own = request.get();
        let mut attachment = own.attachment(py);
        // Before the library knows of it: another thread may take its entry at once.
        let is_active = own.is_active(py)?;
        if is_active {
            self.0.enter(request, number);
        }
        // SAFETY: both live.
        let attached = check(py, detached(py, || unsafe { gloo_rs_queue_attach(self.0.queue, own.handle(), number) }));
        match attached {
            Ok(()) => *attachment = Some(Arc::new(Attachment { shared: self.0.clone(), number, value })),
            Err(_) if is_active => drop(self.0.leave(py, number)),
            Err(_) => {}
        }
        attached
    }

    /// Waits until a request has ended, and takes its entry: the value with which it was attached, or the request, and None or the
    /// exception that a wait for it would have raised. Raises Timeout if none ends within `timeout` seconds.
    #[pyo3(signature = (*, timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Completion> {
        let timeout = milliseconds(timeout)?;
        let until = (timeout >= 0).then(|| Instant::now().checked_add(Duration::from_millis(timeout.unsigned_abs())));
        let until = until.flatten();
        // Signals end a wait of the main thread, which loses nothing by it: the requests go on.
        let looks = is_main_thread();
        let (mut user, mut status) = (0, GLOO_RS_OK);
        loop {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            let is_last = !looks || left <= LOOK;
            let time = match if looks { left.min(LOOK) } else { left } {
                Duration::MAX => i64::MAX,
                time => time.as_micros().div_ceil(1000) as i64,
            };
            // SAFETY: the queue lives, and so do the places for results.
            let ended = detached(py, || unsafe { gloo_rs_queue_wait(self.0.queue, time, &mut user, &mut status) });
            if ended != GLOO_RS_ERROR_TIMEOUT || is_last {
                check(py, ended)?;
                break;
            }
            py.check_signals()?;
        }
        let error = ended_with(py, status);
        let request = self.0.leave(py, user);
        let value = request.map_or_else(|| py.None(), |request| Request::value(request, py));
        Ok((value, error))
    }

    /// A descriptor that is readable while an entry is there, for select and event loops.
    fn fileno(&self, py: Python<'_>) -> PyResult<c_int> {
        let mut fd = -1;
        // SAFETY: the queue lives.
        check(py, unsafe { gloo_rs_queue_fd(self.0.queue, &mut fd) })?;
        Ok(fd)
    }

    /// Ends the queue: waits raise Closed, and requests are attached no more. Refused while one is active.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the queue lives.
        check(py, detached(py, || unsafe { gloo_rs_queue_close(self.0.queue) }))
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// The next entry, as `wait` returns it, as long as a request is active.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Completion>> {
        if self.0.count(py) == 0 { Ok(None) } else { self.wait(py, None).map(Some) }
    }
}

impl Drop for Queue {
    /// Takes the entries of active requests, whose buffers must live until then.
    fn drop(&mut self) {
        Python::attach(|py| {
            while self.0.count(py) > 0 {
                let active = self.0.active.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
                let contexts: Vec<_> = active.values().map(|request| request.get().context().clone()).collect();
                drop(active);
                let pointers: Vec<_> = contexts.iter().map(|context| context.get()).collect();
                let (mut user, mut status) = (0, GLOO_RS_OK);
                // SAFETY: the queue lives, and so do the places for results.
                let wait = || unsafe { gloo_rs_queue_wait(self.0.queue, i64::MAX, &mut user, &mut status) };
                // What fails is not reported: nobody waits for it any more.
                if waiting_on(py, &pointers, wait).is_err() {
                    return;
                }
                drop(self.0.leave(py, user));
            }
            // SAFETY: the queue lives.
            let _ = unsafe { gloo_rs_queue_close(self.0.queue) };
        });
    }
}
