//! A thread that polls in shared memory without the engine's lock, because nothing else is waited for.

use std::sync::atomic::Ordering;

use crate::engine::{Engine, Guard, Spin};
use crate::types::Rank;

/// A thread polls in shared memory without the lock.
pub struct Alone<'a> {
    engine: &'a Engine,
    /// How long it polls.
    pub spin: Spin,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.engine.is_polled_alone.store(false, Ordering::Relaxed);
    }
}

impl Engine {
    /// Lets the only thread that waits on the context, for `peer`, poll in shared memory without the lock, until it
    /// drops the result. `None` if other threads wait, or calls were started: those must be progressed.
    pub fn poll_alone<'a>(&'a self, guard: &Guard<'_>, peer: Option<Rank>) -> Option<Alone<'a>> {
        let has_started = guard.shared.as_ref().is_some_and(|shared| shared.has_started_calls());
        let spin = guard.waiters.spin_alone(peer).filter(|_| !has_started)?;
        let was = self.is_polled_alone.swap(true, Ordering::Relaxed);
        // Made only for this thread: a dropped one would end what another thread has begun.
        (!was).then(|| Alone { engine: self, spin })
    }

    /// Whether a thread polls in shared memory without the lock.
    #[cfg(test)]
    pub(crate) fn is_polled_alone(&self) -> bool {
        self.is_polled_alone.load(Ordering::Relaxed)
    }
}
