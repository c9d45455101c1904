//! Timelines as Chrome traces, JSON that Perfetto and chrome://tracing show: a process for each rank.

use std::collections::BTreeMap;
use std::path::Path;

use gloo_rs::types::Rank;
use serde_json::{Value, json};

/// The kind of a span that is a whole call.
pub const CALL: &str = "call";

/// What a rank did.
#[derive(Clone, Debug)]
pub struct Span {
    /// The rank.
    pub rank: Rank,
    /// The kind of work. Spans of one kind have a row, and further rows where they overlap.
    pub kind: &'static str,
    /// What the timeline shows.
    pub name: String,
    /// Picoseconds from the beginning of the trace.
    pub begin: u64,
    /// Picoseconds from the beginning of the trace. If it is `begin`, the span is a moment.
    pub end: u64,
    /// What is shown of a span that is selected: an object.
    pub details: Value,
}

/// Writes `spans` to the file `path`. `about`: what is known of all, an object.
pub fn write(path: &Path, spans: Vec<Span>, about: &Value) -> Result<(), String> {
    let text = to_json(spans, about).to_string() + "\n";
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// The trace, in the JSON object format of Chrome's "Trace Event Format": times in microseconds, with fractions.
fn to_json(mut spans: Vec<Span>, about: &Value) -> Value {
    spans.sort_by_key(|span| (span.rank, span.begin, span.end));
    let mut rows: BTreeMap<Rank, Rows> = BTreeMap::new();
    let mut events = Vec::new();
    for Span { rank, kind, name, begin, end, details } in spans {
        let row = rows.entry(rank).or_default().of(kind, begin, end);
        let (at, took) = (microseconds(begin), microseconds(end - begin));
        events.push(if begin == end {
            json!({"ph": "i", "s": "t", "pid": rank, "tid": row, "ts": at, "name": name, "cat": kind, "args": details})
        } else {
            json!({"ph": "X", "pid": rank, "tid": row, "ts": at, "dur": took, "name": name, "cat": kind, "args": details})
        });
    }
    let named =
        |what: &str, rank, row, name: Value| json!({"ph": "M", "name": what, "pid": rank, "tid": row, "args": name});
    for (rank, Rows(rows)) in &rows {
        events.push(named("process_name", rank, 0, json!({"name": format!("rank {rank}")})));
        events.push(named("process_sort_index", rank, 0, json!({"sort_index": rank})));
        let names =
            rows.iter().enumerate().map(|(row, (kind, _))| named("thread_name", rank, row, json!({"name": kind})));
        events.extend(names);
    }
    json!({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about})
}

fn microseconds(picoseconds: u64) -> f64 {
    picoseconds as f64 / 1e6
}

/// The rows of a rank: the kind of each, and the end of its last span.
#[derive(Default)]
struct Rows(Vec<(&'static str, u64)>);

impl Rows {
    /// The first row of this kind that is free from `begin` on, which is taken until `end`. Viewers nest spans of one
    /// row, so those that overlap must be in different ones.
    fn of(&mut self, kind: &'static str, begin: u64, end: u64) -> usize {
        let free = self.0.iter().position(|(own, until)| *own == kind && *until <= begin);
        let row = free.unwrap_or_else(|| {
            self.0.push((kind, 0));
            self.0.len() - 1
        });
        self.0[row].1 = end;
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(rank: Rank, kind: &'static str, begin: u64, end: u64) -> Span {
        Span { rank, kind, name: format!("{kind} at {begin}"), begin, end, details: json!({"bytes": end}) }
    }

    /// Process, row, beginning and duration of the spans, in their order.
    fn placed(trace: &Value) -> Vec<(u64, u64, f64, Option<f64>)> {
        let events = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] != "M");
        let placed = events.map(|event| {
            let number = |name: &str| event[name].as_u64().unwrap();
            (number("pid"), number("tid"), event["ts"].as_f64().unwrap(), event["dur"].as_f64())
        });
        placed.collect()
    }

    #[test]
    fn spans_of_a_row_never_overlap() {
        let spans = vec![
            span(1, "call", 2_000_000, 3_000_000),
            span(0, "call", 1_000_000, 4_000_000),
            span(0, "call", 2_000_000, 3_500_000),
            span(0, "call", 4_000_000, 4_000_500),
            span(0, "send", 2_000_000, 2_000_000),
        ];
        let trace = to_json(spans, &json!({"collective": "allreduce"}));
        let expected = [
            (0, 0, 1.0, Some(3.0)),
            (0, 1, 2.0, None),
            (0, 2, 2.0, Some(1.5)),
            (0, 0, 4.0, Some(0.0005)),
            (1, 0, 2.0, Some(1.0)),
        ];
        assert_eq!(placed(&trace), expected);
        assert_eq!(trace["otherData"]["collective"], "allreduce");
        assert_eq!(trace["traceEvents"][0]["args"]["bytes"], 4_000_000);
    }

    #[test]
    fn ranks_and_rows_have_names() {
        let trace = to_json(vec![span(3, "send", 1, 2), span(3, "reduce", 1, 2)], &json!({}));
        let names: Vec<_> =
            trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "M").collect();
        let name = |at: usize| (&names[at]["name"], &names[at]["pid"], &names[at]["tid"], &names[at]["args"]["name"]);
        assert_eq!(name(0), (&json!("process_name"), &json!(3), &json!(0), &json!("rank 3")));
        assert_eq!(name(2), (&json!("thread_name"), &json!(3), &json!(0), &json!("send")));
        assert_eq!(name(3), (&json!("thread_name"), &json!(3), &json!(1), &json!("reduce")));
    }
}
