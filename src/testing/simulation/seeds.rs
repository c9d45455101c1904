//! Random jobs, one per seed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::calls::CollectiveCall;
use super::job::{Job, Work};
use super::messages::Messages;
use crate::testing::loopback::{LinkModel, NodeStatus, Random};
use crate::testing::tier::Tier;

/// Seeds that found a defect when they were drawn.
const FOUND: &str = include_str!("seeds.txt");
/// Number of seeds that a commit or a time gives.
const DRAWN: u64 = 2000;

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
    let max = 1 << random.below(19);
    let bytes = random.below(max) as u64;
    let job = Job::run(random.bits(), link_model, size, checks, &works, |network| {
        if let Some(culprit) = culprit {
            network.fail_after(culprit, bytes, status);
        }
    });
    job.check(culprit)
}

/// The job of one seed.
pub type Play = fn(u64) -> Result<(), String>;

fn played(play: Play, seed: u64) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| play(seed))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned())
    })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// The seeds that `text` names, one a line; what follows a `#` is a comment.
fn listed(text: &str) -> impl Iterator<Item = u64> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(|line| line.parse().unwrap_or_else(|_| panic!("seeds.txt: {line}")))
}

/// The numbers below `fixed`, and those `found` before. Where DRAW is set, also as many as `drawn`, which its text, a
/// commit's name or a time, gives. SEED, in the environment, is the only one, and SEEDS replaces `fixed`.
pub fn seeds(fixed: u64, found: &str, drawn: u64) -> Vec<u64> {
    if let Some(seed) = number("SEED") {
        return vec![seed];
    }
    let mut seeds: Vec<u64> = (0..number("SEEDS").unwrap_or(fixed)).chain(listed(found)).collect();
    if let Ok(text) = std::env::var("DRAW") {
        let digest = Sha256::digest(text.as_bytes());
        // Above all fixed ones.
        let first = (1 << 32) | u64::from(u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]));
        println!("{drawn} seeds drawn from {text}: {first} and up");
        seeds.extend(first..first + drawn);
    }
    seeds
}

/// `SEEDS=20000` sets the number of fixed seeds; `SEED=7` runs only that one.
#[test]
fn random_jobs() {
    let fixed = Tier::from_environment().of(300, 20_000, 200_000);
    run(
        &seeds(fixed, FOUND, DRAWN),
        play,
        "simulation::seeds",
        "Add it to src/testing/simulation/seeds.txt, with what it found, if it is not among the first 20000.",
    );
}

/// Runs the jobs of `seeds`, of the tests in `module`. `then`: what to do with a seed whose job goes wrong.
pub fn run(seeds: &[u64], play: Play, module: &str, then: &str) {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    if let Err(wrong) = played(play, seed) {
                        failed.fetch_add(1, Ordering::Relaxed);
                        println!("{wrong}\nThis was SEED={seed}. To repeat it: SEED={seed} cargo test --lib {module} -- --nocapture");
                        println!("{then}");
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("{} seeds, {failed} failed", seeds.len());
    assert_eq!(failed, 0, "seeds whose jobs went wrong");
}
