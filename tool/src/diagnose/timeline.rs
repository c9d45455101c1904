//! Records as a timeline.

use serde_json::{Value, json};

use super::record::{Entry, Record};
use crate::trace::{CALL, Span};

/// The calls of all records, and what is known of all. The times of ranks are those of the clocks of their hosts; the
/// trace begins at the earliest.
pub fn spans(records: &[Record]) -> (Vec<Span>, Value) {
    let times = records.iter().flat_map(|record| record.entries.iter().map(|entry| time(record, entry)));
    let first = times.map(|(begin, _)| begin).min().unwrap_or(0);
    let since = |time: u64| (time - first).saturating_mul(1000);
    let of = |record: &Record| -> Vec<Span> {
        let span = |entry: &Entry| {
            let (begin, end) = time(record, entry);
            let name = format!("{} {}", entry.collective, entry.algorithm);
            let name = if entry.purpose == "call" { name } else { entry.purpose.clone() };
            Span { rank: record.rank, kind: CALL, name, begin: since(begin), end: since(end), details: details(entry) }
        };
        record.entries.iter().map(span).collect()
    };
    (records.iter().flat_map(of).collect(), json!({"began_ns": first}))
}

/// When a call began and ended, in nanoseconds since 1970. One that is in progress ends with the record, and one that
/// never waited, whose start was not read, is a moment.
fn time(record: &Record, entry: &Entry) -> (u64, u64) {
    let end = entry.time_discovered_completed_ns.unwrap_or(record.time_ns);
    let begin = entry.time_discovered_started_ns.or(entry.time_created_ns).unwrap_or(end);
    (begin.min(end), end)
}

fn details(entry: &Entry) -> Value {
    let Entry { bytes, tag, number, operation, error, waited_for, waits, fingerprint, .. } = entry;
    json!({
        "bytes": bytes, "type": entry.input_dtypes.first(), "operation": operation, "tag": tag, "number": number,
        "state": entry.state, "error": error, "waited for": waited_for, "waits": waits, "fingerprint": fingerprint,
    })
}
