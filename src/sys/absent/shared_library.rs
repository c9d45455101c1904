//! Libraries that are found at run time: none is looked for on this system.

use std::convert::Infallible;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// A library. There is none.
pub struct SharedLibrary {
    none: Infallible,
}

impl SharedLibrary {
    /// `None`.
    pub fn loaded(_: &CStr) -> Option<Self> {
        None
    }

    /// The address of the function or variable with this name.
    pub fn symbol(&self, _: &CStr) -> Option<NonNull<c_void>> {
        match self.none {}
    }
}
