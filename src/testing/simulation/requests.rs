//! Persistent requests: what happens between start and wait, and when. Virtual time makes the times exact.

use std::sync::Arc;
use std::time::Duration;

use super::idle;
use super::job::{play, play_on, reliable};
use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, ContextOptions, Request};
use crate::error::ErrorKind;
use crate::messaging::matching::EAGER_BYTES;
use crate::testing::loopback::{Network, NodeStatus};
use crate::transport::tcp::TICK;
use crate::types::DataType;

const TIMEOUT: Duration = Duration::from_secs(1);
/// Longer than any call takes whose ranks are all in it.
const LONG: Duration = Duration::from_millis(100);
/// Maximum time for which a rank that timed out waits for the replies of its peers.
const QUERIES: Duration = Duration::from_millis(650);

fn options(check_calls: bool) -> ContextOptions {
    ContextOptions { timeout: TIMEOUT, check_calls: Some(check_calls), agrees: false, ..Default::default() }
}

/// The request of a sum of `data` in place, by this algorithm or by that which the library selects.
pub fn sum(context: &Arc<Context>, algorithm: Option<&str>, tag: u64, data: &mut [i64]) -> Request {
    let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), data.len());
    let call = Call {
        outputs: &[data.as_mut_ptr().cast()],
        algorithm,
        tag,
        ..Call::new(Shape { inputs: 0, ..shape }, DataType::Int64)
    };
    // SAFETY: the callers' arrays are as long as the shape says, outlive the request, and are not used while it is
    // active.
    unsafe { context.request(&call) }.unwrap()
}

/// The time that `work` takes.
fn time(network: &Network, work: impl FnOnce()) -> Duration {
    let began = network.now();
    work();
    network.now().duration_since(began)
}

#[test]
fn a_started_call_is_completed_while_no_thread_waits() {
    // Small messages, and those that wait for grants; each step of the ring needs what the step before has received.
    for count in [9, EAGER_BYTES] {
        play(reliable(), 3, &options(false), |network, context| {
            let mut data = vec![0; count];
            let request = sum(context, Some("ring"), 0, &mut data);
            for round in 0..3 {
                data.fill(round + context.rank() as i64);
                assert_eq!(time(network, || request.start().unwrap()), Duration::ZERO);
                idle(network, LONG);
                assert_eq!(time(network, || request.wait().unwrap()), Duration::ZERO, "nothing was left to wait for");
                assert!(data.iter().all(|sum| *sum == 3 * round + 3));
            }
        });
    }
}

/// Makes calls for which only rank 0 waits: the devices of the others go on with them as soon as something comes, not
/// at a tick.
pub fn advance_at_once(network: &Network, context: &Arc<Context>, algorithm: &str, count: usize) {
    let mut data = vec![0; count];
    let request = sum(context, Some(algorithm), 0, &mut data);
    for round in 0..3 {
        // All wait, so that no device is responsible for a context until the next start.
        request.start().unwrap();
        request.wait().unwrap();
        data.fill(round + context.rank() as i64);
        request.start().unwrap();
        if context.rank() != 0 {
            idle(network, LONG);
        }
        let took = time(network, || request.wait().unwrap());
        assert!(took < TICK, "rank {} waited {took:?} in round {round}", context.rank());
        let size = context.size() as i64;
        assert!(data.iter().all(|sum| *sum == size * round + size * (size - 1) / 2));
        if context.rank() == 0 {
            idle(network, LONG);
        }
    }
}

#[test]
fn a_started_call_goes_on_as_soon_as_something_comes() {
    for count in [9, 3 * EAGER_BYTES / 8 + 1] {
        play(reliable(), 3, &options(false), |network, context| advance_at_once(network, context, "ring", count));
    }
}

#[test]
fn the_timeout_begins_with_the_start() {
    const REST: Duration = Duration::from_millis(100);
    for waits in [true, false] {
        play(reliable(), 2, &options(false), |network, context| {
            let mut data = [0; 1];
            if context.rank() == 1 {
                return idle(network, 2 * TIMEOUT);
            }
            let request = sum(context, Some("ring"), 0, &mut data);
            request.start().unwrap();
            // The timeout of the start counts.
            context.set_timeout(Duration::MAX);
            idle(network, TIMEOUT - REST);
            let took = time(network, || {
                let error = if waits {
                    request.wait().unwrap_err()
                } else {
                    assert_eq!(time(network, || assert!(!request.test().unwrap())), Duration::ZERO);
                    idle(network, REST);
                    request.test().unwrap_err()
                };
                assert_eq!((error.kind(), error.details().rank), (ErrorKind::Timeout, Some(1)), "{error}");
                assert!(error.message().contains("timed out after 1s"), "{error}");
            });
            assert!((REST..REST + QUERIES).contains(&took), "{took:?}");
            let error = request.start().unwrap_err();
            assert!(error.message().contains("the context is broken"), "{error}");
        });
    }
}

#[test]
fn other_calls_run_between_start_and_wait() {
    play(reliable(), 3, &options(false), |network, context| {
        let own = context.rank() as i64;
        let (mut first, mut second, mut third) = ([own; 100], [10 * own; 100], [100 * own; 100]);
        let requests = [
            sum(context, Some("ring"), 1, &mut first),
            sum(context, Some("recursive_doubling"), 2, &mut second),
            sum(context, Some("ring"), 1, &mut third),
        ];
        requests[0].start().unwrap();
        requests[1].start().unwrap();
        let error = requests[2].start().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOperation);
        assert!(error.message().contains("with tag 1 is running on this context already"), "{error}");
        // One that all ranks finish only after the start of the others.
        let mut plain = [1000 * own; 1];
        let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), 3, 1) };
        let call = Call { outputs: &[plain.as_mut_ptr().cast()], tag: 3, ..Call::new(shape, DataType::Int64) };
        // SAFETY: the array is as long as the shape says, and outlives the call.
        unsafe { context.run(&call) }.unwrap();
        assert_eq!(plain, [3000]);
        idle(network, LONG);
        requests[1].wait().unwrap();
        requests[0].wait().unwrap();
        requests[2].start().unwrap();
        requests[2].wait().unwrap();
        assert_eq!((first, second, third), ([3; 100], [30; 100], [300; 100]));
    });
}

#[test]
fn a_test_never_waits_and_completes_the_call() {
    play(reliable(), 2, &options(false), |network, context| {
        let mut data = [context.rank() as i64; 4];
        let request = sum(context, Some("recursive_doubling"), 0, &mut data);
        if context.rank() == 1 {
            idle(network, LONG);
        }
        request.start().unwrap();
        let (began, mut tests) = (network.now(), 1);
        loop {
            let mut done = false;
            assert_eq!(time(network, || done = request.test().unwrap()), Duration::ZERO);
            if done {
                break;
            }
            tests += 1;
            super::sleep(network.now() + Duration::from_millis(1));
        }
        let took = network.now().duration_since(began);
        assert_eq!(data, [1; 4]);
        assert!(if context.rank() == 0 { took >= LONG && tests > 1 } else { took < LONG }, "{took:?}, {tests} tests");
        assert_eq!(request.test().unwrap_err().kind(), ErrorKind::InvalidOperation, "it is inactive");
    });
}

#[test]
fn a_rank_that_dies_between_start_and_wait_is_named_by_the_waits() {
    let network = Network::new(1, reliable());
    let ended = play_on(&network, 3, &options(false), |network, context| {
        let mut data = [1; 1000];
        if context.rank() == 2 {
            network.fail_after(2, 100, NodeStatus::Crashed);
        }
        let request = sum(context, Some("ring"), 0, &mut data);
        request.start().unwrap();
        idle(network, LONG);
        assert!(context.broken().is_none(), "a failure shows in the wait");
        let mut error = None;
        assert!(time(network, || error = request.wait().err()) < TIMEOUT);
        let refused = request.wait().unwrap_err();
        assert!(refused.message().contains("the request is inactive"), "{refused}");
        error.unwrap()
    });
    for error in &ended[..2] {
        let error = error.as_ref().unwrap();
        assert_eq!((error.kind(), error.details().rank), (ErrorKind::ConnectionLost, Some(2)), "{error}");
        assert!(error.message().contains("allreduce ring of 1000 int64"), "{error}");
    }
}

#[test]
fn with_check_calls_a_start_waits_for_all_and_says_who_differs() {
    play(reliable(), 3, &options(true), |network, context| {
        let (mut data, mut other) = ([1; 8], [1; 9]);
        let (request, odd) = (sum(context, Some("ring"), 0, &mut data), sum(context, Some("ring"), 0, &mut other));
        for _ in 0..2 {
            if context.rank() == 2 {
                idle(network, LONG);
            }
            let took = time(network, || request.start().unwrap());
            assert!(context.rank() == 2 || took >= LONG, "{took:?}");
            request.wait().unwrap();
        }
        let error = if context.rank() == 2 { odd.start() } else { request.start() }.unwrap_err();
        assert_eq!((error.kind(), error.details().rank), (ErrorKind::Mismatch, Some(2)), "{error}");
        request.start().unwrap();
        request.wait().unwrap();
        assert_eq!(data, [27; 8]);
    });
}

#[test]
fn counts_are_shared_by_the_first_start_only() {
    play(reliable(), 3, &options(false), |network, context| {
        let (rank, counts) = (context.rank(), [1, 2, 3]);
        let (input, mut output) = (vec![rank as i64; counts[rank]], [0i64; 6]);
        let shape = Shape::new(Collective::Gatherv, rank, 3, counts[rank]);
        let call = Call {
            inputs: &[input.as_ptr().cast()],
            outputs: &[output.as_mut_ptr().cast()][..usize::from(rank == 0)],
            algorithm: Some("binomial"),
            ..Call::new(
                Shape { recv_counts: if rank == 0 { &counts } else { &[] }, outputs: usize::from(rank == 0), ..shape },
                DataType::Int64,
            )
        };
        // SAFETY: the arrays are as long as the shape says, outlive the request, and are not used while it is active.
        let request = unsafe { context.request(&call) }.unwrap();
        for waits in [true, false, false] {
            if rank == 0 {
                idle(network, LONG);
            }
            let took = time(network, || request.start().unwrap());
            // The others get the counts of the root.
            assert_eq!(took >= LONG, waits && rank != 0, "{took:?}");
            request.wait().unwrap();
            assert_eq!(output, if rank == 0 { [0, 1, 1, 2, 2, 2] } else { [0; 6] });
            output = [0; 6];
            idle(network, LONG);
        }
    });
}
