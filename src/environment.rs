//! Environment variables that switch something on or off, and the one with the default timeout.

use std::ffi::OsString;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// The variable with the timeout, in seconds, of starts and of calls that name none.
pub const TIMEOUT: &str = "GLOO_RS_TIMEOUT";
/// That timeout if the variable is not set.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest: a year.
const LONGEST_SECONDS: f64 = 31_536_000.0;

/// The timeout of starts and of calls that name none. Fails if [`TIMEOUT`] is not a positive number of seconds.
pub fn default_timeout() -> Result<Duration> {
    timeout_or(DEFAULT_TIMEOUT)
}

/// As [`default_timeout`], with another timeout if the variable is not set.
pub fn timeout_or(default: Duration) -> Result<Duration> {
    timeout_of(std::env::var_os(TIMEOUT), default)
}

fn timeout_of(value: Option<OsString>, default: Duration) -> Result<Duration> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(default) };
    let seconds = value.to_str().and_then(|text| text.parse::<f64>().ok());
    let time = seconds.filter(|seconds| (1e-3..=LONGEST_SECONDS).contains(seconds)).map(Duration::from_secs_f64);
    time.ok_or_else(|| {
        Error::invalid(format!(
            "{TIMEOUT} is {value:?}; it must be a number of seconds from 0.001 to {LONGEST_SECONDS}"
        ))
    })
}

/// The error of a call that named no timeout: if that was too short, with the variable that sets it, once.
pub fn by_default(error: Error) -> Error {
    let text = format!("; the call named no timeout, so it was the default, which {TIMEOUT} (in seconds) sets");
    if error.kind() != ErrorKind::Timeout || error.message().contains(&text) { error } else { error.and(text) }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        let timeout = |text: &str| timeout_of(Some(text.into()), DEFAULT_TIMEOUT);
        assert_eq!(timeout_of(None, Duration::from_secs(7)).unwrap(), Duration::from_secs(7));
        for (text, seconds) in [("", 30.0), ("300", 300.0), ("0.25", 0.25), ("1e3", 1000.0)] {
            assert_eq!(timeout(text).unwrap(), Duration::from_secs_f64(seconds), "{text}");
        }
        for text in ["0", "-1", "5m", "inf", "nan", "1e9", " 5"] {
            let error = timeout(text).unwrap_err();
            assert!(error.message().contains(&format!("{TIMEOUT} is {text:?}")), "{error}");
        }
    }

    #[test]
    fn only_timeouts_name_the_variable() {
        let text = |kind| by_default(Error::new(kind, "why")).message().to_owned();
        assert!(text(ErrorKind::Timeout).contains(TIMEOUT));
        let twice = by_default(by_default(Error::new(ErrorKind::Timeout, "why")).context("a wait in a call"));
        assert_eq!(twice.message().matches(TIMEOUT).count(), 1, "{twice}");
        assert_eq!(text(ErrorKind::Mismatch), "why");
    }
}
