//! What a context has done last, and is doing.

use std::collections::HashSet;

use crate::engine::Core;
use crate::engine::recorder::counters::{CallTotals, Kind};
use crate::engine::recorder::{Awaited, Ended, Recorder, Run, Scale};
use crate::error::{Error, ErrorKind};
use crate::messaging::Traffic;
use crate::types::Rank;
use crate::wire::fingerprint::{Digest, Purpose, digest};

/// Calls that have ended and are in what shows the present of a context.
const LAST_CALLS: usize = 16;

/// What a context has done last, and is doing, at one time.
pub struct Snapshot {
    /// Tells the context from others: [`Address::context_number`](crate::net::address::Address::context_number) of rank
    /// 0, if its address is known.
    pub context: Option<u32>,
    /// Number of the last collective that was started.
    pub begun: u64,
    /// Why no collective can run any more.
    pub broken: Option<Error>,
    /// The calls, in the order of their numbers.
    pub calls: Vec<Call>,
    /// The bytes exchanged with each rank with which there were any.
    pub links: Vec<(Rank, Traffic)>,
    /// What calls were started, by what they have in common.
    pub counters: Vec<(Kind, CallTotals)>,
    /// What ticks are in nanoseconds.
    pub scale: Scale,
}

/// A call, and how far it is.
#[derive(Clone, Debug)]
pub struct Call {
    /// The call.
    pub run: Run,
    /// When it has ended; 0 if it has not, or nobody has noticed it yet.
    pub ended: u64,
    /// How far it is.
    pub state: State,
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Earlier calls of its collective with its tag must end first.
    Scheduled,
    /// It goes on; what it waits for, as errors say it, if it waits.
    Started(String),
    /// It has ended well.
    Completed,
    /// It has failed.
    Failed(ErrorKind),
}

impl From<Ended> for Call {
    fn from(Ended { run, at, error }: Ended) -> Self {
        Self { run, ended: at, state: error.map_or(State::Completed, State::Failed) }
    }
}

impl Core {
    /// What this context has done last, and is doing.
    pub fn snapshot(&mut self) -> Snapshot {
        let recorder = self.recorder.clone();
        self.in_progress().with_ended(&recorder)
    }

    /// What this context is doing: without the calls that have ended.
    pub fn in_progress(&mut self) -> Snapshot {
        self.end_registration();
        let mut calls = Vec::new();
        for (index, operation) in self.operations.iter() {
            let (before, diagnosis) = (self.before(index), self.messenger.diagnosis());
            let state = match &operation.failed {
                Some(error) => State::Failed(error.kind()),
                None if operation.is_over() => State::Completed,
                None if before != index => State::Scheduled,
                None => State::Started(diagnosis.describe(index, self.now)),
            };
            let mut run = *self.operations.run(index);
            if let Some(rank) = diagnosis.blame(|token| token.owner == before).rank {
                run.waited_for = Awaited::from(Some(rank));
            }
            calls.push(Call { run, ended: 0, state });
        }
        let in_memory = self.shared.iter().flat_map(|shared| shared.runs());
        calls.extend(in_memory.map(|run| Call { run, ended: 0, state: State::Started(String::new()) }));
        let peers = self.messenger.connections().peers();
        let context = if peers.rank == 0 { Some(peers.own.context_number()) } else { peers.context_number(0) };
        let links = self.messenger.traffic().filter(|(_, traffic)| *traffic != Traffic::default()).collect();
        Snapshot {
            context,
            begun: self.begun(),
            broken: self.broken.clone(),
            calls,
            links,
            counters: Vec::new(),
            scale: self.recorder.scale(),
        }
    }
}

impl Snapshot {
    /// With the calls that have ended by now, and what was counted. Needs no lock.
    pub fn with_ended(mut self, recorder: &Recorder) -> Self {
        self.counters = recorder.counters.totals();
        let in_progress = std::mem::take(&mut self.calls);
        self.calls = recorder.ended().into_iter().map(Call::from).chain(in_progress).collect();
        // A call may be in several of these: what is in the ring has ended, and the engine knows most of the others.
        self.calls.sort_by_key(|call| call.run.number);
        self.calls.dedup_by_key(|call| call.run.number);
        self.calls.retain(|call| call.run.number != 0);
        self
    }

    /// Leaves those calls that show where the rank is: all that have not ended well, and of the others the last ones of
    /// the context, and the last of each collective with each tag.
    pub fn present(mut self) -> Self {
        let mut lines = HashSet::new();
        let mut left = LAST_CALLS;
        self.calls.reverse();
        self.calls.retain(|Call { run, state, .. }| {
            let digest = digest(run.fingerprint);
            let is_last = lines.insert((Digest::decode(digest).collective, Purpose::decode(digest), run.tag));
            let has_ended = *state == State::Completed;
            let is_kept = !has_ended || is_last || left > 0;
            left -= usize::from(has_ended && left > 0);
            is_kept
        });
        self.calls.reverse();
        self
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::collective::Collective;
    use crate::wire::fingerprint::fingerprint;

    #[test]
    fn the_present_has_what_has_not_ended_and_the_last_calls_of_each_line() {
        let call = |number: u64, collective: Collective, tag: u64, state: State| {
            let digest = Digest { collective: collective as u32, algorithm: 0, dtype: 0, operation: 0, rest: 0 };
            let run = Run { number, fingerprint: fingerprint(digest.encode(), 1), tag, ..Run::default() };
            Call { run, ended: 0, state }
        };
        let many = 1000;
        let mut calls = vec![
            call(1, Collective::Barrier, 0, State::Completed),
            call(2, Collective::Barrier, 0, State::Completed),
            call(3, Collective::Barrier, 1, State::Completed),
            call(4, Collective::Allreduce, 9, State::Failed(ErrorKind::Timeout)),
            call(5, Collective::Allreduce, 9, State::Started(String::new())),
        ];
        calls.extend((6..=many).map(|number| call(number, Collective::Allreduce, 9, State::Completed)));
        let (context, broken, links, counters, scale) = (None, None, Vec::new(), Vec::new(), Scale::default());
        let snapshot = Snapshot { context, begun: many, broken, calls, links, counters, scale }.present();
        let kept: Vec<u64> = snapshot.calls.iter().map(|call| call.run.number).collect();
        let expected: Vec<u64> = [2, 3, 4, 5].into_iter().chain(many + 1 - LAST_CALLS as u64..=many).collect();
        assert_eq!(kept, expected);
    }
}
