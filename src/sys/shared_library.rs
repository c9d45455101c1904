//! Libraries that are found at run time, so that this one can be loaded where they are missing.

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;

/// A library that is loaded until the process ends: it may have started threads, or registered destructors, which must
/// not be unmapped.
pub struct SharedLibrary {
    handle: NonNull<c_void>,
}

// SAFETY: `dlsym` may be called from any thread, and the library is never unloaded.
unsafe impl Send for SharedLibrary {}
// SAFETY: as above.
unsafe impl Sync for SharedLibrary {}

impl SharedLibrary {
    /// Loads the library with this name or path; the error is the loader's.
    pub fn open(name: &str) -> Result<Self, String> {
        let path = CString::new(name).map_err(|_| format!("{name:?} is no file name"))?;
        // SAFETY: `path` is a string that ends with zero. The library's initialisation runs; that of what this project
        // loads has no preconditions.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(|handle| Self { handle }).ok_or_else(last_error)
    }

    /// The library with this name, if this process has loaded it. None of its code runs.
    pub fn loaded(name: &CStr) -> Option<Self> {
        // SAFETY: `name` is a string that ends with zero.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        NonNull::new(handle).map(|handle| Self { handle })
    }

    /// The address of the function or variable with this name, in its newest version; `None` if there is none.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the library is loaded, and `name` ends with zero.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }
}

/// The loader's last error in this thread.
fn last_error() -> String {
    // SAFETY: `dlerror` has no preconditions; its result is valid until the next call in this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader says no reason".to_owned();
    }
    // SAFETY: the string ends with zero, see above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_a_library_are_found() {
        let library = SharedLibrary::open("libc.so.6").expect("the C library");
        assert!(library.symbol(c"getpid").is_some() && library.symbol(c"no_such_function").is_none());
    }

    #[test]
    fn only_a_library_that_is_loaded_is_found_so() {
        assert!(SharedLibrary::loaded(c"libc.so.6").is_some_and(|library| library.symbol(c"getpid").is_some()));
        assert!(SharedLibrary::loaded(c"libno_such_library.so.1").is_none());
    }

    #[test]
    fn the_error_for_a_missing_library_names_it() {
        let error = SharedLibrary::open("libno_such_library.so.1").err().expect("there is none");
        assert!(error.contains("libno_such_library.so.1"), "{error}");
        assert!(SharedLibrary::open("a\0b").is_err());
    }
}
