//! What went wrong in the last failed call of each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

use super::guard::guard;
use super::options::{self, Options};
use super::status::{GLOO_RS_OK, gloo_rs_status_t, status_of};
use crate::collective::Collective;
use crate::error::Error;
use crate::types::Rank;

/// What went wrong, for programs. Set up by gloo_rs_error_init, filled by gloo_rs_last_error and gloo_rs_context_broken.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_error_t {
    /// sizeof(gloo_rs_error_t).
    pub struct_size: usize,
    /// What the failed call returned.
    pub status: MaybeUninit<gloo_rs_status_t>,
    /// The rank with which the failure began, whichever rank saw it first: the one that was lost, that stopped answering, whose
    /// call differs, whose process gave up, or that did not come. -1 if that is no rank, or unknown. It may be this one.
    pub rank: i32,
    /// The operating system's error number, as in errno, of a connection or file that this process saw fail; 0 if there is none.
    pub system_error: i32,
    /// After a timeout: how many of `bytes_wanted` had come, or gone, of what was waited for from `rank`, or from any rank.
    /// 0 of 0 where that says nothing.
    pub bytes_done: u64,
    /// See `bytes_done`.
    pub bytes_wanted: u64,
    /// What failed: a collective by its name (`allreduce`), `connect`, `send` or `recv`; else the words of the function's name
    /// (`store get`, `device create`). Never NULL; empty if no call failed yet. Lives as long as `message`.
    pub operation: *const c_char,
    /// As gloo_rs_last_error_message() returns, and lives as long: until the next failing call on this thread, or its end.
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

/// Nothing has failed.
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

/// An error, with its texts as C knows them.
struct Last {
    error: gloo_rs_error_t,
    _texts: [CString; 2],
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Text can hold a NUL where a peer or a callback put one; the rest of it is still worth reading.
fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "\\0")).unwrap_or_default()
}

/// The operation of an error that does not say it: by the function that was called.
fn operation_of(function: &str) -> String {
    let name = function.strip_prefix("gloo_rs_").unwrap_or(function);
    let name = name.strip_suffix("_with").unwrap_or(name);
    let is_collective = Collective::ALL.iter().any(|collective| collective.name() == name);
    if is_collective { name.to_owned() } else { name.replace('_', " ") }
}

/// Makes `error`, which `function` has met, the calling thread's last; its status.
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
        operation: operation.as_ptr(),
        message: message.as_ptr(),
    };
    // At a thread's end its error may be gone already: then nobody can ask for it.
    let _ = LAST.try_with(|place| *place.borrow_mut() = Some(Last { error: last, _texts: [operation, message] }));
    status
}

/// The calling thread's last error, whose texts live until the next one.
pub(super) fn last() -> gloo_rs_error_t {
    let last = LAST.try_with(|place| place.borrow().as_ref().map(|last| last.error));
    last.ok().flatten().unwrap_or(NONE)
}

/// Fills at most `struct_size` bytes of `error`, which is to be sizeof(gloo_rs_error_t): nothing has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_error_init(error: *mut gloo_rs_error_t, struct_size: usize) {
    // SAFETY: the header's rules for pointers.
    unsafe { options::init(error, struct_size) }
}

/// Tells a program what went wrong in the last failed call of the calling thread, in `*error`, which gloo_rs_error_init has set up;
/// so many bytes are written at most as its `struct_size` says. If no call failed yet, the status there is GLOO_RS_OK.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_last_error(error: *mut gloo_rs_error_t) -> gloo_rs_status_t {
    guard("gloo_rs_last_error", || {
        // SAFETY: the header's rules for pointers.
        unsafe { options::fill(error, "error", last()) }
    })
}

/// What went wrong in the last failed call of the calling thread, in words: which argument, rank, peer, key, how many bytes, after
/// how long. Never NULL; empty if no call failed yet. The string is the library's and lives until the next failing call
/// on this thread, or the thread's end.
#[unsafe(no_mangle)]
pub extern "C" fn gloo_rs_last_error_message() -> *const c_char {
    last().message
}
