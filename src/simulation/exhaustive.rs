//! Every algorithm with few ranks, and every rank killed at every step.

use std::time::Duration;

use super::calls::{CollectiveCall, collectives};
use super::job::{Job, Work};
use crate::transport::loopback::{LinkModel, NodeStatus, Random};
use crate::wire::message::HEADER_BYTES;

/// Numbers of ranks.
const SIZES: std::ops::RangeInclusive<usize> = 2..=6;

fn link_model(reads: bool) -> LinkModel {
    let delay = Duration::from_micros(1)..Duration::from_micros(100);
    LinkModel { delay, capacity: 100_000, piece: 10_000, reads_above: reads.then_some(8) }
}

/// A rank's every step sends something or ends the call: it is killed in front of each of its messages, in the middle of its
/// header, and in the middle of its payload.
#[test]
fn every_rank_is_killed_at_every_step() {
    let mut jobs = 0;
    for (reads, size) in [false, true].into_iter().flat_map(|reads| SIZES.map(move |size| (reads, size))) {
        for collective in collectives(size) {
            for algorithm in collective.algorithms() {
                let works = |seed: u64| {
                    let mut random = Random::new(seed);
                    [Work::Call(CollectiveCall::new(&mut random, collective, Some(algorithm), size, 5))]
                };
                let seed = (size * 1000 + collective as usize) as u64;
                let whole = Job::run(seed, link_model(reads), size, false, &works(seed), |_| {});
                let sent: Vec<u64> = (0..size).map(|rank| whole.network.sent(rank)).collect();
                whole
                    .check(None)
                    .unwrap_or_else(|wrong| panic!("{}, {size} ranks, reads {reads}: {wrong}", algorithm.name));
                for (culprit, sent) in sent.into_iter().enumerate() {
                    // No message is shorter than its header, so every step of the rank is met.
                    for bytes in (0..=sent).step_by(HEADER_BYTES / 2) {
                        let job = Job::run(seed + bytes, link_model(reads), size, false, &works(seed), |network| {
                            network.fail_after(culprit, bytes, NodeStatus::Crashed);
                        });
                        jobs += 1;
                        job.check(Some(culprit)).unwrap_or_else(|wrong| {
                            panic!(
                                "{} {}, {size} ranks, reads {reads}, rank {culprit} killed after {bytes} bytes: {wrong}",
                                collective.name(),
                                algorithm.name
                            )
                        });
                    }
                }
            }
        }
    }
    println!("{jobs} jobs");
}
