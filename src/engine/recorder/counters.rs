//! Counts the calls of a context by collective, algorithm and what moves their data.
//!
//! A prepared call has a counter, which its starts increment. They hold a lock anyway, so that costs no atomic
//! operation. Bytes are those of one call times the number of calls.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Link;
use crate::collective::Collective;
use crate::wire::fingerprint::{Digest, Purpose, digest};

/// Number of counters from which on those are removed that no prepared call has.
const COUNTERS: usize = 64;

/// What calls have in common that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    collective: u32,
    algorithm: u32,
    /// What moves their data.
    pub link: Link,
}

impl Kind {
    /// The kind of a call with this fingerprint. `None` if that is of what ranks exchange for a call, or to make a
    /// context.
    pub fn of(fingerprint: u64, link: Link) -> Option<Self> {
        let digest = digest(fingerprint);
        let Digest { collective, algorithm, .. } = Digest::decode(digest);
        let is_call = matches!(Purpose::decode(digest), Some(Purpose::Call | Purpose::Fused));
        is_call.then_some(Self { collective, algorithm, link })
    }

    /// The names of the collective and of the algorithm.
    pub fn names(&self) -> (&'static str, &'static str) {
        let collective = Collective::ALL.iter().find(|known| **known as u32 == self.collective);
        let algorithm = collective.and_then(|known| known.algorithms().get(self.algorithm as usize));
        (collective.map_or("", |known| known.name()), algorithm.map_or("", |known| known.name))
    }
}

/// Counts the starts of a prepared call.
#[derive(Debug, Default)]
pub struct CallCounter(AtomicU64);

impl CallCounter {
    /// A call has started. Whoever counts here holds a lock, which is the same for all of them.
    #[inline(always)] // On the path of small collectives.
    pub fn count(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// What calls of one kind have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTotals {
    /// Calls that were started.
    pub calls: u64,
    /// Those of them that have failed.
    pub failures: u64,
    /// Their bytes on this rank, as errors count them.
    pub bytes: u64,
}

impl CallTotals {
    fn add(&mut self, counter: &CallCounter, bytes: usize) {
        let calls = counter.0.load(Ordering::Relaxed);
        self.calls += calls;
        self.bytes = self.bytes.wrapping_add(calls.wrapping_mul(bytes as u64));
    }
}

/// The counters of a context.
#[derive(Default)]
pub struct Counters {
    state: Mutex<State>,
    uncounted: Arc<CallCounter>,
}

#[derive(Default)]
struct State {
    /// The counter of calls of a kind with so many bytes.
    counters: HashMap<(Kind, usize), Arc<CallCounter>>,
    /// Number of counters at which the next look for unused ones follows.
    limit: usize,
    /// What removed counters had, and all failures.
    totals: BTreeMap<Kind, CallTotals>,
}

impl Counters {
    /// The counter for calls of this kind with so many bytes on this rank.
    pub fn counter(&self, kind: Kind, bytes: usize) -> Arc<CallCounter> {
        let mut state = self.state();
        if let Some(counter) = state.counters.get(&(kind, bytes)) {
            return counter.clone();
        }
        if state.counters.len() >= state.limit.max(COUNTERS) {
            state.remove_unused();
        }
        state.counters.entry((kind, bytes)).or_default().clone()
    }

    /// A counter for what is not listed.
    pub fn uncounted(&self) -> Arc<CallCounter> {
        self.uncounted.clone()
    }

    /// A call with this fingerprint has failed.
    #[cold]
    pub fn failed(&self, fingerprint: u64, link: Link) {
        if let Some(kind) = Kind::of(fingerprint, link) {
            self.state().totals.entry(kind).or_default().failures += 1;
        }
    }

    /// What was counted, in the order of kinds.
    pub fn totals(&self) -> Vec<(Kind, CallTotals)> {
        let state = self.state();
        let mut totals = state.totals.clone();
        for ((kind, bytes), counter) in &state.counters {
            totals.entry(*kind).or_default().add(counter, *bytes);
        }
        totals.into_iter().filter(|(_, totals)| totals.calls > 0).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Removes the counters that no prepared call has, so that there are at most twice as many as are used.
    fn remove_unused(&mut self) {
        let Self { counters, totals, limit } = self;
        counters.retain(|(kind, bytes), counter| {
            let is_used = Arc::strong_count(counter) > 1;
            if !is_used {
                // What the calls have counted is seen after the number of references that says that they have ended.
                fence(Ordering::Acquire);
                totals.entry(*kind).or_default().add(counter, *bytes);
            }
            is_used
        });
        *limit = 2 * counters.len();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn kind(collective: Collective, link: Link) -> Kind {
        let digest = Digest { collective: collective as u32, algorithm: 1, dtype: 0, operation: 0, rest: 9 };
        Kind::of(digest.encode(), link).unwrap()
    }

    #[test]
    fn calls_are_counted_by_kind_however_many_sizes_there_are() {
        let (counters, kind) = (Counters::default(), kind(Collective::Allreduce, Link::Messages));
        let kept = counters.counter(kind, 1 << 20);
        for bytes in 0..10 * COUNTERS {
            kept.count();
            (0..3).for_each(|_| counters.counter(kind, bytes).count());
        }
        let sizes = 10 * COUNTERS as u64;
        let bytes = (sizes << 20) + 3 * sizes * (sizes - 1) / 2;
        assert_eq!(counters.totals(), [(kind, CallTotals { calls: 4 * sizes, failures: 0, bytes })]);
        assert!(counters.state().counters.len() <= COUNTERS + 1);
        assert!(Arc::ptr_eq(&kept, &counters.counter(kind, 1 << 20)));
    }

    #[test]
    fn links_and_failures_are_told_apart_and_exchanges_of_the_library_are_left_out() {
        let counters = Counters::default();
        let kinds = [Link::SharedMemory, Link::Messages, Link::Both].map(|link| kind(Collective::Barrier, link));
        for kind in kinds {
            counters.counter(kind, 0).count();
        }
        let digest = Digest { collective: Collective::Barrier as u32, algorithm: 1, dtype: 1, operation: 1, rest: 1 };
        counters.failed(digest.encode(), Link::Messages);
        counters.failed(Purpose::Counts.of(digest.encode()), Link::Messages);
        counters.uncounted().count();
        let totals = |failures| CallTotals { calls: 1, failures, bytes: 0 };
        assert_eq!(counters.totals(), [(kinds[0], totals(0)), (kinds[1], totals(1)), (kinds[2], totals(0))]);
        assert_eq!(kinds[0].names(), ("barrier", Collective::Barrier.algorithms()[1].name));
    }
}
