//! Tests of starts: the calls that are accepted, and the numbers that distinguish them.

use super::*;
use crate::engine::numbers::{MAX_RANGES, RECENT_LINES};

#[test]
fn a_call_of_long_ago_is_not_taken_for_one_that_has_its_number_again() {
    let shared: Vec<Shared> =
        HostGroup::in_process(2).into_iter().map(|group| Shared::in_test(group, Arc::default())).collect();
    let (input, mut output) = ([1f32], [0f32]);
    let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
    let sums = [0, 1].map(|rank| sum(rank, 2, 1));
    let bindings = sums.each_ref().map(|sum| binding(sum, &inputs, &outputs, 0));
    let works = [0, 1].map(|rank| work(&shared[rank], &bindings[rank]));
    let mut calls = works.each_ref().map(|work| Call::start(work).ok().unwrap());
    let own = calls[0].fingerprint();
    assert!(calls[0].advance(&works[0]).unwrap().is_some());
    assert!(calls[1].advance(&works[1]).unwrap().is_none() && calls[0].advance(&works[0]).unwrap().is_none());
    let line = (kind(own), 0);
    let seen = || shared[0].other_call(0, own ^ 1);
    assert_eq!(seen(), Some((1, own)));
    for _ in 1..CALLS_PER_CLEANUP {
        shared[1].claim(line, false, 7, true).unwrap();
        shared[1].release(line);
    }
    assert_eq!(seen(), None);
}

#[test]
fn two_calls_of_a_kind_on_a_tag_are_refused() {
    let group = HostGroup::in_process(2).remove(0);
    let shared = Shared::in_test(group, Arc::default());
    let sum = sum(0, 2, 1);
    let (input, mut output) = ([1f32], [0f32]);
    let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
    let binding = [1, 2].map(|tag| binding(&sum, &inputs, &outputs, tag));
    let start = |binding| Call::start(&work(&shared, binding));
    let mut first = start(&binding[0]).ok().unwrap();
    assert_eq!(first.advance(&work(&shared, &binding[0])).unwrap(), Some(Wait::Publication { member: 1, number: 0 }));
    assert!(matches!(start(&binding[0]), Err(Refused::Running(_))));
    assert!(start(&binding[1]).is_ok());
    first.withdraw(&shared);
    assert!(start(&binding[0]).is_ok());
    shared.close();
    assert!(matches!(start(&binding[0]), Err(Refused::Unusable)));
}

#[test]
fn a_call_without_a_number_is_refused() {
    let shared = Shared::in_test(HostGroup::in_process(2).remove(0), Arc::default());
    // No two of these tags are adjacent.
    for tag in (0..).step_by(2).take(MAX_RANGES + RECENT_LINES + 1) {
        shared.claim((1, tag), false, 1, true).unwrap();
        shared.release((1, tag));
    }
    let (sum, (input, mut output)) = (sum(0, 2, 1), ([1f32], [0f32]));
    let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
    let start = |tag| {
        let binding = binding(&sum, &inputs, &outputs, tag);
        let work = work(&shared, &binding);
        Call::start(&work).map(|mut call| call.withdraw(&shared)).err()
    };
    assert!(matches!(start(1), Some(Refused::Uncounted)));
    assert!(matches!(start(1), Some(Refused::Uncounted)), "the first one is not in progress");
    assert!(start(0).is_none(), "counted before");
}
