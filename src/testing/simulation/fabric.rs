//! Jobs whose links are queue pairs of a simulated fabric.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::calls::CollectiveCall;
use super::job::{Job, Work, contexts_on, reliable};
use super::messages::Messages;
use super::{Body, idle, sleep};
use crate::collective::{Collective, Shape};
use crate::context::{Call, Context};
use crate::error::Result;
use crate::schedule::Action;
use crate::testing::fake_ibverbs::{DeviceModel, Fabric, LeftBehind, fabric_node};
use crate::testing::loopback::{Network, NodeStatus, Random};
use crate::testing::tier::Tier;
use crate::transport::ibverbs::rail::PathOptions;
use crate::transport::{Counters, Device};
use crate::types::DataType;

/// The time of a step of a packet.
const DELAY: Range<Duration> = Duration::from_micros(1)..Duration::from_micros(20);
/// A connection breaks after four times 4 ms.
const PATH: PathOptions = PathOptions { traffic_class: 0, timeout: 10, retry_count: 3 };

/// Contexts of `size` ranks with `rails` ports each, connected by queue pairs of a fabric.
fn contexts(
    seed: u64,
    size: usize,
    rails: usize,
    check_calls: bool,
) -> (Network, Fabric, LeftBehind, Vec<Arc<Context>>) {
    let network = Network::new(seed, reliable());
    let fabric = Fabric::beside(&network, seed, DELAY);
    let left = LeftBehind::new(&network);
    let node = |rank: usize| -> Arc<dyn Device> {
        let device = |rail: usize| DeviceModel::roce(&format!("fake{rail}"), (rank * rails + rail) as u16);
        fabric.add_node(rank, (0..rails).map(device).collect());
        fabric_node(&network, &fabric, &left, PATH, sleep)
    };
    let contexts = contexts_on((0..size).map(node).collect(), &Job::options(check_calls));
    (network, fabric, left, contexts)
}

/// Runs `works` on `size` ranks with `rails` ports each. `script` may schedule failures first.
fn run(
    seed: u64,
    size: usize,
    rails: usize,
    works: &[Work],
    script: impl FnOnce(&Network, &Fabric),
) -> (Job, Fabric, LeftBehind) {
    let (network, fabric, left, contexts) = contexts(seed, size, rails, seed.is_multiple_of(2));
    script(&network, &fabric);
    (Job::over(network, contexts, works), fabric, left)
}

/// Closes the contexts, and lets time pass until their links have ended.
fn close(contexts: Vec<Arc<Context>>, fabric: &Fabric, left: &LeftBehind) {
    contexts.iter().for_each(|context| context.close());
    drop(contexts);
    left.finish(fabric);
}

fn works(random: &mut Random, size: usize) -> Vec<Work> {
    let work = |_| match random.below(4) {
        0 => Work::Messages(Messages::random(random, true)),
        _ => Work::Call(CollectiveCall::random(random, size, true)),
    };
    (0..3).map(work).collect()
}

/// `SEEDS=400` sets the number of seeds; `SEED=7` plays only that one.
fn seeds() -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    number("SEED").map_or(0..number("SEEDS").unwrap_or(20), |seed| seed..seed + 1)
}

#[test]
fn calls_succeed_over_queue_pairs() {
    let mut posted = 0;
    for seed in seeds() {
        let mut random = Random::new(seed);
        let (size, rails) = (2 + random.below(4), 1 + random.below(2));
        let works = works(&mut random, size);
        let (job, fabric, left) = run(seed, size, rails, &works, |network, fabric| {
            // Memory is registered slowly.
            if seed % 3 == 0 {
                let network = network.clone();
                fabric.on_registration(move |_, _| network.step(network.now() + Duration::from_millis(20)));
            }
        });
        job.check(None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        left.finish(&fabric);
        assert_eq!(fabric.rnr(), 0, "seed {seed}");
        posted += fabric.counts(0).doorbells[0];
        fabric.assert_clean();
    }
    assert!(posted > 0 || seeds().count() == 1);
}

/// Devices that register the frames of all connections, but no buffers of the pool: large messages are sent in the
/// stream.
#[test]
fn calls_succeed_where_the_pool_cannot_be_registered() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        let size = 2 + random.below(3);
        let works = works(&mut random, size);
        let (job, fabric, left) = run(seed, size, 1, &works, |_, fabric| {
            for node in 0..size {
                // The frames of a connection have 1 MiB, bound buffers little, and a chunk of the pool has 4 MiB.
                fabric.limit_registered_bytes(node, ((size as u64 - 1) << 20) + (900 << 10));
            }
        });
        job.check(None).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        left.finish(&fabric);
        assert_eq!(fabric.rnr(), 0, "seed {seed}");
        fabric.assert_clean();
    }
}

#[test]
fn all_learn_that_a_rank_fails() {
    let mut failed = 0;
    for seed in seeds() {
        let mut random = Random::new(seed);
        let size = 2 + random.below(4);
        let works = works(&mut random, size);
        let culprit = random.below(size);
        let status = if seed.is_multiple_of(2) { NodeStatus::Crashed } else { NodeStatus::Silent };
        let (bytes, requests) = (random.below(2000) as u64, random.below(40) as u64);
        let (job, fabric, left) = run(seed, size, 1, &works, |network, fabric| match seed % 4 {
            0 | 1 => fabric.fail_after(culprit, requests, status),
            _ => network.fail_after(culprit, bytes, status),
        });
        failed += u64::from(job.network.status(culprit) != NodeStatus::Running);
        job.check(Some(culprit)).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        left.finish(&fabric);
        fabric.assert_clean();
    }
    assert!(failed > 0 || seeds().count() == 1);
}

/// Each work request of a job fails, one in each play, in every way that a device reports.
#[test]
fn a_work_request_that_fails_ends_the_job() {
    use ibverbs_sys::ibv_wc_status as status;
    let statuses = [
        status::IBV_WC_RETRY_EXC_ERR,
        status::IBV_WC_LOC_PROT_ERR,
        status::IBV_WC_REM_ACCESS_ERR,
        status::IBV_WC_FATAL_ERR,
    ];
    // A job in which the rank posts many requests.
    let job = |seed| {
        let works = works(&mut Random::new(seed), 3);
        let play = move |script: &dyn Fn(&Fabric)| {
            let (job, fabric, left) = run(seed, 3, 1, &works, |_, fabric| script(fabric));
            let errors = job.check_ends();
            left.finish(&fabric);
            fabric.assert_clean();
            (errors, fabric)
        };
        let (errors, fabric) = play(&|_| ());
        assert_eq!(errors.expect("all goes well").len(), 0);
        let counts = fabric.counts(1);
        let requests = counts.sends.iter().chain(&counts.writes).sum::<u64>() + counts.reads;
        (requests, play)
    };
    let (requests, play) = (0..).map(job).find(|(requests, _)| (40..200).contains(requests)).expect("there are many");
    let mut failed = 0;
    // A number that has no divisor in common with that of the kinds of status.
    let step = Tier::from_environment().of(3, 1, 1);
    for n in (0..requests).step_by(step) {
        let status = statuses[n as usize % statuses.len()];
        let (errors, _) = play(&|fabric| fabric.fail_request(1, n, status));
        let errors = errors.unwrap_or_else(|wrong| panic!("request {n} with status {status}: {wrong}"));
        failed += u64::from(!errors.is_empty());
        // Only rank 1 sees the request's status; the others have it from its close notice.
        for error in errors {
            assert!(error.message().contains("fake0:1"), "request {n} with status {status}: {error}");
        }
    }
    // Only requests at the end of the job may fail without an error.
    assert!(failed > requests / step as u64 / 2, "{failed} of {requests}");
}

/// An allreduce of one number.
fn allreduce(context: &Context) -> Result<()> {
    allreduce_by(context, None, &[1.0], &mut [0.0])
}

fn allreduce_by(context: &Context, algorithm: Option<&str>, input: &[f32], output: &mut [f32]) -> Result<()> {
    let call = Call {
        algorithm,
        inputs: &[input.as_ptr().cast()],
        outputs: &[output.as_mut_ptr().cast()],
        tag: 3,
        ..Call::new(Shape::new(Collective::Allreduce, context.rank(), context.size(), input.len()), DataType::Float32)
    };
    // SAFETY: both buffers have so many numbers, and live until the call returns.
    unsafe { context.run(&call) }
}

/// What each rank's queue pairs have done for three calls, after eight others.
fn count_allreduces(size: usize, algorithm: &str, count: usize) -> Vec<Counters> {
    let (network, fabric, left, contexts) = contexts(5, size, 1, false);
    let mut counts: Vec<[Counters; 2]> = vec![Default::default(); size];
    let bodies = contexts.iter().zip(&mut counts).map(|(context, counts)| -> Body<'_> {
        Box::new(move || {
            let input: Vec<f32> = (0..count).map(|at| (at % 100 + context.rank()) as f32).collect();
            let mut output = vec![0.0; count];
            for (calls, into) in [8, 3].into_iter().zip(counts.iter_mut()) {
                for _ in 0..calls {
                    allreduce_by(context, Some(algorithm), &input, &mut output).expect("all is well");
                }
                *into = context.counters().expect("a context").expect("it has queue pairs");
            }
            let ranks = (size * (size - 1) / 2) as f32;
            assert!((0..count).all(|at| output[at] == (at % 100 * size) as f32 + ranks));
        })
    });
    super::run(&network, bodies.collect(), |rank| contexts[rank].close());
    close(contexts, &fabric, &left);
    fabric.assert_clean();
    let difference = |[before, after]: [Counters; 2]| Counters {
        writes: after.writes - before.writes,
        reads: after.reads - before.reads,
        registrations: after.registrations - before.registrations,
        written_bytes: after.written_bytes - before.written_bytes,
        ..after
    };
    counts.into_iter().map(difference).collect()
}

/// The frames of a later connection need memory that can be registered only once the pool, which a message has used,
/// gives it back.
#[test]
fn a_later_connection_takes_memory_from_the_pool() {
    const BYTES: usize = 512 << 10;
    let (network, fabric, left, contexts) = contexts(6, 3, 1, false);
    // Frames of a connection, a chunk of the pool, and half of what another connection needs.
    (0..2).for_each(|node| fabric.limit_registered_bytes(node, (1 << 20) + (4 << 20) + (512 << 10)));
    let network = &network;
    let bodies = contexts.iter().map(|context| -> Body<'_> {
        Box::new(move || {
            let mut memory: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8 + 1).collect();
            // SAFETY: it is dropped before the memory.
            let buffer = unsafe { context.unbound_buffer(memory.as_mut_ptr(), BYTES) }.expect("a buffer");
            if context.rank() == 2 {
                idle(network, Duration::from_millis(20));
            }
            for turn in 0..3 {
                match context.rank() {
                    0 => {
                        buffer.send(1, 5, 0, BYTES).expect("it is posted");
                        buffer.wait_send(None).expect("it is sent");
                    }
                    1 => {
                        buffer.recv(&[0], 5, 0, BYTES).expect("it is posted");
                        buffer.wait_recv(None).expect("it arrives");
                    }
                    _ => {}
                }
                if turn == 0 && context.rank() < 2 {
                    let used = context.counters().expect("a context").expect("it has queue pairs");
                    assert_eq!(used.registrations, 2, "frames and a chunk of the pool");
                }
                allreduce(context).expect("all ranks connect");
            }
            drop(buffer);
            assert!((0..BYTES).all(|at| memory[at] == (at % 251) as u8 + 1));
        })
    });
    super::run(network, bodies.collect(), |rank| contexts[rank].close());
    close(contexts, &fabric, &left);
    fabric.assert_clean();
}

/// Every byte of a large message that the schedule sends is written once, by RDMA, and nothing is registered any more.
#[test]
fn the_bytes_of_writes_are_those_that_the_schedule_sends() {
    const COUNT: usize = 1 << 18;
    for size in [3, 2, 4].into_iter().take(Tier::from_environment().of(1, 3, 3)) {
        let algorithms = ["ring", "halving_doubling", "ring_chunked", "recursive_doubling"];
        for algorithm in algorithms.into_iter().take(Tier::from_environment().of(2, 4, 4)) {
            for (rank, counts) in count_allreduces(size, algorithm, COUNT).into_iter().enumerate() {
                let shape = Shape::new(Collective::Allreduce, rank, size, COUNT);
                let found = Collective::Allreduce.algorithm(algorithm).expect("there is such an algorithm");
                let schedule = (found.generate)(&shape).expect("the shape is valid");
                let sent = schedule.steps.iter().map(|step| match step.action {
                    Action::Send { from, .. } => from.len,
                    _ => 0,
                });
                let what = format!("rank {rank} of {size}, {algorithm}: {counts:?}");
                assert_eq!(counts.written_bytes, 3 * 4 * sent.sum::<usize>() as u64, "{what}");
                assert_eq!((counts.reads, counts.registrations), (0, 0), "{what}");
                assert!(counts.writes > 0, "{what}");
            }
        }
    }
}

/// Rank 0 waits for rank 1, which makes its second call late; meanwhile `change` happens. Returns the result of rank 0,
/// and how long after the change it ended.
fn play_waiting(change: impl Fn(&Fabric)) -> (Result<()>, Duration) {
    const BEFORE: Duration = Duration::from_secs(1);
    let (network, fabric, left, contexts) = contexts(3, 2, 1, false);
    let mut ended = None;
    let waits: Body<'_> = Box::new(|| {
        allreduce(&contexts[0]).expect("all is well");
        let began = network.now();
        let result = allreduce(&contexts[0]);
        ended = Some((result, (network.now() - began).saturating_sub(BEFORE)));
    });
    let is_late: Body<'_> = Box::new(|| {
        allreduce(&contexts[1]).expect("all is well");
        idle(&network, BEFORE);
        change(&fabric);
        idle(&network, 4 * BEFORE);
        let _ = allreduce(&contexts[1]);
    });
    super::run(&network, vec![waits, is_late], |rank| contexts[rank].close());
    close(contexts, &fabric, &left);
    ended.expect("rank 0 has ended")
}

/// What a change of rank 0's port or device does to it while it waits.
fn assert_noticed(change: impl Fn(&Fabric), what: &str) {
    let (result, took) = play_waiting(change);
    let error = result.expect_err("the message cannot come");
    assert!(took < Duration::from_secs(2), "{took:?}: {error}");
    assert_eq!(error.details().rank, Some(1), "{error}");
    assert!(error.message().contains("fake0:1") && error.message().contains(what), "{error}");
}

#[test]
fn a_rank_that_only_waits_notices_that_its_device_is_removed() {
    assert_noticed(|fabric| fabric.remove_device(0, 0), "fake0:1");
}

#[test]
fn a_rank_that_only_waits_notices_that_its_port_goes_down() {
    assert_noticed(|fabric| fabric.set_port(0, 0, 1, false), "its port is down");
}

#[test]
fn a_port_that_is_down_for_a_short_time_ends_nothing() {
    let (result, _) = play_waiting(|fabric| {
        fabric.set_port(0, 0, 1, false);
        fabric.set_port(0, 0, 1, true);
    });
    result.expect("retries have succeeded");
}
