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

/// An operation of several rounds in progress, which excludes others. Dropped after its last round has started.
pub(super) struct Exclusion<'a> {
    rounds: &'a Rounds,
    line: Line,
}

impl Rounds {
    fn lock(&self) -> Operations<'_> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Exclusion<'_> {
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

impl<'a> Exclusion<'a> {
    /// That of the making of a context, by exchanges with `tag` on this one.
    pub fn begin_setup(context: &'a Context, tag: u64) -> Result<Self> {
        Self::begin_on(context, (SETUP, tag), Purpose::Setup.alone(), false)
    }

    /// That of the call of `run` on `context`, if it has several rounds; its other rounds are copies of `run`, too.
    pub fn begin(context: &'a Context, run: &mut Run<'_>) -> Result<Option<Self>> {
        let (digest, tag) = (run.binding.call.digest, run.binding.tag);
        let line = match run.call.algorithm.uses {
            _ if context.size == 1 => return Ok(None),
            _ if context.check_calls => (COMPARISON, tag),
            Uses::Counts => (kind(digest), tag),
            _ => return Ok(None),
        };
        let begun = Self::begin_on(context, line, digest, run.binding.in_order);
        run.is_round = true;
        begun.map(Some).map_err(|error| run.described(&error))
    }

    fn begin_on(context: &'a Context, line: Line, digest: u64, in_order: bool) -> Result<Self> {
        context.check_process()?;
        let rounds = &context.rounds;
        let mut operations = rounds.lock();
        let running = find(&operations, line).or_else(|| context.engine().lock().running(line, in_order));
        if let Some(other) = running {
            return Err(refused(other, line));
        }
        operations.push((line, digest));
        Ok(Self { rounds, line })
    }
}

impl<'a> Run<'a> {
    /// Before the call starts: refuses it if an operation of which it is no round excludes it. Until the returned lock
    /// is dropped, none begins.
    #[inline(always)] // On the path of small collectives.
    pub fn admit(&self) -> Result<Option<Operations<'a>>> {
        if self.may_be_excluded() { self.admit_alone() } else { Ok(None) }
    }

    #[inline(always)] // As above.
    fn may_be_excluded(&self) -> bool {
        may_share_counts(self.call.collective()) && !self.is_round
    }

    fn admit_alone(&self) -> Result<Option<Operations<'a>>> {
        self.context.check_process().map_err(|error| self.described(&error))?;
        let operations = self.context.rounds.lock();
        self.check_exclusions(&operations)?;
        Ok(Some(operations))
    }

    fn check_exclusions(&self, operations: &Operations<'_>) -> Result<()> {
        let line = (self.binding.call.kind(), self.binding.tag);
        find(operations, line).map_or(Ok(()), |other| Err(self.described(&refused(other, line))))
    }
}

/// What [`Run::admit`] does, for calls on one context that begin together.
pub(super) fn admit_all<'a>(runs: &[Run<'a>]) -> Result<Option<Operations<'a>>> {
    let mut admitted = None;
    for run in runs.iter().filter(|run| run.may_be_excluded()) {
        run.check_exclusions(admitted.get_or_insert_with(|| run.context.rounds.lock()))?;
    }
    Ok(admitted)
}
