//! What the recorder has of calls in shared memory, and that each is counted.

use super::*;
use crate::engine::recorder::counters::Kind;
use crate::engine::recorder::{ENTRIES, Link};
use crate::wire::fingerprint::Digest;

/// One thread makes the calls of both ranks, of which none waits for the other but where the test says so.
#[test]
fn every_call_is_recorded_and_counted_also_at_the_first_place_and_after_a_wait() {
    let shared: Vec<Shared> =
        HostGroup::in_process(2).into_iter().map(|group| Shared::in_test(group, Arc::default())).collect();
    let (input, mut output) = ([1f32], [0f32]);
    let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
    let counters = &shared[0].recorder().counters;
    let kind = Kind::of(Digest { collective: 2, ..Digest::decode(0) }.encode(), Link::SharedMemory).unwrap();
    let own = Prepared { counter: counters.counter(kind, 12), ..sum(0, 2, 1) };
    let sums = [own, sum(1, 2, 1)];
    let bindings = sums.each_ref().map(|sum| binding(sum, &inputs, &outputs, 0));
    let works = [0, 1].map(|rank| work(&shared[rank], &bindings[rank]));
    let calls = if cfg!(miri) { 3 } else { 2 * ENTRIES + 3 };
    for number in 1..=calls {
        let mut calls = works.each_ref().map(|work| Call::start(work).ok().unwrap());
        let wait = calls[0].advance(&works[0]).unwrap().unwrap();
        // One of the calls at the first place, and others.
        let waited = matches!(number % (2 * ENTRIES), 0 | 3);
        if waited {
            calls[0].note_wait(&shared[0], wait);
            assert_eq!(calls[0].run().number, number as u64);
        }
        assert!(calls[1].advance(&works[1]).unwrap().is_none() && calls[0].advance(&works[0]).unwrap().is_none());
        if number % 500 == 0 || number % ENTRIES < 4 {
            let last = shared[0].recorder().ended().pop().unwrap();
            assert_eq!((last.run.number, last.run.started > 0), (number as u64, waited));
            assert_eq!((last.run.waited_for.rank(), last.error), (waited.then_some(1), None));
        }
    }
    for shared in &shared {
        let numbers: Vec<u64> = shared.recorder().ended().iter().map(|ended| ended.run.number).collect();
        assert!(numbers.iter().copied().eq(calls.saturating_sub(ENTRIES) as u64 + 1..=calls as u64), "{numbers:?}");
    }
    let totals = counters.totals();
    assert_eq!((totals.len(), totals[0].1.calls, totals[0].1.bytes), (1, calls as u64, 12 * calls as u64));
}
