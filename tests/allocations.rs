//! Collectives of shapes that were used before allocate nothing, nor do requests that were started before.

#[path = "../src/testing/tier.rs"]
mod tier;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions, Request};
use gloo_rs::error::Result;
use gloo_rs::rendezvous::in_process::InProcessStore;
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::types::DataType;
use tier::Tier;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Whether an allocation is an error, whose backtrace is printed.
static ARE_ERRORS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread prints a backtrace, which allocates.
    static PRINTS: Cell<bool> = const { Cell::new(false) };
}

/// Counts an allocation, except those of the test harness's thread, which prints when a test takes long.
fn count() {
    // SAFETY: no arguments.
    let is_main = unsafe { libc::gettid() == libc::getpid() };
    if is_main || PRINTS.get() {
        return;
    }
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    if ARE_ERRORS.load(Ordering::Relaxed) {
        PRINTS.set(true);
        eprintln!("an allocation:\n{}", Backtrace::force_capture());
        PRINTS.set(false);
    }
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator, which upholds the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract, which is that of the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract, which is that of the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Makes an allreduce with `make`, whose buffers are those of the arguments.
fn allreduce<T>(
    context: &Arc<Context>,
    algorithm: &str,
    tag: u64,
    input: &[f32],
    output: &mut [f32],
    make: unsafe fn(&Arc<Context>, &Call<'_>) -> Result<T>,
) -> T {
    let call = Call {
        inputs: &[input.as_ptr().cast()],
        outputs: &[output.as_mut_ptr().cast()],
        algorithm: Some(algorithm),
        tag,
        max_segment_bytes: Some(SEGMENT),
        ..Call::new(Shape::new(Collective::Allreduce, context.rank(), context.size(), input.len()), DataType::Float32)
    };
    // SAFETY: the slices are as long as the shape says and outlive the call, or the request.
    unsafe { make(context, &call) }.unwrap()
}

/// # Safety
/// As for [`Context::run`].
unsafe fn plain(context: &Arc<Context>, call: &Call<'_>) -> Result<()> {
    // SAFETY: the caller upholds the contract.
    unsafe { context.run(call) }
}

/// Rounds in which every shape is used, and rounds after them, in which nothing may be allocated.
const WARM: usize = 20;
const STEADY: usize = 40;

/// Messages up to this length are queued if they are unexpected; longer ones wait for their receives.
const EAGER: usize = 64 << 10;
/// The longest eager message between ranks that share memory.
const LOCAL_EAGER: usize = 16 << 10;

/// Bytes of a segment: the calls have few of them, however busy the machine is.
const SEGMENT: usize = 512 << 10;
/// More messages than calls have in flight: three calls at once, of at most three segments to a rank in each of four
/// steps.
const MESSAGES: usize = 64;

/// Sends messages of this many bytes, before and after their receives are posted, so that all queues have room however
/// far ranks run ahead of each other later.
fn run_ahead(context: &Arc<Context>, arrived: &Barrier, bytes: usize, receives_first: bool) {
    const READY: u64 = MESSAGES as u64;
    let (mut sent, mut got) = (vec![1u8; bytes], vec![0u8; MESSAGES * bytes]);
    // SAFETY: the vectors outlive the buffers.
    let [from, to] = unsafe {
        [(sent.as_mut_ptr(), sent.len()), (got.as_mut_ptr(), got.len())]
            .map(|(at, n)| context.unbound_buffer(at, n).unwrap())
    };
    for sender in 0..context.size() {
        let sends = context.rank() == sender;
        let post = |slot: usize| to.recv(&[sender], slot as u64, slot * bytes, bytes).unwrap();
        if receives_first && !sends {
            (0..MESSAGES).for_each(post);
            // The message comes after the grants of these receives.
            from.send(sender, READY, 0, 1).unwrap();
            from.wait_send(None).unwrap();
        } else if receives_first {
            for rank in (0..context.size()).filter(|rank| *rank != sender) {
                to.recv(&[rank], READY, 0, 1).unwrap();
                to.wait_recv(None).unwrap();
            }
        }
        arrived.wait();
        if sends {
            for rank in (0..context.size()).filter(|rank| *rank != sender) {
                (0..MESSAGES).for_each(|slot| from.send(rank, slot as u64, 0, bytes).unwrap());
                for _ in 0..MESSAGES {
                    from.wait_send(None).unwrap();
                }
            }
        } else {
            // The last one is received first, so all others are queued.
            for slot in (0..MESSAGES).rev() {
                if !receives_first {
                    post(slot);
                }
                to.wait_recv(None).unwrap();
            }
        }
        arrived.wait();
    }
}

/// Sends messages behind one that waits for its grant, so that all are queued for the link at once when the grant
/// comes.
fn wait_for_grant(context: &Arc<Context>, arrived: &Barrier) {
    // What the messages contain does not matter.
    let mut memory = vec![0u8; MESSAGES + EAGER];
    // SAFETY: the vector outlives the buffer.
    let buffer = unsafe { context.unbound_buffer(memory.as_mut_ptr(), memory.len()) }.unwrap();
    // Offset and length of each; the first one is long.
    let messages = || std::iter::once((MESSAGES - 1, EAGER + 1)).chain((0..MESSAGES - 1).map(|at| (at, 1)));
    for sender in 0..context.size() {
        let sends = context.rank() == sender;
        if sends {
            for rank in (0..context.size()).filter(|rank| *rank != sender) {
                messages().for_each(|(at, bytes)| buffer.send(rank, 0, at, bytes).unwrap());
            }
        }
        arrived.wait();
        if sends {
            (0..MESSAGES * (context.size() - 1)).for_each(|_| _ = buffer.wait_send(None).unwrap());
        } else {
            messages().for_each(|(at, bytes)| buffer.recv(&[sender], 0, at, bytes).unwrap());
            (0..MESSAGES).for_each(|_| _ = buffer.wait_recv(None).unwrap());
        }
        arrived.wait();
    }
}

#[test]
fn the_steady_state_allocates_nothing() {
    const SIZE: usize = 3;
    let store = InProcessStore::new();
    let arrived = Arc::new(Barrier::new(SIZE));
    std::thread::scope(|scope| {
        for rank in 0..SIZE {
            let (store, arrived) = (store.clone(), arrived.clone());
            scope.spawn(move || {
                let options = DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() };
                let device = Device::create(&options).unwrap();
                // Algorithms are chosen as on an idle machine.
                let (timeout, tuning) = (Duration::from_secs(60), Some("default".into()));
                let options = ContextOptions { timeout, tuning, ..Default::default() };
                let context = Context::new(device.clone(), rank, SIZE, &options).unwrap();
                context.connect(&*store).unwrap();
                let input = vec![1.5f32; 300_000];
                let mut output = vec![0f32; 300_000];
                let algorithms = ["auto", "ring_segmented", "ring_chunked", "recursive_doubling", "halving_doubling"];
                // Only calls of the last length have several messages to a rank.
                let counts = &[1, 1000, 20_000, 300_000][..Tier::from_environment().of(3, 4, 4)];
                let mut others = vec![vec![0f32; 300_000]; 2];
                let requests: Vec<Request> = others
                    .iter_mut()
                    .zip(1..)
                    .flat_map(|(other, tag)| {
                        let mut request = |&count: &usize| {
                            let (input, output) = (&input[..count], &mut other[..count]);
                            allreduce(&context, "ring_segmented", tag, input, output, Context::request)
                        };
                        counts.iter().map(&mut request).collect::<Vec<_>>()
                    })
                    .collect();
                let mut round = || {
                    for (n, count) in counts.iter().copied().enumerate() {
                        // Two requests and a plain call at the same time.
                        let [one, other] = [&requests[n], &requests[counts.len() + n]];
                        for algorithm in algorithms {
                            one.start().unwrap();
                            other.start().unwrap();
                            allreduce(&context, algorithm, 0, &input[..count], &mut output[..count], plain);
                            one.wait().unwrap();
                            other.wait().unwrap();
                        }
                    }
                };
                let lengths = [(LOCAL_EAGER, false), (EAGER, false), (EAGER + 1, false), (EAGER + 1, true)];
                for (bytes, receives_first) in lengths {
                    run_ahead(&context, &arrived, bytes, receives_first);
                }
                wait_for_grant(&context, &arrived);
                (0..WARM).for_each(|_| round());
                arrived.wait();
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                ARE_ERRORS.store(true, Ordering::Relaxed);
                arrived.wait();
                (0..STEADY).for_each(|_| round());
                arrived.wait();
                ARE_ERRORS.store(false, Ordering::Relaxed);
                let after = ALLOCATIONS.load(Ordering::Relaxed);
                arrived.wait();
                assert_eq!(after - before, 0, "allocations in {STEADY} rounds");
                drop(requests);
                let used = counts[counts.len() - 1];
                assert!([output].iter().chain(&others).all(|sums| sums[..used].iter().all(|sum| *sum == 4.5)));
            });
        }
    });
}
