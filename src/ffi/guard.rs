//! The boundary of every export: no panic leaves it, and a failure leaves its message behind.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::status::{GLOO_RS_OK, gloo_rs_status_t, status_of};
use crate::error::{Error, ErrorKind, Result};

const NONE: &CStr = c"";

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(NONE.to_owned());
}

/// Runs `body`; turns its error, or its panic, into a status, and keeps the message with `function` in front.
#[inline]
pub(super) fn guard(function: &str, body: impl FnOnce() -> Result<()>) -> gloo_rs_status_t {
    // A panic can leave the library's own state half changed, but that is behind locks which then report poison, or is
    // dropped by the unwinding; the caller only gets a status.
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return GLOO_RS_OK,
        Ok(Err(error)) => error,
        Err(payload) => Error::new(ErrorKind::Internal, format!("defect of the library: {}", panic_text(&*payload))),
    };
    report(function, &error)
}

#[cold]
fn report(function: &str, error: &Error) -> gloo_rs_status_t {
    remember(&format!("{function}: {}", error.message()));
    status_of(error.kind())
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}

fn remember(message: &str) {
    // Text can hold a NUL where a peer or a callback put one; the rest of the message is still worth reading.
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    // At a thread's end its message may be gone already: then nobody can ask for it.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = message);
}

/// The calling thread's message, until the next failure on it.
pub(super) fn last_error_message() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(NONE.as_ptr())
}
