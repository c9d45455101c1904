//! Ranks are killed, stopped, or leave in the middle of random collectives, as often as is asked for. Every survivor's
//! call ends with an error that names the rank, the survivors go on with a new context, over the same store or by a
//! shrink, and nothing of the lost one is left. How long the error took is printed; it decides nothing.
//!
//! The ranks are forked from this process, which must have a single thread: so it does without the test harness.
//!
//! ```text
//! cargo test --test recovery -- [kills] [stops] [exits] [--kills N] [--ranks 2,4,8] [--seed N] [--json FILE]
//! ```

#[path = "../jobs/failures/calls.rs"]
mod calls;
mod host;
mod job;
mod options;
mod rank;
mod report;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use job::{Failure, Job};
use options::Options;
use rank::{Leave, Order, Without};
use report::Latencies;
use support::Random;

/// Timeout of calls that a lost rank must end before.
const LONG: Duration = Duration::from_secs(5);
/// Timeout of calls that a stopped rank keeps waiting; others end before it, also on a busy machine.
const SHORT: Duration = Duration::from_millis(1500);
/// The longest time from the beginning of the calls to the kill.
const LATEST_KILL: Duration = Duration::from_millis(10);

/// Nanoseconds of the monotonic clock, which all processes share.
pub fn clock() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills `now`.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) }, 0);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn main() {
    let options = Options::from_arguments();
    host::mount_own_dev_shm();
    if options.wants("kills") {
        let latencies: Vec<_> = options.ranks.iter().map(|size| kills(*size, &options)).collect();
        report::print(&latencies, &options);
    }
    if options.wants("stops") {
        stops(4, 4, &options);
    }
    if options.wants("exits") {
        exits(4, 30, &options);
    }
}

fn order(options: &Options, generation: usize, rank: usize, size: usize) -> Order {
    let seed = options.seed.wrapping_add((generation * 16 + size) as u64);
    Order { generation, rank, size, seed, timeout: LONG, leave: (Leave::Never, 0), without: Without::Connect }
}

/// Checks that the error of `rank` names `lost`, and that its context says that it is broken because of it.
fn assert_names(lost: usize, rank: usize, failure: &Failure) {
    let text = &failure.text;
    assert_eq!(
        (failure.rank, failure.broken_by),
        (lost as i64, lost as i64),
        "rank {rank}, not of rank {lost}: {text}"
    );
    assert!(text.starts_with(&format!("rank {rank}: ")) && text.contains(&format!("rank {lost} at ")), "{text}");
}

/// Asserts that the failure names a rank that is gone, and that no call waited for its timeout.
fn assert_lost(lost: usize, rank: usize, failure: &Failure) {
    assert_names(lost, rank, failure);
    assert_eq!(failure.kind, "ConnectionLost", "rank {rank}: {}", failure.text);
}

/// A job of `size` ranks loses one after the other.
fn kills(size: usize, options: &Options) -> Latencies {
    let kills = options.kills.div_ceil(options.ranks.len());
    let mut random = Random::new(options.seed.wrapping_add(size as u64));
    let mut latencies = Latencies::new(size);
    // A job lasts long enough for what it does not release to add up in one rank, which is never killed.
    let jobs = (kills / 100).clamp(2, 25);
    for number in 0..jobs {
        let mut job = Job::new(size);
        let spared = random.below(size);
        let mut contexts = Vec::new();
        for generation in 0..kills / jobs + usize::from(number < kills % jobs) {
            let victim = (spared + 1 + random.below(size - 1)) % size;
            // The others go on in either way.
            let without = [Without::Connect, Without::Shrink][generation % 2];
            let order = |rank| Order { without, ..order(options, number * 1000 + generation, rank, size) };
            job.start(order);
            assert_eq!(host::files("/dev/shm"), [""; 0], "of ranks that are connected");
            std::thread::sleep(Duration::from_nanos(random.below(LATEST_KILL.as_nanos() as usize) as u64));
            let killed = clock();
            job.signal(victim, libc::SIGKILL);
            for rank in (0..size).filter(|rank| *rank != victim) {
                let failure = job.failure(rank);
                assert_lost(victim, rank, &failure);
                latencies.failed(failure.ended.saturating_sub(killed), &failure.text);
            }
            job.replace(victim);
            for rank in (0..size).filter(|rank| *rank != victim) {
                latencies.went_on(without, job.went_on(rank) - killed);
                job.ready(rank);
            }
            latencies.kills += 1;
            contexts.push((order(0).prefix(false), size));
            if without == Without::Connect {
                contexts.push((order(0).prefix(true), size - 1));
            }
            assert_eq!(host::files("/dev/shm"), [""; 0]);
        }
        job.check_files(&contexts);
    }
    latencies
}

/// A rank is stopped until all others have given up.
fn stops(size: usize, stops: usize, options: &Options) {
    let mut random = Random::new(options.seed);
    let mut job = Job::new(size);
    for generation in 0..stops {
        let victim = random.below(size);
        job.start(|rank| Order { timeout: SHORT, without: Without::No, ..order(options, generation, rank, size) });
        std::thread::sleep(Duration::from_nanos(random.below(LATEST_KILL.as_nanos() as usize) as u64));
        job.signal(victim, libc::SIGSTOP);
        let mut timeouts = 0;
        for rank in (0..size).filter(|rank| *rank != victim) {
            let failure = job.failure(rank);
            assert_names(victim, rank, &failure);
            // Others have the reason from those that timed out.
            if failure.kind == "Timeout" {
                assert!(failure.ended - failure.began >= SHORT.as_nanos() as u64, "{failure:?}");
                timeouts += 1;
            } else {
                assert!(failure.kind == "ConnectionLost" && failure.text.contains("timed out after"), "{failure:?}");
            }
        }
        assert!(timeouts > 0);
        job.signal(victim, libc::SIGCONT);
        let failure = job.failure(victim);
        assert!(matches!(failure.kind.as_str(), "Timeout" | "ConnectionLost"), "{failure:?}");
        assert_ne!(failure.broken_by, -1, "{failure:?}");
        // All ranks go on with the next context.
        (0..size).for_each(|rank| job.ready(rank));
    }
    println!("stops: {stops} of {size} ranks, one after the other: all others named it, and it went on with them");
}

/// A rank exits, with and without destroying its context.
fn exits(size: usize, exits: usize, options: &Options) {
    let mut random = Random::new(options.seed);
    let mut job = Job::new(size);
    for generation in 0..exits {
        let (victim, how) = (random.below(size), [Leave::Exit, Leave::ExitInside, Leave::Close][generation % 3]);
        let calls = random.below(20);
        job.start(|rank| {
            let leave = if rank == victim { (how, calls) } else { (Leave::Never, 0) };
            let without = [Without::Connect, Without::Shrink][generation / 3 % 2];
            Order { leave, without, ..order(options, generation, rank, size) }
        });
        for rank in (0..size).filter(|rank| *rank != victim) {
            let failure = job.failure(rank);
            assert_lost(victim, rank, &failure);
            let closed = failure.text.contains(" has closed its context");
            assert!(how == Leave::Close || !closed, "{}", failure.text);
        }
        job.replace(victim);
        for rank in (0..size).filter(|rank| *rank != victim) {
            job.went_on(rank);
            job.ready(rank);
        }
    }
    println!("exits: {exits} of {size} ranks, one after the other: all others named it, and went on without it");
}
