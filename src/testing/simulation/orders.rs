//! Requests of several tags that each rank starts in an order of its own: one that waits for a peer holds up no other.

use std::sync::Arc;
use std::time::Duration;

use super::job::{Job, contexts, contexts_of_hosts, play_over, reliable};
use super::requests::sum;
use super::sleep;
use crate::context::Context;
use crate::engine::shared::program::MAX_LENGTHS;
use crate::messaging::matching::EAGER_BYTES;
use crate::testing::loopback::{Network, Random};
use crate::testing::tier::Tier;
use crate::transport::Sharing;

/// Requests of a rank.
const REQUESTS: usize = 4;

/// Longest time between two starts. Some messages take less.
const MAX_BETWEEN_US: usize = 40;

/// Copies and rings in shared memory have so many bytes at most: two of the requests are longer.
const LONGEST_BYTES: (usize, usize) = (64, 512);

type Order = [usize; REQUESTS];

/// Every order of the requests.
fn orders() -> Vec<Order> {
    let mut found = vec![Vec::new()];
    for _ in 0..REQUESTS {
        let longer = |begun: Vec<usize>| {
            (0..REQUESTS).filter(|next| !begun.contains(next)).map(|next| [&begun[..], &[next]].concat()).collect()
        };
        found = found.into_iter().flat_map(|begun| -> Vec<_> { longer(begun) }).collect();
    }
    found.into_iter().map(|order| order.try_into().expect("all requests")).collect()
}

/// The orders of all ranks. What the requests are does not depend on their tags, so rank 0 starts them in the order of
/// these; of the others, `number` names one of 24 orders each.
fn of_ranks(orders: &[Order], size: usize, number: usize) -> Vec<Order> {
    let others = (1..size as u32).map(|rank| number / orders.len().pow(rank - 1) % orders.len());
    std::iter::once(0).chain(others).map(|index| orders[index]).collect()
}

/// Runs a job in which each rank starts the requests in its order, and waits for them in this order or in the opposite
/// one.
fn play(network: &Network, contexts: &[Arc<Context>], counts: [usize; REQUESTS], orders: &[Order], number: usize) {
    let ended = play_over(network, contexts, |network, context| {
        let (rank, size) = (context.rank(), context.size() as i64);
        let mut random = Random::new((number * contexts.len() + rank) as u64);
        let mut data = counts.map(|count| vec![rank as i64; count]);
        let mut requests = Vec::new();
        for (tag, data) in data.iter_mut().enumerate() {
            requests.push(sum(context, None, tag as u64, data));
        }
        for tag in orders[rank] {
            requests[tag].start().unwrap();
            sleep(network.now() + Duration::from_micros(random.below(MAX_BETWEEN_US) as u64));
        }
        let mut waits = orders[rank];
        if number % 2 == 1 {
            waits.reverse();
        }
        waits.into_iter().for_each(|tag| requests[tag].wait().unwrap());
        drop(requests);
        assert!(data.iter().flatten().all(|sum| *sum == size * (size - 1) / 2));
    });
    assert!(ended.iter().all(Option::is_some), "the orders {orders:?} never end");
}

/// Runs a job for the orders of 2 to 4 ranks: of two all, of more as many as the tier says. `contexts` makes those of a
/// job.
fn play_all(counts: [usize; REQUESTS], contexts: impl Fn(&Network, usize) -> Vec<Arc<Context>>) {
    let (all, tier) = (orders(), Tier::from_environment());
    for size in 2..=4 {
        let number = all.len().pow(size as u32 - 1);
        // Numbers that are prime to that of the orders meet all orders of each rank.
        let every = if size == 2 { 1 } else { tier.of([61, 1009], [5, 101], [1, 1])[size - 3] };
        for number in (0..number).step_by(every) {
            let network = Network::new(number as u64, reliable());
            let contexts = contexts(&network, size);
            play(&network, &contexts, counts, &of_ranks(&all, size, number), number);
        }
    }
}

#[test]
fn requests_over_links_end_in_whatever_orders_they_were_started() {
    // Each message of the last count waits for a grant.
    let counts = [1, 20, 300, EAGER_BYTES];
    play_all(counts, |network, size| contexts(network, size, &Job::options(false)));
}

#[test]
fn requests_in_shared_memory_end_in_whatever_orders_they_were_started() {
    let before = MAX_LENGTHS.replace(LONGEST_BYTES);
    for found in [Sharing::Processes, Sharing::Segments] {
        let options = Job::options(false);
        play_all([1, 20, 300, 500], |network, size| contexts_of_hosts(network, &vec![1; size], &options, found));
    }
    MAX_LENGTHS.set(before);
}
