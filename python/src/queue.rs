//! Completion queues: requests that have ended are taken by any threads and event loops.

use crate::abi::*;
use crate::arguments::milliseconds;
use crate::callback::Source;
use crate::error::{check, detached, ended_with};
use crate::interrupt::{is_main_thread, waiting_on};
use crate::message::UnboundBuffer;
use crate::request::Request;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};
use std::collections::{HashMap, hash_map};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the main thread looks for signals while it waits for an entry.
const LOOK: Duration = Duration::from_millis(20);

/// What a queue and its requests share.
pub struct Shared {
    queue: *mut gloo_rs_queue_t,
    /// The active requests, by their numbers: the library uses their buffers. And for how many calls: two while a
    /// thread has the entry of the last one, and another thread has started the next.
    active: Mutex<HashMap<u64, (Py<Request>, usize)>>,
    /// The attached buffers, by their numbers. They belong to the program, and leave the queue when they are dropped.
    buffers: Mutex<HashMap<u64, Py<PyWeakrefReference>>>,
    next: AtomicU64,
}

// SAFETY: queues are thread-safe, by the header.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Where a request is attached.
pub struct Attachment {
    place: Place,
    /// What the entries are to have; none for the request itself, which would keep itself alive. Or the callback.
    pub value: Option<Py<PyAny>>,
}

enum Place {
    /// With this number.
    Queue(Arc<Shared>, u64),
    Callback(Arc<Source>),
}

impl Attachment {
    /// Runs `start`, which starts the call of `request`. It is active from then on, until its entry is taken.
    pub fn start(&self, request: &Bound<'_, Request>, start: impl FnOnce() -> PyResult<()>) -> PyResult<()> {
        match &self.place {
            Place::Queue(shared, number) => shared.enter(request, *number),
            Place::Callback(source) => source.enter(request),
        }
        let started = start();
        if started.is_err() {
            drop(match &self.place {
                Place::Queue(shared, number) => shared.leave(request.py(), *number),
                Place::Callback(source) => source.leave(request.py()),
            });
        }
        started
    }

    /// Has `callback` called with the ends of a request, that of the call in progress included.
    pub fn call_back(request: &Bound<'_, Request>, callback: Py<PyAny>) -> PyResult<()> {
        let (py, own) = (request.py(), request.get());
        let source = Source::request();
        // Whoever is called at once finds the callback.
        let mut attachment = own.attachment(py);
        if own.is_active(py)? {
            source.enter(request);
        }
        // SAFETY: the request lives, and the functions are those of the header.
        source.set(py, |callback, user, destroy| unsafe {
            gloo_rs_request_set_callback(own.handle(), callback, user, destroy)
        })?;
        *attachment = Some(Arc::new(Self { place: Place::Callback(source), value: Some(callback) }));
        Ok(())
    }
}

/// Where an unbound buffer is attached.
pub struct BufferAttachment {
    /// The queue, and its number there; none if it has a callback.
    place: Option<(Arc<Shared>, u64)>,
    /// What the program gets with each entry, or the callback.
    value: Option<Py<PyAny>>,
}

impl BufferAttachment {
    /// Has `callback` called with the ends of a buffer's messages.
    pub fn call_back(buffer: &Bound<'_, UnboundBuffer>, callback: Py<PyAny>) -> PyResult<()> {
        let (py, own) = (buffer.py(), buffer.get());
        let source = Arc::new(Source::Buffer(PyWeakrefReference::new(buffer)?.unbind()));
        let mut attachment = own.attachment(py);
        // SAFETY: the buffer lives, and the functions are those of the header.
        source.set(py, |callback, user, destroy| unsafe {
            gloo_rs_unbound_buffer_set_callback(own.handle(), callback, user, destroy)
        })?;
        *attachment = Some(Self { place: None, value: Some(callback) });
        Ok(())
    }

    pub fn value(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.value.as_ref().map(|value| value.clone_ref(py))
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.value.as_ref().map_or(Ok(()), |value| visit.call(value))
    }

    /// Drops what may refer to the buffer.
    pub fn clear(&mut self) {
        self.value = None;
    }
}

impl Drop for BufferAttachment {
    fn drop(&mut self) {
        if let Some((shared, number)) = &self.place {
            Python::attach(|py| drop(shared.buffers(py).remove(number)));
        }
    }
}

impl Shared {
    fn buffers(&self, py: Python<'_>) -> MutexGuard<'_, HashMap<u64, Py<PyWeakrefReference>>> {
        self.buffers.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// What the entries of this number have.
    fn value(&self, py: Python<'_>, number: u64) -> Py<PyAny> {
        if let Some(request) = self.leave(py, number) {
            return Request::value(request, py);
        }
        let buffer = self.buffers(py).get(&number).map(|weak| weak.clone_ref(py));
        let buffer =
            buffer.and_then(|weak| weak.bind(py).upgrade()).and_then(|buffer| buffer.cast_into::<UnboundBuffer>().ok());
        buffer.map_or_else(
            || py.None(),
            |buffer| {
                let attachment = buffer.get().attachment(py);
                let value = attachment.as_ref().and_then(|attachment| attachment.value(py));
                value.unwrap_or_else(|| buffer.clone().into_any().unbind())
            },
        )
    }

    fn active(&self, py: Python<'_>) -> MutexGuard<'_, HashMap<u64, (Py<Request>, usize)>> {
        self.active.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, request: &Bound<'_, Request>, number: u64) {
        let mut active = self.active(request.py());
        active.entry(number).or_insert_with(|| (request.clone().unbind(), 0)).1 += 1;
    }

    fn leave(&self, py: Python<'_>, number: u64) -> Option<Py<Request>> {
        let mut active = self.active(py);
        let hash_map::Entry::Occupied(mut found) = active.entry(number) else { return None };
        found.get_mut().1 -= 1;
        let (request, calls) = found.get();
        if *calls == 0 { Some(found.remove().0) } else { Some(request.clone_ref(py)) }
    }

    fn is_idle(&self, py: Python<'_>) -> bool {
        self.active(py).is_empty()
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

/// The end of a call, or of a message of an unbound buffer.
#[pyclass(frozen, get_all, module = "gloo_rs")]
pub struct Entry {
    /// What was attached, or the request or the buffer.
    value: Py<PyAny>,
    /// The exception that a wait for it would have raised.
    error: Option<Py<PyAny>>,
    /// What it is the end of: gloo_rs_entry_kind_t.
    kind: gloo_rs_entry_kind_t,
    /// The peer of a message.
    rank: Option<i32>,
    /// The bytes of a message.
    bytes: usize,
}

impl Entry {
    pub fn of(entry: &gloo_rs_queue_entry_t, value: Py<PyAny>, error: Option<Py<PyAny>>) -> Self {
        let rank = (entry.rank >= 0).then_some(entry.rank);
        Self { value, error, kind: entry.kind, rank, bytes: entry.bytes }
    }
}

#[pymethods]
impl Queue {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let mut queue = std::ptr::null_mut();
        // SAFETY: the place for the handle lives.
        check(py, unsafe { gloo_rs_queue_create(&mut queue) })?;
        let shared = Shared { queue, active: Mutex::default(), buffers: Mutex::default(), next: AtomicU64::new(1) };
        Ok(Self(Arc::new(shared)))
    }

    /// Has the queue report the end of each call of a request from now on, that of the call in progress included; or
    /// the end of each send, receive, put and get of an unbound buffer. Entries have `value`, or the request or buffer
    /// if that is None.
    #[pyo3(signature = (request, value = None))]
    fn attach(&self, py: Python<'_>, request: &Bound<'_, PyAny>, value: Option<Py<PyAny>>) -> PyResult<()> {
        match request.cast::<UnboundBuffer>() {
            Ok(buffer) => self.attach_buffer(py, buffer, value),
            Err(_) => self.attach_request(py, request.cast::<Request>()?, value),
        }
    }

    /// Waits until a request has ended, and takes its entry: the value with which it was attached, or the request, and
    /// None or the exception that a wait for it would have raised. Raises Timeout if none ends within `timeout`
    /// seconds.
    #[pyo3(signature = (*, timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Completion> {
        self.wait_entry(py, timeout).map(|entry| (entry.value, entry.error))
    }

    /// Does what `wait` does, and also returns the peer and the bytes of a message.
    #[pyo3(signature = (*, timeout = None))]
    fn wait_entry(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Entry> {
        let timeout = milliseconds(timeout)?;
        let until = (timeout >= 0).then(|| Instant::now().checked_add(Duration::from_millis(timeout.unsigned_abs())));
        let until = until.flatten();
        // Signals end a wait of the main thread, which loses nothing by it: the requests go on.
        let looks = is_main_thread();
        // SAFETY: integers and enumerations, which may all be zero; the function writes no more than the size.
        let mut entry: gloo_rs_queue_entry_t = unsafe {
            let mut entry = std::mem::zeroed();
            gloo_rs_queue_entry_init(&mut entry, size_of::<gloo_rs_queue_entry_t>());
            entry
        };
        loop {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            let is_last = !looks || left <= LOOK;
            let time = match if looks { left.min(LOOK) } else { left } {
                Duration::MAX => i64::MAX,
                time => time.as_micros().div_ceil(1000) as i64,
            };
            // SAFETY: the queue lives, and the entry is initialised.
            let ended = detached(py, || unsafe { gloo_rs_queue_wait_entry(self.0.queue, time, &mut entry) });
            if ended != GLOO_RS_ERROR_TIMEOUT || is_last {
                check(py, ended)?;
                break;
            }
            py.check_signals()?;
        }
        let error = ended_with(py, entry.status);
        Ok(Entry::of(&entry, self.0.value(py, entry.user), error))
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
        if self.0.is_idle(py) { Ok(None) } else { self.wait(py, None).map(Some) }
    }
}

impl Queue {
    fn attach_request(&self, py: Python<'_>, request: &Bound<'_, Request>, value: Option<Py<PyAny>>) -> PyResult<()> {
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
            Ok(()) => {
                *attachment = Some(Arc::new(Attachment { place: Place::Queue(self.0.clone(), number), value }));
            }
            Err(_) if is_active => drop(self.0.leave(py, number)),
            Err(_) => {}
        }
        attached
    }

    fn attach_buffer(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, UnboundBuffer>,
        value: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let weak = PyWeakrefReference::new(buffer)?.unbind();
        // Before the library knows of it, as above: whoever takes an entry finds the value.
        self.0.buffers(py).insert(number, weak);
        let new = BufferAttachment { place: Some((self.0.clone(), number)), value };
        let mut attachment = buffer.get().attachment(py);
        // SAFETY: both live.
        let attach = || unsafe { gloo_rs_queue_attach_buffer(self.0.queue, buffer.get().handle(), number) };
        check(py, detached(py, attach))?;
        *attachment = Some(new);
        Ok(())
    }
}

impl Drop for Queue {
    /// Takes the entries of active requests, whose buffers must live until then.
    fn drop(&mut self) {
        Python::attach(|py| {
            while !self.0.is_idle(py) {
                let active = self.0.active(py);
                let contexts: Vec<_> = active.values().map(|(request, _)| request.get().context().clone()).collect();
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
