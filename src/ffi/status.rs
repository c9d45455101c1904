//! Status codes.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use super::enumeration::number;
use crate::error::ErrorKind;

/// The status of a call. The numbers never change; later versions may add some.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gloo_rs_status_t {
    /// Success.
    GLOO_RS_OK = 0,
    /// An argument is invalid.
    GLOO_RS_ERROR_INVALID_ARGUMENT = 1,
    /// The state of the object does not allow the call.
    GLOO_RS_ERROR_INVALID_OPERATION = 2,
    /// The timeout expired before the operation completed.
    GLOO_RS_ERROR_TIMEOUT = 3,
    /// The operating system reported an error of a file, a socket or an interface, or CUDA's driver one of a GPU.
    GLOO_RS_ERROR_IO = 4,
    /// The connection to a peer broke, the peer's process ended, or the peer's context failed.
    GLOO_RS_ERROR_CONNECTION_LOST = 5,
    /// The context was aborted, by this rank or another, or an abort function ended the wait.
    GLOO_RS_ERROR_ABORTED = 6,
    /// Ranks disagree about the collective, count, data type, operation, root or token, or a peer uses another
    /// protocol.
    GLOO_RS_ERROR_MISMATCH = 7,
    /// The store has no such key.
    GLOO_RS_ERROR_NOT_FOUND = 8,
    /// This build, this version or this machine lacks a feature that the call needs, such as access to device memory.
    GLOO_RS_ERROR_UNSUPPORTED = 9,
    /// Memory or file descriptors ran out.
    GLOO_RS_ERROR_RESOURCE_EXHAUSTED = 10,
    /// A callback of the caller returned an error.
    GLOO_RS_ERROR_CALLBACK = 11,
    /// A defect of this library.
    GLOO_RS_ERROR_INTERNAL = 12,
    /// This process closed the context or the pair, or destroyed the buffer.
    GLOO_RS_ERROR_CLOSED = 13,
}

pub use gloo_rs_status_t::*;

/// A timeout that stands for the context's timeout; for calls that have no context, for the value of the environment
/// variable GLOO_RS_TIMEOUT, in seconds, or 30 s. Errors of calls that end by the default name the variable.
pub const GLOO_RS_TIMEOUT_DEFAULT: i64 = -1;
/// A timeout that never expires: only completion, a failure or an abort ends the operation.
pub const GLOO_RS_TIMEOUT_INFINITE: i64 = i64::MAX;

pub(super) fn status_of(kind: ErrorKind) -> gloo_rs_status_t {
    match kind {
        ErrorKind::InvalidArgument => GLOO_RS_ERROR_INVALID_ARGUMENT,
        ErrorKind::InvalidOperation => GLOO_RS_ERROR_INVALID_OPERATION,
        ErrorKind::Timeout => GLOO_RS_ERROR_TIMEOUT,
        ErrorKind::Io => GLOO_RS_ERROR_IO,
        ErrorKind::ConnectionLost => GLOO_RS_ERROR_CONNECTION_LOST,
        ErrorKind::Aborted => GLOO_RS_ERROR_ABORTED,
        ErrorKind::Mismatch => GLOO_RS_ERROR_MISMATCH,
        ErrorKind::NotFound => GLOO_RS_ERROR_NOT_FOUND,
        ErrorKind::Unsupported => GLOO_RS_ERROR_UNSUPPORTED,
        ErrorKind::ResourceExhausted => GLOO_RS_ERROR_RESOURCE_EXHAUSTED,
        ErrorKind::Callback => GLOO_RS_ERROR_CALLBACK,
        ErrorKind::Internal => GLOO_RS_ERROR_INTERNAL,
        ErrorKind::Closed => GLOO_RS_ERROR_CLOSED,
    }
}

/// Every status and its name.
const NAMES: &[(gloo_rs_status_t, &CStr)] = &[
    (GLOO_RS_OK, c"GLOO_RS_OK"),
    (GLOO_RS_ERROR_INVALID_ARGUMENT, c"GLOO_RS_ERROR_INVALID_ARGUMENT"),
    (GLOO_RS_ERROR_INVALID_OPERATION, c"GLOO_RS_ERROR_INVALID_OPERATION"),
    (GLOO_RS_ERROR_TIMEOUT, c"GLOO_RS_ERROR_TIMEOUT"),
    (GLOO_RS_ERROR_IO, c"GLOO_RS_ERROR_IO"),
    (GLOO_RS_ERROR_CONNECTION_LOST, c"GLOO_RS_ERROR_CONNECTION_LOST"),
    (GLOO_RS_ERROR_ABORTED, c"GLOO_RS_ERROR_ABORTED"),
    (GLOO_RS_ERROR_MISMATCH, c"GLOO_RS_ERROR_MISMATCH"),
    (GLOO_RS_ERROR_NOT_FOUND, c"GLOO_RS_ERROR_NOT_FOUND"),
    (GLOO_RS_ERROR_UNSUPPORTED, c"GLOO_RS_ERROR_UNSUPPORTED"),
    (GLOO_RS_ERROR_RESOURCE_EXHAUSTED, c"GLOO_RS_ERROR_RESOURCE_EXHAUSTED"),
    (GLOO_RS_ERROR_CALLBACK, c"GLOO_RS_ERROR_CALLBACK"),
    (GLOO_RS_ERROR_INTERNAL, c"GLOO_RS_ERROR_INTERNAL"),
    (GLOO_RS_ERROR_CLOSED, c"GLOO_RS_ERROR_CLOSED"),
];

/// Returns the name of `status` in this header, such as `GLOO_RS_ERROR_TIMEOUT`. A static string; `unknown status` for
/// other numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_status_name(status: MaybeUninit<gloo_rs_status_t>) -> *const c_char {
    // SAFETY: C initialises arguments; any number is accepted.
    let number = unsafe { number(status) };
    let name = NAMES.iter().find(|(known, _)| *known as u32 == number);
    name.map_or(c"unknown status", |(_, name)| name).as_ptr()
}
