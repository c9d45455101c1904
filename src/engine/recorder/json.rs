//! A snapshot as JSON. Fields have the names that PyTorch's recorder gives them, where it has them.

use std::fmt::Write;

use super::Run;
use super::counters::CallTotals;
use super::snapshot::{Call, Snapshot, State};
use crate::collective::Collective;
use crate::error::ErrorKind;
use crate::messaging::Traffic;
use crate::types::{DataType, Rank, ReduceOp};
use crate::utc::Utc;
use crate::version::Version;
use crate::wire::fingerprint::{Digest, OPAQUE_TYPE, Purpose, USER_OPERATION, digest, number};

/// The version of the format.
const FORMAT: &str = "1";

/// Whose snapshot it is.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// The rank.
    pub rank: Rank,
    /// Number of ranks.
    pub size: usize,
    /// The name of what carries messages between hosts.
    pub transport: &'static str,
}

impl Snapshot {
    /// The snapshot as JSON, with a line for each call.
    pub fn to_json(&self, about: &About) -> String {
        let About { rank, size, transport } = *about;
        let ranks: Vec<Rank> = (0..size).collect();
        let broken = self.broken.as_ref().map_or("null".to_owned(), |error| quoted(&error.to_string()));
        let (begun, completed) = (self.begun, self.last(|state| *state == State::Completed));
        let started = self.last(|state| *state != State::Scheduled);
        let mut text = String::new();
        // Nothing fails that writes to a string.
        let _ = write!(
            text,
            "{{\"version\": \"{FORMAT}\",\n\"library\": {library},\n\"rank\": {rank},\n\"size\": {size},\n\"pid\": {pid},\n\
             \"transport\": {transport},\n\"time_ns\": {now},\n\"broken\": {broken},\n\
             \"context\": {context},\n\"links\": [{links}],\n\"counters\": [{counters}],\n\
             \"pg_config\": {{\"0\": {{\"name\": \"0\", \"desc\": \"gloo_rs\", \"ranks\": \"{ranks:?}\"}}}},\n\
             \"pg_status\": {{\"0\": {{\"last_enqueued_collective\": {begun}, \"last_started_collective\": {started}, \
             \"last_completed_collective\": {completed}}}}},\n\"entries\": [",
            library = quoted(&Version::OWN.to_string()),
            pid = std::process::id(),
            transport = quoted(transport),
            now = Utc::now().0.as_nanos(),
            context = self.context.map_or("null".to_owned(), |number| format!("\"{number:08x}\"")),
            links = joined(&self.links, |(peer, traffic)| {
                let Traffic { sent, received } = traffic;
                format!("{{\"peer\": {peer}, \"sent_bytes\": {sent}, \"received_bytes\": {received}}}")
            }),
            counters = joined(&self.counters, |(kind, CallTotals { calls, failures, bytes })| {
                let ((collective, algorithm), link) = (kind.names(), kind.link.name());
                format!(
                    "{{\"collective\": \"{collective}\", \"algorithm\": \"{algorithm}\", \"link\": \"{link}\", \
                     \"calls\": {calls}, \"failures\": {failures}, \"bytes\": {bytes}}}"
                )
            }),
        );
        for (index, call) in self.calls.iter().enumerate() {
            text.push_str(if index == 0 { "\n" } else { ",\n" });
            self.write_call(&mut text, call, size);
        }
        text.push_str("]}\n");
        text
    }

    /// The number of the last call with such a state; 0 if there is none.
    fn last(&self, is_such: impl Fn(&State) -> bool) -> u64 {
        self.calls.iter().rev().find(|call| is_such(&call.state)).map_or(0, |call| call.run.number)
    }

    fn write_call(&self, text: &mut String, Call { run, ended, state }: &Call, size: usize) {
        let Run { number: sequence, fingerprint, tag, bytes, link, created, started, waited_for } = *run;
        let Digest { collective, algorithm, dtype, operation, .. } = Digest::decode(digest(fingerprint));
        let purpose = Purpose::decode(digest(fingerprint));
        let collective =
            Collective::ALL.iter().find(|known| **known as u32 == collective && purpose != Some(Purpose::Comparison));
        let (name, profiling_name) =
            collective.map_or(("comparison", "comparison"), |known| (known.name(), of_torch(*known)));
        let algorithm =
            collective.and_then(|known| known.algorithms().get(algorithm as usize)).map_or("", |one| one.name);
        let dtype = DataType::try_from(dtype).ok().filter(|_| dtype != OPAQUE_TYPE);
        let elements =
            if collective == Some(&Collective::Barrier) { 0 } else { bytes / dtype.map_or(1, DataType::size) };
        let (inputs, outputs) = lengths(collective.copied(), elements, size);
        let types = dtype.map_or(String::new(), |dtype| quoted(type_of_torch(dtype)));
        let operation = match operation {
            USER_OPERATION => "function".to_owned(),
            code => ReduceOp::try_from(code).map_or(String::new(), |op| op.to_string()),
        };
        let [created_at, started_at, ended_at] = [created, started, *ended].map(|ticks| self.scale.nanoseconds(ticks));
        let duration = started_at.zip(ended_at).map(|(from, to)| to.saturating_sub(from) as f64 / 1e6);
        let (state, error, waits) = match state {
            State::Scheduled => ("scheduled", None, ""),
            State::Started(waits) => ("started", None, &**waits),
            State::Completed => ("completed", None, ""),
            State::Failed(kind) => ("failed", Some(*kind), ""),
        };
        let _ = write!(
            text,
            "{{\"record_id\": {sequence}, \"pg_id\": 0, \"process_group\": [\"0\", \"gloo_rs\"], \"collective_seq_id\": {sequence}, \
             \"p2p_seq_id\": 0, \"op_id\": {sequence}, \"is_p2p\": false, \"profiling_name\": \"gloo:{profiling_name}\", \
             \"collective\": \"{name}\", \"purpose\": \"{purpose}\", \"algorithm\": \"{algorithm}\", \"operation\": \"{operation}\", \
             \"link\": \"{link}\", \"bytes\": {bytes}, \"tag\": {tag}, \"number\": {number}, \"fingerprint\": \"{fingerprint:016x}\", \
             \"input_sizes\": [[{inputs}]], \"input_dtypes\": [{types}], \"output_sizes\": [[{outputs}]], \"output_dtypes\": [{types}], \
             \"time_created_ns\": {created}, \"time_discovered_started_ns\": {started}, \
             \"time_discovered_completed_ns\": {ended}, \"duration_ms\": {duration}, \"state\": \"{state}\", \"retired\": {retired}, \
             \"error\": {error}, \"waited_for\": {waited_for}, \"waits\": {waits}}}",
            purpose = match purpose {
                Some(Purpose::Counts) => "counts",
                Some(Purpose::Fused) => "fused",
                Some(Purpose::Comparison) => "comparison",
                _ => "call",
            },
            link = link.name(),
            number = number(fingerprint),
            created = or_null(created_at),
            started = or_null(started_at),
            ended = or_null(ended_at),
            duration = or_null(duration),
            retired = matches!(state, "completed" | "failed"),
            error = error.map_or("null".to_owned(), |kind| quoted(&status(kind))),
            waited_for = or_null(waited_for.rank()),
            waits = quoted(waits),
        );
    }
}

/// The texts of `items`, between commas.
fn joined<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn or_null<T: ToString>(value: Option<T>) -> String {
    value.map_or("null".to_owned(), |value| value.to_string())
}

/// `text` as a string in JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control < ' ' => quoted.push_str(&format!("\\u{:04x}", control as u32)),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// The name of an error's kind, as the C ABI has it behind `GLOO_RS_ERROR_`: `CONNECTION_LOST`.
fn status(kind: ErrorKind) -> String {
    let name = format!("{kind:?}");
    let mut status = String::new();
    for (index, letter) in name.chars().enumerate() {
        if index > 0 && letter.is_uppercase() {
            status.push('_');
        }
        status.push(letter.to_ascii_uppercase());
    }
    status
}

/// Elements of input and output, of a call that has `elements` as errors count them.
fn lengths(collective: Option<Collective>, elements: usize, size: usize) -> (usize, usize) {
    let all = elements.saturating_mul(size);
    match collective {
        Some(Collective::Allgather | Collective::Gather) => (elements, all),
        Some(Collective::Scatter) => (all, elements),
        Some(Collective::Alltoall) => (all, all),
        Some(Collective::ReduceScatter) => (elements, elements / size.max(1)),
        _ => (elements, elements),
    }
}

/// The name of a collective in PyTorch, or if it has none there, its own.
fn of_torch(collective: Collective) -> &'static str {
    match collective {
        Collective::Allreduce => "all_reduce",
        Collective::ReduceScatter => "reduce_scatter",
        Collective::Allgather => "all_gather",
        Collective::Alltoall => "all_to_all",
        other => other.name(),
    }
}

/// The name of a type in PyTorch.
fn type_of_torch(dtype: DataType) -> &'static str {
    match dtype {
        DataType::Int8 => "Char",
        DataType::Uint8 => "Byte",
        DataType::Int16 => "Short",
        DataType::Uint16 => "UInt16",
        DataType::Int32 => "Int",
        DataType::Uint32 => "UInt32",
        DataType::Int64 => "Long",
        DataType::Uint64 => "UInt64",
        DataType::Float16 => "Half",
        DataType::Bfloat16 => "BFloat16",
        DataType::Float32 => "Float",
        DataType::Float64 => "Double",
        DataType::Complex64 => "ComplexFloat",
        DataType::Complex128 => "ComplexDouble",
        DataType::Bool => "Bool",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted() {
        assert_eq!(quoted("a \"b\" \\ c\n\u{1}é"), "\"a \\\"b\\\" \\\\ c\\u000a\\u0001é\"");
    }

    #[test]
    fn errors_have_the_names_of_the_c_abi() {
        let names = [ErrorKind::Timeout, ErrorKind::ConnectionLost, ErrorKind::Io].map(status);
        assert_eq!(names, ["TIMEOUT", "CONNECTION_LOST", "IO"]);
    }
}
