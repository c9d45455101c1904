//! Callbacks: functions of Python that threads of the library call with the ends of requests and messages.

use crate::abi::*;
use crate::error::{check, detached, ended_with};
use crate::message::UnboundBuffer;
use crate::queue::Entry;
use crate::request::Request;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whose ends are told. It has the function itself, as the value with which it is attached.
pub enum Source {
    /// The request, while it is active: the library uses its buffers. Twice while the function is about to be called
    /// for the last call, and a thread has started the next.
    Request(Mutex<Vec<Py<Request>>>),
    /// A buffer, which belongs to the program.
    Buffer(Py<PyWeakrefReference>),
}

impl Source {
    /// A request that is not active.
    pub fn request() -> Arc<Self> {
        Arc::new(Self::Request(Mutex::default()))
    }

    /// A call of the request begins.
    pub fn enter(&self, request: &Bound<'_, Request>) {
        if let Some(mut active) = self.active(request.py()) {
            active.push(request.clone().unbind());
        }
    }

    /// Ends what [`Source::enter`] has begun.
    pub fn leave(&self, py: Python<'_>) -> Option<Py<Request>> {
        self.active(py).and_then(|mut active| active.pop())
    }

    fn active(&self, py: Python<'_>) -> Option<MutexGuard<'_, Vec<Py<Request>>>> {
        match self {
            Self::Request(active) => Some(active.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)),
            Self::Buffer(_) => None,
        }
    }

    /// Has the library call the function with each end: by `set`, which gets what the C functions need.
    pub fn set(
        self: &Arc<Self>,
        py: Python<'_>,
        set: impl FnOnce(gloo_rs_callback_fn_t, *mut c_void, Option<unsafe extern "C" fn(*mut c_void)>) -> gloo_rs_status_t,
    ) -> PyResult<()> {
        let user = Arc::into_raw(self.clone());
        let set = check(py, detached(py, || set(Some(has_ended), user.cast_mut().cast(), Some(is_unused))));
        if set.is_err() {
            // SAFETY: it is the pointer from above, which the library has not taken.
            drop(unsafe { Arc::from_raw(user) });
        }
        set
    }

    /// The function, and what has ended. `None` if a buffer is gone.
    fn ended(&self, py: Python<'_>) -> Option<(Py<PyAny>, Py<PyAny>)> {
        match self {
            Self::Request(_) => {
                let request = self.leave(py)?;
                Some((request.get().attached(py)?, request.into_any()))
            }
            Self::Buffer(weak) => {
                let buffer = weak.bind(py).upgrade()?.cast_into::<UnboundBuffer>().ok()?;
                let function = buffer.get().attachment(py).as_ref()?.value(py)?;
                Some((function, buffer.into_any().unbind()))
            }
        }
    }
}

/// Calls the function with the entry. What it raises goes to `sys.unraisablehook`.
unsafe extern "C" fn has_ended(entry: *const gloo_rs_queue_entry_t, user: *mut c_void) {
    // SAFETY: the entry is valid during this call, and `user` is that of `Source::set`.
    let (entry, source) = unsafe { (&*entry, &*user.cast_const().cast::<Source>()) };
    // While the interpreter ends, nothing is called.
    let _ = Python::try_attach(|py| {
        let error = ended_with(py, entry.status);
        let Some((function, value)) = source.ended(py) else { return };
        let called = Py::new(py, Entry::of(entry, value, error)).and_then(|entry| function.call1(py, (entry,)));
        if let Err(raised) = called {
            raised.write_unraisable(py, Some(function.bind(py)));
        }
    });
}

unsafe extern "C" fn is_unused(user: *mut c_void) {
    // SAFETY: `user` is that of `Source::set`, and this is called once.
    drop(unsafe { Arc::from_raw(user.cast_const().cast::<Source>()) });
}
