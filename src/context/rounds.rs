//! Operations of several rounds: calls that share their counts or are compared first, splits, and connecting. Other
//! operations that would meet one of the rounds are refused from the first round to the last, also between two of them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::collective::{Collective, Uses};
use crate::context::Context;
use crate::context::digest::explain;
use crate::context::run::Run;
use crate::engine::errors::already_running;
use crate::engine::shared::Line;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::fingerprint::{COMPARISON, Purpose, SETUP, kind};

/// The operations in progress: their lines, and the digests that describe them.
#[derive(Default)]
pub(super) struct Rounds(Mutex<Vec<(Line, u64)>>);

type Operations<'a> = MutexGuard<'a, Vec<(Line, u64)>>;

/// Whether calls of `collective` may have several rounds without `check_calls`: ranks share their counts first. With
/// `check_calls`, all calls have.
pub(super) const fn may_share_counts(collective: Collective) -> bool {
    matches!(collective, Collective::Alltoallv | Collective::Gatherv | Collective::Scatterv)
}

/// An operation in progress. Dropped after its last round has started.
pub(super) struct Operation<'a> {
    rounds: &'a Rounds,
    line: Line,
}

impl Rounds {
    fn lock(&self) -> Operations<'_> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.rounds.lock().retain(|(line, _)| *line != self.line);
    }
}

/// The one of `operations` that excludes others on `line`.
fn find(operations: &Operations<'_>, line: Line) -> Option<u64> {
    operations.iter().find(|(own, _)| *own == line).map(|(_, digest)| *digest)
}

fn refused(other: u64, (own, tag): Line) -> Error {
    if own == SETUP {
        return Error::new(
            ErrorKind::InvalidOperation,
            "another thread is splitting this context, connecting it, or connecting another one from it",
        );
    }
    already_running(other, tag, own, explain)
}

impl Context {
    /// Begins the making of a context, by exchanges with `tag`.
    pub(super) fn begin_setup(&self, tag: u64) -> Result<Operation<'_>> {
        self.begin_rounds((SETUP, tag), Purpose::Setup.alone(), false)
    }

    /// Begins the call of `run`, if it has several rounds; its other rounds are copies of `run`, too.
    pub(super) fn begin_rounds_of(&self, run: &mut Run<'_>) -> Result<Option<Operation<'_>>> {
        let (digest, tag) = (run.binding.call.digest, run.binding.tag);
        let line = match run.call.algorithm.uses {
            _ if self.size == 1 => return Ok(None),
            _ if self.check_calls => (COMPARISON, tag),
            Uses::Counts => (kind(digest), tag),
            _ => return Ok(None),
        };
        let begun = self.begin_rounds(line, digest, run.binding.in_order);
        run.is_round = true;
        begun.map(Some).map_err(|error| self.described(run, &error))
    }

    fn begin_rounds(&self, line: Line, digest: u64, in_order: bool) -> Result<Operation<'_>> {
        self.check_process()?;
        let mut operations = self.rounds.lock();
        let running = find(&operations, line).or_else(|| self.engine().lock().running(line, in_order));
        if let Some(other) = running {
            return Err(refused(other, line));
        }
        operations.push((line, digest));
        Ok(Operation { rounds: &self.rounds, line })
    }

    /// Before the call of `run` starts: refuses it if an operation of which it is no round excludes it. Until the
    /// returned lock is dropped, none begins.
    #[inline(always)] // On the path of small collectives.
    pub(super) fn admit(&self, run: &Run<'_>) -> Result<Option<Operations<'_>>> {
        if may_share_counts(run.call.collective()) && !run.is_round { self.admit_alone(run) } else { Ok(None) }
    }

    /// What [`Context::admit`] does, for calls that begin together.
    pub(super) fn admit_all(&self, runs: &[Run<'_>]) -> Result<Option<Operations<'_>>> {
        let mut admitted = None;
        for run in runs.iter().filter(|run| may_share_counts(run.call.collective()) && !run.is_round) {
            let operations = admitted.get_or_insert_with(|| self.rounds.lock());
            let line = (run.binding.call.kind(), run.binding.tag);
            if let Some(other) = find(operations, line) {
                return Err(self.described(run, &refused(other, line)));
            }
        }
        Ok(admitted)
    }

    fn admit_alone(&self, run: &Run<'_>) -> Result<Option<Operations<'_>>> {
        self.check_process().map_err(|error| self.described(run, &error))?;
        let (operations, line) = (self.rounds.lock(), (run.binding.call.kind(), run.binding.tag));
        match find(&operations, line) {
            Some(other) => Err(self.described(run, &refused(other, line))),
            None => Ok(Some(operations)),
        }
    }
}
