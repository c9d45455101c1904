//! How long a waiting thread polls before it sleeps in the system, and how much a thread does before it looks at the
//! clock.

use std::time::{Duration, Instant};

use crate::collective::Constants;
use crate::wait_mode::WaitMode;

/// After so many bytes of results in memory, whoever executes a call looks at the clock. If each of their pages is
/// touched for the first time, they take some 20 ms.
pub const LOOK_BYTES: usize = 8 << 20;

/// A thread that waits for this long looks whether other ranks make another call, and again whenever it has waited
/// twice as long. To look takes microseconds: it reads what all ranks of the host have published.
const FIRST_DETECTION: Duration = Duration::from_millis(1);

/// Whose the cores are on which a rank may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// The host's ranks have at least one each.
    Own,
    /// There may be fewer than ranks, or a control group limits the time that all threads together get, so that a
    /// thread that polls takes it from others.
    Unknown,
    /// There are fewer than ranks.
    Shared,
}

impl Cores {
    /// The cores of a rank on a host with so many ranks, which may run on so many cores, and this one on `own` of them;
    /// control groups let it have the time of `quota` cores.
    pub fn of(ranks: usize, cores: usize, own: usize, quota: Option<f64>) -> Self {
        match quota {
            _ if ranks > cores => Self::Shared,
            Some(quota) if quota < own.max(cores) as f64 => Self::Unknown,
            _ => Self::Own,
        }
    }
}

/// How long a waiting thread polls after the last progress before it sleeps. Ordered by duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spin {
    /// The time, where nobody else wants the core.
    usual: Duration,
    /// The time, where others do.
    oversubscribed: Duration,
}

impl Spin {
    /// Until the wait ends.
    pub const FOREVER: Self = Self::of(Duration::MAX);

    /// This time, whoever wants the core.
    pub const fn of(time: Duration) -> Self {
        Self { usual: time, oversubscribed: time }
    }

    /// What `mode` means on these cores.
    pub fn new(mode: WaitMode, cores: Cores, constants: &Constants) -> Self {
        let us = |us: f64| Duration::from_secs_f64(us * 1e-6);
        let time = us(constants.spin_us);
        let usual = match (mode, cores) {
            (WaitMode::Poll, _) => return Self::FOREVER,
            // Those who want the core are ranks of the job, which yield it: with four ranks on two cores, an allreduce of
            // 4 bytes over TCP took 37 us so, and 63 where waits slept at once.
            (_, Cores::Shared) => return Self::of(us(constants.spin_shared_us)),
            (WaitMode::Auto, Cores::Own) => time.max(us(constants.spin_alone_us)),
            (WaitMode::Auto | WaitMode::Sleep, _) => time,
        };
        Self { usual, oversubscribed: Duration::ZERO }
    }
}

/// The turns of a wait since the last progress.
#[derive(Debug, Default)]
pub struct Idle {
    /// When the thread found nothing for the first time.
    since: Option<Instant>,
    /// How often the time of [`Idle::next_detection`] has passed.
    detections: u32,
}

impl Idle {
    /// After a turn that found nothing at `now`: whether the thread polls on, whose core others want or not.
    pub fn polls_on(&mut self, spin: Spin, oversubscribed: bool, now: Instant) -> bool {
        let time = if oversubscribed { spin.oversubscribed } else { spin.usual };
        now.duration_since(*self.since.get_or_insert(now)) < time
    }

    /// When the thread looks next whether other ranks make another call; `None` before its first turn, and after ages.
    pub fn next_detection(&self) -> Option<Instant> {
        let times = 1u32.checked_shl(self.detections)?;
        self.since?.checked_add(FIRST_DETECTION.checked_mul(times)?)
    }

    /// Whether the thread looks for that at `now`.
    pub fn detects(&mut self, now: Instant) -> bool {
        let before = self.detections;
        while self.next_detection().is_some_and(|next| next <= now) {
            self.detections += 1;
        }
        self.detections > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILT_IN: &Constants = &Constants::BUILT_IN;

    /// When a thread sleeps that looks at the clock at these times, in µs.
    fn sleeps_at(spin: Spin, oversubscribed: bool, turns: impl Iterator<Item = u64>) -> Option<u64> {
        let (start, mut idle) = (Instant::now(), Idle::default());
        turns.into_iter().find(|us| !idle.polls_on(spin, oversubscribed, start + Duration::from_micros(*us)))
    }

    #[test]
    fn a_rank_has_a_core_if_there_are_enough_and_no_quota_is_below_them() {
        let quotas = [None, Some(64.0), Some(8.0), Some(7.5)];
        // Bound to a core each; not bound, where the number of cores is that of the quota; more ranks than cores.
        assert_eq!(quotas.map(|quota| Cores::of(8, 8, 1, quota)), [Cores::Own, Cores::Own, Cores::Own, Cores::Unknown]);
        assert_eq!(Cores::of(2, 64, 64, None), Cores::Own);
        assert_eq!(Cores::of(2, 8, 64, Some(8.0)), Cores::Unknown);
        assert_eq!(quotas.map(|quota| Cores::of(3, 2, 2, quota)), [Cores::Shared; 4]);
    }

    #[test]
    fn modes_differ_where_each_rank_has_a_core() {
        let [shared, usual, alone] = [50, 200, 100_000].map(Duration::from_micros);
        let spin = |mode, cores| Spin::new(mode, cores, BUILT_IN);
        let oversubscribed = Duration::ZERO;
        for mode in [WaitMode::Auto, WaitMode::Sleep] {
            assert_eq!(spin(mode, Cores::Shared), Spin::of(shared));
            assert_eq!(spin(mode, Cores::Unknown), Spin { usual, oversubscribed });
        }
        assert_eq!(spin(WaitMode::Auto, Cores::Own), Spin { usual: alone, oversubscribed });
        assert_eq!(spin(WaitMode::Sleep, Cores::Own), Spin { usual, oversubscribed });
        for cores in [Cores::Own, Cores::Unknown, Cores::Shared] {
            assert_eq!(spin(WaitMode::Poll, cores), Spin::FOREVER);
        }
        let constants = Constants { spin_us: 300.0, spin_alone_us: 7.0, ..*BUILT_IN };
        let usual = Duration::from_micros(300);
        assert_eq!(Spin::new(WaitMode::Auto, Cores::Own, &constants), Spin { usual, oversubscribed });
    }

    #[test]
    fn a_thread_polls_up_to_the_bound() {
        for us in [0, 200, 100_000] {
            assert_eq!(sleeps_at(Spin::of(Duration::from_micros(us)), true, 0..), Some(us));
        }
        assert_eq!(sleeps_at(Spin::FOREVER, true, (0..=20).map(|power| 1 << power)), None);
        let spin = Spin::new(WaitMode::Auto, Cores::Own, BUILT_IN);
        assert_eq!([false, true].map(|oversubscribed| sleeps_at(spin, oversubscribed, 0..)), [Some(100_000), Some(0)]);
    }

    #[test]
    fn it_looks_for_other_calls_ever_more_rarely() {
        let (start, mut idle) = (Instant::now(), Idle::default());
        assert_eq!(idle.next_detection(), None);
        let mut detects = |us: u64| {
            let now = start + Duration::from_micros(us);
            idle.polls_on(Spin::FOREVER, false, now);
            idle.detects(now)
        };
        let at: Vec<u64> = (0..1000).map(|turn| turn * 100).filter(|us| detects(*us)).collect();
        assert_eq!(at, [1000, 2000, 4000, 8000, 16_000, 32_000, 64_000]);
        assert!(detects(1_000_000) && !detects(1_023_999) && detects(1_024_000));
        assert!(detects(u64::pow(10, 15)) && !detects(u64::pow(10, 16)), "the time of the next does not come");
    }
}
