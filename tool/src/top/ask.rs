//! Asks the processes of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use gloo_rs::engine::plan::MAX_RANKS;
use gloo_rs::net::monitor::Question;
use gloo_rs::net::monitor::client::{self, Found};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Failure;
use crate::diagnose::record::Record;

/// How long a process has for its answer: it has a thread for that.
const PATIENCE: Duration = Duration::from_secs(3);

/// One rank of a context.
pub struct Member {
    pub process: u32,
    pub record: Record,
    /// What the record was read from.
    pub document: Box<RawValue>,
}

/// What was answered.
pub struct Reply {
    /// The ranks in the contexts of the process and those that descend from it.
    pub members: Vec<Member>,
    /// Processes that have not answered, and why.
    pub unanswered: BTreeMap<u32, String>,
}

#[derive(Deserialize)]
struct Answer {
    contexts: Vec<Box<RawValue>>,
}

/// Asks `process` and those that descend from it, and all others of this host that may have ranks of the same contexts.
pub fn ask(process: u32, question: Question) -> Result<Reply, Failure> {
    let failed = |error: io::Error| Failure::from(format!("cannot look for the processes of this host: {error}"));
    let found = client::find().map_err(failed)?;
    let own: BTreeSet<u32> =
        found.iter().map(|found| found.owner.process).filter(|other| descends(*other, process)).collect();
    if own.is_empty() {
        return Err(silent(process));
    }
    if let Some(other) = found.iter().find(|found| own.contains(&found.owner.process) && !found.is_permitted()) {
        let (process, user) = (other.owner.process, other.owner.user);
        return Err(format!("process {process} answers only its user, {user}, and root").into());
    }
    let found: Vec<Found> = found.into_iter().filter(Found::is_permitted).collect();
    let deadline = Instant::now() + PATIENCE;
    let answers: Vec<(u32, Result<Vec<Member>, String>)> = thread::scope(|scope| {
        let ask = |found: Found| {
            let process = found.owner.process;
            (process, scope.spawn(move || members(process, found.ask(question, deadline))))
        };
        let threads: Vec<_> = found.into_iter().map(ask).collect();
        let join =
            |(process, thread): (u32, thread::ScopedJoinHandle<'_, _>)| (process, thread.join().expect("no panic"));
        threads.into_iter().map(join).collect()
    });
    let (mut members, mut unanswered) = (Vec::new(), BTreeMap::new());
    for (process, answer) in answers {
        match answer {
            Ok(of_one) => members.extend(of_one),
            // It has ended since.
            Err(_) if !exists(process) => {}
            Err(why) => drop(unanswered.insert(process, why)),
        }
    }
    let contexts: BTreeSet<Option<String>> = members
        .iter()
        .filter(|member| own.contains(&member.process))
        .map(|member| member.record.context.clone())
        .collect();
    members.retain(|member| {
        own.contains(&member.process) || member.record.context.is_some() && contexts.contains(&member.record.context)
    });
    Ok(Reply { members, unanswered })
}

/// The contexts in an answer.
fn members(process: u32, answer: io::Result<Vec<u8>>) -> Result<Vec<Member>, String> {
    let answer = answer.map_err(|error| match error.kind() {
        ErrorKind::TimedOut => "it is stopped, or has no time to run".to_owned(),
        _ => error.to_string(),
    })?;
    let answer: Answer = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
    let member = |document: Box<RawValue>| Ok(Member { process, record: parse(document.get())?, document });
    answer.contexts.into_iter().map(member).collect()
}

/// A record of a process that may be another user's, who may have it say anything.
fn parse(document: &str) -> Result<Record, String> {
    let record = Record::parse(document)?;
    if record.size > MAX_RANKS {
        return Err(format!("it says that a context has {} ranks; at most {MAX_RANKS} are possible", record.size));
    }
    match &record.context {
        // It becomes a part of files' names.
        Some(name) if !name.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            Err(format!("it says that a context has the name {name:?}, which is no number"))
        }
        _ => Ok(record),
    }
}

/// Why nobody answers for `process`.
fn silent(process: u32) -> Failure {
    if !exists(process) {
        return format!("there is no process {process}").into();
    }
    let text = "it, and those that descend from it, have no device of gloo_rs, were started without GLOO_RS_TOP=1, or are \
                in another network namespace";
    format!("process {process} does not answer: {text}").into()
}

/// Whether there is such a process, which may have ended without being waited for.
pub fn exists(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// Whether `process` is `ancestor` or descends from it.
fn descends(process: u32, ancestor: u32) -> bool {
    let mut at = process;
    while at != ancestor {
        let stat = std::fs::read_to_string(format!("/proc/{at}/stat")).unwrap_or_default();
        // The name, in brackets, may have any characters; state and parent follow.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        match parent {
            None | Some(0) => return false,
            Some(parent) => at = parent,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_rank_would_say_is_refused() {
        let answered = |size: usize, context: &str| {
            let record = format!(
                "{{\"version\": \"1\", \"rank\": 0, \"size\": {size}, \"time_ns\": 0, \"broken\": null, \
                 \"context\": \"{context}\", \"entries\": []}}"
            );
            members(7, Ok(format!("{{\"contexts\": [{record}, {record}]}}").into_bytes()))
        };
        assert_eq!(answered(4, "0a1b2c3d").map(|members| members.len()), Ok(2));
        for (answer, why) in [
            (answered(4, "../x"), "\"../x\", which is no number"),
            (answered(MAX_RANKS + 1, "0"), "ranks; at most"),
            (members(7, Ok(b"{\"contexts\": [{}".to_vec())), "EOF"),
            (members(7, Err(ErrorKind::TimedOut.into())), "it is stopped"),
        ] {
            let error = answer.map(|members| members.len()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_process_descends_from_itself_and_its_ancestors() {
        let own = std::process::id();
        assert!([own, std::os::unix::process::parent_id()].into_iter().all(|ancestor| descends(own, ancestor)));
        assert!(!descends(own, u32::MAX) && !descends(u32::MAX, own));
    }
}
