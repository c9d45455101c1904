//! Sizes and durations, as people write them.

use std::time::Duration;

pub use gloo_rs::size::text as size_text;

/// [`gloo_rs::size::parse`], for clap.
pub fn size(text: &str) -> Result<usize, String> {
    gloo_rs::size::parse(text).map_err(|error| error.message().to_owned())
}

/// Seconds, with a fraction if need be; at most a year, so that deadlines can be computed.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let error = || format!("{text:?} is not a number of seconds between 0 and 31536000");
    let seconds: f64 = text.parse().map_err(|_| error())?;
    if !(0.0..=31_536_000.0).contains(&seconds) {
        return Err(error());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| error())
}

/// Seconds as `250 ns`, `10 µs`, `1.5 ms`, `2 s`: three digits at least, no zeros at the end.
pub fn duration_text(seconds: f64) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps")];
    // What rounds up to 1000 of a unit is 1 of the next.
    let (unit, name) = units.into_iter().find(|(unit, _)| seconds / unit >= 0.999_5).unwrap_or((1e-12, "ps"));
    let value = seconds / unit;
    let decimals = if value >= 99.95 { 0 } else { 2 - usize::from(value >= 9.995) };
    let text = format!("{value:.decimals$}");
    let text = if decimals > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_text() {
        let cases = [
            (0.0, "0 ps"),
            (1e-12, "1 ps"),
            (2.5e-7, "250 ns"),
            (9.999e-7, "1 µs"),
            (1e-5, "10 µs"),
            (1.2345e-5, "12.3 µs"),
            (0.001_499, "1.5 ms"),
            (0.1, "100 ms"),
            (1.0, "1 s"),
            (1234.4, "1234 s"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration_text(seconds), text);
        }
    }

    #[test]
    fn seconds_with_fraction() {
        assert_eq!(seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for text in ["", "-1", "nan", "inf", "1e300", "5s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
