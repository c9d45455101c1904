//! Every algorithm with few ranks, with each rank killed at each of its steps.

use std::time::Duration;

use super::calls::{CollectiveCall, collectives};
use super::job::{Job, Work};
use crate::testing::loopback::{LinkModel, NodeStatus, Random};
use crate::testing::tier::Tier;
use crate::wire::header::HEADER_BYTES;

/// Numbers of ranks that are tested.
fn sizes() -> std::ops::RangeInclusive<usize> {
    2..=Tier::from_environment().of(3, 4, 6)
}

/// How messages travel: through the stream, read out of the sender's memory, or placed in the receiver's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Stream,
    Reads,
    Placements,
}

fn link_model(by: By) -> LinkModel {
    let delay = Duration::from_micros(1)..Duration::from_micros(100);
    let [reads_above, places_above] = [By::Reads, By::Placements].map(|ability| (by == ability).then_some(8));
    LinkModel { delay, capacity: 100_000, piece: 10_000, reads_above, places_above }
}

/// Every step of a rank sends a message or ends the call. The rank is killed before each of its messages, within the
/// header, and within the payload.
#[test]
fn every_rank_is_killed_at_every_step() {
    let mut jobs = 0;
    let ways = [By::Stream, By::Reads, By::Placements];
    let all = ways.into_iter().flat_map(|by| sizes().map(move |size| (by, size)));
    let some = |(by, size): &(By, usize)| Tier::from_environment() > Tier::Check || *size == 2 || *by == By::Stream;
    for (by, size) in all.filter(some) {
        for collective in collectives(size) {
            for algorithm in collective.algorithms().iter().filter(|a| !a.uses.needs_shared_memory()) {
                let works = |seed: u64| {
                    let mut random = Random::new(seed);
                    [Work::Call(CollectiveCall::new(&mut random, collective, Some(algorithm), size, 5))]
                };
                let seed = (size * 1000 + collective as usize) as u64;
                let whole = Job::run(seed, link_model(by), size, false, &works(seed), |_| {});
                let sent: Vec<u64> = (0..size).map(|rank| whole.network.sent(rank)).collect();
                whole.check(None).unwrap_or_else(|wrong| panic!("{}, {size} ranks, {by:?}: {wrong}", algorithm.name));
                for (culprit, sent) in sent.into_iter().enumerate() {
                    // No message is shorter than its header, so every step is covered.
                    let step = Tier::from_environment().of(HEADER_BYTES, HEADER_BYTES / 2, HEADER_BYTES / 2);
                    for bytes in (0..=sent).step_by(step) {
                        let job = Job::run(seed + bytes, link_model(by), size, false, &works(seed), |network| {
                            network.fail_after(culprit, bytes, NodeStatus::Crashed);
                        });
                        jobs += 1;
                        job.check(Some(culprit)).unwrap_or_else(|wrong| {
                            panic!(
                                "{} {}, {size} ranks, {by:?}, rank {culprit} killed after {bytes} bytes: {wrong}",
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
