//! Times of the recorder: ticks of the processor's clock, and what they are in nanoseconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sys::time_stamp;
use crate::transport::Clock;
use crate::utc::Utc;

/// A source of ticks, and three clocks at one time in the past.
pub struct Ticks {
    clock: Arc<dyn Clock>,
    /// Ticks are nanoseconds of `clock`, which is a simulation's.
    is_simulated: bool,
    at: u64,
    then: Instant,
    utc: Duration,
}

/// What ticks are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scale {
    at: u64,
    /// Nanoseconds since the beginning of 1970, by UTC, at the tick `at`.
    utc: u64,
    nanoseconds_per_tick: f64,
}

impl Ticks {
    pub fn new(clock: Arc<dyn Clock>, then: Instant) -> Self {
        let is_simulated = clock.is_simulated();
        let at = if is_simulated { 1 } else { time_stamp() };
        Self { clock, is_simulated, at, then, utc: Utc::now().0 }
    }

    /// The present time: never 0.
    #[inline(always)] // On the path of small collectives.
    pub fn now(&self) -> u64 {
        // Contexts are simulated in tests only.
        if cfg!(any(test, fuzzing)) && self.is_simulated { self.simulated() } else { time_stamp() }
    }

    #[cold]
    fn simulated(&self) -> u64 {
        1 + self.clock.now().saturating_duration_since(self.then).as_nanos() as u64
    }

    /// The rate of ticks, measured from the beginning until the present time.
    pub fn scale(&self) -> Scale {
        let ticks = self.now().saturating_sub(self.at);
        let passed = self.clock.now().saturating_duration_since(self.then).as_nanos() as f64;
        let nanoseconds_per_tick = if self.is_simulated || ticks == 0 { 1.0 } else { passed / ticks as f64 };
        Scale { at: self.at, utc: self.utc.as_nanos() as u64, nanoseconds_per_tick }
    }
}

impl Scale {
    /// A tick in nanoseconds since the beginning of 1970, by UTC; `None` if it was not read.
    pub fn nanoseconds(&self, ticks: u64) -> Option<u64> {
        let since = ticks.wrapping_sub(self.at) as i64 as f64 * self.nanoseconds_per_tick;
        (ticks != 0).then(|| self.utc.saturating_add_signed(since as i64))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::transport::SystemClock;

    #[test]
    fn ticks_are_as_long_as_the_systems_clock_says() {
        let (ticks, before) = (Ticks::new(Arc::new(SystemClock), Instant::now()), Utc::now().0.as_nanos() as u64);
        while ticks.then.elapsed() < Duration::from_millis(20) {}
        let (now, after) = (ticks.now(), Utc::now().0.as_nanos() as u64);
        let shown = ticks.scale().nanoseconds(now).unwrap();
        let slack = 10_000_000;
        assert!((before + 20_000_000 - slack..after + slack).contains(&shown), "{before} {shown} {after}");
        assert_eq!(ticks.scale().nanoseconds(0), None);
    }

    #[test]
    fn a_tick_before_the_first_is_before_it() {
        let scale = Scale { at: 1000, utc: 5000, nanoseconds_per_tick: 0.5 };
        assert_eq!([900, 1000, 1100].map(|ticks| scale.nanoseconds(ticks)), [4950, 5000, 5050].map(Some));
    }
}
