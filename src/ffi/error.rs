//! The last error of each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

use super::options::Options;
use super::status::{GLOO_RS_OK, gloo_rs_status_t, status_of};
use crate::collective::Collective;
use crate::error::Error;
use crate::types::Rank;

/// A failure, in a form for programs. Initialise it with gloo_rs_error_init; gloo_rs_last_error and
/// gloo_rs_context_broken fill it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_error_t {
    /// sizeof(gloo_rs_error_t).
    pub struct_size: usize,
    /// Status of the failed call.
    pub status: MaybeUninit<gloo_rs_status_t>,
    /// The rank with which the failure began, whichever rank detected it first: the rank that was lost, stopped
    /// responding, made a different call, failed, or did not connect. -1 if unknown, or if it is no rank's failure. It
    /// may be this rank.
    pub rank: i32,
    /// The operating system's error number, as in errno, of a connection or file in this process; 0 if there is none.
    pub system_error: i32,
    /// After a timeout: the bytes that were transferred of the `bytes_wanted` that the call waited for from `rank`, or
    /// from any rank. Both are 0 if the wait was not for bytes.
    pub bytes_done: u64,
    /// See `bytes_done`.
    pub bytes_wanted: u64,
    /// The operation that failed: the name of a collective (`allreduce`), `connect`, `split`, `send` or `recv`;
    /// otherwise the words of the function's name (`store get`, `device create`). Never NULL; empty if no call has
    /// failed yet. Valid as long as `message`.
    pub operation: *const c_char,
    /// The text that gloo_rs_last_error_message() returns. Valid until the next call fails on this thread, or the
    /// thread ends.
    pub message: *const c_char,
}

// SAFETY: repr(C), a usize first, and integers, pointers and a `MaybeUninit` only.
unsafe impl Options for gloo_rs_error_t {
    const NAME: &'static str = "gloo_rs_error_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {
        *self = NONE;
    }
}

/// No call has failed.
pub(super) const NONE: gloo_rs_error_t = gloo_rs_error_t {
    struct_size: 0,
    status: MaybeUninit::new(GLOO_RS_OK),
    rank: -1,
    system_error: 0,
    bytes_done: 0,
    bytes_wanted: 0,
    operation: c"".as_ptr(),
    message: c"".as_ptr(),
};

/// An error, and the texts that it will point to: only in their place, since pointers into a box end when it moves.
struct Last {
    error: gloo_rs_error_t,
    operation: CString,
    message: CString,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Text from a peer or a callback can contain NUL bytes. They are escaped, so that the rest of the text stays readable.
fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "\\0")).unwrap_or_default()
}

/// The operation of an error that names none: that of the function that was called.
fn operation_of(function: &str) -> String {
    let name = function.strip_prefix("gloo_rs_").unwrap_or(function);
    let name = name.strip_suffix("_with").unwrap_or(name);
    let is_collective = Collective::ALL.iter().any(|collective| collective.name() == name);
    if is_collective { name.to_owned() } else { name.replace('_', " ") }
}

/// Stores `error`, which `function` returns, as the calling thread's last error. Returns its status.
#[cold]
pub(super) fn remember(function: &str, error: &Error) -> gloo_rs_status_t {
    let details = error.details();
    let message = text(&format!("{function}: {}", error.message()));
    let operation = match details.operation {
        "" => text(&operation_of(function)),
        operation => text(operation),
    };
    let status = status_of(error.kind());
    let c_rank = |rank: Rank| i32::try_from(rank).ok();
    let last = gloo_rs_error_t {
        struct_size: 0,
        status: MaybeUninit::new(status),
        rank: details.rank.and_then(c_rank).unwrap_or(NONE.rank),
        system_error: details.errno.unwrap_or(0),
        bytes_done: details.bytes.0 as u64,
        bytes_wanted: details.bytes.1 as u64,
        ..NONE
    };
    // While a thread ends, its thread-local values may have been dropped already; then nobody can read the error.
    let _ = LAST.try_with(|place| *place.borrow_mut() = Some(Last { error: last, operation, message }));
    status
}

/// The calling thread's last error. Its texts are valid until the next error.
pub(super) fn last() -> gloo_rs_error_t {
    let last = LAST.try_with(|place| {
        let place = place.borrow();
        let Last { error, operation, message } = place.as_ref()?;
        Some(gloo_rs_error_t { operation: operation.as_ptr(), message: message.as_ptr(), ..*error })
    });
    last.ok().flatten().unwrap_or(NONE)
}
