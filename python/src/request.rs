//! Requests, waits for several of them, and reductions without other ranks.

use crate::abi::*;
use crate::arguments::milliseconds;
use crate::collective::Call;
use crate::context::Membership;
use crate::error::{check, detached, invalid};
use crate::group::Group;
use crate::handle::lock_attached;
use crate::interrupt::{waiting, waiting_on};
use crate::memory::{Access, Memory};
use crate::queue::Attachment;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::sync::{Arc, Mutex, MutexGuard};

/// A collective that is prepared once, and then started any number of times.
#[pyclass(frozen, module = "gloo_rs")]
pub struct Request {
    request: *mut gloo_rs_request_t,
    context: Membership,
    /// The queue that reports its ends, if one does.
    attachment: Mutex<Option<Arc<Attachment>>>,
    /// Keeps the buffers valid.
    _call: Call,
}

// SAFETY: requests are thread-safe, by the header.
unsafe impl Send for Request {}
// SAFETY: as above.
unsafe impl Sync for Request {}

impl Request {
    pub fn prepare(py: Python<'_>, context: &Membership, mut call: Call) -> PyResult<Self> {
        let mut request = std::ptr::null_mut();
        call.with_options(|kind, options| {
            // SAFETY: the options and what they point to live until the call returns; the request copies them.
            check(py, unsafe { gloo_rs_collective_prepare(context.get(), kind, options, &mut request) })
        })?;
        Ok(Self::of(request, context, call))
    }

    /// One that is started at once, or at the end of a group of its context.
    pub fn started(py: Python<'_>, context: &Membership, mut call: Call, group: Option<&Group>) -> PyResult<Self> {
        let mut request = std::ptr::null_mut();
        call.with_options(|kind, options| match group {
            None => {
                // SAFETY: as in `prepare`. With check_calls, a start waits for the other ranks.
                let start = || unsafe { gloo_rs_collective_start(context.get(), kind, options, &mut request) };
                waiting(py, context, start)
            }
            Some(group) => group.naming(py, |group| {
                // SAFETY: as in `prepare`.
                unsafe { gloo_rs_group_collective_start(group, kind, options, &mut request) }
            }),
        })?;
        Ok(Self::of(request, context, call))
    }

    fn of(request: *mut gloo_rs_request_t, context: &Membership, call: Call) -> Self {
        Self { request, context: context.clone(), attachment: Mutex::default(), _call: call }
    }

    pub fn handle(&self) -> *mut gloo_rs_request_t {
        self.request
    }

    pub fn context(&self) -> &Membership {
        &self.context
    }

    pub fn attachment(&self, py: Python<'_>) -> MutexGuard<'_, Option<Arc<Attachment>>> {
        lock_attached(py, &self.attachment)
    }

    /// What an entry of its queue has.
    pub fn value(request: Py<Self>, py: Python<'_>) -> Py<PyAny> {
        let value = request.get().attached(py);
        value.unwrap_or_else(|| request.into_any())
    }
}

#[pymethods]
impl Request {
    /// Starts the call, and returns without waiting for it; at the end of the group, if one is given.
    #[pyo3(signature = (*, group = None))]
    fn start(slf: &Bound<'_, Self>, group: Option<&Bound<'_, Group>>) -> PyResult<()> {
        let (own, py) = (slf.get(), slf.py());
        if let Some(group) = group {
            return group.get().start(slf);
        }
        // SAFETY: the request lives.
        let start = || check(py, detached(py, || unsafe { gloo_rs_start(own.request) }));
        let attachment = own.attachment(py);
        let Some(found) = attachment.clone() else {
            // Nobody attaches it meanwhile, and misses that it is active.
            return start();
        };
        drop(attachment);
        found.start(slf, start)
    }

    /// Whether a call was started whose end was not reported.
    #[getter]
    pub fn is_active(&self, py: Python<'_>) -> PyResult<bool> {
        // SAFETY: integers and enumerations, which may all be zero; the function writes no more than the size.
        let mut info: gloo_rs_request_info_t = unsafe {
            let mut info = std::mem::zeroed();
            gloo_rs_request_info_init(&mut info, size_of::<gloo_rs_request_info_t>());
            info
        };
        // SAFETY: the request lives, and the struct is initialised.
        check(py, unsafe { gloo_rs_request_query(self.request, &mut info) })?;
        Ok(info.state != GLOO_RS_REQUEST_INACTIVE)
    }

    /// The value with which it is attached to a queue, if there is one.
    #[getter(_attached)]
    pub fn attached(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let attachment = self.attachment(py).clone();
        attachment.and_then(|attachment| attachment.value.as_ref().map(|value| value.clone_ref(py)))
    }

    /// Waits for the call in asyncio, which goes on meanwhile.
    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static AWAITED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        AWAITED.import(slf.py(), "gloo_rs._asyncio", "awaited")?.call1((slf,))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let attachment = self.attachment.try_lock().ok().and_then(|attachment| attachment.clone());
        attachment.iter().filter_map(|attachment| attachment.value.as_ref()).try_for_each(|value| visit.call(value))
    }

    fn __clear__(&self) {
        let attachment = self.attachment.try_lock().ok().and_then(|mut attachment| attachment.take());
        drop(attachment);
    }

    /// Waits until the call is complete on this rank; for at most `timeout` seconds, if that is given: then the call
    /// goes on.
    #[pyo3(signature = (*, timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = milliseconds(timeout)?;
        // SAFETY: the request lives.
        waiting(py, &self.context, || unsafe { gloo_rs_wait_for(self.request, timeout) })
    }

    /// Has `callback` called with an Entry at the end of each call from now on, that of the call in progress included,
    /// on a thread of the device: in place of waits.
    fn set_callback(slf: &Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<()> {
        Attachment::call_back(slf, callback)
    }

    /// Whether the call is complete on this rank; if so, the request can be started again.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        let mut done = false;
        // SAFETY: the request lives.
        check(py, detached(py, || unsafe { gloo_rs_test(self.request, &mut done) }))?;
        Ok(done)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: whoever drops the request has the only reference.
        let freed = || unsafe { gloo_rs_request_free(self.request) } == GLOO_RS_OK;
        if !freed() {
            // It is active: the library uses the buffers, which must live until it is not.
            // SAFETY: the request lives. What fails in the call is not reported: nobody waits for it any more.
            let _ = Python::attach(|py| waiting(py, &self.context, || unsafe { gloo_rs_wait(self.request) }));
            freed();
        }
    }
}

/// Waits until one of the requests is complete, and returns its index; None if none of them is active.
#[pyfunction]
#[pyo3(signature = (requests, *, timeout = None))]
pub fn wait_any(py: Python<'_>, requests: Vec<PyRef<'_, Request>>, timeout: Option<f64>) -> PyResult<Option<usize>> {
    let (pointers, contexts) = pointers(&requests);
    let (timeout, mut index) = (milliseconds(timeout)?, 0);
    // SAFETY: the requests live.
    let wait = || unsafe { gloo_rs_wait_any(pointers.as_ptr(), pointers.len(), timeout, &mut index) };
    waiting_on(py, &contexts, wait)?;
    Ok((index < pointers.len()).then_some(index))
}

/// Waits until all of the requests are complete or have failed. Raises what the first one has failed by.
#[pyfunction]
#[pyo3(signature = (requests, *, timeout = None))]
pub fn wait_all(py: Python<'_>, requests: Vec<PyRef<'_, Request>>, timeout: Option<f64>) -> PyResult<()> {
    let (pointers, contexts) = pointers(&requests);
    let timeout = milliseconds(timeout)?;
    // SAFETY: the requests live.
    let wait = || unsafe { gloo_rs_wait_all(pointers.as_ptr(), pointers.len(), timeout, std::ptr::null_mut()) };
    waiting_on(py, &contexts, wait)
}

/// The requests and their contexts, each once.
fn pointers(requests: &[PyRef<'_, Request>]) -> (Vec<*mut gloo_rs_request_t>, Vec<*mut gloo_rs_context_t>) {
    let mut contexts: Vec<_> = requests.iter().map(|request| request.context.get()).collect();
    contexts.sort_unstable();
    contexts.dedup();
    (requests.iter().map(|request| request.request).collect(), contexts)
}

/// Combines elements on this rank only: inout = input op inout.
#[pyfunction]
#[pyo3(signature = (input, inout, *, op = None))]
pub fn reduce_local(
    py: Python<'_>,
    input: &Bound<'_, PyAny>,
    inout: &Bound<'_, PyAny>,
    op: Option<u32>,
) -> PyResult<()> {
    let operation = "reduce_local";
    let input = Memory::of(input, Access::Read, operation, "input")?;
    let inout = Memory::of(inout, Access::Write, operation, "inout")?;
    if input.data_type != inout.data_type || input.elements() != inout.elements() {
        return Err(invalid(
            py,
            operation,
            "input and inout have different numbers of elements, or elements of different types",
        ));
    }
    let (count, op) = (input.elements(), op.unwrap_or(GLOO_RS_SUM));
    // SAFETY: both are valid for that many elements until the call returns.
    check(
        py,
        detached(py, || unsafe { gloo_rs_reduce_local(input.address, inout.address, count, input.data_type, op) }),
    )
}
