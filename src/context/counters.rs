//! What a context has done since it was made, in numbers; also as text for Prometheus.

use std::fmt::{self, Display, Formatter, Write};

use crate::context::Context;
use crate::engine::recorder::counters::{CallTotals, Kind};
use crate::error::Result;
use crate::messaging::Traffic;
use crate::types::Rank;

/// The counters of a context. None of them ever decreases.
#[derive(Clone, Debug)]
pub struct ContextTotals {
    /// The rank.
    pub rank: Rank,
    /// Calls by what they have in common.
    pub calls: Vec<(Kind, CallTotals)>,
    /// The bytes exchanged with each rank with which there were any.
    pub links: Vec<(Rank, Traffic)>,
}

/// A metric: its name, its help, and its value for one series of calls or of links.
type Metric<T> = (&'static str, &'static str, fn(&T) -> u64);

const CALLS: [Metric<CallTotals>; 3] = [
    ("gloo_rs_calls_total", "Collective calls that were started.", |totals| totals.calls),
    ("gloo_rs_call_failures_total", "Collective calls that failed after their start.", |totals| totals.failures),
    ("gloo_rs_call_bytes_total", "Bytes of the collective calls that were started.", |totals| totals.bytes),
];

const LINKS: [Metric<Traffic>; 2] = [
    ("gloo_rs_link_sent_bytes_total", "Bytes sent to a rank in messages, with their headers.", |traffic| traffic.sent),
    ("gloo_rs_link_received_bytes_total", "Bytes received from a rank in messages, with their headers.", |traffic| {
        traffic.received
    }),
];

impl Context {
    /// What the context has done since it was made. May be called at any time, by any thread.
    pub fn totals(&self) -> Result<ContextTotals> {
        let links = self.lock()?.messenger.traffic().filter(|(_, traffic)| *traffic != Traffic::default()).collect();
        Ok(ContextTotals { rank: self.rank, calls: self.engine().recorder().counters.totals(), links })
    }
}

/// The counters of contexts with these names, in Prometheus's text format, version 0.0.4. A context without a name has
/// no label `context`.
pub fn to_prometheus(contexts: &[(Option<&str>, ContextTotals)]) -> String {
    let mut text = String::new();
    // Nothing fails that writes to a string.
    for (name, help, value) in CALLS {
        head(&mut text, name, help);
        for (context, counters) in contexts {
            let owner = Owner(*context, counters.rank);
            for (kind, totals) in &counters.calls {
                let (collective, algorithm) = kind.names();
                let (link, value) = (kind.link.name(), value(totals));
                let _ = writeln!(
                    text,
                    "{name}{{{owner},collective=\"{collective}\",algorithm=\"{algorithm}\",link=\"{link}\"}} {value}"
                );
            }
        }
    }
    for (name, help, value) in LINKS {
        head(&mut text, name, help);
        for (context, counters) in contexts {
            let owner = Owner(*context, counters.rank);
            for (peer, traffic) in &counters.links {
                let _ = writeln!(text, "{name}{{{owner},peer=\"{peer}\"}} {}", value(traffic));
            }
        }
    }
    text
}

fn head(text: &mut String, name: &str, help: &str) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} counter\n");
}

/// The labels that say whose a series is.
struct Owner<'a>(Option<&'a str>, Rank);

impl Display for Owner<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.0 {
            f.write_str("context=\"")?;
            for character in name.chars() {
                match character {
                    '"' | '\\' => write!(f, "\\{character}")?,
                    '\n' => f.write_str("\\n")?,
                    other => f.write_char(other)?,
                }
            }
            f.write_str("\",")?;
        }
        write!(f, "rank=\"{}\"", self.1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::collective::Collective;
    use crate::engine::recorder::Link;
    use crate::wire::fingerprint::Digest;

    /// What a text has: the value of each series, by its name and its labels in order.
    type Series = BTreeMap<(String, Vec<(String, String)>), u64>;

    fn is_name(name: &str) -> bool {
        let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
        name.bytes().enumerate().all(|(at, byte)| is_letter(byte) || at > 0 && byte.is_ascii_digit())
            && !name.is_empty()
    }

    /// Takes the labels between `{` and `}` from the front of `rest`.
    fn labels(rest: &mut &str) -> Vec<(String, String)> {
        let mut labels = Vec::new();
        *rest = rest.strip_prefix('{').expect("labels");
        loop {
            let (name, after) = rest.split_once("=\"").expect("a label");
            assert!(is_name(name), "{name:?}");
            let (mut value, mut characters) = (String::new(), after.chars());
            loop {
                match characters.next().expect("the end of the value") {
                    '"' => break,
                    '\\' => match characters.next() {
                        Some('n') => value.push('\n'),
                        Some(escaped @ ('"' | '\\')) => value.push(escaped),
                        other => panic!("escaped: {other:?}"),
                    },
                    other => value.push(other),
                }
            }
            assert!(labels.iter().all(|(other, _)| other != name), "{name} twice");
            labels.push((name.to_owned(), value));
            *rest = characters.as_str();
            match rest.strip_prefix(',') {
                Some(after) => *rest = after,
                None => break,
            }
        }
        *rest = rest.strip_prefix('}').expect("the end of the labels");
        labels
    }

    /// Reads a text by the grammar of the format, as far as counters need it.
    fn parse(text: &str) -> Series {
        let (mut series, mut known, mut present) = (Series::new(), HashSet::new(), None);
        assert!(text.ends_with('\n'));
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect("a help");
                assert!(is_name(name) && name.ends_with("_total") && !help.contains('\\'), "{line}");
                assert!(known.insert(name), "{name} twice");
                assert_eq!(lines.next(), Some(&*format!("# TYPE {name} counter")));
                present = Some(name);
                continue;
            }
            let name = present.expect("a type before the values");
            let mut rest = line.strip_prefix(name).expect("a value of the metric");
            let labels = labels(&mut rest);
            let value = rest.strip_prefix(' ').and_then(|value| value.parse().ok()).expect("a value");
            assert!(series.insert((name.to_owned(), labels), value).is_none(), "twice: {line}");
        }
        series
    }

    fn of(text: &Series, name: &str, labels: &[(&str, &str)]) -> Option<u64> {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        text.get(&(name.to_owned(), labels)).copied()
    }

    #[test]
    fn a_text_has_every_counter_of_every_context_by_the_grammar_of_prometheus() {
        let digest = Digest { collective: Collective::Allreduce as u32, algorithm: 0, dtype: 0, operation: 0, rest: 0 };
        let kind = |link| Kind::of(digest.encode(), link).unwrap();
        let algorithm = kind(Link::Both).names().1;
        let totals = |calls| CallTotals { calls, failures: 1, bytes: u64::MAX - calls };
        let odd = "a \"b\" \\ c\nd é";
        let first = ContextTotals {
            rank: 3,
            calls: vec![(kind(Link::SharedMemory), totals(7)), (kind(Link::Both), totals(8))],
            links: vec![(0, Traffic { sent: 5, received: 6 })],
        };
        let second = ContextTotals { rank: 0, calls: vec![(kind(Link::Messages), totals(9))], links: Vec::new() };
        let text = to_prometheus(&[(Some(odd), first.clone()), (Some("other"), second)]);
        let found = parse(&text);
        let call = |context, rank, link, name| {
            let labels = [("context", context), ("rank", rank), ("collective", "allreduce")];
            of(&found, name, &[&labels[..], &[("algorithm", algorithm), ("link", link)]].concat())
        };
        for (context, rank, link, calls) in
            [(odd, "3", "shared_memory", 7), (odd, "3", "both", 8), ("other", "0", "messages", 9)]
        {
            assert_eq!(call(context, rank, link, "gloo_rs_calls_total"), Some(calls), "{text}");
            assert_eq!(call(context, rank, link, "gloo_rs_call_failures_total"), Some(1));
            assert_eq!(call(context, rank, link, "gloo_rs_call_bytes_total"), Some(u64::MAX - calls));
        }
        let peer = [("context", odd), ("rank", "3"), ("peer", "0")];
        assert_eq!(of(&found, "gloo_rs_link_sent_bytes_total", &peer), Some(5));
        assert_eq!(of(&found, "gloo_rs_link_received_bytes_total", &peer), Some(6));
        assert_eq!(found.len(), 3 * 3 + 2);
        // One without a name.
        let alone = parse(&to_prometheus(&[(None, first)]));
        assert_eq!(of(&alone, "gloo_rs_link_sent_bytes_total", &peer[1..]), Some(5));
        assert!(parse(&to_prometheus(&[])).is_empty());
    }
}
