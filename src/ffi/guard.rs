//! The boundary of every export: catches panics and stores the error of a failed call.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::error::remember;
use super::status::{GLOO_RS_OK, gloo_rs_status_t};
use crate::error::{Error, ErrorKind, Result};

/// Runs `body` for the export `function`. Converts its error or panic to a status and stores it as the thread's last
/// error.
#[inline]
pub(super) fn guard(function: &str, body: impl FnOnce() -> Result<()>) -> gloo_rs_status_t {
    match guarded(body) {
        Ok(()) => GLOO_RS_OK,
        Err(error) => remember(function, &error),
    }
}

/// Runs `body`. A panic becomes an error.
#[inline]
pub(super) fn guarded(body: impl FnOnce() -> Result<()>) -> Result<()> {
    // A panic can leave the library's own state inconsistent. Locks, which are then poisoned, protect that state, or
    // the unwinding drops it. The caller only gets a status.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(defect(&*payload)))
}

#[cold]
fn defect(payload: &(dyn Any + Send)) -> Error {
    Error::new(ErrorKind::Internal, format!("defect of the library: {}", panic_text(payload)))
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}
