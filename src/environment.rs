//! Environment variables that switch something on or off.

use crate::error::{Error, Result};

/// Whether `variable` is 1 or 0; `None` if it is empty or not set. Fails if it is anything else.
pub fn switch(variable: &str) -> Result<Option<bool>> {
    match std::env::var_os(variable).as_deref().map(std::ffi::OsStr::as_encoded_bytes) {
        None | Some(b"") => Ok(None),
        Some(b"0") => Ok(Some(false)),
        Some(b"1") => Ok(Some(true)),
        Some(other) => {
            let text = String::from_utf8_lossy(other);
            Err(Error::invalid(format!("{variable} is {text:?}; it must be 0 or 1")))
        }
    }
}
