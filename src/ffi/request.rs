//! Persistent requests: collectives that are checked and prepared once, and then started any number of times.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

use super::collective::{self, gloo_rs_collective_options_t, gloo_rs_collective_t, guard_kind};
use super::context::gloo_rs_context_t;
use super::context_handle::Waits;
use super::guard::guard;
use super::handle::{self, Handle};
use super::options;
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use crate::collective::Collective;
use crate::context::{Context, Request};
use crate::error::Result;

/// A persistent request: a collective call of one rank that is checked and prepared once, and then started any number
/// of times, as with MPI's persistent collectives. gloo_rs_collective_prepare makes one, with the options of
/// gloo_rs_collective, which are copied, lists included. It does not communicate; the context must be connected. The
/// algorithm is selected then, and used by every start.
///
/// A request is inactive. gloo_rs_start makes it active: the call has begun, with what its buffers contain then. It
/// ends with gloo_rs_wait, or with a gloo_rs_test that sets `*done`, which return what the plain call would return, and
/// make the request inactive again. While the request is active, its buffers belong to the library: the program must
/// not change the inputs, nor access the outputs. Otherwise the library does not access them, and they need not exist.
///
/// An active request is a running call. It matches calls of the other ranks in the order of the starts, plain calls
/// included, and no other call of this collective can run on the context with its tag; a start meanwhile fails with
/// GLOO_RS_ERROR_INVALID_OPERATION. Other calls can. It makes progress while no thread waits for it, as messages of
/// buffers do, but for a reduction function of the caller, which runs on a thread that waits on the context: in a wait
/// or test for this request or for another one of the context, or in a collective call.
///
/// Thread-safe: a call that the state of the request does not allow, also because of a call in another thread, fails
/// with GLOO_RS_ERROR_INVALID_OPERATION and changes nothing. A request keeps its context's connections alive.
pub struct gloo_rs_request_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_request_t {
    type Inner = RequestHandle;
    const TAG: u32 = u32::from_ne_bytes(*b" req");
    const NAME: &'static str = "gloo_rs_request_t";
}

/// The object behind a request's handle.
pub struct RequestHandle {
    pub(super) request: Request,
    pub(super) waits: Waits,
}

/// Prepares a call of the collective `kind` with `options` as a request, which is inactive. The caller frees `*request`
/// with gloo_rs_request_free; it is NULL on failure. Fails as gloo_rs_collective would before data is sent.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_collective_prepare(
    context: *mut gloo_rs_context_t,
    kind: MaybeUninit<gloo_rs_collective_t>,
    options: *const gloo_rs_collective_options_t,
    request: *mut *mut gloo_rs_request_t,
) -> gloo_rs_status_t {
    // First, so that the handle is NULL whatever fails.
    // SAFETY: the header demands that `request` is NULL or valid for a write.
    let out = unsafe { Out::handle(request, "request") };
    let prepare = |collective| {
        let out = out?;
        // SAFETY: the caller's duties are those of this function.
        handle::create(unsafe { prepared_on(context, collective, options, false) }?, out);
        Ok(())
    };
    // SAFETY: C initialises arguments; any number is accepted.
    unsafe { guard_kind("gloo_rs_collective_prepare", kind, prepare) }
}

/// Prepares a call and starts it: gloo_rs_collective_prepare and gloo_rs_start in one. `*request` is active, or NULL
/// after a failure. The caller waits for it, or tests it, and then frees it, or starts it again.
///
/// Any number of these requests may be active at the same time, also of one collective with one tag: they match the
/// calls of other ranks in the order of their starts, which must be the same on all ranks. If it is not, and what is
/// called differs, they fail with GLOO_RS_ERROR_MISMATCH. A plain call, or a request of gloo_rs_collective_prepare,
/// cannot run beside one of the same collective and tag.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_collective_start(
    context: *mut gloo_rs_context_t,
    kind: MaybeUninit<gloo_rs_collective_t>,
    options: *const gloo_rs_collective_options_t,
    request: *mut *mut gloo_rs_request_t,
) -> gloo_rs_status_t {
    // SAFETY: as for gloo_rs_collective_prepare.
    let out = unsafe { Out::handle(request, "request") };
    let start = |collective| {
        let out = out?;
        // SAFETY: the caller's duties are those of this function.
        let handle = unsafe { prepared_on(context, collective, options, true) }?;
        handle.waits.during(|| handle.request.start())?;
        handle::create(handle, out);
        Ok(())
    };
    // SAFETY: C initialises arguments; any number is accepted.
    unsafe { guard_kind("gloo_rs_collective_start", kind, start) }
}

/// [`prepared`] with what C has passed.
///
/// # Safety
/// As for [`prepared`]; `context` is NULL or a live handle, and `options` is NULL or valid for its `struct_size` bytes.
unsafe fn prepared_on(
    context: *mut gloo_rs_context_t,
    collective: Collective,
    options: *const gloo_rs_collective_options_t,
    in_order: bool,
) -> Result<RequestHandle> {
    // SAFETY: by the contract.
    let (options, handle) = unsafe { (options::read(options)?, handle::get(context, "context")?) };
    // SAFETY: by the contract.
    unsafe { prepared((&handle.shared()?, &handle.waits), collective, &options, in_order) }
}

/// A request, which is inactive. `in_order`: others of its collective and tag may be active beside it.
///
/// # Safety
/// The pointers in `options` are valid as their comments say, and the buffers whenever the request is active.
pub(super) unsafe fn prepared(
    (context, waits): (&Arc<Context>, &Waits),
    collective: Collective,
    options: &gloo_rs_collective_options_t,
    in_order: bool,
) -> Result<RequestHandle> {
    // SAFETY: by the contract.
    let request = unsafe { collective::request(context, collective, options, in_order) }?;
    Ok(RequestHandle { request, waits: waits.clone() })
}

/// Starts the call of an inactive request, and returns without waiting for it. The timeout of the options, or of the
/// context, runs from now on. A failure leaves the request inactive.
///
/// A start waits for the other ranks in two cases, each rank for the starts of all: with check_calls in the context's
/// options (every start compares the calls), and where the comment of the collective in gloo_rs_collective_t says so.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_start(request: *mut gloo_rs_request_t) -> gloo_rs_status_t {
    guard("gloo_rs_start", || {
        // SAFETY: the header demands that `request` is NULL or a live handle.
        let handle = unsafe { handle::get(request, "request") }?;
        handle.request.start_quick().unwrap_or_else(|| handle.waits.during(|| handle.request.start_any()))
    })
}

/// Waits until the call of an active request is complete on this rank, and makes the request inactive. Fails as the
/// plain call would: with GLOO_RS_ERROR_TIMEOUT if the timeout expires, and with the reason if the call has failed
/// since the start; such a failure breaks the context.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_wait(request: *mut gloo_rs_request_t) -> gloo_rs_status_t {
    guard("gloo_rs_wait", || {
        // SAFETY: the header demands that `request` is NULL or a live handle.
        let handle = unsafe { handle::get(request, "request") }?;
        match handle.request.wait_quick() {
            true => Ok(()),
            false => handle.waits.during(|| handle.request.wait_any()),
        }
    })
}

/// Waits like gloo_rs_wait, but for at most `timeout_ms` milliseconds. If the call is not complete then, this fails
/// with GLOO_RS_ERROR_TIMEOUT, and the request stays active: the call goes on, and the context is not broken. The
/// timeout of the call itself still fails it as gloo_rs_wait says; gloo_rs_request_query tells the two apart.
/// GLOO_RS_TIMEOUT_DEFAULT and GLOO_RS_TIMEOUT_INFINITE: the call's own timeout alone counts.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_wait_for(request: *mut gloo_rs_request_t, timeout_ms: i64) -> gloo_rs_status_t {
    guard("gloo_rs_wait_for", || {
        // SAFETY: the header demands that `request` is NULL or a live handle.
        let handle = unsafe { handle::get(request, "request") }?;
        let time = pointer::timeout(timeout_ms)?.unwrap_or(Duration::MAX);
        if handle.request.wait_quick() {
            return Ok(());
        }
        match handle.waits.during(|| handle.request.wait_for(time))? {
            true => Ok(()),
            false => Err(handle.request.not_yet(time)),
        }
    })
}

/// Sets `*done` to whether the call of an active request is complete on this rank; if so, the request is inactive, as
/// after gloo_rs_wait. Otherwise the call does what it can without waiting for another rank. If the call has failed, or
/// its timeout has expired, this fails as gloo_rs_wait does, and the request is inactive.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_test(request: *mut gloo_rs_request_t, done: *mut bool) -> gloo_rs_status_t {
    guard("gloo_rs_test", || {
        // SAFETY: the header demands that `request` is NULL or a live handle, and `done` is NULL or valid for a write.
        let (handle, out) = unsafe { (handle::get(request, "request")?, Out::new(done, "done")?) };
        out.set(handle.waits.during(|| handle.request.test())?);
        Ok(())
    })
}

/// Frees an inactive request, or one in a group, whose end fails then. An active one that is attached to a queue is
/// freed when its call has ended and the entry was taken, which says when its buffers are the program's again. Another
/// active one is refused with GLOO_RS_ERROR_INVALID_OPERATION, and stays active: wait for it first. If its context is
/// closed or broken, the wait returns at once. NULL is ignored.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_request_free(request: *mut gloo_rs_request_t) -> gloo_rs_status_t {
    guard("gloo_rs_request_free", || {
        if request.is_null() {
            return Ok(());
        }
        // SAFETY: the header demands that `request` is NULL or a live handle on which no other call begins.
        unsafe { handle::get(request, "request") }?.request.retire()?;
        // SAFETY: as above.
        unsafe { handle::take(request, "request") }.map(drop)
    })
}
