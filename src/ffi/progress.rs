//! Threads that the program lends.

use std::time::Duration;

use super::context::gloo_rs_context_t;
use super::guard::guard;
use super::handle;
use super::pointer;
use super::status::gloo_rs_status_t;

/// Lends the calling thread to a context for `timeout_ms` milliseconds: it does the work of all calls and messages in
/// progress there, as a thread that waits for one does, and calls the reduction functions of started calls. So a
/// program that waits by a descriptor, or by tests, chooses which threads do this work, and on which cores, in place of
/// the device's thread, which first leaves it to the program for a moment. The thread polls and sleeps as `wait` in the
/// context's options says. 0: does what needs no waiting. Any number of threads may be lent; one of them polls.
///
/// Returns GLOO_RS_OK after that time, also if nothing was to be done. With GLOO_RS_TIMEOUT_INFINITE or
/// GLOO_RS_TIMEOUT_DEFAULT it does not return until the context is closed or broken, which ends each call at once with
/// the reason: GLOO_RS_ERROR_CLOSED if gloo_rs_context_close or gloo_rs_context_destroy has ended it. Thread-safe.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_progress(context: *mut gloo_rs_context_t, timeout_ms: i64) -> gloo_rs_status_t {
    guard("gloo_rs_progress", || {
        // SAFETY: the header demands that `context` is NULL or a live handle.
        let handle = unsafe { handle::get(context, "context") }?;
        let time = pointer::timeout(timeout_ms)?.filter(|time| *time != Duration::MAX);
        let context = handle.context()?;
        handle.waits.during(|| context.progress_for(time))
    })
}
