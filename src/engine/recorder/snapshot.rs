//! What a context has done last, and is doing.

use crate::engine::Core;
use crate::engine::recorder::{Awaited, Ended, Run, Scale};
use crate::error::{Error, ErrorKind};

/// What a context has done last, and is doing, at one time.
pub struct Snapshot {
    /// Number of the last collective that was started.
    pub begun: u64,
    /// Why no collective can run any more.
    pub broken: Option<Error>,
    /// The calls, in the order of their numbers.
    pub calls: Vec<Call>,
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
        self.end_registration();
        let mut calls: Vec<Call> = self.recorder.ended().into_iter().map(Call::from).collect();
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
        // A call may be in several of these: what is in the ring has ended, and the engine knows most of the others.
        calls.sort_by_key(|call| call.run.number);
        calls.dedup_by_key(|call| call.run.number);
        calls.retain(|call| call.run.number != 0);
        Snapshot { begun: self.begun(), broken: self.broken.clone(), calls, scale: self.recorder.scale() }
    }
}
