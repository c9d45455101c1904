//! Where and when numbers were measured, for the note under a chart.

use std::time::{SystemTime, UNIX_EPOCH};

/// `what`, then this program's version and the date.
pub fn note(what: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    format!("{what}; gloo-rs {}, {}", env!("CARGO_PKG_VERSION"), date(now))
}

/// This host for a reader: its name, its processor, and how many CPUs the system counts.
pub fn machine() -> String {
    let name = String::from_utf8_lossy(&gloo_rs::sys::host_name()).into_owned();
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let count = processors.lines().filter(|line| line.starts_with("processor")).count();
    let parts = [name, model(&processors), crate::parse::counted(count.max(1), "CPU")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// The processor's name in the text of `/proc/cpuinfo`; empty if it has none.
fn model(text: &str) -> String {
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':')).map_or(String::new(), |(_, name)| name.trim().to_owned())
}

/// The day of a time in seconds since 1970, by UTC: `2026-11-28`.
fn date(seconds: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut year, mut day) = (1970, seconds / 86_400);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_of_the_calendar() {
        for (seconds, day) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (1_798_675_199, "2026-12-30"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(seconds), day, "{seconds}");
        }
    }

    #[test]
    fn processors() {
        assert_eq!(model("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9R14\n"), "AMD EPYC 9R14");
        assert_eq!(model("CPU implementer : 0x41\n"), "");
        assert!(note("tcp").starts_with("tcp; gloo-rs 0."));
    }
}
