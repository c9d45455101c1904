//! Where and when numbers were measured, for the note under a chart.

use gloo_rs::utc::Utc;

/// `what`, then this program's version and the date.
pub fn note(what: &str) -> String {
    format!("{what}; gloo-rs {}, {}", env!("CARGO_PKG_VERSION"), Utc::now().date())
}

/// Describes this host to a reader: its name, its processor, and how many CPUs the system counts.
pub fn machine() -> String {
    let name = String::from_utf8_lossy(&gloo_rs::sys::host_name().unwrap_or_default()).into_owned();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors() {
        assert_eq!(model("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9R14\n"), "AMD EPYC 9R14");
        assert_eq!(model("CPU implementer : 0x41\n"), "");
        assert!(note("tcp").starts_with("tcp; gloo-rs 0."));
    }
}
