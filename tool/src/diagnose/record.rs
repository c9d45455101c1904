//! What a rank has recorded, as its file says it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Failure;

/// The version of the format that this tool reads.
const FORMAT: &str = "1";

/// The record of one rank.
#[derive(Deserialize)]
pub struct Record {
    version: String,
    pub rank: usize,
    pub size: usize,
    #[cfg(target_os = "linux")]
    pub transport: Option<String>,
    /// Tells the context from others; the same on all ranks.
    #[cfg(target_os = "linux")]
    pub context: Option<String>,
    /// What was exchanged with other ranks in messages.
    #[cfg(target_os = "linux")]
    #[serde(default)]
    pub links: Vec<Link>,
    /// What calls were started.
    #[cfg(target_os = "linux")]
    #[serde(default)]
    pub counters: Vec<Counter>,
    /// When it was written, in nanoseconds since the beginning of 1970.
    pub time_ns: u64,
    /// Why the context is broken.
    pub broken: Option<String>,
    /// The calls in the order of their starts.
    pub entries: Vec<Entry>,
}

/// What was exchanged with one rank.
#[cfg(target_os = "linux")]
#[derive(Deserialize, Serialize)]
pub struct Link {
    pub peer: usize,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// Calls of one collective, algorithm and kind of link.
#[cfg(target_os = "linux")]
#[derive(Deserialize, Serialize)]
pub struct Counter {
    pub collective: String,
    pub algorithm: String,
    pub link: String,
    pub calls: u64,
    pub failures: u64,
    pub bytes: u64,
}

/// A call by which ranks meet: collective, tag, and number among those.
pub type Key<'a> = (&'a str, u64, u32);

/// One call.
#[derive(Deserialize, Serialize)]
pub struct Entry {
    pub record_id: u64,
    pub collective: String,
    /// `call`; `counts` or `comparison` for what precedes it.
    pub purpose: String,
    pub algorithm: String,
    pub operation: String,
    pub input_dtypes: Vec<String>,
    pub bytes: u64,
    pub tag: u64,
    /// Its number among those of its collective with its tag; 0 if these are not counted.
    pub number: u32,
    /// What must be equal on all ranks.
    pub fingerprint: String,
    pub time_created_ns: Option<u64>,
    pub time_discovered_started_ns: Option<u64>,
    pub time_discovered_completed_ns: Option<u64>,
    pub state: State,
    pub error: Option<String>,
    pub waited_for: Option<usize>,
    /// What it waits for.
    pub waits: String,
}

/// How far a call is.
#[derive(Deserialize, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Scheduled,
    Started,
    Completed,
    Failed,
}

impl Record {
    /// Reads the record in the file `path`.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display();
        let text =
            std::fs::read_to_string(path).map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))?;
        Self::parse(&text).map_err(|error| Failure::usage(format!("{name}: {error}")))
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let record: Self =
            serde_json::from_str(text).map_err(|error| format!("not a record of a flight recorder: {error}"))?;
        if record.version != FORMAT {
            return Err(format!("its format has the version {}; this tool reads {FORMAT}", record.version));
        }
        if record.rank >= record.size {
            return Err(format!("there is no rank {} of {}", record.rank, record.size));
        }
        Ok(record)
    }
}

impl Entry {
    /// Whether it has not ended well: the context may be broken because of it.
    pub fn is_open(&self) -> bool {
        self.state != State::Completed
    }

    /// Whether it has not ended.
    #[cfg(target_os = "linux")]
    pub fn is_in_progress(&self) -> bool {
        matches!(self.state, State::Scheduled | State::Started)
    }

    /// Whether it has failed, or at `now` has not ended for so many nanoseconds since it was made.
    pub fn is_late(&self, now: u64, patience: u64) -> bool {
        match self.state {
            State::Completed => false,
            State::Failed => true,
            State::Scheduled | State::Started => patience == 0 || self.age(now).is_some_and(|age| age >= patience),
        }
    }

    /// For how many nanoseconds it has been in progress at `now`, if that is known.
    pub fn age(&self, now: u64) -> Option<u64> {
        let since = self.time_discovered_started_ns.or(self.time_created_ns)?;
        Some(now.saturating_sub(since))
    }

    /// By what ranks meet.
    pub fn key(&self) -> Key<'_> {
        (&self.collective, self.tag, self.number)
    }

    /// Calls of a line have one order on all ranks: those of a collective with a tag.
    pub fn line(&self) -> (&str, u64) {
        (&self.collective, self.tag)
    }

    /// What is called, without its number: `allreduce ring of Float by sum, 4096 bytes`.
    pub fn what(&self) -> String {
        let mut text = self.collective.clone();
        if self.purpose == "comparison" {
            return "comparison of calls".into();
        }
        text.push_str(&format!(" {}", self.algorithm));
        if let Some(dtype) = self.input_dtypes.first() {
            text.push_str(&format!(" of {dtype}"));
        }
        if !self.operation.is_empty() {
            text.push_str(&format!(" by {}", self.operation));
        }
        if self.purpose == "counts" {
            text.push_str(", sharing its counts");
        }
        text + &format!(", {} bytes", self.bytes)
    }

    /// How far it is, and for whom it waits, in the record that was written at `now`.
    pub fn progress(&self, now: u64) -> String {
        let seconds = |since: u64| format!("{:.3} s", now.saturating_sub(since) as f64 / 1e9);
        let waited = match self.waited_for {
            Some(rank) if self.state == State::Started => format!(", waits for rank {rank}"),
            Some(rank) if self.is_open() => format!(", waited for rank {rank}"),
            _ => String::new(),
        };
        let since =
            |what: &str, at: Option<u64>| at.map_or(String::new(), |at| format!("{what} {} before", seconds(at)));
        let started = since(", started", self.time_discovered_started_ns);
        match (self.state, &self.error) {
            (State::Scheduled, _) => "waits for an earlier call with its tag".to_owned() + &waited,
            (State::Started, _) => format!("in progress{started}{waited}"),
            (State::Completed, _) => "ended".to_owned() + &since("", self.time_discovered_completed_ns),
            (State::Failed, error) => format!("failed ({}){started}{waited}", error.as_deref().unwrap_or("unknown")),
        }
    }
}
