//! The transport ibverbs over devices of this machine, which few have: so the tests are ignored, and
//! scripts/test-ibverbs.sh runs them in a machine with software RoCE. Ranks are threads, but for [`one_rank_of_four`].

use std::process::Command;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::support::{Case, Random};
use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Connect, Context, ContextOptions};
use gloo_rs::rendezvous::{InProcessStore, Launch, PrefixStore, Store};
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::transport::ibverbs;
use gloo_rs::transport::tcp::Transport;
use gloo_rs::types::DataType;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Until when what has ended must be gone: links that have ended wait 2 s for their peers.
const LINGER: Duration = Duration::from_secs(3);

/// The ports to use, as `GLOO_RS_IB_HCA` names them.
fn hca() -> String {
    std::env::var("GLOO_RS_TEST_IBVERBS").expect("GLOO_RS_TEST_IBVERBS names the ports to use")
}

/// How many there are.
fn ports() -> usize {
    hca().split(',').count()
}

fn device() -> Arc<Device> {
    let hca = hca();
    let options = DeviceOptions {
        hostname: Some("127.0.0.1".into()),
        shared_memory: Some(false),
        transport: Some(Transport::Ibverbs),
        ibverbs: Some(ibverbs::Options { hca: Some(hca), ..Default::default() }),
        ..Default::default()
    };
    Device::create(&options).unwrap()
}

fn connected(device: &Arc<Device>, rank: usize, size: usize, connect: Connect, store: &dyn Store) -> Arc<Context> {
    let options = ContextOptions { timeout: TIMEOUT, connect, ..Default::default() };
    let context = Context::new(device.clone(), rank, size, &options).unwrap();
    context.connect(store).unwrap();
    context
}

/// Runs `work` on `size` ranks, each with its own device and context.
fn ranks(size: usize, connect: Connect, work: impl Fn(&Arc<Context>) + Sync) {
    let store = InProcessStore::new();
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (store, work) = (store.clone(), &work);
            scope.spawn(move || work(&connected(&device(), rank, size, connect, &*store)));
        }
    });
}

#[test]
#[ignore = "needs a device: scripts/test-ibverbs.sh"]
fn every_algorithm_of_every_collective() {
    // Every number of ranks is tried over other links; what is of this one is in each.
    for size in [2, 3, 6] {
        let connect = if size % 2 == 0 { Connect::Lazy } else { Connect::Full };
        ranks(size, connect, |context| {
            let mut random = Random::new(size as u64);
            for collective in Collective::ALL {
                if *collective == Collective::PairwiseExchange && !size.is_power_of_two() {
                    continue;
                }
                let all = collective.algorithms().iter();
                let names = all.filter(|a| !a.uses.needs_shared_memory() && a.name != "local").map(|a| a.name);
                for algorithm in names.chain(["auto", "auto"]) {
                    let case = Case::of(&mut random, size, 0, *collective, algorithm);
                    if let Err(error) = case.run(context) {
                        panic!("{size} ranks, {} by {algorithm}: {error}", collective.name());
                    }
                }
            }
        });
    }
}

#[test]
#[ignore = "needs a device: scripts/test-ibverbs.sh"]
fn calls_of_several_threads() {
    ranks(3, Connect::Lazy, |context| {
        std::thread::scope(|scope| {
            for tag in 0..3 {
                scope.spawn(move || {
                    let mut random = Random::new(100 + tag);
                    for number in 0..25 {
                        if let Err(error) = Case::random(&mut random, context.size(), tag).run(context) {
                            panic!("tag {tag}, call {number}: {error}");
                        }
                    }
                });
            }
        });
    });
}

/// A length above the 8 MiB that a message of software RoCE's devices has at most.
const LARGE: usize = (40 << 20) + 4321;

fn word(seed: usize, at: usize) -> u32 {
    ((seed * 1_000_003 + at) as u32).wrapping_mul(0x9e37_79b9)
}

/// What the registered regions of memory of this machine's devices are, and which process has them.
fn regions() -> String {
    rdma(&["resource", "show", "mr"])
}

fn rdma(arguments: &[&str]) -> String {
    let output = Command::new("rdma").args(arguments).output().expect("rdma, of iproute2");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs a device: scripts/test-ibverbs.sh"]
fn a_message_larger_than_the_devices_longest_is_written_from_memory_to_memory() {
    let both = Barrier::new(2);
    ranks(2, Connect::Full, |context| {
        let peer = 1 - context.rank();
        let words = LARGE / 4;
        let mut memory: Vec<u32> = (0..words).map(|at| word(context.rank(), at)).collect();
        let slot = context.next_slot(1);
        // SAFETY: the vector lives longer than the buffer, and is not accessed before that has ended.
        let buffer = unsafe { context.unbound_buffer(memory.as_mut_ptr().cast(), words * 4) }.unwrap();
        if context.rank() == 0 {
            buffer.send(peer, slot, 0, words * 4).unwrap();
            assert_eq!(buffer.wait_send(None).unwrap(), Some(peer));
        } else {
            buffer.recv(&[peer], slot, 0, words * 4).unwrap();
            assert_eq!(buffer.wait_recv(None).unwrap(), Some((peer, words * 4)));
        }
        let whole = format!("mrlen {}", words * 4);
        both.wait();
        let registered = regions();
        both.wait();
        drop(buffer);
        both.wait();
        let left = regions();
        // A rank that fails earlier would let the other wait for ever.
        both.wait();
        // Both ranks have registered all of the memory with each port, so that nothing went through buffers of the
        // library, which have 4 MiB.
        assert_eq!(registered.matches(&whole).count(), 2 * ports(), "{registered}");
        assert!(!left.contains(&whole), "it is still registered: {left}");
        assert!((0..words).all(|at| memory[at] == word(0, at)));
    });
}

#[test]
#[ignore = "needs a device: scripts/test-ibverbs.sh"]
fn a_collective_on_more_than_the_devices_longest_message() {
    ranks(2, Connect::Full, |context| {
        let words = LARGE / 4;
        for root in [0, 1] {
            let seed = 7 + root;
            let is_root = context.rank() == root;
            let input: Vec<u32> = if is_root { (0..words).map(|at| word(seed, at)).collect() } else { Vec::new() };
            let mut output = vec![0_u32; words];
            let inputs = [input.as_ptr().cast()];
            let call = Call {
                inputs: if is_root { &inputs } else { &[] },
                outputs: &[output.as_mut_ptr().cast()],
                // One message.
                max_segment_bytes: Some(words * 4),
                ..Call::new(
                    Shape {
                        root,
                        inputs: usize::from(is_root),
                        ..Shape::new(Collective::Broadcast, context.rank(), 2, words)
                    },
                    DataType::Uint32,
                )
            };
            // SAFETY: the vectors are as long as the shape says and live until the call returns.
            unsafe { context.run(&call) }.unwrap();
            assert!((0..words).all(|at| output[at] == word(seed, at)));
        }
    });
}

/// Numbers of protection domains, queues and memory regions of all devices.
fn resources() -> String {
    rdma(&["resource", "show"])
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until `now` gives `expected`, as long as ended links may take.
fn returns_to<T: PartialEq + std::fmt::Debug>(expected: &T, now: impl Fn() -> T) {
    let until = Instant::now() + LINGER;
    while now() != *expected && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(now(), *expected);
}

#[test]
#[ignore = "needs a device: scripts/test-ibverbs.sh"]
fn nothing_is_left_of_many_contexts() {
    let unused = (resources(), descriptors());
    let store: Arc<dyn Store> = InProcessStore::new();
    let devices = [device(), device()];
    let round = |number: usize| {
        std::thread::scope(|scope| {
            for (rank, device) in devices.iter().enumerate() {
                let store = PrefixStore::new(format!("round {number}"), store.clone());
                scope.spawn(move || {
                    let context = connected(device, rank, 2, Connect::Lazy, &store);
                    let mut random = Random::new(number as u64);
                    let collective = random.pick(&[Collective::Allreduce, Collective::Alltoall, Collective::Broadcast]);
                    let case = Case::of(&mut random, 2, 0, collective, "auto");
                    // Small ones in the stream; large ones written, from registered memory of the library.
                    Case { count: 3, ..case.clone() }.run(&context).unwrap();
                    Case { count: 20_000, ..case }.run(&context).unwrap();
                });
            }
        });
    };
    round(0);
    // The counts are those of the devices alone once the links of the first round have drained.
    std::thread::sleep(LINGER);
    let before = (resources(), descriptors());
    (1..=25).for_each(round);
    returns_to(&before, || (resources(), descriptors()));
    drop(devices);
    returns_to(&unused, || (resources(), descriptors()));
}

/// Not a test by itself: a rank of a job that scripts/test-ibverbs.sh starts, two of them on each of two hosts. Every
/// rank receives from whichever other one sends first, so from one of its host, by shared memory, or from one of the
/// other host.
#[test]
#[ignore = "needs a job: scripts/test-ibverbs.sh"]
fn one_rank_of_four() {
    const MESSAGES: usize = 12;
    const MAX_MESSAGE_BYTES: usize = 100_000;
    let job = Launch::from_environment(TIMEOUT).unwrap();
    let options = ContextOptions { timeout: TIMEOUT, ..Default::default() };
    let context =
        Context::new(Device::create(&DeviceOptions::default()).unwrap(), job.rank, job.size, &options).unwrap();
    context.connect(&*job.store).unwrap();
    let others: Vec<usize> = (0..job.size).filter(|rank| *rank != job.rank).collect();
    assert_eq!(others.iter().filter(|rank| context.shares_host(**rank).unwrap()).count(), 1);
    // The ends know the length and the contents of each message, from short ones to those that are written into memory.
    let message = |from: usize, to: usize, number: usize| {
        let mut random = Random::new((from * 100 + to * 10) as u64 * 1000 + number as u64);
        let bytes = 1 + random.below([20, 3000, MAX_MESSAGE_BYTES][number % 3]);
        (0..bytes).map(|_| random.next() as u8).collect::<Vec<u8>>()
    };
    let slot = context.next_slot(1);
    let mut sent: Vec<(usize, Vec<u8>)> =
        others.iter().flat_map(|to| (0..MESSAGES).map(|number| (*to, message(job.rank, *to, number)))).collect();
    let mut buffers = Vec::new();
    for (to, bytes) in &mut sent {
        // SAFETY: the vector is neither changed nor dropped before the buffer.
        let buffer = unsafe { context.unbound_buffer(bytes.as_mut_ptr(), bytes.len()) }.unwrap();
        buffer.send(*to, slot, 0, bytes.len()).unwrap();
        buffers.push(buffer);
    }
    let mut memory = vec![0_u8; MAX_MESSAGE_BYTES];
    let mut numbers = vec![0; job.size];
    for _ in 0..others.len() * MESSAGES {
        // SAFETY: the vector is read only once the buffer has ended, and dropped after it.
        let buffer = unsafe { context.unbound_buffer(memory.as_mut_ptr(), MAX_MESSAGE_BYTES) }.unwrap();
        buffer.recv(&others, slot, 0, MAX_MESSAGE_BYTES).unwrap();
        let (from, bytes) = buffer.wait_recv(None).unwrap().expect("nobody aborts it");
        drop(buffer);
        assert!(memory[..bytes] == message(from, job.rank, numbers[from]), "message {} of rank {from}", numbers[from]);
        numbers[from] += 1;
    }
    assert!(others.iter().all(|rank| numbers[*rank] == MESSAGES));
    for buffer in &buffers {
        buffer.wait_send(None).unwrap();
    }
    drop(buffers);
    // Nobody leaves before all have their messages.
    let shape = Shape { inputs: 0, outputs: 0, ..Shape::new(Collective::Barrier, job.rank, job.size, 0) };
    let barrier = Call::new(shape, DataType::Uint8);
    // SAFETY: it has no buffers.
    unsafe { context.run(&barrier) }.unwrap();
}
