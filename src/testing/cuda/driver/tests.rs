//! The simulated driver by itself: each rule, and that breaking it is found.

use std::ffi::c_void;
use std::sync::Arc;

use super::state::*;
use super::{Kind, Machine, Pace, TABLE, with};
use crate::cuda::driver::number::*;
use crate::cuda::driver::{Context, Driver, Event, Stream};
use crate::cuda::gpu::{Gpu, Task};
use crate::cuda::gpus::{Gpus, Work};
use crate::cuda::kernels::Kernel;
use crate::cuda::pinned::{KEPT_BYTES, Pool};
use crate::error::{ErrorKind, Result};
use crate::types::{DataType, ReduceOp};

/// Whether the host can read the byte at an address, as the kernel says.
fn is_readable(address: u64) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address as usize), iov_len: 1 };
    // SAFETY: the kernel reads the byte, or fails.
    unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) == 1 }
}

/// Whether the host can write it. The byte does not change.
fn is_writable(address: u64) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address as usize), iov_len: 1 };
    // SAFETY: the kernel reads the byte, which may be read, and writes it, or fails.
    unsafe {
        libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) == 1
            && libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) == 1
    }
}

/// A thread with the primary context of a GPU, and a stream there.
struct Thread {
    driver: Arc<Driver>,
    stream: Stream,
}

impl Thread {
    fn new(machine: &Machine, ordinal: i32) -> Self {
        let driver = machine.driver();
        let (mut device, mut context, mut stream) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the driver writes to the variables.
        unsafe {
            driver.device_get(&mut device, ordinal).unwrap();
            driver.device_primary_ctx_retain(&mut context, device).unwrap();
            driver.ctx_push_current(context).unwrap();
            driver.stream_create_with_priority(&mut stream, STREAM_NON_BLOCKING, -5).unwrap();
        }
        Self { driver, stream }
    }

    fn another_stream(&self) -> Stream {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the driver writes to the variable.
        unsafe { self.driver.stream_create_with_priority(&mut stream, STREAM_NON_BLOCKING, -5) }.unwrap();
        stream
    }

    fn copy(&self, into: u64, from: u64, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: the tests pass memory that is there until the streams have done their work.
        unsafe { self.driver.memcpy_async(into, from, bytes, stream) }
    }

    fn wait(&self, stream: Stream) {
        // SAFETY: the stream exists.
        unsafe { self.driver.stream_synchronize(stream) }.unwrap();
    }

    fn event(&self) -> Event {
        let mut event = std::ptr::null_mut();
        // SAFETY: the driver writes to the variable.
        unsafe { self.driver.event_create(&mut event, EVENT_DISABLE_TIMING) }.unwrap();
        event
    }

    fn pinned(&self, bytes: usize) -> u64 {
        let mut pinned: *mut c_void = std::ptr::null_mut();
        // SAFETY: the driver writes to the variable.
        unsafe { self.driver.mem_host_alloc(&mut pinned, bytes, HOST_ALLOC_PORTABLE) }.unwrap();
        pinned.addr() as u64
    }
}

#[track_caller]
fn misuse(machine: &Machine, text: &str) {
    let all = machine.misuse();
    assert!(all.len() == 1 && all[0].contains(text), "{all:?}");
}

#[test]
fn the_host_cannot_access_the_memory_of_a_gpu() {
    let machine = Machine::new(1, 1, Pace::Any);
    let [device, pool, managed, pinned] =
        [Kind::Device(0), Kind::Pool(0), Kind::Managed(0), Kind::Pinned].map(|kind| machine.allocate(kind, 5000));
    assert_eq!([device, pool, managed, pinned].map(is_readable), [false, false, true, true]);
    assert!(!is_readable(device + 4999) && is_writable(managed + 4999));
    machine.write(device + 7, &[1, 2, 3]);
    assert_eq!(machine.read(device + 6, 5), [0xD7, 1, 2, 3, 0xD7]);
    machine.free(managed);
    machine.assert_clean();
}

#[test]
fn attributes_tell_the_kinds_of_memory() {
    let machine = Machine::new(2, 1, Pace::Any);
    let driver = machine.driver();
    let mut own = vec![0u8; 100];
    // SAFETY: the memory outlives the machine's use of it.
    let registered = unsafe { machine.register(&mut own) };
    let kinds = [Kind::Device(1), Kind::Pool(1), Kind::Other(1), Kind::Managed(1), Kind::Pinned];
    let all: Vec<u64> = kinds.into_iter().map(|kind| machine.allocate(kind, 64)).chain([registered]).collect();
    let attribute = |pointer: u64, attribute| {
        let mut value = 0u32;
        // SAFETY: these attributes are numbers.
        unsafe { driver.attribute(pointer, attribute, &mut value) }.unwrap().then_some(value)
    };
    let context = |pointer: u64| {
        let mut value: Context = std::ptr::null_mut();
        // SAFETY: this attribute is a context.
        unsafe { driver.attribute(pointer, POINTER_ATTRIBUTE_CONTEXT, &mut value) }.unwrap().then_some(value.addr())
    };
    let (memory_type, is_managed) = (2, 8);
    let each = |number| all.iter().map(|pointer| attribute(pointer + 63, number)).collect::<Vec<_>>();
    assert_eq!(each(memory_type), [2, 2, 2, 2, 1, 1].map(Some));
    assert_eq!(each(is_managed), [0, 0, 0, 1, 0, 0].map(Some));
    assert_eq!(each(POINTER_ATTRIBUTE_DEVICE_ORDINAL), [1, 1, 1, 1, 0, 0].map(Some));
    let contexts: Vec<_> = all.iter().map(|pointer| context(*pointer)).collect();
    assert_eq!(contexts, [0x1001, 0, 0x2001, 0x1001, 0x1000, 0x1000].map(Some));
    assert_eq!((attribute(all[0] + 64, memory_type), attribute(16, memory_type)), (None, None));
    assert_eq!(
        all.iter().map(|pointer| crate::memory::is_device(*pointer as *const u8).unwrap()).collect::<Vec<_>>(),
        [true, true, true, false, false, false]
    );
}

#[test]
fn work_is_late_and_in_the_order_of_its_stream() {
    let machine = Machine::new(1, 1, Pace::Late);
    let thread = Thread::new(&machine, 0);
    let [a, b] = [1, 2].map(|byte| {
        let memory = machine.allocate(Kind::Device(0), 4);
        machine.write(memory, &[byte; 4]);
        memory
    });
    let pinned = thread.pinned(4);
    thread.copy(pinned, a, 4, thread.stream).unwrap();
    thread.copy(a, b, 4, thread.stream).unwrap();
    assert_eq!((machine.read(a, 4), machine.objects().operations), (vec![1; 4], 2), "nobody has waited");
    thread.wait(thread.stream);
    assert_eq!((machine.read(pinned, 4), machine.read(a, 4)), (vec![1; 4], vec![2; 4]));
    assert_eq!(machine.misuse(), [""; 0]);
}

/// Two streams write the same memory. Which one is later differs, but for an event between them.
#[test]
fn streams_have_no_order_but_by_events() {
    let last = |seed: u64, pace, ordered: bool| {
        let machine = Machine::new(1, seed, pace);
        let thread = Thread::new(&machine, 0);
        let other = thread.another_stream();
        let [target, a, b] = [0, 1, 2].map(|byte| {
            let memory = machine.allocate(Kind::Device(0), 4);
            machine.write(memory, &[byte; 4]);
            memory
        });
        let event = thread.event();
        thread.copy(target, a, 4, thread.stream).unwrap();
        // SAFETY: event and stream exist.
        unsafe { thread.driver.event_record(event, thread.stream) }.unwrap();
        if ordered {
            with(|state| state.wait_event(other.addr(), event.addr())).unwrap().unwrap();
        }
        thread.copy(target, b, 4, other).unwrap();
        thread.wait(other);
        thread.wait(thread.stream);
        assert_eq!(machine.misuse(), [""; 0]);
        machine.read(target, 1)[0]
    };
    for pace in [Pace::Late, Pace::Any] {
        let results =
            |ordered| (0..400).map(|seed| last(seed, pace, ordered)).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(results(true), [2].into());
        assert_eq!(results(false), [1, 2].into());
    }
}

#[test]
fn pinned_memory_is_taken_from_the_host_while_a_stream_has_work_with_it() {
    let machine = Machine::new(1, 1, Pace::Late);
    let thread = Thread::new(&machine, 0);
    let device = machine.allocate(Kind::Device(0), 10_000);
    let [read, written] = [0, 1].map(|_| thread.pinned(10_000));
    thread.copy(device, read, 10_000, thread.stream).unwrap();
    thread.copy(written, device, 10_000, thread.stream).unwrap();
    assert_eq!([is_readable(read), is_writable(read), is_readable(written)], [true, false, false]);
    thread.wait(thread.stream);
    assert!([read, written].into_iter().all(is_writable));
}

#[test]
fn copies_of_pageable_memory_are_synchronous() {
    let machine = Machine::new(1, 1, Pace::Late);
    let thread = Thread::new(&machine, 0);
    let device = machine.allocate(Kind::Device(0), 8);
    let mut source = [5u8; 8];
    let mut target = [0u8; 8];
    let [from, into] = [source.as_mut_ptr(), target.as_mut_ptr()].map(|memory| memory.expose_provenance() as u64);
    thread.copy(device, from, 8, thread.stream).unwrap();
    // The driver has taken the bytes, and copies them later.
    source.fill(6);
    assert_eq!((machine.read(device, 1), std::hint::black_box(source)[0]), (vec![0xD7], 6));
    thread.copy(into, device, 8, thread.stream).unwrap();
    assert_eq!((std::hint::black_box(target), machine.objects().operations), ([5; 8], 0));
}

#[test]
fn copies_past_the_end_and_of_freed_memory_are_found() {
    let machine = Machine::new(1, 1, Pace::Late);
    let thread = Thread::new(&machine, 0);
    let [a, b] = [10, 20].map(|bytes| machine.allocate(Kind::Device(0), bytes));
    let error = thread.copy(b, a, 11, thread.stream).unwrap_err();
    assert_eq!(error.message(), "cuMemcpyAsync returns CUDA_ERROR_INVALID_VALUE (1)");
    misuse(&machine, "goes past the end");
    drop(machine);

    let machine = Machine::new(1, 1, Pace::Late);
    let thread = Thread::new(&machine, 0);
    let [a, b] = [10, 20].map(|bytes| machine.allocate(Kind::Device(0), bytes));
    thread.copy(b, a, 10, thread.stream).unwrap();
    machine.free(a);
    misuse(&machine, "is freed while a stream has work with it");
    // SAFETY: the stream exists.
    let error = unsafe { thread.driver.stream_synchronize(thread.stream) }.unwrap_err();
    assert!(error.message().contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{error}");
    assert!(machine.misuse()[1].contains("which is gone"));
    // No later call succeeds, as with a GPU.
    assert!(thread.copy(b, b, 1, thread.stream).is_err());
}

/// The kernels of the library, on the library's own objects.
#[test]
fn kernels_reduce_in_the_memory_of_their_gpu_and_in_pinned_memory() {
    let machine = Machine::new(2, 1, Pace::Late);
    let gpu = Arc::new(Gpu::open(&machine.driver(), 1).unwrap());
    let inputs = [3i32, 4].map(|value| {
        let memory = machine.allocate(Kind::Device(1), 40);
        machine.write(memory, &value.to_ne_bytes().repeat(10));
        memory
    });
    let kernel = Kernel::reduction(DataType::Int32, ReduceOp::Sum).unwrap();
    let sum = |into: u64, inputs: &[u64]| {
        let task = Task::Launch { kernel, arguments: kernel.reduce(into, inputs, 10), bytes: 40 };
        let work = Work { gpu: gpu.clone(), task, what: "a sum".into() };
        // SAFETY: what is not there is found by the interpreter.
        unsafe { Gpus::new(machine.driver()).run(&[work]) }
    };
    let pinned = machine.allocate(Kind::Pinned, 40);
    sum(pinned, &inputs).unwrap();
    assert_eq!(machine.read(pinned, 40), 7i32.to_ne_bytes().repeat(10));
    assert_eq!(machine.misuse(), [""; 0]);
    // Memory of another GPU is not theirs.
    let other = machine.allocate(Kind::Device(0), 40);
    let error = sum(pinned, &[inputs[0], other]).unwrap_err();
    assert!(error.message().contains("cuEventSynchronize returns CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    misuse(&machine, "outside of the device's memory");
}

#[test]
fn an_older_driver_does_not_take_the_kernels() {
    let machine = Machine::new(1, 1, Pace::Any);
    let gpu = Gpu::open(&machine.driver(), 0).unwrap();
    assert!(gpu.takes_kernels());
    drop(gpu);
    machine.set_version(12000);
    let gpu = Gpu::open(&machine.driver(), 0).unwrap();
    assert!(!gpu.takes_kernels());
    let kernel = Kernel::mean();
    let task = Task::Launch { kernel, arguments: kernel.reduce(0, &[0], 0), bytes: 0 };
    // SAFETY: the kernel is not launched.
    let error = gpu.within(|| unsafe { gpu.enqueue(&task) }).unwrap_err();
    assert_eq!(error.message(), "cuModuleLoadData returns CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)");
    drop(gpu);
    machine.assert_clean();
}

#[test]
fn objects_belong_to_the_current_context() {
    let machine = Machine::new(2, 1, Pace::Any);
    let [first, second] = [0, 1].map(|gpu| Thread::new(&machine, gpu));
    // The second one's context is current.
    let device = machine.allocate(Kind::Device(0), 8);
    assert!(first.copy(device, device, 4, first.stream).is_err());
    misuse(&machine, "a stream of another context");
    drop(machine);

    let machine = Machine::new(1, 1, Pace::Any);
    let driver = machine.driver();
    let mut stream = std::ptr::null_mut();
    // SAFETY: the driver writes to the variable.
    assert!(unsafe { driver.stream_create_with_priority(&mut stream, STREAM_NON_BLOCKING, -5) }.is_err());
    misuse(&machine, "the program's current context");
    drop(second);
}

#[test]
fn a_capture_in_another_thread_goes_on() {
    let machine = Machine::new(1, 1, Pace::Any);
    let gpu = Gpu::open(&machine.driver(), 0).unwrap();
    machine.capture();
    gpu.synchronize().unwrap();
    assert_eq!(machine.misuse(), [""; 0]);
    let thread = Thread::new;
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| thread(&machine, 0)));
    assert!(failed.is_err(), "that thread has not exchanged its mode");
    misuse(&machine, "breaks the capture of another thread");
}

#[test]
fn what_is_left_is_found() {
    let machine = Machine::new(1, 1, Pace::Any);
    let gpu = Gpu::open(&machine.driver(), 0).unwrap();
    let mark = gpu.within(|| gpu.record()).unwrap();
    mark.wait().unwrap();
    drop(mark);
    let objects = Objects { retained: 1, streams: 1, events: 1, ..Objects::default() };
    assert_eq!(machine.objects(), objects);
    let left = gpu.within(|| Ok(Thread { driver: machine.driver(), stream: std::ptr::null_mut() }.pinned(10))).unwrap();
    assert_eq!(machine.objects(), Objects { pinned: 1, ..objects });
    let free = || {
        // SAFETY: nobody uses the memory.
        gpu.within(|| unsafe { gpu.driver().mem_free_host(std::ptr::with_exposed_provenance_mut(left as usize)) })
    };
    free().unwrap();
    assert!(free().is_err(), "it is not freed twice");
    drop(gpu);
    misuse(&machine, "is not pinned memory");
    assert_eq!(machine.objects(), Objects::default());
}

/// Pinned memory is used again for what fits, and freed with the pool.
#[test]
fn pinned_memory_is_kept_for_calls_that_it_fits() {
    let machine = Machine::new(1, 1, Pace::Any);
    let gpu = Arc::new(Gpu::open(&machine.driver(), 0).unwrap());
    let pool: Arc<Pool> = Arc::default();
    let take = |bytes| pool.take(&gpu, bytes).unwrap();
    let first = take(8000).pointer();
    assert!([5000, 8192].into_iter().all(|bytes| take(bytes).pointer() == first));
    // Too little, and far too much.
    let others = [take(8193), take(4000)];
    assert!(others.iter().all(|other| other.pointer() != first));
    assert_eq!(machine.objects().pinned, 3);
    drop(others);
    // More than is kept is freed at once.
    drop(take(KEPT_BYTES));
    assert_eq!(machine.objects().pinned, 3);
    drop((pool, gpu));
    machine.assert_clean();
}

#[test]
fn any_call_can_fail_and_does_nothing_then() {
    let machine = Machine::new(1, 1, Pace::Any);
    let open = |machine: &Machine| Gpu::open(&machine.driver(), 0).map(drop);
    open(&machine).unwrap();
    let names = machine.log(0);
    assert!(names.contains(&"cuStreamCreateWithPriority") && names.contains(&"cuDevicePrimaryCtxRelease_v2"));
    let is_push = |name: &&str| *name == "cuCtxPushCurrent_v2";
    let end = names.iter().rposition(is_push).expect("the end makes the context current");
    for (call, name) in names.iter().enumerate() {
        let failing = machine.calls() + call;
        machine.fail(failing, ERROR_OUT_OF_MEMORY);
        let before = machine.objects();
        if let Err(error) = open(&machine) {
            assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
            assert!(error.message().ends_with("returns CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"), "{error}");
            assert!(error.message().contains(name), "{error}");
        }
        assert_eq!(machine.name(failing), *name);
        let may_leave = call >= end || name.contains("Pop") || name.contains("Exchange");
        assert!(may_leave || machine.objects() == before, "{name}: {:?}", machine.objects());
    }
    machine.lose(machine.calls() + 3, ERROR_LAUNCH_FAILED);
    assert!(open(&machine).unwrap_err().message().contains("CUDA_ERROR_LAUNCH_FAILED (719)"));
    assert!(open(&machine).is_err());
}

#[test]
fn a_thread_without_a_machine_has_no_memory_of_gpus() {
    let machine = Machine::new(1, 1, Pace::Any);
    let device = machine.allocate(Kind::Device(0), 8);
    let elsewhere = std::thread::spawn(move || {
        let mut value = 0u32;
        // SAFETY: this attribute is a number.
        unsafe { (TABLE.pointer_get_attribute)((&raw mut value).cast(), 2, device) }
    });
    assert_eq!(elsewhere.join().unwrap(), ERROR_NOT_INITIALIZED);
}
