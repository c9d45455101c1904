//! Collectives of shapes seen before allocate nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions, Reduction};
use gloo_rs::rendezvous::in_process::InProcessStore;
use gloo_rs::transport::tcp::{Device, DeviceOptions};
use gloo_rs::types::{DataType, ReduceOp};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allreduce(context: &Context, algorithm: &str, input: &[f32], output: &mut [f32]) {
    let call = Call {
        shape: Shape::new(Collective::Allreduce, context.rank(), context.size(), input.len()),
        algorithm: Some(algorithm),
        dtype: DataType::Float32,
        reduction: Reduction::Op(ReduceOp::Sum),
        inputs: &[input.as_ptr().cast()],
        outputs: &[output.as_mut_ptr().cast()],
        tag: 0,
        timeout: None,
        max_segment_bytes: None,
    };
    // SAFETY: the slices are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }.unwrap();
}

#[test]
fn the_steady_state_allocates_nothing() {
    const SIZE: usize = 3;
    let store = InProcessStore::new();
    let arrived = Arc::new(std::sync::Barrier::new(SIZE));
    std::thread::scope(|scope| {
        for rank in 0..SIZE {
            let (store, arrived) = (store.clone(), arrived.clone());
            scope.spawn(move || {
                let options = DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() };
                let device = Device::create(&options).unwrap();
                let options = ContextOptions { timeout: Duration::from_secs(60), ..Default::default() };
                let context = Context::new(device.clone(), rank, SIZE, &options).unwrap();
                context.connect(&*store).unwrap();
                let input = vec![1.5f32; 300_000];
                let mut output = vec![0f32; 300_000];
                let algorithms = ["auto", "ring_segmented", "ring_chunked", "recursive_doubling", "halving_doubling"];
                let mut round = || {
                    for algorithm in algorithms {
                        for count in [1, 1000, 20_000, 300_000] {
                            allreduce(&context, algorithm, &input[..count], &mut output[..count]);
                        }
                    }
                };
                // Memory grows while rounds find new depths of messages that overtake their receives; then it is enough.
                let mut clean = 0;
                for _ in 0..200 {
                    arrived.wait();
                    let before = ALLOCATIONS.load(Ordering::Relaxed);
                    arrived.wait();
                    round();
                    arrived.wait();
                    clean += usize::from(ALLOCATIONS.load(Ordering::Relaxed) == before);
                }
                assert!(clean >= 100, "only {clean} of 200 rounds did not allocate");
                assert!(output.iter().all(|v| *v == 4.5));
            });
        }
    });
}
