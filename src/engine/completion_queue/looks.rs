//! When a thread looks at a call of a completion queue whose end nobody may note.

use std::time::{Duration, Instant};

use crate::engine::ready::FIRST_LOOK;

/// When a call in progress is to be looked at though nobody has noted it.
#[derive(Clone, Copy)]
pub struct Looks {
    /// When it fails.
    deadline: Instant,
    /// When to look whether a rank has failed for which it waits, and how long after that the next time; `None` if it
    /// is told.
    quiet: Option<(Instant, Duration)>,
}

impl Looks {
    /// Those of a call that fails at `deadline`, and is told of failures of ranks unless it `is_quiet`.
    pub fn new(deadline: Instant, now: Instant, is_quiet: bool) -> Self {
        Self { deadline, quiet: is_quiet.then(|| (now + FIRST_LOOK, 2 * FIRST_LOOK)) }
    }

    /// The next time to look.
    pub(super) fn next(&self) -> Instant {
        self.quiet.map_or(self.deadline, |(at, _)| at.min(self.deadline))
    }

    /// The next ones, after it was found to be in progress at `now`.
    pub(super) fn after(self, now: Instant) -> Self {
        let quiet = self.quiet.map(|(at, time)| if now < at { (at, time) } else { (now + time, 2 * time) });
        // Another thread may be in its function, so that it cannot fail.
        let deadline = if now < self.deadline { self.deadline } else { now + FIRST_LOOK };
        Self { deadline, quiet }
    }
}
