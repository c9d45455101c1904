//! Dates and times for readers.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time since the beginning of 1970, by UTC, as RFC 3339 writes it: `2026-11-28T07:05:12Z`. A precision is the number
/// of digits after the second, at most nine: `{:.3}` writes `2026-11-28T07:05:12.250Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc(pub Duration);

impl Utc {
    /// The present time, by the system's clock.
    pub fn now() -> Self {
        Self(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// The day: `2026-11-28`.
    pub fn date(self) -> String {
        let leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
        let (mut year, mut day) = (1970, self.0.as_secs() / 86_400);
        // The calendar repeats every 400 years: a date in a certificate may be far away.
        year += day / 146_097 * 400;
        day %= 146_097;
        while day >= 365 + u64::from(leap(year)) {
            day -= 365 + u64::from(leap(year));
            year += 1;
        }
        let mut month = 1;
        for days in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            if day < days {
                break;
            }
            day -= days;
            month += 1;
        }
        format!("{year}-{month:02}-{:02}", day + 1)
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second = self.0.as_secs() % 86_400;
        write!(f, "{}T{:02}:{:02}:{:02}", self.date(), second / 3600, second / 60 % 60, second % 60)?;
        if let Some(digits @ 1..) = f.precision() {
            write!(f, ".{}", &format!("{:09}", self.0.subsec_nanos())[..digits.min(9)])?;
        }
        f.write_str("Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_675_199, "2026-12-30T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (13_574_563_200 + 4_107_588_245, "2530-04-29T12:44:05Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(Utc(Duration::from_secs(seconds)).to_string(), text, "{seconds}");
        }
        let now = Utc(Duration::new(1_798_675_199, 50_900_000));
        assert_eq!((format!("{now:.3}"), now.date()), ("2026-12-30T23:59:59.050Z".into(), "2026-12-30".into()));
        assert_eq!(format!("{now:.0}, {now:.12}"), "2026-12-30T23:59:59Z, 2026-12-30T23:59:59.050900000Z");
    }
}
