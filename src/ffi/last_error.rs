//! What C reads of the last error of a thread.

use std::ffi::c_char;

use super::error::{gloo_rs_error_t, last};
use super::guard::guard;
use super::options;
use super::status::gloo_rs_status_t;

/// Sets `*error` to "no failure". `struct_size` is sizeof(gloo_rs_error_t); at most that many bytes are written. NULL
/// is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_error_init(error: *mut gloo_rs_error_t, struct_size: usize) {
    // SAFETY: the header demands that `error` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(error, struct_size) }
}

/// Fills `*error` with the failure of the last failed call on the calling thread. gloo_rs_error_init must have
/// initialised `*error`; at most `error->struct_size` bytes are written. If no call has failed yet, `error->status` is
/// GLOO_RS_OK.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_last_error(error: *mut gloo_rs_error_t) -> gloo_rs_status_t {
    guard("gloo_rs_last_error", || {
        // SAFETY: the header demands that `error` is NULL or valid for reads and writes of its `struct_size` bytes.
        unsafe { options::fill(error, "error", last()) }
    })
}

/// Returns the message of the last failed call on the calling thread: the argument, rank, peer or key, the bytes, and
/// the time. Never NULL; empty if no call has failed yet. The library owns the string, which is valid until the next
/// call fails on this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn gloo_rs_last_error_message() -> *const c_char {
    last().message
}
