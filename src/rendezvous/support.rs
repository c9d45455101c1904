//! Code shared by the kinds of stores: checks, deadlines, arithmetic and messages.

use std::fmt::Display;
use std::time::{Duration, Instant};

use super::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::error::{Error, ErrorKind, Result};

/// The most keys that a message names; the rest is counted.
pub(super) const NAMED_KEYS: usize = 8;

/// Fails unless `key` is valid for every kind of store.
pub(super) fn check_key(store: impl FnOnce() -> String, key: &str) -> Result<()> {
    let fault = if key.is_empty() {
        "it is empty".to_owned()
    } else if key.contains('\0') {
        "it holds a NUL byte".to_owned()
    } else if key.len() > MAX_KEY_BYTES {
        format!("it has {} bytes, and the longest may have {MAX_KEY_BYTES}", key.len())
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("{}: {} cannot be a key: {fault}", store(), quote(key))))
}

/// Fails if a value of `bytes` is too long for `key`.
pub(super) fn check_value(store: impl FnOnce() -> String, key: &str, bytes: usize) -> Result<()> {
    if bytes <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(value_too_long(key, bytes).context(store()))
}

/// The error for a value of `bytes`, without the store's name.
pub(super) fn value_too_long(key: &str, bytes: usize) -> Error {
    Error::invalid(format!(
        "the value for key {} has {bytes} bytes, and the longest may have {MAX_VALUE_BYTES}",
        quote(key)
    ))
}

/// Adds `amount` to the decimal integer `current` (0 if absent). The error does not name the store.
pub(super) fn sum(key: &str, current: Option<&[u8]>, amount: i64) -> Result<i64> {
    let refuse = |why: String| {
        Error::new(ErrorKind::InvalidOperation, format!("cannot add {amount} to key {}: {why}", quote(key)))
    };
    let Some(current) = current else { return Ok(amount) };
    let number = std::str::from_utf8(current).ok().and_then(|text| text.parse::<i64>().ok());
    let number = number.ok_or_else(|| {
        let shown = String::from_utf8_lossy(&current[..current.len().min(32)]).into_owned();
        refuse(format!("its value of {} bytes, {shown:?}, is not a decimal 64-bit integer", current.len()))
    })?;
    number.checked_add(amount).ok_or_else(|| refuse(format!("it holds {number}, and the sum overflows 64 bits")))
}

/// `key` in quotes, truncated if it is long.
pub(super) fn quote(key: &str) -> String {
    const SHOWN_BYTES: usize = 120;
    match key.char_indices().find(|(at, _)| *at >= SHOWN_BYTES) {
        Some((cut, _)) => format!("{:?}... ({} bytes)", &key[..cut], key.len()),
        None => format!("{key:?}"),
    }
}

/// What there is no memory for, in errors.
pub(super) fn value_of(key: &str) -> impl Display {
    std::fmt::from_fn(move |f| write!(f, "the value of key {}", quote(key)))
}

/// The operation and its keys, for messages.
pub(super) fn doing<'a>(what: &str, keys: impl IntoIterator<Item = &'a str, IntoIter: ExactSizeIterator>) -> String {
    let mut keys = keys.into_iter();
    let first = keys.next();
    match (first, keys.len()) {
        (None, _) => what.to_owned(),
        (Some(key), 0) => format!("{what} {}", quote(key)),
        (Some(key), more) => format!("{what} {} and {more} more keys", quote(key)),
    }
}

/// The `Timeout` of a wait for so many `keys`, of which `missing` had no value; `shown` are the first of those.
pub(super) fn no_value<'a>(
    store: &str,
    keys: usize,
    missing: usize,
    shown: impl IntoIterator<Item = &'a str>,
    waited: Duration,
) -> Error {
    let names: Vec<_> = shown.into_iter().take(NAMED_KEYS).map(quote).collect();
    let more = missing.saturating_sub(names.len());
    let names = names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() };
    let what = if keys == 1 {
        format!("key {names} has no value")
    } else {
        format!("{missing} of {keys} keys have no value ({names})")
    };
    Error::new(ErrorKind::Timeout, format!("{store}: {what} after {}", seconds(waited)))
}

/// A duration in the format of messages.
pub(super) fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

/// The deadline of a call that begins now. If the end is beyond the range of the clock, there is none.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    began: Instant,
    end: Option<Instant>,
}

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        let began = Instant::now();
        Self { began, end: began.checked_add(timeout) }
    }

    /// Zero after the deadline.
    pub(super) fn remaining(&self) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    pub(super) fn passed(&self) -> bool {
        self.remaining().is_zero()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// How often something was tried, for messages.
pub(super) fn times(tries: usize) -> String {
    if tries == 1 { "1 try".to_owned() } else { format!("{tries} tries") }
}

/// Sleeps between attempts, each time twice as long, up to a limit.
pub(super) struct Backoff {
    next: Duration,
    limit: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, limit: Duration) -> Self {
        Self { next: first, limit }
    }

    /// Sleeps, but not beyond `deadline`.
    pub(super) fn sleep(&mut self, deadline: &Deadline) {
        std::thread::sleep(self.next.min(deadline.remaining()));
        self.next = (self.next * 2).min(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_names_the_first_keys_and_counts_the_rest() {
        let keys: Vec<String> = (0..20).map(|i| format!("k{i}")).collect();
        let error = no_value("here", 30, 20, keys.iter().map(String::as_str), Duration::from_millis(1500));
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(
            error.message(),
            r#"here: 20 of 30 keys have no value ("k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7" and 12 more) after 1.500 s"#
        );
        let one = no_value("here", 1, 1, ["k"], Duration::ZERO);
        assert_eq!(one.message(), r#"here: key "k" has no value after 0.000 s"#);
    }

    #[test]
    fn a_long_key_is_cut_between_characters() {
        let key = "é".repeat(200);
        let shown = quote(&key);
        assert!(shown.ends_with("... (400 bytes)"), "{shown}");
        assert!(shown.len() < 200, "{shown}");
    }

    #[test]
    fn the_longest_timeout_never_comes() {
        let deadline = Deadline::after(Duration::MAX);
        assert!(!deadline.passed());
        assert_eq!(deadline.remaining(), Duration::MAX);
        assert!(Deadline::after(Duration::ZERO).passed());
    }

    #[test]
    fn sums() {
        assert_eq!(sum("k", None, -3).unwrap(), -3);
        assert_eq!(sum("k", Some(b"40"), 2).unwrap(), 42);
        for (value, part) in [(&b"x"[..], "\"x\""), (b"", "0 bytes"), (b"9223372036854775807", "overflows 64 bits")] {
            let error = sum("key", Some(value), 1).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOperation);
            assert!(error.message().contains(part) && error.message().contains("\"key\""), "{error}");
        }
    }
}
