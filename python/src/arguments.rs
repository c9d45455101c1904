//! Arguments of Python as those of the C ABI.

use crate::abi::*;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CString, c_char};

/// A text with a NUL byte at its end.
pub fn text(value: &str) -> PyResult<CString> {
    CString::new(value).map_err(|_| PyValueError::new_err(format!("{value:?} contains a NUL character")))
}

/// Texts for an options struct, alive as long as this is.
#[derive(Default)]
pub struct Texts(Vec<CString>);

impl Texts {
    /// The pointer for a field: null for None.
    pub fn add(&mut self, value: Option<&str>) -> PyResult<*const c_char> {
        let Some(value) = value else { return Ok(std::ptr::null()) };
        let owned = text(value)?;
        let pointer = owned.as_ptr();
        self.0.push(owned);
        Ok(pointer)
    }
}

/// Seconds as the library's milliseconds, rounded up; None is the default, and infinity never expires.
pub fn milliseconds(timeout: Option<f64>) -> PyResult<i64> {
    match timeout {
        None => Ok(GLOO_RS_TIMEOUT_DEFAULT.into()),
        Some(seconds) if seconds.is_nan() || seconds < 0.0 => Err(PyValueError::new_err(format!(
            "timeout is {seconds}: seconds are 0 or more, math.inf, or None for the default"
        ))),
        // What does not fit becomes i64::MAX, which is GLOO_RS_TIMEOUT_INFINITE.
        Some(seconds) => Ok((seconds * 1000.0).ceil() as i64),
    }
}

/// The library's milliseconds as seconds.
pub fn seconds(milliseconds: i64) -> f64 {
    if milliseconds == i64::MAX { f64::INFINITY } else { milliseconds as f64 / 1000.0 }
}

/// Keyword arguments that several functions take, by name.
pub struct Keywords<'a, 'py> {
    given: Option<&'a Bound<'py, PyDict>>,
    known: Vec<&'static str>,
    taken: usize,
}

impl<'a, 'py> Keywords<'a, 'py> {
    pub fn new(given: Option<&'a Bound<'py, PyDict>>) -> Self {
        Self { given: given.filter(|dict| !dict.is_empty()), known: Vec::new(), taken: 0 }
    }

    /// The value of `name`; none if it is not given, or None.
    pub fn take(&mut self, name: &'static str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(dict) = self.given.filter(|dict| self.taken < dict.len()) else { return Ok(None) };
        self.known.push(name);
        let value = dict.get_item(name)?;
        self.taken += usize::from(value.is_some());
        Ok(value.filter(|value| !value.is_none()))
    }

    /// Refuses what no `take` has asked for. If there is such a thing, `known` has all names, since every `take`
    /// looked.
    pub fn finish(self, function: &str) -> PyResult<()> {
        let Some(dict) = self.given else { return Ok(()) };
        if self.taken == dict.len() {
            return Ok(());
        }
        let names = dict.keys().iter().map(|key| key.to_string());
        let strange: Vec<String> = names.filter(|name| !self.known.contains(&name.as_str())).collect();
        let (strange, known) = (strange.join(", "), self.known.join(", "));
        Err(PyTypeError::new_err(format!("{function} has no argument {strange}; it has {known}")))
    }
}
