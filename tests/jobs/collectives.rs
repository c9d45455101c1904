//! Every collective over real TCP: random calls, with threads as ranks and with processes.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::support::tier::Tier;
use crate::support::{Case, Random};
use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Connect, Context, ContextOptions, Reduction};
use gloo_rs::rendezvous::{self, in_process::InProcessStore};
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::types::{DataType, ReduceOp};

fn device() -> Arc<Device> {
    Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap()
}

fn options(connect: Connect) -> ContextOptions {
    ContextOptions { timeout: Duration::from_secs(60), connect, ..Default::default() }
}

/// Runs `work` on `size` ranks that are threads, each with its own context, device and sockets.
fn threads(size: usize, connect: Connect, work: impl Fn(&Arc<Context>) + Sync) {
    let store = InProcessStore::new();
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (store, work) = (store.clone(), &work);
            scope.spawn(move || {
                let context = Context::new(device(), rank, size, &options(connect)).unwrap();
                context.connect(&*store).unwrap();
                work(&context);
            });
        }
    });
}

fn random_calls(context: &Context, seed: u64, calls: usize) {
    let mut random = Random::new(seed);
    for number in 0..calls {
        let case = Case::random(&mut random, context.size(), number as u64 % 3);
        if let Err(error) = case.run(context) {
            panic!("seed {seed}, call {number}: {error}");
        }
    }
}

#[test]
fn random_calls_with_threads_as_ranks() {
    for (size, calls) in [(1, 200), (2, 400), (3, 400), (4, 300), (5, 200), (7, 100), (8, 100), (13, 50)] {
        let calls = calls / Tier::from_environment().of(5, 1, 1);
        let connect = if size % 2 == 0 { Connect::Lazy } else { Connect::Full };
        threads(size, connect, |context| random_calls(context, size as u64, calls));
    }
}

/// In shared memory, ranks read such data while it is written.
#[test]
fn random_calls_on_long_buffers() {
    for (size, calls) in [(2, 60), (3, 40), (4, 40), (7, 15)] {
        let calls = calls / Tier::from_environment().of(5, 1, 1);
        threads(size, Connect::Full, |context| {
            let mut random = Random::new(size as u64);
            for number in 0..calls {
                let case = Case::random(&mut random, size, 0);
                let longer = |count: usize| (count * 50).min(500_000);
                let count = longer(case.count);
                let counts = case.counts.iter().map(|counts| counts.iter().copied().map(longer).collect()).collect();
                if let Err(error) = (Case { count, counts, algorithm: "auto", ..case }).run(context) {
                    panic!("{size} ranks, call {number}: {error}");
                }
            }
        });
    }
}

#[test]
fn calls_with_different_tags_run_at_the_same_time() {
    for size in [2, 4] {
        threads(size, Connect::Lazy, |context| {
            std::thread::scope(|scope| {
                for tag in 0..4 {
                    scope.spawn(move || {
                        let mut random = Random::new(100 + tag);
                        for number in 0..60 {
                            let case = Case::random(&mut random, context.size(), tag);
                            if let Err(error) = case.run(context) {
                                panic!("tag {tag}, call {number}: {error}");
                            }
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn a_context_connected_from_another() {
    threads(3, Connect::Lazy, |parent| {
        let child =
            Context::new(parent.device().clone(), parent.rank(), parent.size(), &options(Connect::Full)).unwrap();
        child.connect_from(parent, 77).unwrap();
        random_calls(&child, 5, 30);
        random_calls(parent, 6, 30);
        assert!((0..3).all(|rank| child.shares_host(rank).unwrap()));
    });
}

#[test]
fn every_rank_gets_the_same_bits() {
    let sums = std::sync::Mutex::new(Vec::new());
    for size in [2, 3, 5, 6, 8] {
        sums.lock().unwrap().clear();
        threads(size, Connect::Lazy, |context| {
            assert!((0..size).all(|rank| rank == context.rank() || context.shares_memory(rank).unwrap()));
            // Caches of which the ranks are not consecutive.
            let caches: Vec<u32> = (0..size as u32).map(|rank| rank % 2).collect();
            let mut results = Vec::new();
            for algorithm in Collective::Allreduce.algorithms().iter().filter(|a| a.name != "local") {
                let groups = if algorithm.uses.needs_shared_memory() { &caches[..] } else { &[] };
                for dtype in [DataType::Float16, DataType::Bfloat16, DataType::Float32, DataType::Float64] {
                    // Random bits: numbers of every magnitude, infinities, and NaNs of many kinds.
                    let count = 3001;
                    let mut random = Random::new(context.rank() as u64 * 77 + 5);
                    let input: Vec<u8> = (0..count * dtype.size()).map(|_| random.next() as u8).collect();
                    for op in [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max, ReduceOp::Average] {
                        let mut output = vec![0u8; input.len()];
                        let shape = Shape { groups, ..Shape::new(Collective::Allreduce, context.rank(), size, count) };
                        let call = Call {
                            inputs: &[input.as_ptr()],
                            outputs: &[output.as_mut_ptr()],
                            algorithm: Some(algorithm.name),
                            reduction: Reduction::Op(op),
                            max_segment_bytes: Some(1000 * (1 + context.size())),
                            ..Call::new(Shape { average: op == ReduceOp::Average, ..shape }, dtype)
                        };
                        // SAFETY: the vectors are as long as the shape says and live until the call returns.
                        unsafe { context.run(&call) }.unwrap();
                        results.push((format!("{} of {dtype} by {op}", algorithm.name), output));
                    }
                }
            }
            sums.lock().unwrap().push(results);
        });
        let sums = sums.lock().unwrap();
        for other in &sums[1..] {
            for ((what, a), (_, b)) in sums[0].iter().zip(other) {
                assert!(a == b, "{what}, {size} ranks: the results of two ranks differ");
            }
        }
    }
}

/// The lengths are of publications in a slot, in a cell, and in a stream.
#[test]
fn sums_in_shared_memory_are_in_the_order_of_ranks() {
    for size in [2, 3, 4, 7] {
        for count in [1, 7, 3001, 300_001, 2_100_003].into_iter().take(Tier::from_environment().of(4, 5, 5)) {
            let input = |rank: usize| -> Vec<f32> {
                let mut random = Random::new((rank * 31 + count) as u64);
                (0..count).map(|_| (random.below(2_000_001) as f32 - 1e6) / 3.0).collect()
            };
            let mut expected = input(0);
            for rank in 1..size {
                expected.iter_mut().zip(input(rank)).for_each(|(sum, next)| *sum += next);
            }
            threads(size, Connect::Lazy, |context| {
                for algorithm in ["auto", "shared_flat", "shared_slices"] {
                    let (input, mut output) = (input(context.rank()), vec![0f32; count]);
                    let shape = Shape::new(Collective::Allreduce, context.rank(), size, count);
                    let call = Call {
                        inputs: &[input.as_ptr().cast()],
                        outputs: &[output.as_mut_ptr().cast()],
                        algorithm: Some(algorithm),
                        ..Call::new(shape, DataType::Float32)
                    };
                    // SAFETY: the vectors are as long as the shape says and live until the call returns.
                    unsafe { context.run(&call) }.unwrap();
                    let wrong = output.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
                    assert_eq!(wrong, None, "{algorithm} of {count} elements, {size} ranks");
                }
            });
        }
    }
}

const RANK: &str = "GLOO_RS_TEST_RANK";
const STORE: &str = "GLOO_RS_TEST_STORE";

/// Not a test by itself: one rank of `random_calls_with_processes_as_ranks`.
#[test]
#[ignore = "run by random_calls_with_processes_as_ranks"]
fn one_process() {
    let rank: usize = std::env::var(RANK).unwrap().parse().unwrap();
    let (url, size) = (std::env::var(STORE).unwrap(), 4);
    let store = rendezvous::url::open(&url, rank, Duration::from_secs(60)).unwrap();
    let context = Context::new(device(), rank, size, &options(Connect::Lazy)).unwrap();
    context.connect(&*store).unwrap();
    random_calls(&context, 42, 300);
}

#[test]
fn random_calls_with_processes_as_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("store").display());
    let spawn = |rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "collectives::one_process", "--ignored"])
            .env(RANK, rank.to_string())
            .env(STORE, &url)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..4).map(spawn).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
