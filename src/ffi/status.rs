//! Status codes, and information about the library.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::LazyLock;

use super::enumeration::number;
use super::pointer;
use crate::collective::Collective;
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
    /// The operating system reported an error of a file, a socket or an interface.
    GLOO_RS_ERROR_IO = 4,
    /// The connection to a peer broke, the peer's process ended, or the peer's context failed.
    GLOO_RS_ERROR_CONNECTION_LOST = 5,
    /// An abort function ended the wait.
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

/// As a timeout: the context's timeout; for calls that have no context, the value of the environment variable
/// GLOO_RS_TIMEOUT, in seconds, or 30 s. Errors of calls that end by the default name the variable.
pub const GLOO_RS_TIMEOUT_DEFAULT: i64 = -1;
/// As a timeout: none. Only completion, a failure or an abort ends the operation.
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

/// First number of the header's version.
pub const GLOO_RS_VERSION_MAJOR: u32 = 0;
/// Second number of the header's version.
pub const GLOO_RS_VERSION_MINOR: u32 = 2;
/// Third number of the header's version.
pub const GLOO_RS_VERSION_PATCH: u32 = 0;
/// The header's version as one number for comparisons: 1.2.3 is 10203. gloo_rs_version_number returns the library's.
pub const GLOO_RS_VERSION_NUMBER: u32 =
    GLOO_RS_VERSION_MAJOR * 10000 + GLOO_RS_VERSION_MINOR * 100 + GLOO_RS_VERSION_PATCH;

/// Returns the version of the library that the program runs with, in the form of GLOO_RS_VERSION_NUMBER. It may be
/// later than the header's.
#[unsafe(no_mangle)]
pub extern "C" fn gloo_rs_version_number() -> u32 {
    GLOO_RS_VERSION_NUMBER
}

/// Returns the version of the library that the program runs with: `1.2.3`. A static string.
#[unsafe(no_mangle)]
pub extern "C" fn gloo_rs_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Returns the features of this build of the library, separated by commas: `tcp`, and `redis`, `tls`, `uv` and `ibverbs` unless they
/// were left out. Whether this host has a device for the last, gloo_rs_ibverbs_devices says. A static string.
#[unsafe(no_mangle)]
pub extern "C" fn gloo_rs_built_features() -> *const c_char {
    static FEATURES: LazyLock<CString> = LazyLock::new(|| {
        let features = [
            ("tcp", true),
            ("redis", cfg!(feature = "redis")),
            ("tls", cfg!(feature = "tls")),
            ("uv", cfg!(feature = "uv")),
            ("ibverbs", cfg!(all(feature = "ibverbs", target_os = "linux"))),
        ];
        let built: Vec<_> = features.iter().filter(|(_, built)| *built).map(|(name, _)| *name).collect();
        CString::new(built.join(",")).unwrap_or_default()
    });
    FEATURES.as_ptr()
}

/// Returns the names of the algorithms of `collective` (`allreduce`, `reduce_scatter`), separated by commas. Each is a
/// value for `algorithm` in gloo_rs_collective_options_t, as is `auto`. A static string; NULL if there is no such
/// collective.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_algorithms(collective: *const c_char) -> *const c_char {
    static LISTS: LazyLock<Vec<CString>> = LazyLock::new(|| {
        let names = |collective: &Collective| {
            let names: Vec<_> = collective.algorithms().iter().map(|algorithm| algorithm.name).collect();
            CString::new(names.join(",")).unwrap_or_default()
        };
        Collective::ALL.iter().map(names).collect()
    });
    // SAFETY: the header demands that `collective` is NULL or a string.
    let name = unsafe { pointer::optional_text(collective, "collective") }.ok().flatten();
    let index = Collective::ALL.iter().position(|collective| Some(collective.name()) == name);
    index.map_or(std::ptr::null(), |index| LISTS[index].as_ptr())
}

/// Returns the name of `status` in this header, such as `GLOO_RS_ERROR_TIMEOUT`. A static string; `unknown status` for
/// other numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_status_name(status: MaybeUninit<gloo_rs_status_t>) -> *const c_char {
    // SAFETY: C initialises arguments; any number is accepted.
    let number = unsafe { number(status) };
    let name = NAMES.iter().find(|(known, _)| *known as u32 == number);
    name.map_or(c"unknown status", |(_, name)| name).as_ptr()
}

/// Frees memory that this library allocated for the caller, as gloo_rs_store_get does; not that of
/// gloo_rs_alloc. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_free(memory: *mut c_void) {
    // SAFETY: the header demands that `memory` is NULL or from this library, which allocates it by `malloc`
    // (`pointer::Malloced`), and that it is freed once.
    unsafe { libc::free(memory) }
}
