//! Calls of other ranks that this rank does not meet: how each finds out, and what they tell each other.

use crate::engine::Core;
use crate::engine::prepared::Identity;
use crate::error::{Error, ErrorKind};
use crate::types::Rank;
use crate::wire::fingerprint::{digest, fingerprint, is_earlier, kind, number, replaces};

/// The maximum number of running calls that a reply to a query lists.
const MAX_REPORTED_CALLS: usize = 2;

impl Core {
    /// A rank for which the run `index` waits, and the fingerprint of a call in which it has said that it is in place
    /// of that, if this rank has not begun that.
    pub fn elsewhere(&self, index: u32) -> Option<(Rank, u64)> {
        let (own, tag) = self.call(index);
        let is_missing = |theirs: u64| {
            let line = (kind(theirs), tag);
            let last = self.shared.as_ref().map_or_else(|| self.numbers.last(line), |shared| shared.last_number(line));
            // A call without a number may be any of its kind, also one that this rank has begun.
            number(theirs) != 0 && !self.runs(line.0, tag) && (last == 0 || is_earlier(fingerprint(0, last), theirs))
        };
        self.messenger.diagnosis().elsewhere(index).find(|(_, theirs)| replaces(*theirs, own) || is_missing(*theirs))
    }

    /// Fails calls in whose place a rank makes another one that this rank does not meet: in shared memory if this one
    /// receives messages, or by messages if this one is in shared memory.
    pub fn detect_other_calls(&mut self) {
        let Some(shared) = &self.shared else { return };
        let running = self.operations.iter().filter(|(_, operation)| !operation.is_over());
        let counted = running.map(|(_, operation)| operation.id).filter(|id| number(id.fingerprint) != 0);
        let found = counted.filter_map(|Identity { tag, fingerprint, index, .. }| {
            let messages =
                || self.messenger.diagnosis().unmatched(tag).filter_map(|one| Some((one.from, one.message?.0)));
            let message = || messages().find(|(_, theirs)| replaces(*theirs, fingerprint));
            let (rank, theirs) = shared.other_call(tag, fingerprint).or_else(message)?;
            Some((index, rank, theirs))
        });
        let found: Vec<_> = found.collect();
        self.ended |= !found.is_empty();
        found.into_iter().for_each(|(index, rank, theirs)| self.mismatch(index, rank, theirs));
    }

    /// The run `index` fails, since `rank` is in the call with the fingerprint `theirs`.
    pub fn mismatch(&mut self, index: u32, rank: Rank, theirs: u64) {
        let operation = &mut self.operations[index];
        let Identity { kind: own_kind, tag, fingerprint, .. } = operation.id;
        let peer = self.messenger.peer_name(rank);
        let is_of_a_kind = own_kind == kind(theirs);
        let [(own, here), (theirs, what)] =
            [fingerprint, theirs].map(|fingerprint| (number(fingerprint), (self.explain)(digest(fingerprint))));
        let text = if own != theirs && own != 0 && theirs != 0 && is_of_a_kind {
            format!(
                "{what}, its number {theirs} on tag {tag}, where this rank is in number {own}, {here}: one of them \
                 has made a call that the other has not, or they differed in an earlier one's root or counts"
            )
        } else if what == here {
            format!(
                "{what} there too, but its counts, root, segment size or number of averaged inputs differ from \
                 those here"
            )
        } else {
            what
        };
        let text = format!("{peer} is in another collective: {text}");
        // Replaces the error for a broken connection, which the peer's failure has caused, with one that names the
        // mismatch.
        if operation.failed.as_ref().is_none_or(|e| e.kind() == ErrorKind::ConnectionLost) {
            operation.failed = Some(Error::new(ErrorKind::Mismatch, text).with_rank(rank));
        }
        self.ended |= operation.note(self.now);
    }

    /// The fingerprint of a call on `tag` in which this rank is, or was last, while a peer is in that with
    /// `fingerprint`, and this rank is not; 0 if there is none.
    pub(super) fn instead_of(&self, fingerprint: u64, tag: u64) -> u64 {
        let here = || {
            let here = self.operations.iter().filter(|(_, operation)| operation.id.tag == tag && !operation.is_over());
            here.map(|(_, operation)| &operation.id)
        };
        // There may be several that were started.
        if let Some(same) = here().find(|id| replaces(id.fingerprint, fingerprint)) {
            return same.fingerprint;
        }
        match here().find(|id| id.kind == kind(fingerprint)) {
            Some(_) => 0,
            None if fingerprint == 0 => 0,
            None => {
                let waiting = here().find(|id| self.messenger.diagnosis().waits(id.index)).map(|id| id.fingerprint);
                let last = || self.shared.as_ref().and_then(|shared| shared.last_call()).unwrap_or(self.last);
                let ended = || Some(last()).filter(|(other, _)| *other == tag).map(|(_, last)| last);
                let is_other = |other: &u64| kind(*other) != kind(fingerprint) || replaces(*other, fingerprint);
                waiting.or_else(ended).filter(is_other).unwrap_or(0)
            }
        }
    }

    /// What this rank is doing, for a peer that waits for it.
    pub(super) fn doing(&self) -> String {
        let calls = self.operations.iter().take(MAX_REPORTED_CALLS).map(|(index, operation)| {
            let Identity { fingerprint, count, tag, .. } = operation.id;
            let (what, waits) =
                ((self.explain)(digest(fingerprint)), self.messenger.diagnosis().describe(index, self.now));
            let waits = if waits.is_empty() { String::new() } else { format!(", waiting {waits}") };
            let waits = if operation.is_reducing() { format!(", inside its reduction function{waits}") } else { waits };
            format!("in {what}, {count} elements, tag {tag}{waits}")
        });
        let in_memory = self.only_in_memory().into_iter().map(|(tag, fingerprint, _)| {
            format!("in {}, tag {tag}, which it has started", (self.explain)(digest(fingerprint)))
        });
        let calls: Vec<String> = calls.chain(in_memory).take(MAX_REPORTED_CALLS).collect();
        if calls.is_empty() {
            return format!("it says that it is in no collective, after {} on this context", self.begun());
        }
        format!("it says that it is {}", calls.join(" and "))
    }

    /// The calls on shared memory in progress that no thread waits for with the lock: tag, fingerprint, and whether
    /// each waits for a peer.
    pub(super) fn only_in_memory(&self) -> Vec<(u64, u64, bool)> {
        let mut calls = self.shared.as_ref().map_or_else(Vec::new, |shared| shared.in_progress());
        calls.retain(|(_, fingerprint, _)| self.operations.ids().all(|id| id.fingerprint != *fingerprint));
        calls
    }
}
