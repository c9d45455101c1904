//! The report of a simulation.

use gloo_rs::collective::{Algorithm, Collective};
use gloo_rs::schedule::simulate::{Options, Simulation};
use gloo_rs::types::DataType;
use serde::Serialize;

use crate::parse::{counted, duration_text, size_text};

/// One simulation; scripts rely on the first eight fields.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub collective: &'static str,
    pub algorithm: &'static str,
    pub ranks: usize,
    pub bytes: usize,
    pub time_us: f64,
    /// The longest chain of messages.
    pub steps: usize,
    /// The bytes of the rank that sends the most.
    pub bytes_sent_max: u64,
    /// The scratch memory of the rank that needs the most.
    pub scratch_bytes: usize,
    pub dtype: &'static str,
    pub segment_bytes: usize,
    /// Segments sent by all ranks together.
    pub messages: u64,
    /// Sum over all ranks.
    pub bytes_sent: u64,
    /// The bytes of the rank that reduces the most.
    pub bytes_reduced_max: u64,
    /// Fraction of the time for which the busiest link is in use.
    pub link_use: f64,
    /// Time by the algorithm's cost formula; none if it has none.
    pub formula_us: Option<f64>,
}

impl Row {
    pub fn new(
        collective: Collective,
        algorithm: &Algorithm,
        dtype: DataType,
        elements: usize,
        options: &Options<'_>,
        formula: Option<f64>,
        simulation: &Simulation,
    ) -> Self {
        let max = |bytes: &[u64]| bytes.iter().copied().max().unwrap_or(0);
        Self {
            collective: collective.name(),
            algorithm: algorithm.name,
            ranks: simulation.finished.len(),
            bytes: elements * dtype.size(),
            time_us: simulation.seconds * 1e6,
            steps: simulation.steps,
            bytes_sent_max: max(&simulation.sent),
            scratch_bytes: simulation.scratch_bytes,
            dtype: dtype.name(),
            segment_bytes: options.segment_bytes,
            messages: simulation.messages,
            bytes_sent: simulation.sent.iter().sum(),
            bytes_reduced_max: max(&simulation.reduced),
            link_use: simulation.link_use,
            formula_us: formula.map(|seconds| seconds * 1e6),
        }
    }

    /// The report as text; `network` describes the network.
    pub fn text(&self, network: &str) -> String {
        let Self { collective, algorithm, ranks, dtype, steps, messages, .. } = self;
        let formula = match self.formula_us {
            Some(us) => format!(" ({} by its formula)", duration_text(us * 1e-6)),
            None => String::new(),
        };
        let reduced = match self.bytes_reduced_max {
            0 => String::new(),
            bytes => format!("; reduced by it at most {}", amount(bytes)),
        };
        [
            format!(
                "{collective} {algorithm}: {}, {} bytes of {dtype}, segments of {}",
                counted(*ranks, "rank"),
                size_text(self.bytes),
                size_text(self.segment_bytes)
            ),
            format!("network     {network}"),
            format!("time        {}{formula}", duration_text(self.time_us * 1e-6)),
            format!(
                "steps       {} one after the other; {messages} in all, segments counted",
                counted(*steps, "message")
            ),
            format!(
                "bytes       sent by a rank at most {}, by all {}{reduced}",
                amount(self.bytes_sent_max),
                amount(self.bytes_sent)
            ),
            format!("link use    {:.1} % of the time, of the busiest link", self.link_use * 100.0),
            format!("memory      scratch of a rank at most {}", amount(self.scratch_bytes as u64)),
        ]
        .join("\n")
    }
}

/// Formats bytes with three digits: `1.25 GiB`.
fn amount(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        None => format!("{bytes} B"),
        Some((unit, name)) => {
            let value = bytes as f64 / unit as f64;
            let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
            format!("{value:.decimals$} {name}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (64 << 20, "64.0 MiB"), (300 << 30, "300 GiB")];
        for (bytes, text) in cases {
            assert_eq!(amount(bytes), text);
        }
    }
}
