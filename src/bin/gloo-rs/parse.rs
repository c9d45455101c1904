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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_with_fraction() {
        assert_eq!(seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for text in ["", "-1", "nan", "inf", "1e300", "5s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
