//! Sizes and durations, as people write them.

use std::time::Duration;

/// Bytes: `4`, `64Ki`, `1Mi`, `2Gi` (powers of 1024), `64K`, `1M`, `2G` (powers of 1000); a `B` may follow.
pub fn size(text: &str) -> Result<usize, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    let unit: usize = match suffix.strip_suffix('B').unwrap_or(suffix) {
        "" => 1,
        "K" | "k" => 1000,
        "M" => 1000 * 1000,
        "G" => 1000 * 1000 * 1000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return Err(format!("{text:?} is not a size; write bytes, as 4, 64Ki, 1Mi, 2Gi, 64K, 1M, 2G")),
    };
    let number: usize = number.parse().map_err(|_| format!("{text:?} is not a size: no number of bytes in front"))?;
    number
        .checked_mul(unit)
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .ok_or_else(|| format!("{text:?} is too large"))
}

/// The inverse of [`size`], in the largest binary unit that leaves no rest: `64Ki`.
pub fn size_text(bytes: usize) -> String {
    let units = [(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, suffix)) => format!("{}{suffix}", bytes / unit),
        None => bytes.to_string(),
    }
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
    fn sizes_with_and_without_units() {
        let cases = [
            ("4", 4),
            ("4B", 4),
            ("64Ki", 64 << 10),
            ("64KiB", 64 << 10),
            ("1Mi", 1 << 20),
            ("2Gi", 2 << 30),
            ("64K", 64_000),
            ("64k", 64_000),
            ("3M", 3_000_000),
            ("5GB", 5_000_000_000),
            ("0", 0),
        ];
        for (text, bytes) in cases {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size() {
        for text in [
            "",
            "Ki",
            "-4",
            "4.5Ki",
            "4 Ki",
            "4T",
            "4i",
            "4KiBB",
            "0x10",
            "４",
            "99999999999999999999",
            "9223372036854775807Ki",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_as_text_read_back() {
        for bytes in [0, 1, 4, 1000, 1023, 1024, 1536, 65536, 1 << 20, (1 << 20) + 1024, 3 << 30] {
            assert_eq!(size(&size_text(bytes)), Ok(bytes));
        }
        assert_eq!(size_text(64 << 10), "64Ki");
        assert_eq!(size_text(1536), "1536");
    }

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
