//! The latencies, as a table and as JSON.

use std::fmt::Write;

use crate::options::Options;
use crate::rank::Without;

/// Nanoseconds from the kill, of jobs with one number of ranks.
pub struct Latencies {
    pub size: usize,
    pub kills: usize,
    failed: Vec<u64>,
    /// By a context that is connected over the store.
    connected: Vec<u64>,
    /// By a context that is shrunk.
    shrunk: Vec<u64>,
    /// The error that came last.
    slowest: (u64, String),
}

impl Latencies {
    pub fn new(size: usize) -> Self {
        Self {
            size,
            kills: 0,
            failed: Vec::new(),
            connected: Vec::new(),
            shrunk: Vec::new(),
            slowest: (0, String::new()),
        }
    }

    /// A survivor's call returned its error.
    pub fn failed(&mut self, after: u64, text: &str) {
        self.failed.push(after);
        if after > self.slowest.0 {
            self.slowest = (after, text.to_owned());
        }
    }

    /// A survivor had a result of the new context.
    pub fn went_on(&mut self, without: Without, after: u64) {
        if without == Without::Shrink { &mut self.shrunk } else { &mut self.connected }.push(after);
    }
}

/// Milliseconds: the median, the 99th of a hundred, and the largest.
fn quantiles(nanoseconds: &[u64]) -> [f64; 3] {
    let mut sorted = nanoseconds.to_vec();
    sorted.sort_unstable();
    if sorted.is_empty() {
        return [0.0; 3];
    }
    let at = |share: f64| sorted[((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len()) - 1];
    [0.5, 0.99, 1.0].map(|share| at(share) as f64 / 1e6)
}

pub fn print(all: &[Latencies], options: &Options) {
    println!("ms from the kill to the error and to a sum of the survivors\n");
    println!("| ranks | kills | error p50 | p99 | max | connects p50 | p99 | max | shrinks p50 | p99 | max |");
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    for Latencies { size, kills, failed, connected, shrunk, .. } in all {
        let ([a, b, c], [d, e, f], [g, h, i]) = (quantiles(failed), quantiles(connected), quantiles(shrunk));
        println!(
            "| {size} | {kills} | {a:.2} | {b:.2} | {c:.2} | {d:.1} | {e:.1} | {f:.1} | {g:.1} | {h:.1} | {i:.1} |"
        );
        rows.push(format!(
            "{{\"ranks\": {size}, \"kills\": {kills}, \"survivors\": {}, \"error_ms\": {{\"p50\": {a:.3}, \"p99\": {b:.3}, \"max\": \
             {c:.3}}}, \"connects_ms\": {{\"p50\": {d:.3}, \"p99\": {e:.3}, \"max\": {f:.3}}}, \
             \"shrinks_ms\": {{\"p50\": {g:.3}, \"p99\": {h:.3}, \"max\": {i:.3}}}}}",
            failed.len()
        ));
    }
    println!();
    for Latencies { size, slowest: (after, text), .. } in all {
        println!("slowest of {size} ranks, {:.2} ms: {text}", *after as f64 / 1e6);
    }
    if let Some(path) = &options.json {
        let mut json = String::new();
        writeln!(json, "{{\"seed\": {}, \"jobs\": [\n  {}\n]}}", options.seed, rows.join(",\n  ")).unwrap();
        std::fs::write(path, json).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}
