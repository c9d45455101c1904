//! How long the device's thread leaves work to threads of the program that come again and again.

use std::time::{Duration, Instant};

/// How long a thread of the program that was just in a call may take to come again, before the device's thread does the
/// work. To take the work from that thread costs more than what there is to do for a short call: a start and a wait of
/// 16 requests would take five times as long.
pub const GRACE: Duration = Duration::from_micros(300);

/// The longest time between two looks whether threads of the program still come. Each look takes a core from them: with
/// four ranks on two cores, eight requests of 64 KiB took 320 µs with a look each 600 µs, 290 with one each 1.2 ms, and
/// 250 with one each 2.4 ms. The longer the time, the later the device's thread goes on with what was started, if the
/// program only computes from now on.
const MAX_DELAY: Duration = Duration::from_micros(1200);

/// How long work is left in a row at most. Meanwhile peers need not wake the device's thread. The program may do
/// nothing but start calls.
pub const MAX_TOTAL: Duration = Duration::from_micros(4800);

/// How long work was left to threads of the program, and will be. The longer they come, the less often the device's
/// thread looks whether they still do.
pub struct Deferral {
    /// When the device's thread last looked.
    looked: Instant,
    /// The next delay.
    next: Duration,
    /// The sum of the delays in a row.
    total: Duration,
    /// The fewest visits of a context whose work is left in this look; `None` if no work is left.
    fewest: Option<usize>,
}

impl Deferral {
    /// No work was left before `now`.
    pub fn new(now: Instant) -> Self {
        Self { looked: now, next: GRACE, total: Duration::ZERO, fewest: None }
    }

    /// Whether the work of a context is left to its threads, which have come so many times since the last look.
    pub fn defers(&mut self, visits: usize) -> bool {
        let defers = visits > 0 && self.total < MAX_TOTAL;
        if defers {
            self.fewest = Some(self.fewest.map_or(visits, |fewest| fewest.min(visits)));
        }
        defers
    }

    /// At the end of a look: for how long work is left; `None` if none is. The delays become longer as long as threads
    /// come once in [`GRACE`] on average.
    pub fn delay(&mut self, now: Instant) -> Option<Duration> {
        let interval = now.duration_since(std::mem::replace(&mut self.looked, now));
        let Some(visits) = self.fewest.take() else {
            self.total = Duration::ZERO;
            return None;
        };
        if GRACE.saturating_mul(visits.try_into().unwrap_or(u32::MAX)) < interval {
            self.next = GRACE;
        }
        let delay = self.next;
        self.next = (2 * self.next).min(MAX_DELAY);
        self.total += delay;
        Some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The delays of a thread that looks at once after each, until it leaves nothing more, if threads come so often
    /// between two looks.
    fn delays(deferral: &mut Deferral, now: &mut Instant, visits: impl Fn(Duration) -> usize) -> Vec<Duration> {
        let mut all = Vec::new();
        let mut last = GRACE;
        while deferral.defers(visits(last)) {
            last = deferral.delay(*now).unwrap();
            *now += last;
            all.push(last);
        }
        assert_eq!(deferral.delay(*now), None);
        all
    }

    #[test]
    fn looks_become_rare_while_threads_come_often_and_work_is_done_at_last() {
        let mut now = Instant::now();
        let mut deferral = Deferral::new(now);
        let often = |delay: Duration| (delay.as_micros() / 50) as usize;
        let first = delays(&mut deferral, &mut now, often);
        assert_eq!(first[..3], [GRACE, 2 * GRACE, 4 * GRACE]);
        let total: Duration = first.iter().sum();
        assert!(total >= MAX_TOTAL && total < MAX_TOTAL + MAX_DELAY, "{total:?}");
        // The look after the work was done at last.
        now += GRACE;
        assert!(delays(&mut deferral, &mut now, often).iter().all(|delay| *delay == MAX_DELAY));
        assert!(delays(&mut deferral, &mut now, |_| usize::MAX).iter().all(|delay| *delay == MAX_DELAY), "one stays");
    }

    #[test]
    fn looks_are_frequent_while_threads_come_rarely() {
        let mut now = Instant::now();
        let mut deferral = Deferral::new(now);
        delays(&mut deferral, &mut now, |_| usize::MAX);
        // Threads have not come for a while before the first look.
        now += 4 * GRACE;
        let all = delays(&mut deferral, &mut now, |delay| usize::from(delay <= 2 * GRACE));
        assert!(all.iter().all(|delay| *delay <= 2 * GRACE) && all.contains(&GRACE), "{all:?}");
        assert!(delays(&mut deferral, &mut now, |_| 0).is_empty(), "none comes");
        // The delay follows the context whose threads come the most rarely.
        for (visits, delay) in [([1, 9], GRACE), ([9, 9], 2 * GRACE), ([9, 1], GRACE)] {
            assert_eq!(visits.map(|visits| deferral.defers(visits)), [true; 2]);
            now += 2 * GRACE;
            assert_eq!(deferral.delay(now), Some(delay));
        }
    }
}
