//! Information about the library, and its memory.

use std::ffi::{CString, c_char, c_void};
use std::sync::LazyLock;

use super::pointer;
use crate::collective::Collective;

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

/// Returns the features of this build of the library, separated by commas: `tcp`, and `cuda`, `redis`, `tls`,
/// `uv` and `ibverbs` unless they were left out. Whether this host has a device for the last, gloo_rs_ibverbs_devices
/// says. A static string.
#[unsafe(no_mangle)]
pub extern "C" fn gloo_rs_built_features() -> *const c_char {
    static FEATURES: LazyLock<CString> = LazyLock::new(|| {
        let features = [
            ("tcp", true),
            ("cuda", cfg!(all(feature = "cuda", unix))),
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

/// Frees memory that this library allocated for the caller, as gloo_rs_store_get does; not that of
/// gloo_rs_alloc. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_free(memory: *mut c_void) {
    // SAFETY: the header demands that `memory` is NULL or from this library, which allocates it by `malloc`
    // (`pointer::Malloced`), and that it is freed once.
    unsafe { libc::free(memory) }
}
