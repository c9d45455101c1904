//! Persistent requests: their states, and what they leave alone.

use std::sync::mpsc::channel;

use super::functions::{Act, acts_and_adds, waits};
use super::shared;
use super::*;
use crate::collective::{Collective, Shape};
use crate::types::{DataType, ElementType, ReduceOp};

/// Two ranks that send messages, and two that share memory.
fn groups() -> [Vec<Arc<Context>>; 2] {
    [group(2), shared::connected(2, false)]
}

/// The request of an allreduce of `data` in place.
fn request_of(context: &Arc<Context>, tag: u64, reduction: Reduction, data: &mut [i64]) -> Request {
    let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), data.len());
    let call = Call {
        outputs: &[data.as_mut_ptr().cast()],
        tag,
        reduction,
        ..Call::new(Shape { inputs: 0, ..shape }, DataType::Int64)
    };
    // SAFETY: the callers' arrays are as long as the shape says, outlive the request, and are not used while it is
    // active.
    unsafe { context.request(&call) }.unwrap()
}

fn sum(context: &Arc<Context>, tag: u64, data: &mut [i64]) -> Request {
    request_of(context, tag, Reduction::Op(ReduceOp::Sum), data)
}

/// What is refused because of the request's state.
fn assert_refused<T: std::fmt::Debug>(result: Result<T>, why: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.kind(), error.details().operation), (ErrorKind::InvalidOperation, "allreduce"), "{error}");
    assert!(error.message().contains(why), "{error}");
}

#[test]
fn every_call_is_refused_in_the_wrong_state_and_changes_nothing() {
    for contexts in groups() {
        run(&contexts, |context| {
            let mut data = [0; 3];
            let request = sum(context, 5, &mut data);
            for round in 0..3 {
                assert_refused(request.wait(), "(24 bytes), tag 5: cannot wait: the request is inactive");
                assert_refused(request.test(), "cannot test: the request is inactive");
                data.fill(round + 10);
                request.start().unwrap();
                assert_refused(request.start(), "cannot start: the request is active");
                assert_refused(request.retire(), "cannot free: the request is active");
                request.wait().unwrap();
                assert_eq!(data, [2 * (round + 10); 3]);
            }
            request.retire().unwrap();
            assert_refused(request.start(), "the request was freed");
            assert_refused(request.wait(), "the request was freed");
            assert!(context.broken().is_none());
        });
    }
}

/// Whether the call has ended in its start, while nobody waited, or not at all.
#[test]
fn no_other_call_of_its_kind_starts_on_its_tag_before_the_wait() {
    for contexts in groups() {
        for count in [1, 3, 1000] {
            let step = std::sync::Barrier::new(2);
            run(&contexts, |context| {
                let (mut data, mut other, mut plain) = (vec![1; count], vec![10; count], vec![0; count]);
                let [one, two] = [&mut data, &mut other].map(|data| sum(context, 5, data));
                let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), count);
                let call = Call {
                    outputs: &[plain.as_mut_ptr().cast()],
                    tag: 5,
                    ..Call::new(Shape { inputs: 0, ..shape }, DataType::Int64)
                };
                let refuses_others = || {
                    assert_refused(two.start(), "is running on this context already");
                    // SAFETY: the array is as long as the shape says, and lives until the call returns.
                    assert_refused(unsafe { context.run(&call) }, "is running on this context already");
                };
                if context.rank() == 1 {
                    one.start().unwrap();
                    refuses_others();
                }
                step.wait();
                if context.rank() == 0 {
                    one.start().unwrap();
                    refuses_others();
                }
                step.wait();
                refuses_others();
                one.wait().unwrap();
                two.start().unwrap();
                assert_refused(one.start(), "is running on this context already");
                two.wait().unwrap();
                assert!(data.iter().all(|sum| *sum == 2) && other.iter().all(|sum| *sum == 20));
            });
        }
    }
}

#[test]
fn a_request_keeps_its_context_and_what_it_was_made_of_need_not_stay() {
    for (persistent, contexts) in [0, 1].into_iter().flat_map(|rank| groups().map(|contexts| (rank, contexts))) {
        run(&contexts, |context| {
            let (rank, context) = (context.rank(), context.clone());
            let mut own = [rank as i64; 3];
            let mut all = [-1i64; 5];
            let request = {
                let (counts, algorithm) = (vec![2, 3], String::from("ring"));
                let call = Call {
                    inputs: &[own.as_ptr().cast()],
                    outputs: &[all.as_mut_ptr().cast()],
                    algorithm: Some(&algorithm),
                    ..Call::new(
                        Shape { recv_counts: &counts, ..Shape::new(Collective::Allgatherv, rank, 2, 0) },
                        DataType::Int64,
                    )
                };
                // SAFETY: the buffers are as long as the shape says, outlive the request, and are not used while it is
                // active.
                let request = unsafe { context.request(&call) }.unwrap();
                if rank == persistent {
                    // SAFETY: as above. A plain call matches a request.
                    (0..2).for_each(|_| unsafe { context.run(&call) }.unwrap());
                    return;
                }
                request
            };
            drop(context);
            for value in [rank as i64, 7] {
                own.fill(value);
                request.start().unwrap();
                request.wait().unwrap();
                let mut expected = [1 - rank as i64; 5];
                expected[if rank == 0 { 0..2 } else { 2..5 }].fill(value);
                assert_eq!(all, expected);
            }
        });
    }
}

#[test]
fn what_no_start_could_do_is_refused_when_the_request_is_made() {
    let connected = group(2);
    let alone = Context::new(device(), 0, 2, &ContextOptions::default()).unwrap();
    let mut data = [0i64; 4];
    let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, 0, 2, 4) };
    let call = Call { outputs: &[data.as_mut_ptr().cast()], ..Call::new(shape, DataType::Int64) };
    // SAFETY: no request is started.
    let made = |context: &Arc<Context>, call: &Call<'_>| unsafe { context.request(call) }.map(drop);
    made(&connected[0], &call).unwrap();
    let cases = [
        (&connected[1], call, "on a context of rank 1 of 2"),
        (&connected[0], Call { algorithm: Some("nonesuch"), ..call }, "nonesuch"),
        (&connected[0], Call { outputs: &[], ..call }, "0 outputs are given"),
        (&connected[0], Call { shape: Shape { outputs: 0, ..shape }, outputs: &[], ..call }, "outputs is 0"),
        (&connected[0], Call { dtype: ElementType::Opaque(12), ..call }, "is not defined on"),
        (&alone, call, "the context is not connected"),
    ];
    for (context, call, why) in cases {
        let error = made(context, &call).unwrap_err();
        assert!(error.message().contains(why), "{error}");
    }
    connected[0].close();
    let error = made(&connected[0], &call).unwrap_err();
    assert!(error.kind() == ErrorKind::Closed && error.message().contains("the context is broken"), "{error}");
}

#[test]
fn closing_between_start_and_wait_fails_the_wait() {
    for contexts in groups() {
        let mut data = [[1; 4], [1; 4]];
        let [own, other] = &mut data;
        let (request, idle) = (sum(&contexts[0], 0, own), sum(&contexts[0], 1, other));
        request.start().unwrap();
        contexts[0].close();
        assert_refused(request.start(), "the request is active");
        assert_eq!(request.wait().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(idle.start().unwrap_err().kind(), ErrorKind::Closed);
        idle.retire().unwrap();
        request.retire().unwrap();
    }
}

#[test]
fn dropping_an_active_request_releases_its_memory_and_tells_the_peers() {
    for contexts in groups() {
        let (mut data, mut mine) = (vec![1; 100_000], [0]);
        let (request, peer) = (sum(&contexts[0], 0, &mut data), sum(&contexts[1], 0, &mut mine));
        request.start().unwrap();
        drop(request);
        assert_eq!(contexts[0].lock().unwrap().messenger.remaining_state(), None);
        data.fill(7);
        let error = contexts[0].broken().unwrap();
        assert!(error.message().contains("rank 0 has dropped an active request"), "{error}");
        let error = peer.start().and_then(|()| peer.wait()).unwrap_err();
        assert_eq!(error.details().rank, Some(0), "{error}");
        assert!(data.iter().all(|value| *value == 7));
    }
}

#[test]
fn a_lone_contribution_is_converted_as_by_the_plain_call() {
    let context = &group(1)[0];
    let (input, mut output) = ([2u8, 0, 3], [9u8; 3]);
    let shape = Shape::new(Collective::Allreduce, 0, 1, 3);
    let call = Call { inputs: &[input.as_ptr()], outputs: &[output.as_mut_ptr()], ..Call::new(shape, DataType::Bool) };
    // SAFETY: the arrays are as long as the shape says, outlive the request, and are not used while it is active.
    let request = unsafe { context.request(&call) }.unwrap();
    for waits in [true, false] {
        request.start().unwrap();
        if waits {
            request.wait().unwrap()
        } else {
            assert!(request.test().unwrap())
        }
        assert_eq!(std::mem::replace(&mut output, [9; 3]), [1, 0, 1]);
    }
}

#[test]
fn a_reduction_function_runs_on_the_thread_that_waits_or_tests() {
    for contexts in groups() {
        let step = std::sync::Barrier::new(2);
        run(&contexts, |context| {
            for waits in [true, false] {
                let threads = std::sync::Mutex::new(Vec::new());
                let note = || {
                    threads.lock().unwrap().push(std::thread::current().id());
                    true
                };
                let act: Act<'_> = &note;
                let mut data = [context.rank() as i64 + 1; 2];
                let user = std::ptr::from_ref(&act).cast_mut().cast();
                let request = request_of(context, 0, Reduction::User { function: acts_and_adds, user }, &mut data);
                request.start().unwrap();
                // Both have started, and the other's part may have come.
                step.wait();
                assert!(threads.lock().unwrap().is_empty(), "the thread that started it ran the function");
                std::thread::scope(|scope| {
                    let waiter = scope.spawn(|| {
                        if waits {
                            request.wait().unwrap();
                        } else {
                            while !request.test().unwrap() {}
                        }
                    });
                    let id = waiter.thread().id();
                    waiter.join().unwrap();
                    assert_eq!(*threads.lock().unwrap(), [id]);
                });
                assert_eq!(data, [3; 2]);
            }
        });
    }
}

#[test]
fn two_threads_cannot_wait_for_one_request() {
    for contexts in groups() {
        let (entered, is_entered) = channel();
        let (resume, resumes) = channel();
        let slow = waits(entered, resumes);
        let quick = || true;
        let acts: [Act<'_>; 2] = [&slow, &quick];
        let mut data = [[1], [2]];
        let [own, other] = &mut data;
        let function = |act: &Act<'_>| Reduction::User {
            function: acts_and_adds,
            user: std::ptr::from_ref(act).cast_mut().cast(),
        };
        let requests = [
            request_of(&contexts[0], 0, function(&acts[0]), own),
            request_of(&contexts[1], 0, function(&acts[1]), other),
        ];
        requests.iter().for_each(|request| request.start().unwrap());
        std::thread::scope(|scope| {
            requests.iter().for_each(|request| drop(scope.spawn(|| request.wait().unwrap())));
            is_entered.recv_timeout(Duration::from_secs(20)).unwrap();
            for result in [requests[0].wait(), requests[0].start(), requests[0].test().map(drop), requests[0].retire()]
            {
                assert_refused(result, "another thread is in a call on the request");
            }
            resume.send(()).unwrap();
        });
        assert_eq!(data, [[3], [3]]);
    }
}

#[test]
fn starts_and_waits_of_many_threads_are_apart() {
    for contexts in groups() {
        const THREADS: u64 = 4;
        run(&contexts, |context| {
            std::thread::scope(|scope| {
                for tag in 0..THREADS {
                    scope.spawn(move || {
                        let mut data = vec![0; 1 + 3000 * tag as usize];
                        let request = sum(context, tag, &mut data);
                        for round in 0..100 {
                            data.fill(round + context.rank() as i64);
                            request.start().unwrap();
                            request.wait().unwrap();
                            assert!(data.iter().all(|value| *value == 2 * round + 1));
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn in_shared_memory_too_a_timeout_begins_with_the_start_and_a_late_wait_takes_what_has_come() {
    let contexts = shared::connected(2, false);
    contexts.iter().for_each(|context| context.set_timeout(Duration::from_millis(1)));
    let mut data = [[1], [2]];
    let [own, other] = &mut data;
    let (request, peer) = (sum(&contexts[0], 0, own), sum(&contexts[1], 0, other));
    let start = || {
        request.start().unwrap();
        // Longer than the timeout.
        std::thread::sleep(Duration::from_millis(5));
    };
    start();
    peer.start().unwrap();
    peer.wait().unwrap();
    request.wait().unwrap();
    start();
    let error = request.test().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    drop((request, peer));
    assert_eq!(data, [[3], [3]]);
}

/// Rank 1 starts the second request only when the function of the first was called on rank 0, which waits for the
/// second.
#[test]
fn a_function_called_by_a_wait_for_another_request_cannot_wait_for_its_own() {
    for contexts in groups() {
        let (called, is_called) = channel();
        let ends = std::sync::Mutex::new((called, is_called));
        run(&contexts, |context| {
            let (own, calls) = (std::sync::OnceLock::<Request>::new(), std::sync::atomic::AtomicUsize::new(0));
            let asks = || {
                let own = own.get().unwrap();
                assert_refused(own.wait(), "cannot wait: its reduction function is running on this thread");
                assert_refused(own.test(), "cannot test: its reduction function is running on this thread");
                if calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
                    ends.lock().unwrap().0.send(()).unwrap();
                }
                true
            };
            let quiet = || true;
            let acts: [Act<'_>; 2] = if context.rank() == 0 { [&asks, &quiet] } else { [&quiet, &quiet] };
            let function = |act: &Act<'_>| Reduction::User {
                function: acts_and_adds,
                user: std::ptr::from_ref(act).cast_mut().cast(),
            };
            let mut data = [[1 + context.rank() as i64; 2], [10; 2]];
            let [first, second] = &mut data;
            let first = own.get_or_init(|| request_of(context, 0, function(&acts[0]), first));
            let second = request_of(context, 1, function(&acts[1]), second);
            first.start().unwrap();
            if context.rank() == 1 {
                let wait = || ends.lock().unwrap().1.recv_timeout(Duration::from_millis(10)).is_ok();
                assert!((0..2000).any(|_| wait()), "rank 0 has called no function");
            }
            second.start().unwrap();
            second.wait().unwrap();
            first.wait().unwrap();
            assert_eq!(data, [[3; 2], [20; 2]]);
        });
    }
}

#[test]
fn threads_wait_for_requests_with_functions_in_all_orders() {
    const REQUESTS: usize = 4;
    for contexts in groups() {
        run(&contexts, |context| {
            let quiet = || true;
            let act: Act<'_> = &quiet;
            for round in 0..50 {
                let mut data: Vec<Vec<i64>> = (0..REQUESTS).map(|n| vec![n as i64; 1 + 700 * n]).collect();
                let request = |(n, data): (usize, &mut Vec<i64>)| {
                    let user = std::ptr::from_ref(&act).cast_mut().cast();
                    request_of(context, n as u64, Reduction::User { function: acts_and_adds, user }, data)
                };
                let requests: Vec<_> = data.iter_mut().enumerate().map(request).collect();
                requests.iter().for_each(|request| request.start().unwrap());
                std::thread::scope(|scope| {
                    for half in 0..2 {
                        let requests = &requests;
                        scope.spawn(move || {
                            let chosen: Vec<_> = (0..REQUESTS).filter(|n| n % 2 == (half + round) % 2).collect();
                            let first = (context.rank() + round / 2) % 2;
                            if round % 3 == 0 {
                                let given: Vec<_> = chosen.iter().map(|n| Some(&requests[*n])).collect();
                                let each = |_, result: Result<()>| {
                                    result.unwrap();
                                    false
                                };
                                assert!(wait_for_several(&given, None, each).unwrap());
                            } else {
                                while !requests[chosen[first]].wait_for(Duration::from_micros(50)).unwrap() {}
                                requests[chosen[1 - first]].wait().unwrap();
                            }
                        });
                    }
                });
                drop(requests);
                assert!(data.iter().enumerate().all(|(n, data)| data.iter().all(|sum| *sum == 2 * n as i64)));
            }
        });
    }
}
