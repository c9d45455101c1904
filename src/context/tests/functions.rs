//! Callers' reduction functions: what other threads may do while one runs, and what it may call itself.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::collective::{Algorithm, Collective, Shape};
use crate::engine::plan::Plan;
use crate::types::DataType;

/// Timeout for events that must happen; not reached if the test passes.
const LONG: Duration = Duration::from_secs(20);

/// What the function of a call does before it adds; returns whether to succeed.
pub type Act<'a> = &'a (dyn Fn() -> bool + Sync);

pub unsafe extern "C" fn acts_and_adds(
    into: *mut c_void,
    left: *const c_void,
    right: *const c_void,
    count: usize,
    user: *mut c_void,
) -> i32 {
    // SAFETY: the tests pass an `Act`, which lives until the call has ended.
    if !unsafe { *user.cast::<Act<'_>>() }() {
        return 1;
    }
    for i in 0..count {
        // SAFETY: the library passes `count` elements of the call's type.
        unsafe { *into.cast::<i64>().add(i) = *left.cast::<i64>().add(i) + *right.cast::<i64>().add(i) };
    }
    0
}

/// An allreduce of one number whose reduction function calls `act`; returns the result.
pub fn sum(context: &Context, tag: u64, timeout: Option<Duration>, inputs: &[i64], act: Act<'_>) -> Result<i64> {
    let mut output = 0i64;
    let pointers: Vec<*const u8> = inputs.iter().map(|input| std::ptr::from_ref(input).cast()).collect();
    let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), 1);
    let call = Call {
        inputs: &pointers,
        outputs: &[(&raw mut output).cast()],
        reduction: Reduction::User { function: acts_and_adds, user: (&raw const act).cast_mut().cast() },
        tag,
        timeout,
        ..Call::new(Shape { inputs: inputs.len(), ..shape }, DataType::Int64)
    };
    // SAFETY: the numbers live until the call returns.
    unsafe { context.run(&call) }.map(|()| output)
}

/// An `Act` that reports that it has been entered, and waits for a message on `resume`.
pub fn waits(entered: Sender<()>, resume: Receiver<()>) -> impl Fn() -> bool + Sync {
    let ends = std::sync::Mutex::new((entered, resume));
    move || {
        let ends = ends.lock().unwrap();
        ends.0.send(()).unwrap();
        ends.1.recv_timeout(LONG).is_ok()
    }
}

#[test]
fn a_slow_function_holds_up_nobody_else() {
    let contexts = group(2);
    let (entered, is_entered) = channel();
    let (resume, resumes) = channel();
    let slow = waits(entered, resumes);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(sum(&contexts[0], 1, None, &[1], &slow).unwrap(), 3));
        scope.spawn(|| assert_eq!(sum(&contexts[1], 1, None, &[2], &|| true).unwrap(), 3));
        is_entered.recv_timeout(LONG).unwrap();
        // Its own context serves other calls meanwhile.
        assert!(contexts[0].shares_host(1).unwrap());
        let mut memory = [0u8; 8];
        // SAFETY: the array outlives the buffer.
        let buffer = unsafe { contexts[0].unbound_buffer(memory.as_mut_ptr(), 8) }.unwrap();
        buffer.recv(&[1], 5, 0, 8).unwrap();
        let error = buffer.wait_recv(Some(Duration::from_millis(50))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        std::thread::scope(|scope| {
            for context in &contexts {
                scope.spawn(|| assert_eq!(sum(context, 2, None, &[10], &|| true).unwrap(), 20));
            }
        });
        resume.send(()).unwrap();
    });
}

#[test]
fn closing_does_not_wait_for_a_function_and_fails_its_call() {
    for size in [1, 2] {
        let contexts = group(size);
        let (entered, is_entered) = channel();
        let (resume, resumes) = channel();
        let waits = waits(entered, resumes);
        // The error is the same if the function has failed first; only the function can tell.
        let in_time = std::sync::atomic::AtomicBool::new(false);
        let slow = || {
            in_time.store(waits(), Ordering::Relaxed);
            true
        };
        let inputs = [1, 2];
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| sum(&contexts[0], 0, None, &inputs, &slow));
            let peer = contexts.get(1).map(|peer| scope.spawn(|| sum(peer, 0, None, &inputs, &|| true)));
            is_entered.recv_timeout(LONG).unwrap();
            contexts[0].close();
            resume.send(()).unwrap();
            let error = calls.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            assert!(error.message().contains("rank 0 has closed this context"), "{error}");
            assert!(in_time.load(Ordering::Relaxed), "closing waited for the function");
            if let Some(peer) = peer {
                assert_eq!(peer.join().unwrap().unwrap_err().kind(), ErrorKind::ConnectionLost);
            }
        });
    }
}

#[test]
fn a_timeout_of_zero_lets_a_function_run_as_often_as_it_can_without_waiting() {
    let contexts = group(1);
    assert_eq!(sum(&contexts[0], 0, Some(Duration::ZERO), &[1, 2, 3, 4], &|| true).unwrap(), 10);
}

#[test]
fn a_function_may_close_its_context() {
    let contexts = group(1);
    let closes = || {
        contexts[0].close();
        contexts[0].broken().is_some()
    };
    let error = sum(&contexts[0], 0, None, &[1, 2], &closes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}

#[test]
fn a_function_may_close_a_pair() {
    let contexts = group(2);
    let pair = contexts[0].pair(1).unwrap();
    let closes = || {
        pair.close();
        !pair.is_connected()
    };
    std::thread::scope(|scope| {
        // Two inputs, so that the function is called before the other rank's number is needed.
        let other = scope.spawn(|| sum(&contexts[1], 0, None, &[3, 4], &|| true));
        let error = sum(&contexts[0], 0, None, &[1, 2], &closes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        assert!(error.message().contains("rank 0 has closed its pair with rank 1"), "{error}");
        assert_eq!(other.join().unwrap().unwrap_err().kind(), ErrorKind::ConnectionLost);
    });
}

#[test]
fn a_function_may_make_calls_of_other_collectives_or_with_other_tags() {
    let contexts = group(2);
    run(&contexts, |context| {
        let calls = || {
            assert_eq!(sum(context, 2, None, &[5], &|| true).unwrap(), 10);
            let barrier = Shape { inputs: 0, outputs: 0, ..Shape::new(Collective::Barrier, context.rank(), 2, 0) };
            // SAFETY: a barrier has no buffers.
            unsafe { context.run(&Call { tag: 1, ..Call::new(barrier, DataType::Uint8) }) }.unwrap();
            if context.rank() == 0 {
                let error = sum(context, 1, None, &[5], &|| true).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidOperation, "{error}");
                assert!(error.message().contains("allreduce"), "{error}");
                assert!(error.message().contains("by a caller's function with tag 1 is running"), "{error}");
            }
            true
        };
        let share = (context.rank() + 1) as i64;
        // Each rank calls its function at once, for its own two numbers, so both make the inner call without waiting
        // for each other.
        let once = std::sync::Once::new();
        let act = || {
            once.call_once(|| assert!(calls()));
            true
        };
        assert_eq!(sum(context, 1, None, &[share, share], &act).unwrap(), 6);
    });
}

/// The comparison cannot distinguish such calls from calls of ranks that disagree.
#[test]
fn with_check_calls_one_call_at_a_time_has_a_tag() {
    let options = ContextOptions { check_calls: Some(true), timeout: LONG, ..Default::default() };
    let contexts = group_with(2, &options);
    run(&contexts, |context| {
        let barrier = |tag| {
            let shape = Shape { inputs: 0, outputs: 0, ..Shape::new(Collective::Barrier, context.rank(), 2, 0) };
            // SAFETY: a barrier has no buffers.
            unsafe { context.run(&Call { tag, ..Call::new(shape, DataType::Uint8) }) }
        };
        let act = || {
            let error = barrier(1).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOperation, "{error}");
            let why =
                "by a caller's function with tag 1 is running on this context already, and check_calls does not tell";
            assert!(error.message().contains(why), "{error}");
            barrier(2).unwrap();
            true
        };
        assert_eq!(sum(context, 1, None, &[3], &act).unwrap(), 6);
        barrier(1).unwrap();
    });
}

#[test]
fn a_function_that_takes_longer_than_its_call_may_fails_it() {
    let contexts = group(1);
    let timeout = Duration::from_millis(20);
    let slow = || {
        std::thread::sleep(timeout);
        true
    };
    let error = sum(&contexts[0], 0, Some(timeout), &[1, 2, 3], &slow).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.message().contains("waiting for the caller's reduction function"), "{error}");
}

static GENERATING: std::sync::Mutex<Option<(Sender<()>, Receiver<()>)>> = std::sync::Mutex::new(None);

/// Its first generation waits for a message.
static SLOW: Algorithm = Algorithm {
    name: "slow",
    generate: |_| {
        let first = GENERATING.lock().unwrap().take();
        if let Some((entered, resume)) = first {
            entered.send(()).unwrap();
            resume.recv_timeout(LONG).map_err(|_| Error::new(ErrorKind::Timeout, "nobody said go on"))?;
        }
        Ok(Default::default())
    },
    cost: |_| Default::default(),
    uses: crate::collective::Uses::Sizes,
};

#[test]
fn schedules_are_generated_without_a_lock_and_one_is_kept() {
    let contexts = group(1);
    let plan = || -> Arc<Plan> { contexts[0].plan(&Shape::new(Collective::Barrier, 0, 1, 0), &SLOW, false).unwrap() };
    let (entered, is_entered) = channel();
    let (resume, resumes) = channel();
    *GENERATING.lock().unwrap() = Some((entered, resumes));
    std::thread::scope(|scope| {
        let first = scope.spawn(plan);
        is_entered.recv_timeout(LONG).unwrap();
        assert!(contexts[0].shares_host(0).unwrap());
        let other = plan();
        resume.send(()).unwrap();
        assert!(Arc::ptr_eq(&first.join().unwrap(), &other), "two plans for one shape");
        assert!(Arc::ptr_eq(&plan(), &other));
    });
}
