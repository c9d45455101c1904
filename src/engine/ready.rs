//! What a thread that waits for several calls has to look at, on whichever contexts these are.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crate::engine::sync::{Mutex, MutexGuard};

/// Is told of the end of a run.
pub trait OnEnd: Send + Sync {
    /// The run has ended at `at`, or has failed.
    fn ended(&self, at: Instant);
}

/// The calls that have ended, by the numbers that the waiting thread has given them, in the order of their ends.
#[derive(Default)]
pub struct Ready(Mutex<Vec<usize>>);

impl Ready {
    /// The call with this number has ended. Whoever says so then wakes the threads that wait on its context.
    pub fn add(&self, number: usize) {
        self.calls().push(number);
    }

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

/// Where the end of a call is noted.
pub struct Entry {
    /// The list of the waiting thread.
    pub ready: Arc<Ready>,
    /// The number of the call there.
    pub number: usize,
}

impl Entry {
    /// The call has ended.
    pub fn note(&self) {
        self.ready.add(self.number);
    }
}
