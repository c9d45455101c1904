//! Whether other threads want the cores on which the threads of a context poll.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A yield to no other thread takes a microsecond. If it takes longer than this, another thread has had the core.
const LONG_YIELD: Duration = Duration::from_micros(50);
/// What other threads take is forgotten so many times slower than it was taken: who polls again and again beside a thread
/// that computes loses this part of its time. What a hypervisor and interrupts take is less.
const FORGETTING_DIVISOR: u64 = 8;
/// So much lost time is no sign: the scheduler gives a thread that computes some milliseconds at once, and one that
/// wakes up for a moment, less.
const TOLERATED_LOSS: Duration = Duration::from_millis(4);

/// What threads that polled have lost to other threads. The one that yields to a thread that computes comes back after
/// that one's slice, though the message that it waits for may have come long before; one that sleeps is woken by the
/// message, and the scheduler prefers it. Beside compilers, five threads to a core, an allreduce of 4 bytes over TCP took
/// 7 ms where waiting threads polled for 200 us, and 0.01 ms since they sleep at once (median, two ranks on two cores).
pub struct Oversubscription {
    start: Instant,
    /// When all that was lost is forgotten, in nanoseconds after `start`. That is a leaky bucket: a loss adds to it, and
    /// it is past when nothing has been lost for long.
    forgotten_at: AtomicU64,
}

impl Oversubscription {
    /// Nothing was lost before `start`.
    pub fn new(start: Instant) -> Self {
        Self { start, forgotten_at: AtomicU64::new(0) }
    }

    /// A thread has yielded at `from`, and had its core again at `to`.
    pub fn yielded(&self, from: Instant, to: Instant) {
        let lost = to.saturating_duration_since(from);
        if lost > LONG_YIELD {
            self.lose(lost, to);
        }
    }

    #[cold]
    fn lose(&self, lost: Duration, now: Instant) {
        let (now, lost) = (self.nanoseconds(now), lost.as_nanos() as u64);
        // Of two threads that lose their cores at once, one loss may be forgotten.
        let before = self.forgotten_at.load(Ordering::Relaxed).max(now);
        self.forgotten_at.store(before.saturating_add(lost.saturating_mul(FORGETTING_DIVISOR)), Ordering::Relaxed);
    }

    /// Whether a thread that polls would lose its core.
    pub fn is_present(&self, now: Instant) -> bool {
        let tolerated = TOLERATED_LOSS.as_nanos() as u64 * FORGETTING_DIVISOR;
        self.forgotten_at.load(Ordering::Relaxed).saturating_sub(self.nanoseconds(now)) > tolerated
    }

    fn nanoseconds(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields from one time to another, in microseconds, and then the times at which the cores are oversubscribed, looked
    /// at each millisecond until 300.
    fn present(yields: &[(u64, u64)]) -> Vec<u64> {
        let start = Instant::now();
        let at = |us: u64| start + Duration::from_micros(us);
        let oversubscription = Oversubscription::new(start);
        yields.iter().for_each(|(from, to)| oversubscription.yielded(at(*from), at(*to)));
        let last = yields.last().map_or(0, |(_, to)| to.div_ceil(1000));
        (last..300).filter(|ms| oversubscription.is_present(at(ms * 1000))).collect()
    }

    #[test]
    fn a_slice_that_another_thread_had_is_remembered_eight_times_as_long() {
        assert_eq!(present(&[]), []);
        // Eight times the 8 ms, less the tolerated 4.
        assert_eq!(present(&[(0, 8000)]), Vec::from_iter(8..8 + 32));
        // Slices of 3 ms: the second one is a sign.
        assert_eq!(present(&[(0, 3000)]), []);
        assert_eq!(present(&[(0, 3000), (3000, 6000)]), Vec::from_iter(6..6 + 13));
        assert_eq!(present(&[(0, 8000), (50_000, 58_000)]), Vec::from_iter(58..58 + 46));
    }

    #[test]
    fn what_is_short_or_rare_is_none() {
        let short: Vec<_> = (0..100_000).map(|i| (50 * i, 50 * i + 50)).collect();
        assert_eq!(present(&short[..1000]), []);
        // An interrupt of 100 us each millisecond.
        let interrupts: Vec<_> = (0..100).map(|i| (1000 * i, 1000 * i + 100)).collect();
        assert_eq!(present(&interrupts), []);
        // A hypervisor takes 2 ms of each 20.
        let taken: Vec<_> = (0..10).map(|i| (20_000 * i, 20_000 * i + 2000)).collect();
        assert_eq!(present(&taken), []);
    }

    #[test]
    fn a_loss_of_ages_does_not_wrap() {
        let start = Instant::now();
        let oversubscription = Oversubscription::new(start);
        oversubscription.yielded(start, start + Duration::from_secs(1 << 33));
        assert!(oversubscription.is_present(start + Duration::from_secs(1 << 33)));
        assert!(oversubscription.is_present(start));
    }
}
