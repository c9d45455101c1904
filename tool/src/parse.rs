//! Parses and formats sizes, durations and rates.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use gloo_rs::collective::Collective;
use gloo_rs::nearest;
use gloo_rs::net::pattern::Patterns;
use gloo_rs::rendezvous::url;

pub use gloo_rs::size::text as size_text;

/// [`gloo_rs::size::parse`], for clap.
pub fn size(text: &str) -> Result<usize, String> {
    gloo_rs::size::parse(text).map_err(|error| error.message().to_owned())
}

/// Parses seconds, which may have a fraction; at most a year, so that deadlines can be computed.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let error = || format!("{text:?} is not a number of seconds between 0 and 31536000");
    let seconds: f64 = text.parse().map_err(|_| error())?;
    if !(0.0..=31_536_000.0).contains(&seconds) {
        return Err(error());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| error())
}

/// Parses a duration with a unit, in seconds: `250ns`, `10us` or `10µs`, `1.5ms`, `2s`, `5ps`.
pub fn duration(text: &str) -> Result<f64, String> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("ps", 1e-12), ("s", 1.0)];
    number_with_unit(text, &units).ok_or_else(|| match number_with_unit(text, &[("", 1.0)]) {
        Some(_) => format!("{text:?} is a number without a unit; write {text}us, {text}ns or {text}ms"),
        None => format!("{text:?} is not a duration; write 10us, 250ns, 1.5ms, 2s (ps, ns, us, ms, s)"),
    })
}

/// Parses bytes per second: `25GB/s`, `100MiB/s`, `10Gbit/s`.
pub fn bandwidth(text: &str) -> Result<f64, String> {
    let prefixes = [
        ("K", 1e3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("", 1.0),
    ];
    let rate =
        text.strip_suffix("/s").and_then(|amount| match (amount.strip_suffix('B'), amount.strip_suffix("bit")) {
            (Some(bytes), _) => number_with_unit(bytes, &prefixes),
            (_, Some(bits)) => Some(number_with_unit(bits, &prefixes)? / 8.0),
            _ => None,
        });
    rate.filter(|&rate| rate > 0.0).ok_or_else(|| match number_with_unit(text, &[("", 1.0)]) {
        Some(number) if number > 0.0 => {
            format!("{text:?} is a number without a unit; write {text}GB/s, {text}MiB/s or {text}Gbit/s")
        }
        _ => format!("{text:?} is not a bandwidth above 0; write 25GB/s, 100MiB/s, 10Gbit/s"),
    })
}

/// Parses seconds per byte: a duration such as `0.05ns`, or bytes per second such as `20GB/s`.
pub fn seconds_per_byte(text: &str) -> Result<f64, String> {
    match text {
        "0" => Ok(0.0),
        _ => duration(text).or_else(|_| bandwidth(text).map(|rate| 1.0 / rate)).map_err(|_| {
            match number_with_unit(text, &[("", 1.0)]) {
                Some(_) => format!("{text:?} is a number without a unit; write {text}ns for each byte, or {text}GB/s"),
                None => format!("{text:?} is neither a time for each byte, as 0.05ns, nor a rate, as 20GB/s, nor 0"),
            }
        }),
    }
}

/// Parses the name of a collective.
pub fn collective(text: &str) -> Result<Collective, String> {
    let known = Collective::ALL.iter().find(|collective| collective.name() == text);
    known.copied().ok_or_else(|| among(text, Collective::ALL.iter().map(|collective| collective.name())))
}

/// What is said of a name that is none of `names`: the nearest of them, and all.
pub fn among(text: &str, names: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<_> = names.collect();
    let near =
        nearest::nearest(text, names.iter().copied()).map_or(String::new(), |near| format!("the nearest is {near}; "));
    format!("{near}there are {}", names.join(", "))
}

/// Checks that the text is a valid list of network interfaces.
pub fn interfaces(text: &str) -> Result<String, String> {
    Patterns::parse(text).map(|_| text.to_owned()).map_err(|error| error.message().to_owned())
}

/// Checks that the text is a valid store URL.
pub fn store(text: &str) -> Result<String, String> {
    url::server(text).map(|_| text.to_owned()).map_err(|error| error.message().to_owned())
}

/// The maximum number of ranks of a call whose cost is computed or that is simulated.
pub const MAX_RANKS: usize = 1 << 16;

/// Parses a number of ranks.
pub fn ranks(text: &str) -> Result<usize, String> {
    match text.parse::<u64>() {
        Ok(number @ 1..) if number <= MAX_RANKS as u64 => Ok(number as usize),
        Ok(1..) => Err(format!("{text} ranks are too many; there can be {MAX_RANKS}")),
        _ => Err(format!("{text:?} is not a number of ranks")),
    }
}

/// Endings of pictures that are no SVG.
const OTHER_PICTURES: [&str; 8] = ["png", "jpg", "jpeg", "gif", "webp", "pdf", "eps", "ps"];

/// [`writable`], for a chart that has a [`chart_name`].
pub fn writable_chart(path: &Path) -> Result<(), String> {
    chart_name(path).and_then(|()| writable(path))
}

/// Refuses a name by which other programs would take a chart for something else than an SVG.
pub fn chart_name(path: &Path) -> Result<(), String> {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    if OTHER_PICTURES.contains(&&*ending) {
        let svg = path.with_extension("svg");
        return Err(format!(
            "charts are SVGs, not {}: name it {}, and convert that (rsvg-convert, or any browser)",
            ending.to_uppercase(),
            svg.display()
        ));
    }
    Ok(())
}

/// Returns why a file cannot be written, before its contents are computed. Changes nothing.
pub fn writable(path: &Path) -> Result<(), String> {
    let says = |error: std::io::Error| error.to_string();
    match std::fs::metadata(path) {
        Ok(there) if there.is_file() => OpenOptions::new().write(true).open(path).map(drop).map_err(says),
        Ok(there) if there.is_dir() => Err("it is a directory".into()),
        // Opening a pipe would affect its reader.
        Ok(_) => Ok(()),
        Err(_) => {
            OpenOptions::new().write(true).create_new(true).open(path).map_err(says)?;
            std::fs::remove_file(path).map_err(says)
        }
    }
}

/// Parses numbers and ranges, separated by commas. A range is `1Ki..64Mi`: from the first, doubled each time, up to the
/// last; `1Ki..64Mi:4` multiplies by four.
pub fn several(text: &str, one: &dyn Fn(&str) -> Result<usize, String>) -> Result<Vec<usize>, String> {
    if text.contains(',') {
        return Ok(text.split(',').map(|part| several(part, one)).collect::<Result<Vec<_>, _>>()?.concat());
    }
    let Some((low, high)) = text.split_once("..") else {
        return Ok(vec![one(text)?]);
    };
    let (high, factor) = match high.split_once(':') {
        None => (high, 2),
        Some((high, factor)) => (high, one(factor)?),
    };
    let (low, high) = (one(low)?, one(high)?);
    if low == 0 || low > high || factor < 2 {
        let rules = "it must begin above 0, not end before it begins, and grow at least twofold";
        return Err(format!("{text:?} is not a range: {rules}"));
    }
    let grown = std::iter::successors(Some(low), |value| value.checked_mul(factor)).take_while(|&value| value < high);
    Ok(grown.chain([high]).collect())
}

/// A list of numbers in one argument, as [`several`] parses it.
#[derive(Clone, Debug, PartialEq)]
pub struct Several(pub Vec<usize>);

/// Several sizes in bytes.
pub fn sizes(text: &str) -> Result<Several, String> {
    several(text, &size).map(Several)
}

/// Parses a finite number of at least 0 with one of `units`.
fn number_with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, suffix) = text.split_at(digits);
    let (_, unit) = units.iter().find(|(name, _)| *name == suffix)?;
    let value = number.parse::<f64>().ok()? * unit;
    value.is_finite().then_some(value)
}

/// A number of things for a reader: `1 rank`, `2 ranks`.
pub fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Formats seconds as `250 ns`, `10 µs`, `1.5 ms`, `2 s`: at least three digits, without trailing zeros.
pub fn duration_text(seconds: f64) -> String {
    let (unit, name) = unit_of_duration(seconds);
    let value = seconds / unit;
    let decimals = if value >= 99.95 { 0 } else { 2 - usize::from(value >= 9.995) };
    let text = format!("{value:.decimals$}");
    let text = if decimals > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {name}")
}

/// The unit in which such a duration is written: its seconds and its name.
pub fn unit_of_duration(seconds: f64) -> (f64, &'static str) {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps")];
    if seconds == 0.0 {
        return units[0];
    }
    // A number that rounds to 1000 of a unit is 1 of the next.
    units.into_iter().find(|(unit, _)| seconds / unit >= 0.999_5).unwrap_or((1e-12, "ps"))
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
    fn invalid_sizes() {
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
    fn durations_and_rates_with_units() {
        let near = |a: Result<f64, String>, b: f64| assert!((a.clone().unwrap() / b - 1.0).abs() < 1e-12, "{a:?} {b}");
        near(duration("10us"), 1e-5);
        near(duration("1.5µs"), 1.5e-6);
        near(duration("250ns"), 2.5e-7);
        near(duration("2s"), 2.0);
        assert_eq!(duration("0s"), Ok(0.0));
        near(bandwidth("25GB/s"), 25e9);
        near(bandwidth("1.5MiB/s"), 1_572_864.0);
        near(bandwidth("10Gbit/s"), 1.25e9);
        near(bandwidth("8B/s"), 8.0);
        near(seconds_per_byte("0.05ns"), 5e-11);
        near(seconds_per_byte("20GB/s"), 5e-11);
        assert_eq!(seconds_per_byte("0"), Ok(0.0));
        for text in ["", "10", "us", "-1us", "1e3us", "inf s", "10 us", "1.2.3us", "µ", "10m"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for (unit, write) in [
            (bandwidth as fn(&str) -> _, "write 10GB/s, 10MiB/s or 10Gbit/s"),
            (duration, "write 10us, 10ns or 10ms"),
            (seconds_per_byte, "write 10ns for each byte, or 10GB/s"),
        ] {
            let error: String = unit("10").unwrap_err();
            assert!(error == format!("\"10\" is a number without a unit; {write}"), "{error}");
        }
        for text in ["", "GB/s", "0", "800", "0GB/s", "-5GB/s", "25GB", "25Gb/s", "nan", "1µB/s"] {
            assert!(bandwidth(text).is_err(), "{text}");
        }
        assert!(seconds_per_byte("20").is_err() && seconds_per_byte("x").is_err());
    }

    #[test]
    fn one_thing_is_not_called_several() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "rank")), ["0 ranks", "1 rank", "2 ranks"]);
    }

    #[test]
    fn lists_and_ranges() {
        let several = |text| several(text, &size);
        assert_eq!(several("4"), Ok(vec![4]));
        assert_eq!(several("1,4..16:4,3"), Ok(vec![1, 4, 16, 3]));
        assert_eq!(several("4,1Ki,3"), Ok(vec![4, 1024, 3]));
        assert_eq!(several("1Ki..8Ki"), Ok(vec![1024, 2048, 4096, 8192]));
        assert_eq!(several("3..13"), Ok(vec![3, 6, 12, 13]));
        assert_eq!(several("5..5"), Ok(vec![5]));
        assert_eq!(several("4..100:4"), Ok(vec![4, 16, 64, 100]));
        for text in ["", "4,", "8..4", "0..4", "1..", "..", "1..2..3"] {
            assert!(several(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_of_ranks() {
        assert_eq!((ranks("1"), ranks("65536")), (Ok(1), Ok(65536)));
        for text in ["65537", "99999999999", "4294967296"] {
            assert!(ranks(text).unwrap_err().contains("too many; there can be 65536"), "{text}");
        }
        for text in ["0", "-1", "", "x", "4.0", "99999999999999999999"] {
            assert!(ranks(text).unwrap_err().contains("is not a number of ranks"), "{text}");
        }
    }

    #[test]
    fn a_chart_is_an_svg() {
        let error = writable_chart(Path::new("/nowhere/times.PNG")).unwrap_err();
        assert!(error.starts_with("charts are SVGs, not PNG: name it /nowhere/times.svg, and convert"), "{error}");
        assert_eq!(writable_chart(Path::new("/dev/null")), Ok(()));
        assert!(writable_chart(Path::new("/nowhere/a.svg")).unwrap_err().starts_with("No such file"));
    }

    #[test]
    fn files_that_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        std::fs::write(&old, "text").unwrap();
        assert_eq!((writable(&new), writable(&old), writable(Path::new("/dev/null"))), (Ok(()), Ok(()), Ok(())));
        assert!(!new.exists() && std::fs::read(&old).unwrap() == b"text");
        assert_eq!(writable(folder.path()), Err("it is a directory".into()));
        for missing in ["/nowhere/a.svg", "/proc/a.svg"] {
            assert!(writable(Path::new(missing)).unwrap_err().starts_with("No such file"));
        }
    }

    #[test]
    fn durations_as_text() {
        let cases = [
            (0.0, "0 s"),
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
