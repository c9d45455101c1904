//! Compares the records of ranks.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::record::{Entry, Key, Record};

/// Numbers of calls wrap at this, and 0 is left out.
const NUMBERS: u32 = 1 << 24;

/// What the records show.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Calls in which some ranks are and others are not, although they must come.
    pub behind: Vec<Behind>,
    /// Calls of one number that are not the same on all ranks.
    pub disagreements: Vec<Disagreement>,
    /// Calls in which all ranks are that have not ended it: the one that began last, if that is known.
    pub stuck: Vec<Stuck>,
    /// Ranks without a record.
    pub missing: Vec<usize>,
}

/// Some ranks have not begun a call in which others are.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Behind {
    pub collective: String,
    pub tag: u64,
    pub number: u32,
    /// Who is in the call, or has failed in it.
    pub inside: Vec<usize>,
    /// Who has not begun it.
    pub behind: Vec<usize>,
    /// The ranks of `behind` that are in another call, and which: its place in the rank's record.
    pub elsewhere: Vec<(usize, usize)>,
}

/// Ranks make different calls under one number.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Disagreement {
    pub collective: String,
    pub tag: u64,
    pub number: u32,
    /// The groups of ranks that agree, the largest first.
    pub groups: Vec<Vec<usize>>,
}

/// Ranks are in a call that all have begun.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Stuck {
    pub collective: String,
    pub tag: u64,
    pub number: u32,
    pub inside: Vec<usize>,
    pub ended: Vec<usize>,
    /// Who waits for none of the others, but for ranks that have left no record, or for nobody.
    pub waits_for_none: Vec<usize>,
}

/// Compares the records, which are of different ranks of one context.
pub fn compare(records: &[Record]) -> Findings {
    compare_after(records, 0)
}

/// Compares them as [`compare`], but for calls of which no rank has failed, or been in for so many nanoseconds: the
/// records of ranks that are busy are not of one moment.
pub fn compare_after(records: &[Record], patience: u64) -> Findings {
    let size = records.iter().map(|record| record.size).max().unwrap_or(0);
    let missing = (0..size).filter(|rank| records.iter().all(|record| record.rank != *rank)).collect();
    let mut found = Findings { missing, ..Findings::default() };
    let mut calls: BTreeMap<Key<'_>, Vec<(usize, &Entry)>> = BTreeMap::new();
    let mut late: BTreeSet<Key<'_>> = BTreeSet::new();
    for record in records {
        let is_late = |entry: &&Entry| entry.number != 0 && entry.is_late(record.time_ns, patience);
        late.extend(record.entries.iter().filter(is_late).map(Entry::key));
        for entry in record.entries.iter().filter(|entry| entry.number != 0) {
            calls.entry(entry.key()).or_default().push((record.rank, entry));
        }
    }
    // Where several calls of a line are open, the first one is the cause.
    let mut firsts: BTreeMap<(&str, u64), (u64, u32)> = BTreeMap::new();
    for ((collective, tag, number), ranks) in &calls {
        let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        ranks.iter().for_each(|(rank, entry)| groups.entry(&entry.fingerprint).or_default().push(*rank));
        if groups.len() > 1 {
            let mut groups: Vec<_> = groups.into_values().collect();
            groups.sort_by_key(|group| (std::cmp::Reverse(group.len()), group[0]));
            found.disagreements.push(Disagreement {
                collective: (*collective).into(),
                tag: *tag,
                number: *number,
                groups,
            });
        }
        if !late.contains(&(*collective, *tag, *number)) {
            continue;
        }
        let open = ranks.iter().filter(|(_, entry)| entry.is_open()).map(|(_, entry)| entry.record_id).min();
        if let Some(open) = open {
            let first = firsts.entry((collective, *tag)).or_insert((open, *number));
            *first = (*first).min((open, *number));
        }
    }
    for ((collective, tag), (_, number)) in firsts {
        let here = &calls[&(collective, tag, number)];
        examine(records, (collective, tag, number), here, &mut found);
    }
    found
}

/// Says who is behind in the call `key`, which not all have ended; `here`: who has begun it.
fn examine(records: &[Record], key: Key<'_>, here: &[(usize, &Entry)], found: &mut Findings) {
    let (collective, tag, number) = key;
    let has_begun = |rank: usize| here.iter().any(|(other, _)| *other == rank);
    let inside: Vec<usize> = here.iter().filter(|(_, entry)| entry.is_open()).map(|(rank, _)| *rank).collect();
    let ended = here.iter().filter(|(_, entry)| !entry.is_open()).map(|(rank, _)| *rank).collect();
    let behind: Vec<&Record> = records
        .iter()
        .filter(|record| !has_begun(record.rank))
        .filter(|record| {
            // A later call would show that this one is only not in the record any more.
            let last = record.entries.iter().rev().find(|entry| entry.line() == (collective, tag));
            last.is_none_or(|last| is_earlier(last.number, number))
        })
        .collect();
    if behind.is_empty() {
        let open = || here.iter().filter(|(_, entry)| entry.is_open());
        let waits = |entry: &Entry| entry.waited_for.is_some_and(|rank| has_begun(rank) && inside.contains(&rank));
        let waits_for_none = open().filter(|(_, entry)| !waits(entry)).map(|(rank, _)| *rank).collect();
        let collective = collective.into();
        return found.stuck.push(Stuck { collective, tag, number, inside, ended, waits_for_none });
    }
    let elsewhere = |record: &&Record| Some((record.rank, record.entries.iter().position(Entry::is_open)?));
    found.behind.push(Behind {
        collective: collective.into(),
        tag,
        number,
        inside,
        elsewhere: behind.iter().filter_map(elsewhere).collect(),
        behind: behind.iter().map(|record| record.rank).collect(),
    });
}

/// Whether the number `a` of a line is before `b`.
fn is_earlier(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) % NUMBERS > NUMBERS / 2
}
