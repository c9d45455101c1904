//! The timeout of calls that have none of their own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Replaces timeouts that are infinite or beyond the clock's range; longer than any process lives.
const FOREVER: Duration = Duration::from_secs(1 << 35);

/// A context's timeout.
pub(super) struct Timeout {
    /// `u64::MAX` (584 years) if there is no timeout.
    nanoseconds: AtomicU64,
    is_default: AtomicBool,
}

impl Timeout {
    /// `timeout`; `is_default`: nobody has chosen it.
    pub fn new(timeout: Duration, is_default: bool) -> Self {
        let own = Self { nanoseconds: AtomicU64::new(0), is_default: AtomicBool::new(is_default) };
        own.set(timeout, is_default);
        own
    }

    /// Sets the timeout of operations that start later.
    pub fn set(&self, timeout: Duration, is_default: bool) {
        self.nanoseconds.store(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.is_default.store(is_default, Ordering::Relaxed);
    }

    pub fn get(&self) -> Duration {
        match self.nanoseconds.load(Ordering::Relaxed) {
            u64::MAX => Duration::MAX,
            nanoseconds => Duration::from_nanos(nanoseconds),
        }
    }

    /// Whether nobody has chosen it.
    pub fn is_default(&self) -> bool {
        self.is_default.load(Ordering::Relaxed)
    }

    /// Whether it allows no waiting.
    #[inline]
    pub fn is_zero(&self) -> bool {
        self.nanoseconds.load(Ordering::Relaxed) == 0
    }

    /// When an operation that starts `now` fails, and its timeout; `own` is that of the operation, if it has one.
    #[inline]
    pub fn deadline(&self, now: Instant, own: Option<Duration>) -> (Instant, Duration) {
        let timeout = own.unwrap_or_else(|| self.get());
        (deadline_of(now, timeout), timeout)
    }
}

/// When an operation with this timeout fails that starts `now`.
#[inline]
pub(super) fn deadline_of(now: Instant, timeout: Duration) -> Instant {
    now.checked_add(timeout).unwrap_or_else(|| now + FOREVER)
}
