//! What a thread that waits for several calls has to look at, on whichever contexts these are.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::sync::{Mutex, MutexGuard};

/// A call on shared memory says only when it is looked at that a rank has failed for which it waits. It is looked at
/// after this time, and again whenever the wait has taken twice as long.
pub const FIRST_LOOK: Duration = Duration::from_millis(5);

/// Is told of the end of a run.
pub trait OnEnd: Send + Sync {
    /// The run has ended at `at`, or has failed.
    fn ended(&self, at: Instant);
}

/// Where threads find what they have to look at.
pub trait Ends: Send + Sync {
    /// The call with this number has ended.
    fn add(&self, number: usize);
}

/// Is reminded of a time by a context.
pub trait OnTime: Send + Sync {
    /// It may be that time. Returns when the next one is.
    fn reminded(&self, now: Instant) -> Option<Instant>;
}

/// The calls that have ended, by the numbers that the waiting thread has given them, in the order of their ends.
#[derive(Default)]
pub struct Ready(Mutex<Vec<usize>>);

impl Ready {
    /// Whether there is one.
    pub fn is_any(&self) -> bool {
        !self.calls().is_empty()
    }

    /// Those that have ended since the last time.
    pub fn take(&self) -> Vec<usize> {
        std::mem::take(&mut self.calls())
    }

    fn calls(&self) -> MutexGuard<'_, Vec<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ends for Ready {
    /// Whoever says so then wakes the threads that wait on its context.
    fn add(&self, number: usize) {
        self.calls().push(number);
    }
}

/// Where the end of a call is noted.
pub struct Entry {
    /// The list of the waiting thread, or its queue.
    pub ends: Arc<dyn Ends>,
    /// The number of the call there.
    pub number: usize,
}

impl Entry {
    /// The call has ended.
    pub fn note(&self) {
        self.ends.add(self.number);
    }
}
