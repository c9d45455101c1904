//! Random jobs, one per seed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::calls::CollectiveCall;
use super::job::{Job, Work};
use super::messages::Messages;
use crate::transport::loopback::{LinkModel, NodeStatus, Random};

/// Number of seeds if `SEEDS` is not set.
const SEEDS: u64 = 300;

/// Runs the job of one seed; the error describes what is wrong.
fn play(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let size = 2 + random.below(7);
    // With little capacity or small pieces, large messages would take too long.
    let tight = random.one_in(3);
    let checks = random.one_in(4);
    let works: Vec<Work> = (0..1 + random.below(4))
        .map(|_| match random.below(8) {
            0 | 1 => Work::Messages(Messages::random(&mut random, !tight)),
            2 if checks => {
                let call = CollectiveCall::random(&mut random, size, false);
                let other = call.another(&mut random);
                Work::Mismatch(call, random.below(size), other)
            }
            _ => Work::Call(CollectiveCall::random(&mut random, size, !tight)),
        })
        .collect();
    let delay = [1, 50, 2000][random.below(3)];
    let link_model = LinkModel {
        delay: Duration::from_micros(1)..Duration::from_micros(1 + delay),
        capacity: if tight { 50 + random.below(300) } else { 10_000 + random.below(200_000) },
        piece: if tight { 1 + random.below(60) } else { 1000 + random.below(40_000) },
        reads_above: None,
        places_above: None,
    };
    let mut above = || (!random.one_in(3)).then(|| 1 << random.below(17));
    let link_model = LinkModel { reads_above: above(), places_above: above(), ..link_model };
    let culprit = (!random.one_in(2)).then(|| random.below(size));
    let status = if random.one_in(2) { NodeStatus::Crashed } else { NodeStatus::Silent };
    let most = 1 << random.below(19);
    let bytes = random.below(most) as u64;
    let job = Job::run(random.bits(), link_model, size, checks, &works, |network| {
        if let Some(culprit) = culprit {
            network.fail_after(culprit, bytes, status);
        }
    });
    job.check(culprit)
}

fn played(seed: u64) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| play(seed))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned())
    })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// `SEEDS=20000` sets the number of seeds; `SEED=7` runs only that one.
#[test]
fn random_jobs() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !seeds.contains(&seed) {
                        return;
                    }
                    if let Err(wrong) = played(seed) {
                        failed.fetch_add(1, Ordering::Relaxed);
                        println!("SEED={seed}\n{wrong}");
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("{} seeds, {failed} failed", seeds.end - seeds.start);
    assert_eq!(failed, 0, "play one alone: SEED=n cargo test --lib simulation::seeds -- --nocapture");
}
