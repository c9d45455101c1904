//! The flight recorder.

use std::ffi::c_char;
use std::path::Path;

use super::context::gloo_rs_context_t;
use super::guard::guard;
use super::handle;
use super::pointer;
use super::status::{GLOO_RS_ERROR_INVALID_ARGUMENT, GLOO_RS_ERROR_INVALID_OPERATION, GLOO_RS_OK, gloo_rs_status_t};
use crate::context::Context;
use crate::sys::keep_errno;

/// Writes the last 2,048 collectives of `context`, and those in progress, to the file `path`, as JSON: which
/// collective, algorithm, type, bytes and tag, when it was made, started and ended, its state, and for which rank it
/// waits or has waited. `gloo-rs diagnose` reads such files of all ranks. The recorder is always on. The file is
/// replaced if it exists. May be called at any time, by any thread, also while other threads are in calls on the
/// context, and after it is broken or closed. Fails with GLOO_RS_ERROR_IO if the file cannot be written.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_recorder_dump(
    context: *const gloo_rs_context_t,
    path: *const c_char,
) -> gloo_rs_status_t {
    guard("gloo_rs_recorder_dump", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `path` is NULL or a string.
        let (handle, path) = unsafe { (handle::get(context, "context")?, pointer::text(path, "path")?) };
        handle.context()?.dump_recorder(Path::new(path))
    })
}

/// Has the device's thread write the last collectives of `context`, within some milliseconds, to the file that
/// `recorder` in the context's options or the environment variable GLOO_RS_RECORDER names. May be called in a signal
/// handler: it takes no lock, allocates nothing, and on Linux does not change errno. Therefore a failure is not stored
/// for gloo_rs_last_error. Returns GLOO_RS_ERROR_INVALID_OPERATION if no file is named, or this process has inherited
/// the context by fork, and GLOO_RS_ERROR_INVALID_ARGUMENT if `context` is not a live handle. The handle must not be
/// destroyed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_recorder_request_dump(context: *const gloo_rs_context_t) -> gloo_rs_status_t {
    // SAFETY: the header demands that `context` is NULL or a live handle that nobody destroys meanwhile.
    match unsafe { handle::peek(context) } {
        None => GLOO_RS_ERROR_INVALID_ARGUMENT,
        Some(handle) if keep_errno(|| handle.peek(Context::request_dump)) == Some(true) => GLOO_RS_OK,
        Some(_) => GLOO_RS_ERROR_INVALID_OPERATION,
    }
}
