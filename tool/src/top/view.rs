//! What was answered, for a reader and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::ask::{Member, Reply};
use crate::diagnose::analysis::compare_after;
use crate::diagnose::record::{Counter, Entry, Link, Record};
use crate::diagnose::{findings, ranks};
use crate::parse::counted;

/// The ranks of one context that have answered, in their order.
pub struct Group {
    /// Tells the context from others.
    pub name: String,
    pub records: Vec<Record>,
    /// The process of each, and what its record was read from.
    pub sources: Vec<(u32, Box<RawValue>)>,
}

/// Processes that have not answered, and why.
pub type Silent = BTreeMap<u32, String>;

/// What ranks have done since their contexts were made: calls and their bytes, and bytes sent and received in messages;
/// by process and context.
pub type Totals = BTreeMap<(u32, String), [u64; 4]>;

/// The contexts in the order of the smallest process of each, and the processes that have not answered.
pub fn groups(reply: Reply) -> (Vec<Group>, Silent) {
    let mut by_name: BTreeMap<(String, usize), Vec<Member>> = BTreeMap::new();
    for (at, member) in reply.members.into_iter().enumerate() {
        // One that knows no other rank is alone.
        let name = member.record.context.clone().unwrap_or_else(|| format!("{}.{at}", member.process));
        by_name.entry((name, member.record.size)).or_default().push(member);
    }
    let group = |((name, _), mut members): ((String, usize), Vec<Member>)| {
        members.sort_by_key(|member| (member.record.rank, member.process));
        members.dedup_by_key(|member| member.record.rank);
        let parts = members.into_iter().map(|Member { process, record, document }| (record, (process, document)));
        let (records, sources) = parts.unzip();
        Group { name, records, sources }
    };
    let mut groups: Vec<Group> = by_name.into_iter().map(group).collect();
    groups.sort_by_key(|group| group.sources.iter().map(|(process, _)| *process).min());
    (groups, reply.unanswered)
}

impl Group {
    fn size(&self) -> usize {
        self.records.first().map_or(0, |record| record.size)
    }

    fn ranks(&self) -> impl Iterator<Item = (&Record, u32)> {
        self.records.iter().zip(self.sources.iter().map(|(process, _)| *process))
    }
}

/// What all ranks have done.
pub fn totals(groups: &[Group]) -> Totals {
    let of = |group: &Group| {
        let of = |(record, process): (&Record, u32)| ((process, group.name.clone()), done(record));
        group.ranks().map(of).collect::<Vec<_>>()
    };
    groups.iter().flat_map(of).collect()
}

fn done(record: &Record) -> [u64; 4] {
    let calls = |value: fn(&Counter) -> u64| record.counters.iter().map(value).sum();
    let links = |value: fn(&Link) -> u64| record.links.iter().map(value).sum();
    [
        calls(|counter| counter.calls),
        calls(|counter| counter.bytes),
        links(|link| link.sent_bytes),
        links(|link| link.received_bytes),
    ]
}

/// What a user reads. `before`: what the ranks had done so long ago; rates take the place of totals then. Who is behind
/// is said of calls in which a rank has been for `patience`, in nanoseconds.
pub fn text(groups: &[Group], silent: &Silent, patience: u64, before: Option<(Duration, &Totals)>) -> String {
    let mut text = String::new();
    // Nothing fails that writes to a string.
    for (at, group) in groups.iter().enumerate() {
        let (size, present) = (group.size(), group.records.len());
        let transport = group.records.first().and_then(|record| record.transport.as_deref()).unwrap_or("");
        let gap = if at > 0 { "\n" } else { "" };
        let _ = writeln!(
            text,
            "{gap}context {}: {} over {transport}, of which {present} {} here",
            group.name,
            counted(size, "rank"),
            if present == 1 { "answers" } else { "answer" },
        );
        let per = if before.is_some() { "/s" } else { "" };
        let heads = ["calls", "bytes", "sent", "received"].map(|head| format!("{head}{per}"));
        let _ = writeln!(
            text,
            "{:>6} {:>8} {:>9} {:>10} {:>10} {:>10}  in progress",
            "rank", "process", heads[0], heads[1], heads[2], heads[3]
        );
        for (record, process) in group.ranks() {
            let now = done(record);
            let [calls, others @ ..] = match before {
                None => now.map(|value| value as f64),
                Some((since, earlier)) => {
                    let earlier = earlier.get(&(process, group.name.clone())).copied().unwrap_or(now);
                    let rate = |at: usize| now[at].saturating_sub(earlier[at]) as f64 / since.as_secs_f64().max(1e-3);
                    [rate(0), rate(1), rate(2), rate(3)]
                }
            };
            let [bytes, sent, received] = others.map(amount);
            let _ = writeln!(
                text,
                "{:>6} {process:>8} {calls:>9.0} {bytes:>10} {sent:>10} {received:>10}  {}",
                record.rank,
                progress(record)
            );
        }
        text.push_str(&findings(&group.records, &compare_after(&group.records, patience)));
        for record in &group.records {
            if let Some(broken) = &record.broken {
                let _ = writeln!(text, "rank {} says: {broken}", record.rank);
            }
        }
        let missing: Vec<usize> =
            (0..size).filter(|rank| group.records.iter().all(|record| record.rank != *rank)).collect();
        if !missing.is_empty() {
            let _ = writeln!(text, "of {} nothing is known here", ranks(&missing));
        }
    }
    if !silent.is_empty() {
        let _ = writeln!(text, "{}", unanswered(silent));
    }
    // Texts of other users' processes must not control the terminal.
    text.replace(|character: char| character.is_control() && character != '\n', "?")
}

/// The first call in progress, and how many others there are.
fn progress(record: &Record) -> String {
    let mut open = open(record);
    let Some(first) = open.next() else {
        let last = record.entries.last();
        return last.map_or("none".to_owned(), |last| format!("none; last {} number {}", last.collective, last.number));
    };
    let others = match open.count() {
        0 => String::new(),
        n => format!(", and {n} more"),
    };
    format!(
        "{}, number {} on tag {}, {}{others}",
        first.what(),
        first.number,
        first.tag,
        first.progress(record.time_ns)
    )
}

fn open(record: &Record) -> impl Iterator<Item = &Entry> {
    record.entries.iter().filter(|entry| entry.is_in_progress())
}

/// `1.5M`: a number of bytes with a decimal prefix.
fn amount(bytes: f64) -> String {
    let (mut value, mut prefixes) = (bytes, ["", "k", "M", "G", "T", "P"].iter());
    let mut prefix = prefixes.next().unwrap_or(&"");
    while value >= 999.5 {
        let Some(next) = prefixes.next() else { break };
        (value, prefix) = (value / 1000.0, next);
    }
    let digits = usize::from(value < 9.95 && !prefix.is_empty());
    format!("{value:.digits$}{prefix}")
}

/// Says which processes have not answered, and why.
pub fn unanswered(processes: &Silent) -> String {
    let line = |(process, why): (&u32, &String)| format!("process {process} has not answered: {why}");
    processes.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The same as JSON.
pub fn json(groups: &[Group], silent: &Silent, patience: u64) -> String {
    let rank = |(record, process): (&Record, u32)| {
        let in_progress = open(record).map(|entry| {
            let mut call = json!(entry);
            call["seconds"] = json!(entry.age(record.time_ns).map(|age| age as f64 / 1e9));
            call
        });
        json!({
            "rank": record.rank, "process": process, "time_ns": record.time_ns, "broken": record.broken,
            "links": record.links, "counters": record.counters, "in_progress": in_progress.collect::<Vec<_>>(),
            "last": record.entries.iter().rfind(|entry| !entry.is_in_progress()),
        })
    };
    let context = |group: &Group| {
        let found = compare_after(&group.records, patience);
        let ranks: Vec<Value> = group.ranks().map(rank).collect();
        let transport = group.records.first().and_then(|record| record.transport.as_deref());
        json!({"context": group.name, "size": group.size(), "transport": transport, "ranks": ranks, "findings": found})
    };
    json!({"contexts": groups.iter().map(context).collect::<Vec<_>>(), "unanswered": silent}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_decimal_prefixes() {
        let amounts = [0.0, 7.4, 999.4, 999.6, 1234.0, 12_345.0, 5e9, 3e18].map(amount);
        assert_eq!(amounts, ["0", "7", "999", "1.0k", "1.2k", "12k", "5.0G", "3000P"]);
    }
}
