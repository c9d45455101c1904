//! Random jobs that one of the ranks aborts.

use std::sync::Arc;
use std::time::Duration;

use super::calls::CollectiveCall;
use super::job::{Job, Work, contexts_of_hosts};
use super::messages::Messages;
use super::seeds::{run, seeds};
use crate::collective::Collective;
use crate::context::Context;
use crate::testing::loopback::{LinkModel, Network, Random};
use crate::testing::tier::Tier;
use crate::transport::Sharing;

/// Longest time for which a piece of a stream or a connection is on its way.
const DELAY: Duration = Duration::from_micros(100);
/// The device takes up what comes for a context that a thread has just left, within that time.
const BACKGROUND: Duration = Duration::from_millis(20);

fn link_model(random: &mut Random) -> LinkModel {
    let mut above = || (!random.one_in(3)).then(|| 1 << random.below(17));
    let (reads_above, places_above) = (above(), above());
    LinkModel {
        delay: Duration::from_micros(1)..DELAY,
        capacity: 10_000 + random.below(200_000),
        piece: 1000 + random.below(40_000),
        reads_above,
        places_above,
    }
}

/// Works of `size` ranks, of which one aborts before the last ones. Also returns which one.
fn works(random: &mut Random, size: usize, call: impl Fn(&mut Random) -> CollectiveCall) -> (Vec<Work>, usize) {
    let work = |random: &mut Random| match random.below(4) {
        0 => Work::Messages(Messages::random(random, true)),
        _ => Work::Call(call(random)),
    };
    let by = random.below(size);
    let mut works: Vec<Work> = (0..random.below(3)).map(|_| work(random)).collect();
    works.push(Work::Abort(by, Duration::from_micros(random.below(2000) as u64)));
    works.extend((0..1 + random.below(3)).map(|_| work(random)));
    // Nobody gets through this one without the rank that has aborted.
    works.push(Work::Call(CollectiveCall::plain(Collective::Barrier, "dissemination", size, 0)));
    (works, by)
}

fn over_messages(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let size = 2 + random.below(6);
    let link_model = link_model(&mut random);
    let (works, by) = works(&mut random, size, |random| CollectiveCall::random(random, size, true));
    let job = Job::run(random.bits(), link_model, size, seed.is_multiple_of(8), &works, |_| {});
    ends(job, by, size)
}

fn in_shared_memory(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let one_host = !seed.is_multiple_of(3);
    let size = if one_host { 2 } else { 3 } + random.below(4);
    let link_model = link_model(&mut random);
    let network = Network::new(random.bits(), link_model);
    let found = if random.one_in(2) { Sharing::Processes } else { Sharing::Segments };
    let hosts: Vec<u64> = (0..size).map(|rank| if one_host { 1 } else { 1 + rank as u64 % 2 }).collect();
    let contexts: Vec<Arc<Context>> = contexts_of_hosts(&network, &hosts, &Job::options(false), found);
    let (works, by) = works(&mut random, size, |random| match one_host {
        true => CollectiveCall::of_one_host(random, size, 3000),
        false => CollectiveCall::between_hosts(random, size, 3000),
    });
    ends(Job::over(network, contexts, &works), by, size)
}

/// All ranks know of it after a chain of connections at most.
fn ends(job: Job, by: usize, size: usize) -> Result<(), String> {
    let within = (4 * DELAY + BACKGROUND) * size as u32;
    match job.check_aborted(by, within)? {
        errors if errors == size => Ok(()),
        errors => Err(format!("{errors} of {size} ranks have noticed the abort")),
    }
}

/// `SEEDS=20000` sets the number of fixed seeds; `SEED=7` runs only that one.
#[test]
fn an_abort_ends_random_jobs_on_all_ranks() {
    let seeds = seeds(Tier::from_environment().of(100, 1500, 50_000), "", 300);
    run(&seeds, over_messages, "simulation::abort", "");
}

#[test]
fn an_abort_ends_random_jobs_in_shared_memory_on_all_ranks() {
    let seeds = seeds(Tier::from_environment().of(50, 500, 20_000), "", 100);
    run(&seeds, in_shared_memory, "simulation::abort", "");
}
