//! Failures as exceptions, and calls without the interpreter's lock.

use crate::abi::*;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::{CStr, c_char};

/// Runs `call` without the interpreter's lock.
pub fn detached<T: Send>(py: Python<'_>, call: impl FnOnce() -> T) -> T {
    struct Sent<F>(F);
    // SAFETY: the closure runs on this thread. It has no reference to the interpreter: what it captures are handles of
    // the library, and memory that exporters keep valid.
    unsafe impl<F> Send for Sent<F> {}
    impl<T, F: FnOnce() -> T> Sent<F> {
        fn run(self) -> T {
            (self.0)()
        }
    }
    let sent = Sent(call);
    py.detach(move || sent.run())
}

/// An exception if the call that this thread has just made did not succeed.
pub fn check(py: Python<'_>, status: gloo_rs_status_t) -> PyResult<()> {
    if status == GLOO_RS_OK { Ok(()) } else { Err(failure(py, status)) }
}

#[cold]
fn failure(py: Python<'_>, status: gloo_rs_status_t) -> PyErr {
    // Copied before any code of Python runs, which may make calls of the library.
    Failed::last(status).raise(py)
}

/// A call that failed, on whatever thread.
pub struct Failed(gloo_rs_status_t, Failure);

impl Failed {
    /// A failure if the call that this thread has just made did not succeed. For threads without an interpreter.
    pub fn check(status: gloo_rs_status_t) -> Result<(), Self> {
        if status == GLOO_RS_OK { Ok(()) } else { Err(Self::last(status)) }
    }

    /// The last failure of this thread.
    fn last(status: gloo_rs_status_t) -> Self {
        let mut error = last_error_defaults();
        // SAFETY: the struct is initialised.
        if unsafe { gloo_rs_last_error(&mut error) } != GLOO_RS_OK {
            return Self(status, Failure::saying("", "the library does not say what failed".into()));
        }
        Self(status, Failure::of(&error))
    }

    /// The exception. What a signal's handler raises, such as KeyboardInterrupt, comes first, and its cause says what
    /// the call waited for; without this, it would be raised while the exception is made.
    pub fn raise(self, py: Python<'_>) -> PyErr {
        match py.check_signals() {
            Ok(()) => self.1.raise(py, self.0),
            Err(interruption) => {
                interruption.set_cause(py, Some(self.1.raise(py, self.0)));
                interruption
            }
        }
    }
}

/// What is known of a failure.
struct Failure {
    rank: i32,
    system_error: i32,
    bytes: (u64, u64),
    operation: String,
    message: String,
}

impl Failure {
    fn of(error: &gloo_rs_error_t) -> Self {
        Self {
            rank: error.rank,
            system_error: error.system_error,
            bytes: (error.bytes_done, error.bytes_wanted),
            operation: text_of(error.operation),
            message: text_of(error.message),
        }
    }

    /// A failure that this module describes.
    fn saying(operation: &str, message: String) -> Self {
        Self { rank: -1, system_error: 0, bytes: (0, 0), operation: operation.to_owned(), message }
    }

    fn raise(self, py: Python<'_>, status: gloo_rs_status_t) -> PyErr {
        let arguments =
            (status, self.message, self.rank, self.operation, self.system_error, self.bytes.0, self.bytes.1);
        make(py).and_then(|make| make.call1(arguments)).map_or_else(|error| error, PyErr::from_value)
    }
}

/// A struct for gloo_rs_last_error.
pub fn last_error_defaults() -> gloo_rs_error_t {
    // SAFETY: integers and pointers, which may all be zero; the function writes no more than the size.
    unsafe {
        let mut error: gloo_rs_error_t = std::mem::zeroed();
        gloo_rs_error_init(&mut error, size_of::<gloo_rs_error_t>());
        error
    }
}

/// The exception of a failure that the library has described.
pub fn exception(py: Python<'_>, status: gloo_rs_status_t, error: &gloo_rs_error_t) -> PyErr {
    Failure::of(error).raise(py, status)
}

/// The exception of a call of which this thread has just learnt that it has ended with this status; None if it is
/// complete.
pub fn ended_with(py: Python<'_>, status: gloo_rs_status_t) -> Option<Py<PyAny>> {
    let failed = (status != GLOO_RS_OK).then(|| Failed::last(status))?;
    Some(failed.1.raise(py, status).into_value(py).into_any())
}

/// An exception for arguments that this module refuses itself.
#[cold]
pub fn invalid(py: Python<'_>, operation: &str, message: &str) -> PyErr {
    raised(py, GLOO_RS_ERROR_INVALID_ARGUMENT, operation, message)
}

/// An exception for what the library cannot do.
#[cold]
pub fn unsupported(py: Python<'_>, operation: &str, message: &str) -> PyErr {
    raised(py, GLOO_RS_ERROR_UNSUPPORTED, operation, message)
}

fn raised(py: Python<'_>, status: gloo_rs_status_t, operation: &str, message: &str) -> PyErr {
    let text = if operation.is_empty() { message.to_owned() } else { format!("{operation}: {message}") };
    exception_of(py, status, operation, text)
}

/// The exception with this status, operation and message.
pub fn exception_of(py: Python<'_>, status: gloo_rs_status_t, operation: &str, message: String) -> PyErr {
    Failure::saying(operation, message).raise(py, status)
}

/// The function that makes an exception of the class of its status.
fn make(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    MAKE.import(py, "gloo_rs._errors", "make")
}

/// A text of the library; empty for NULL.
pub fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the library's texts end with a NUL byte.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
