//! Groups: starts of requests and messages that begin together, or not at all.

use crate::abi::*;
use crate::context::Membership;
use crate::error::{check, detached, exception_of};
use crate::handle::Handle;
use crate::interrupt::waiting;
use crate::request::Request;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Starts that begin together at the end of a `with` statement, or not at all.
#[pyclass(frozen, module = "gloo_rs")]
pub struct Group {
    state: Mutex<Option<State>>,
    context: Membership,
}

/// A group that has not ended.
struct State {
    group: Handle<gloo_rs_group_t>,
    /// Those that are started again. A queue must know of them before they begin.
    requests: Vec<Py<Request>>,
}

impl Group {
    pub fn begin(py: Python<'_>, context: &Membership) -> PyResult<Self> {
        // SAFETY: the context lives, and `Handle` passes a place for the group.
        let group =
            Handle::create(py, gloo_rs_group_cancel, |group| unsafe { gloo_rs_group_begin(context.get(), group) })?;
        Ok(Self { state: Mutex::new(Some(State { group, requests: Vec::new() })), context: context.clone() })
    }

    fn state(&self, py: Python<'_>) -> MutexGuard<'_, Option<State>> {
        self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `name`, a call of the library that adds a start to the group: that of `request`, if it is one that was made
    /// before.
    fn add(
        &self,
        py: Python<'_>,
        request: Option<&Bound<'_, Request>>,
        name: impl FnOnce(*mut gloo_rs_group_t) -> gloo_rs_status_t,
    ) -> PyResult<()> {
        let mut state = self.state(py);
        let State { group, requests } = state.as_mut().ok_or_else(|| ended(py))?;
        let group = group.get();
        check(py, detached(py, || name(group)))?;
        requests.extend(request.map(|request| request.clone().unbind()));
        Ok(())
    }

    /// Runs `name`, a call of the library that adds a start to the group.
    pub fn naming(&self, py: Python<'_>, name: impl FnOnce(*mut gloo_rs_group_t) -> gloo_rs_status_t) -> PyResult<()> {
        self.add(py, None, name)
    }

    /// Adds the start of an inactive request.
    pub fn start(&self, request: &Bound<'_, Request>) -> PyResult<()> {
        // SAFETY: both live.
        self.add(request.py(), Some(request), |group| unsafe { gloo_rs_group_start(group, request.get().handle()) })
    }
}

#[cold]
fn ended(py: Python<'_>) -> PyErr {
    exception_of(py, GLOO_RS_ERROR_INVALID_OPERATION, "", "the group has ended".into())
}

/// Runs `end` as the start of all `requests` by their queues.
fn started(py: Python<'_>, requests: &[Py<Request>], end: &mut dyn FnMut() -> PyResult<()>) -> PyResult<()> {
    let Some((first, others)) = requests.split_first() else { return end() };
    let first = first.bind(py);
    let attachment = first.get().attachment(py).clone();
    match attachment {
        Some(attachment) => attachment.start(first, || started(py, others, end)),
        None => started(py, others, end),
    }
}

#[pymethods]
impl Group {
    /// Has `end` execute allreduces that follow each other on one tag as one, on a copy of at most `max_bytes` in all,
    /// where messages are sent for them and the bits are the same. The same on all ranks; 0 joins none.
    fn fuse(&self, py: Python<'_>, max_bytes: usize) -> PyResult<()> {
        // SAFETY: the group lives.
        self.naming(py, |group| unsafe { gloo_rs_group_fuse(group, max_bytes) })
    }

    /// Begins all starts of the group, and waits for none. If this raises, none has begun.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let State { group, requests } = self.state(py).take().ok_or_else(|| ended(py))?;
        let pointer = group.get();
        // The call destroys it.
        std::mem::forget(group);
        // With check_calls, it waits for the other ranks.
        // SAFETY: the group lives, and is ended once.
        let mut end = || waiting(py, &self.context, || unsafe { gloo_rs_group_end(pointer) });
        started(py, &requests, &mut end)
    }

    /// Gives the group up: nothing begins.
    fn cancel(&self, py: Python<'_>) {
        let state = self.state(py).take();
        drop(state);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Ends the group; gives it up if the statement has raised, or has ended it itself.
    #[pyo3(signature = (kind, _value, _traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let is_open = self.state(py).is_some();
        match kind {
            None if is_open => self.end(py),
            _ => {
                self.cancel(py);
                Ok(())
            }
        }
    }
}
