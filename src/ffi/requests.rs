//! Waits for several requests, and what is known of one.

use std::mem::MaybeUninit;
use std::time::Instant;

use super::guard::guard;
use super::handle;
use super::options::{self, Options};
use super::pointer::{self, Out, rank_to_c};
use super::request::{RequestHandle, gloo_rs_request_t};
use super::status::{GLOO_RS_ERROR_TIMEOUT, GLOO_RS_OK, gloo_rs_status_t, status_of};
use crate::context::{Progressed, not_yet, wait_for_several};
use crate::error::{Error, Result, after};
use crate::reserve::try_collect;
use crate::sys::monotonic_nanoseconds;

/// Waits until one of `n` requests is complete, or has failed, and makes it inactive, as gloo_rs_wait does. Sets
/// `*index` to its position, and returns what gloo_rs_wait would. NULL and inactive requests are ignored; if there is no
/// other, sets `*index` to `n` and returns GLOO_RS_OK at once. The requests may be those of several contexts.
///
/// If none ends within `timeout_ms` milliseconds, this fails with GLOO_RS_ERROR_TIMEOUT and sets `*index` to `n`: all
/// stay active, and no context is broken. GLOO_RS_TIMEOUT_DEFAULT and GLOO_RS_TIMEOUT_INFINITE: the timeouts of the
/// calls alone count. No request may be given twice, nor another thread be in a call on one.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_wait_any(
    requests: *const *mut gloo_rs_request_t,
    n: usize,
    timeout_ms: i64,
    index: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_wait_any", || {
        // SAFETY: the header demands that `index` is NULL or valid for a write.
        let out = unsafe { Out::new(index, "index") }?;
        out.set(n);
        let mut result = Ok(());
        let first = |number, ended| {
            out.set(number);
            result = ended;
            true
        };
        // SAFETY: the caller's duties are those of this function.
        unsafe { wait(requests, n, timeout_ms, first) }?;
        result
    })
}

/// Waits until all of `n` requests are complete, or have failed, and makes them inactive, as gloo_rs_wait does. NULL and
/// inactive requests are ignored. The requests may be those of several contexts. Returns GLOO_RS_OK if all are complete,
/// else the status of the one that has failed first.
///
/// If some have not ended within `timeout_ms` milliseconds, these stay active, and no context is broken; the result is
/// GLOO_RS_ERROR_TIMEOUT if none has failed. GLOO_RS_TIMEOUT_DEFAULT and GLOO_RS_TIMEOUT_INFINITE: the timeouts of the
/// calls alone count. No request may be given twice, nor another thread be in a call on one.
///
/// `statuses` is NULL, or takes the status of each request: GLOO_RS_OK if it is complete or was ignored,
/// GLOO_RS_ERROR_TIMEOUT if it is active still or has failed by its timeout, and otherwise why it has failed.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_wait_all(
    requests: *const *mut gloo_rs_request_t,
    n: usize,
    timeout_ms: i64,
    statuses: *mut gloo_rs_status_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_wait_all", || {
        // SAFETY: the header demands that `statuses` is NULL or valid for writes of `n` values.
        let statuses = unsafe { Out::optional(statuses, "statuses") }?;
        let set = |number, status| statuses.iter().for_each(|out| out.set_at(number, status));
        // SAFETY: the header demands that `requests` is NULL or valid for reads of `n` handles, each of which is NULL or
        // live.
        let handles = unsafe { handles(requests, n) }?;
        for (number, handle) in handles.iter().enumerate() {
            let is_active = handle.as_ref().is_some_and(|handle| handle.request.is_active());
            set(number, if is_active { GLOO_RS_ERROR_TIMEOUT } else { GLOO_RS_OK });
        }
        let mut result = Ok(());
        let each = |number, ended: Result<()>| {
            set(number, ended.as_ref().map_or_else(|error| status_of(error.kind()), |()| GLOO_RS_OK));
            if result.is_ok() {
                result = ended;
            }
            false
        };
        let in_time = wait_for(&handles, timeout_ms, each);
        result.and(in_time)
    })
}

type Handles = Vec<Option<std::sync::Arc<handle::Block<RequestHandle>>>>;

/// The objects behind `n` handles.
///
/// # Safety
/// `requests` is NULL or valid for reads of `n` handles, each of which is NULL or live.
unsafe fn handles(requests: *const *mut gloo_rs_request_t, n: usize) -> Result<Handles> {
    // SAFETY: by the contract.
    let requests = unsafe { pointer::slice(requests, n, "requests") }?;
    let handle = |request: &*mut gloo_rs_request_t| match request.is_null() {
        true => Ok(None),
        // SAFETY: by the contract.
        false => unsafe { handle::get(*request, "a request") }.map(Some),
    };
    try_collect(requests.iter().map(handle), "the requests to wait for")
}

/// Waits for requests; see [`wait_for_several`].
///
/// # Safety
/// `requests` is NULL or valid for reads of `n` handles, each of which is NULL or live.
unsafe fn wait(
    requests: *const *mut gloo_rs_request_t,
    n: usize,
    timeout_ms: i64,
    ended: impl FnMut(usize, Result<()>) -> bool,
) -> Result<()> {
    // SAFETY: by the contract.
    wait_for(&unsafe { handles(requests, n) }?, timeout_ms, ended)
}

fn wait_for(handles: &Handles, timeout_ms: i64, mut ended: impl FnMut(usize, Result<()>) -> bool) -> Result<()> {
    let time = pointer::timeout(timeout_ms)?;
    let requests = try_collect(
        handles.iter().map(|handle| Ok(handle.as_ref().map(|handle| &handle.request))),
        "the requests to wait for",
    )?;
    let _entered =
        try_collect(handles.iter().map(|handle| Ok(handle.as_ref().map(|handle| handle.waits.enter()))), "what waits")?;
    let mut done = 0;
    let count = |number, result| {
        done += 1;
        ended(number, result)
    };
    let active = requests.iter().flatten().filter(|request| request.is_active()).count();
    match wait_for_several(&requests, time, count)? {
        true => Ok(()),
        false => Err(not_yet(active - done, &after(time.unwrap_or_default()))),
    }
}

/// What a request does.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gloo_rs_request_state_t {
    /// It is inactive.
    GLOO_RS_REQUEST_INACTIVE = 0,
    /// It is active, and its call has not ended.
    GLOO_RS_REQUEST_ACTIVE = 1,
    /// It is active, and its call is complete or has failed: a wait returns at once.
    GLOO_RS_REQUEST_ENDED = 2,
}

use gloo_rs_request_state_t::*;

/// What is known of a request. Initialise it with gloo_rs_request_info_init; gloo_rs_request_query fills it.
///
/// Times are in nanoseconds of the system's monotonic clock (CLOCK_MONOTONIC). A call that was complete when
/// gloo_rs_start returned, without having waited for anything, has none: those of its start and end are 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_request_info_t {
    /// sizeof(gloo_rs_request_info_t).
    pub struct_size: usize,
    /// What it does.
    pub state: MaybeUninit<gloo_rs_request_state_t>,
    /// Why its last call has failed, after the wait for it; GLOO_RS_OK if it has not.
    pub status: MaybeUninit<gloo_rs_status_t>,
    /// The rank with which that failure began; -1 if unknown, or if there is none.
    pub rank: i32,
    /// The operating system's error number of that failure; 0 if there is none.
    pub system_error: i32,
    /// When the request was made.
    pub created_ns: u64,
    /// When its last call was started; 0 if none was.
    pub started_ns: u64,
    /// When that call has ended on this rank; 0 if it has not.
    pub ended_ns: u64,
}

// SAFETY: repr(C), a usize first, and integers and `MaybeUninit` only.
unsafe impl Options for gloo_rs_request_info_t {
    const NAME: &'static str = "gloo_rs_request_info_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {
        self.rank = -1;
    }
}

/// Sets `info->struct_size`, the rank to -1, and all else to 0. `struct_size` is sizeof(gloo_rs_request_info_t); at most
/// that many bytes are written. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_request_info_init(info: *mut gloo_rs_request_info_t, struct_size: usize) {
    // SAFETY: the header demands that `info` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(info, struct_size) }
}

/// Fills `*info` with what is known of a request. At most `info->struct_size` bytes are written. Never waits; from any
/// thread, also while another one is in a call on the request.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_request_query(
    request: *mut gloo_rs_request_t,
    info: *mut gloo_rs_request_info_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_request_query", || {
        // SAFETY: the header demands that `request` is NULL or a live handle.
        let handle = unsafe { handle::get(request, "request") }?;
        let info_of = to_c(&handle.request.progressed())?;
        // SAFETY: the header demands that `info` is NULL or valid for reads and writes of its `struct_size` bytes.
        unsafe { options::fill(info, "info", info_of) }
    })
}

fn to_c(progressed: &Progressed) -> Result<gloo_rs_request_info_t> {
    let (now, nanoseconds) = (Instant::now(), monotonic_nanoseconds());
    let at = |at: Instant| nanoseconds.saturating_sub(now.saturating_duration_since(at).as_nanos() as u64);
    let state = match (progressed.is_active, progressed.has_ended) {
        (false, _) => GLOO_RS_REQUEST_INACTIVE,
        (true, false) => GLOO_RS_REQUEST_ACTIVE,
        (true, true) => GLOO_RS_REQUEST_ENDED,
    };
    let failed = progressed.failed.as_ref();
    let rank = failed.and_then(|error| error.details().rank).map_or(Ok(-1), rank_to_c)?;
    Ok(gloo_rs_request_info_t {
        struct_size: 0,
        state: MaybeUninit::new(state),
        status: MaybeUninit::new(failed.map_or(GLOO_RS_OK, |error: &Error| status_of(error.kind()))),
        rank,
        system_error: failed.and_then(|error| error.details().errno).unwrap_or(0),
        created_ns: at(progressed.made),
        started_ns: progressed.started.map_or(0, at),
        ended_ns: progressed.ended.map_or(0, at),
    })
}
