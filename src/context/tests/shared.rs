//! Contexts whose ranks share memory.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};

use super::*;
use crate::collective::{Collective, Shape};
use crate::engine::scratch::KEPT_BYTES;
use crate::publications::{PLACES, TABLE_BYTES};
use crate::sys::topology::domain;
use crate::testing::loopback::Random;
use crate::testing::tier::Tier;
use crate::types::DataType;

pub(super) fn connected(size: usize, check_calls: bool) -> Vec<Arc<Context>> {
    let options =
        ContextOptions { timeout: Duration::from_secs(20), check_calls: Some(check_calls), ..Default::default() };
    let contexts = agreement::on_this_host(size, true, options);
    for context in &contexts {
        let mut others = (0..size).filter(|rank| *rank != context.rank());
        assert!(others.all(|rank| context.shares_memory(rank).unwrap()), "the ranks do not share memory");
    }
    contexts
}

/// A call of `count` numbers, in place.
fn call(context: &Context, collective: Collective, count: usize, tag: u64) -> Call<'static> {
    let shape = Shape { inputs: 0, ..Shape::new(collective, context.rank(), context.size(), count) };
    Call { tag, ..Call::new(shape, DataType::Int64) }
}

fn run_call(context: &Context, call: &Call<'_>) -> Result<Vec<i64>> {
    let mut cells = vec![context.rank() as i64 + 1; call.shape.count];
    // SAFETY: the vector is as long as the shape says, and lives until the call returns.
    unsafe { context.run(&Call { outputs: &[cells.as_mut_ptr().cast()], ..*call }) }.map(|()| cells)
}

#[test]
fn calls_are_compared_over_shared_memory() {
    let contexts = connected(3, true);
    run(&contexts, |context| {
        let count = if context.rank() == 2 { 999 } else { 1000 };
        let error = run_call(context, &call(context, Collective::Allreduce, count, 0)).unwrap_err();
        assert_eq!((error.kind(), error.details().rank), (ErrorKind::Mismatch, Some(2)), "{error}");
        assert_eq!(run_call(context, &call(context, Collective::Allreduce, 5, 0)).unwrap(), [6; 5]);
    });
}

#[test]
fn groups_are_compared_over_shared_memory() {
    let contexts = connected(4, true);
    run(&contexts, |context| {
        let calls = [
            (Collective::Allreduce, "shared_hierarchical_flat"),
            (Collective::Allreduce, "shared_hierarchical_slices"),
            (Collective::Reduce, "shared_hierarchical"),
        ];
        for (collective, algorithm) in calls {
            let groups: &[u32] = if context.rank() == 2 { &[0, 1, 0, 1] } else { &[0, 0, 1, 1] };
            let call = call(context, collective, 1000, 0);
            let call = Call { shape: Shape { groups, ..call.shape }, algorithm: Some(algorithm), ..call };
            let error = run_call(context, &call).unwrap_err();
            assert_eq!((error.kind(), error.details().rank), (ErrorKind::Mismatch, Some(2)), "{error}");
            let text = error.message();
            assert!(text.contains("groups 0,1,0,1") && text.contains("groups 0,0,1,1"), "{text}");
        }
        assert_eq!(run_call(context, &call(context, Collective::Allreduce, 5, 0)).unwrap(), [10; 5]);
    });
}

/// Groups that a caller passes on one host are its caches.
#[test]
fn ranks_of_several_caches_reduce_as_their_groups_say() {
    // Six ranks in three caches, in two, of which one has most, and in two sockets.
    let all = [[0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 0], [0, 0, 1, domain(1, 0), domain(1, 0), domain(1, 1)]];
    for groups in all.into_iter().skip(Tier::from_environment().of(2, 0, 0)) {
        let contexts = connected(6, false);
        // In an entry, copied, and piece by piece.
        let counts = [(1, 0), (7, 1), (3000, 2), (100_003, 3), (700_001, 4)];
        for (count, tag) in counts.into_iter().take(Tier::from_environment().of(4, 5, 5)) {
            for algorithm in ["shared_hierarchical_flat", "shared_hierarchical_slices"] {
                for (inputs, times) in [(0, 3), (1, 3)] {
                    run(&contexts, |context| {
                        for time in 0..times {
                            let value = |rank: usize, at: usize| ((rank + 1) * (at % 1000 + time)) as i64;
                            let input: Vec<i64> = (0..count).map(|at| value(context.rank(), at)).collect();
                            let mut output = if inputs == 0 { input.clone() } else { vec![0; count] };
                            let (from, into) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
                            let call = call(context, Collective::Allreduce, count, tag);
                            let shape = Shape { inputs, groups: &groups, ..call.shape };
                            let algorithm = Some(algorithm);
                            let call = Call { shape, algorithm, inputs: &from[..inputs], outputs: &into, ..call };
                            // SAFETY: the vectors are as long as the shape says, and live until the call returns.
                            unsafe { context.run(&call) }.unwrap();
                            let wrong = (0..count).find(|at| output[*at] != 21 * (at % 1000 + time) as i64);
                            assert_eq!(wrong, None, "{groups:?}, {algorithm:?}, {count}, rank {}", context.rank());
                        }
                    });
                }
            }
            for root in [0, 3, 5] {
                run(&contexts, |context| {
                    let call = call(context, Collective::Reduce, count, tag);
                    let shape = Shape { root, groups: &groups, ..call.shape };
                    let sum =
                        run_call(context, &Call { shape, algorithm: Some("shared_hierarchical"), ..call }).unwrap();
                    let expected = if context.rank() == root { 21 } else { context.rank() as i64 + 1 };
                    assert!(sum.iter().all(|cell| *cell == expected), "{groups:?}, {count}, root {root}");
                });
            }
        }
        let arrived = AtomicU64::new(0);
        run(&contexts, |context| {
            for time in 1..=50 {
                arrived.fetch_add(1, Ordering::SeqCst);
                let shape = Shape {
                    groups: &groups,
                    outputs: 0,
                    inputs: 0,
                    ..Shape::new(Collective::Barrier, context.rank(), 6, 0)
                };
                let call = Call { algorithm: Some("shared_hierarchical"), ..Call::new(shape, DataType::Int64) };
                // SAFETY: a barrier has no buffers.
                unsafe { context.run(&call) }.unwrap();
                assert!(arrived.load(Ordering::SeqCst) >= 6 * time, "{groups:?}");
            }
        });
    }
}

#[test]
fn ranks_of_several_caches_exchange_blocks_as_their_groups_say() {
    let all = [[0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 0], [0, 0, 1, domain(1, 0), domain(1, 0), domain(1, 1)]];
    for groups in all.into_iter().skip(Tier::from_environment().of(2, 0, 0)) {
        let contexts = connected(6, false);
        // In an entry, copied, and piece by piece; of different lengths, one of which is 0.
        for (unit, tag) in [(1, 0), (7, 1), (3000, 2), (100_003, 3)] {
            let counts = [unit, 2 * unit, 0, unit, 3 * unit, unit];
            let all: usize = counts.iter().sum();
            run(&contexts, |context| {
                let rank = context.rank();
                let value = |of: usize, at: usize| ((of + 1) * (at % 1000 + 1)) as i64;
                let check = |collective, shape: Shape<'_>, input: &[i64], expected: &[i64]| {
                    let mut output = if shape.inputs == 0 { input.to_vec() } else { vec![-1; expected.len()] };
                    let (from, into) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
                    let shape = Shape { groups: &groups, collective, ..shape };
                    let algorithm = Some("shared_hierarchical");
                    let call = Call::new(shape, DataType::Int64);
                    let call = Call { tag, algorithm, inputs: &from[..shape.inputs], outputs: &into, ..call };
                    // SAFETY: the vectors are as long as the shape says, and live until the call returns.
                    unsafe { context.run(&call) }.unwrap();
                    let wrong = expected.iter().zip(&output).position(|(a, b)| a != b);
                    assert_eq!(wrong, None, "{groups:?}, {collective:?} of {unit}, rank {rank}");
                };
                let call = Shape::new(Collective::Allgather, rank, 6, unit);
                let block = |of: usize, count| (0..count).map(move |at| value(of, at));
                let own: Vec<i64> = block(rank, unit).collect();
                check(Collective::Allgather, call, &own, &(0..6).flat_map(|of| block(of, unit)).collect::<Vec<_>>());

                let call = Shape { count: 0, recv_counts: &counts, ..call };
                let own: Vec<i64> = block(rank, counts[rank]).collect();
                let gathered: Vec<i64> = (0..6).flat_map(|of| block(of, counts[of])).collect();
                check(Collective::Allgatherv, call, &own, &gathered);

                let before: usize = counts[..rank].iter().sum();
                let contribution: Vec<i64> = (0..all).map(|at| value(rank, at)).collect();
                let sums: Vec<i64> = (before..before + counts[rank]).map(|at| 21 * value(0, at)).collect();
                for inputs in [0, 1] {
                    check(Collective::ReduceScatter, Shape { inputs, ..call }, &contribution, &sums);
                }
            });
        }
    }
}

/// Streams with readers that read several of them at one pace, or some after others.
#[test]
fn long_buffers_of_ranks_that_read_each_others_end() {
    let contexts = connected(4, false);
    let groups = [0, 0, 0, 1];
    // More than fits into a ring, and more than a piece.
    for count in [400_000, 1_000_003] {
        run(&contexts, |context| {
            let rank = context.rank();
            let of = |collective, algorithm, groups: &[u32]| {
                let call = call(context, collective, count, 0);
                let call = Call { shape: Shape { groups, ..call.shape }, algorithm: Some(algorithm), ..call };
                let cells = run_call(context, &call).unwrap();
                assert!(cells.iter().all(|cell| *cell == cells[0]), "{collective:?} of {count}");
                cells[0]
            };
            let before = (1..=rank as i64).sum::<i64>();
            assert_eq!(of(Collective::Scan, "shared_flat", &[]), before + rank as i64 + 1);
            // What rank 0 gets is not specified: it keeps what it had.
            assert_eq!(of(Collective::Exscan, "shared_flat", &[]), if rank == 0 { 1 } else { before });
            assert_eq!(of(Collective::Allreduce, "shared_hierarchical_flat", &groups), 10);
            assert_eq!(of(Collective::Allreduce, "shared_hierarchical_slices", &groups), 10);
        });
    }
}

#[test]
fn ranks_that_pass_other_caches_are_told_so() {
    let contexts = connected(4, false);
    run(&contexts, |context| {
        let groups = if context.rank() == 3 { [0, 1, 0, 1] } else { [0, 0, 1, 1] };
        let call = call(context, Collective::Allreduce, 5, 0);
        let shape = Shape { groups: &groups, ..call.shape };
        let call = Call { shape, algorithm: Some("shared_hierarchical_flat"), ..call };
        let error = run_call(context, &call).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    });
}

/// A context, and what a call on it from inside a reduction function has returned.
struct Inside<'a> {
    context: &'a Context,
    algorithm: &'static str,
    result: Mutex<Option<Result<Vec<i64>>>>,
}

unsafe extern "C" fn calls_and_adds(
    into: *mut c_void,
    left: *const c_void,
    right: *const c_void,
    _: usize,
    user: *mut c_void,
) -> i32 {
    // SAFETY: the test passes an `Inside`, which lives until its call returns.
    let inside = unsafe { &*user.cast::<Inside<'_>>() };
    let again = Call { algorithm: Some(inside.algorithm), ..call(inside.context, Collective::Allreduce, 1, 4) };
    *inside.result.lock().unwrap() = Some(run_call(inside.context, &again));
    // SAFETY: the call is of one number.
    unsafe { *into.cast::<i64>() = *left.cast::<i64>() + *right.cast::<i64>() };
    0
}

#[test]
fn one_collective_does_not_run_twice_on_a_tag_whether_it_sends_messages_or_not() {
    let contexts = connected(2, false);
    for (outer, inner) in [("shared_flat", "ring"), ("ring", "shared_flat"), ("shared_flat", "shared_flat")] {
        run(&contexts, |context| {
            let inside = Inside { context, algorithm: inner, result: Mutex::default() };
            let user = (&raw const inside).cast_mut().cast();
            let call = Call {
                algorithm: Some(outer),
                reduction: Reduction::User { function: calls_and_adds, user },
                ..call(context, Collective::Allreduce, 1, 4)
            };
            assert_eq!(run_call(context, &call).unwrap(), [3]);
            // With some algorithms only one of two ranks reduces.
            if let Some(result) = inside.result.into_inner().unwrap() {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidOperation, "{error}");
                let what = format!("allreduce {outer} of int64 by a caller's function with tag 4 is running on this");
                assert!(error.message().contains(&what), "{outer}, {inner}: {error}");
            }
        });
    }
    run(&contexts, |context| {
        for algorithm in ["shared_flat", "ring"] {
            let call = Call { algorithm: Some(algorithm), ..call(context, Collective::Allreduce, 1, 4) };
            assert_eq!(run_call(context, &call).unwrap(), [3]);
        }
    });
}

#[test]
fn a_timeout_counts_the_collectives_on_shared_memory() {
    let contexts = connected(2, false);
    run(&contexts, |context| {
        run_call(context, &call(context, Collective::Allreduce, 1, 0)).unwrap();
    });
    let call = Call { timeout: Some(Duration::ZERO), ..call(&contexts[0], Collective::Allreduce, 1, 0) };
    let error = run_call(&contexts[0], &call).unwrap_err();
    assert!(error.message().contains("in collective number 2 of this context, waiting for rank 1"), "{error}");
}

// The rank that starts a call first finds nothing of the other's then, so it must do more after its start.

/// Each rank waits for the call that the other one has started first, and that must therefore go on there.
#[test]
fn ranks_that_wait_for_their_requests_in_different_orders_do_not_wait_for_each_other() {
    // Copied into shared memory, and read where it is.
    for count in [1000, 200_000] {
        let started = Barrier::new(2);
        run(&connected(2, false), |context| {
            let mut cells = [(); 2].map(|()| vec![context.rank() as i64 + 1; count]);
            let requests: Vec<_> = cells
                .iter_mut()
                .zip(1..)
                .map(|(cells, tag)| {
                    let outputs = &[cells.as_mut_ptr().cast()];
                    let call = call(context, Collective::Allreduce, count, tag);
                    // SAFETY: the vectors are as long as the shape says, outlive the requests, and are not used before
                    // the waits.
                    unsafe { context.request(&Call { outputs, algorithm: Some("shared_slices"), ..call }) }.unwrap()
                })
                .collect();
            let [first, second] = [context.rank(), 1 - context.rank()];
            requests[first].start().unwrap();
            started.wait();
            requests[second].start().unwrap();
            requests[second].wait().unwrap();
            requests[first].wait().unwrap();
            assert!(cells.iter().flatten().all(|cell| *cell == 3));
        });
    }
}

/// Rank 1 makes no call after its start until rank 0's wait has ended.
#[test]
fn the_device_goes_on_with_a_request_in_shared_memory() {
    const COUNT: usize = 1000;
    let [started, over] = [(); 2].map(|()| Barrier::new(2));
    run(&connected(2, false), |context| {
        let mut cells = vec![context.rank() as i64 + 1; COUNT];
        let call = call(context, Collective::Allreduce, COUNT, 1);
        let outputs = &[cells.as_mut_ptr().cast()];
        // SAFETY: the vector is as long as the shape says, outlives the request, and is not used before the wait.
        let request = unsafe { context.request(&Call { outputs, algorithm: Some("shared_slices"), ..call }) }.unwrap();
        if context.rank() == 1 {
            request.start().unwrap();
            started.wait();
            over.wait();
            request.wait().unwrap();
        } else {
            started.wait();
            request.start().unwrap();
            let result = request.wait();
            over.wait();
            result.unwrap();
        }
        assert_eq!(cells, vec![3; COUNT]);
    });
}

#[test]
fn a_rank_in_another_call_goes_on_with_the_request_that_it_has_started() {
    const COUNT: usize = 1000;
    let started = Barrier::new(2);
    run(&connected(2, false), |context| {
        let mut cells = vec![context.rank() as i64 + 1; COUNT];
        let slices =
            |tag| Call { algorithm: Some("shared_slices"), ..call(context, Collective::Allreduce, COUNT, tag) };
        // SAFETY: the vector is as long as the shape says, outlives the request, and is not used before the wait.
        let request = unsafe { context.request(&Call { outputs: &[cells.as_mut_ptr().cast()], ..slices(1) }) }.unwrap();
        if context.rank() == 1 {
            request.start().unwrap();
            started.wait();
        } else {
            started.wait();
            request.start().unwrap();
            request.wait().unwrap();
        }
        assert_eq!(run_call(context, &slices(2)).unwrap(), vec![3; COUNT]);
        if context.rank() == 1 {
            request.wait().unwrap();
        }
        assert_eq!(cells, vec![3; COUNT]);
    });
}

/// Rank 0 waits until rank 1 has read earlier publications, while rank 1 has published another broadcast.
#[test]
fn a_call_that_waits_for_room_takes_no_earlier_call_for_its_own() {
    const MORE_THAN_FIT: usize = 64;
    let contexts = connected(2, false);
    let broadcast = |context: &Context, root, count, tag| {
        let call = call(context, Collective::Broadcast, count, tag);
        let call = Call { shape: Shape { root, ..call.shape }, algorithm: Some("shared_flat"), ..call };
        assert_eq!(run_call(context, &call).unwrap(), vec![root as i64 + 1; count]);
    };
    run(&contexts, |context| broadcast(context, 1, 1, 0));
    std::thread::scope(|scope| {
        let zero = scope.spawn(|| {
            (0..MORE_THAN_FIT).for_each(|_| broadcast(&contexts[0], 0, 2, 0));
            broadcast(&contexts[0], 0, 2, 0);
        });
        let is_polled = || contexts[0].lock().unwrap().waiters.polling || contexts[0].engine().is_polled_alone();
        while !zero.is_finished() && !is_polled() {
            std::thread::yield_now();
        }
        (0..=MORE_THAN_FIT).for_each(|_| broadcast(&contexts[1], 0, 2, 0));
    });
}

/// Ranks 0 and 1 make the same call by different algorithms. Rank `first` is asleep in its call, or has ended it,
/// before the other one begins. Returns the result of each.
fn differing(first: usize, collective: Collective, count: usize, algorithms: [&str; 2]) -> [Result<Vec<i64>>; 2] {
    let contexts = connected(2, false);
    let make = |context: &Context, algorithm, count| {
        run_call(context, &Call { algorithm: Some(algorithm), ..call(context, collective, count, 3) })
    };
    // Calls of both kinds, in different numbers.
    for algorithm in ["shared_flat", algorithms[0], algorithms[1]] {
        run(&contexts, |context| drop(make(context, algorithm, 3).unwrap()));
    }
    std::thread::scope(|scope| {
        let one = |rank: usize| make(&contexts[rank], algorithms[rank], count);
        let early = scope.spawn(move || one(first));
        while !early.is_finished() && contexts[first].lock().unwrap().waiters.sleeping.is_none() {
            std::thread::yield_now();
        }
        let (late, early) = (one(1 - first), early.join().unwrap());
        if first == 0 { [early, late] } else { [late, early] }
    })
}

#[test]
fn a_rank_in_shared_memory_and_one_that_sends_messages_find_that_their_calls_differ() {
    const LARGE: usize = 1 << 18;
    let calls =
        [(Collective::Broadcast, "binomial"), (Collective::Reduce, "binomial"), (Collective::Allreduce, "ring")];
    for ((collective, messages), count) in calls.into_iter().flat_map(|call| [(call, 4), (call, LARGE)]) {
        for (algorithms, first) in [[messages, "shared_flat"], ["shared_flat", messages]]
            .into_iter()
            .flat_map(|algorithms| [(algorithms, 0), (algorithms, 1)])
        {
            let results = differing(first, collective, count, algorithms);
            let what = format!("{} of {count} by {algorithms:?}, rank {first} first", collective.name());
            assert!(results.iter().any(Result::is_err), "{what}");
            for (rank, result) in results.into_iter().enumerate() {
                let Err(error) = result else { continue };
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}: {error}");
                let [own, theirs] = [rank, 1 - rank].map(|rank| format!("{} {}", collective.name(), algorithms[rank]));
                let found = if error.is_reported_by_peer() { &own } else { &theirs };
                let text = error.message();
                assert!(text.contains(&own) && text.contains(&theirs), "{what}: {error}");
                assert!(text.contains(&format!("is in another collective: {found} of int64")), "{what}: {error}");
            }
        }
    }
}

/// Starts a call as a request, then does something else, and then only tests the request, until that fails.
fn fails_when_tested(context: &Arc<Context>, call: &Call<'_>, then: impl FnOnce()) -> Error {
    let mut cell = [1i64];
    // SAFETY: the array outlives the request, and is not used while it is active.
    let request = unsafe { context.request(&Call { outputs: &[cell.as_mut_ptr().cast()], ..*call }) }.unwrap();
    request.start().unwrap();
    then();
    (0..10_000).find_map(|_| request.test().err()).expect("a failure")
}

#[test]
fn a_test_of_a_request_finds_that_a_peer_has_left() {
    let contexts = connected(2, false);
    let call = call(&contexts[0], Collective::Allreduce, 1, 0);
    let error = fails_when_tested(&contexts[0], &call, || contexts[1].close());
    assert_eq!((error.kind(), error.details().rank), (ErrorKind::ConnectionLost, Some(1)), "{error}");
}

#[test]
fn a_test_of_a_request_finds_that_calls_differ() {
    for algorithms in [["binomial", "shared_flat"], ["shared_flat", "binomial"]] {
        let contexts = connected(2, false);
        let calls = [0, 1].map(|rank| Call {
            algorithm: Some(algorithms[rank]),
            ..call(&contexts[rank], Collective::Broadcast, 1, 0)
        });
        run_call(&contexts[0], &calls[0]).unwrap();
        let error = fails_when_tested(&contexts[1], &calls[1], || ());
        assert_eq!((error.kind(), error.details().rank), (ErrorKind::Mismatch, Some(0)), "{algorithms:?}: {error}");
    }
}

#[test]
fn a_thread_that_waits_while_another_one_sleeps_in_the_system_is_notified_and_does_not_look_by_itself() {
    let contexts = connected(2, false);
    let sum = |rank: usize, tag| {
        let timeout = Some(Duration::from_secs(if tag == 1 { 20 } else { 3600 }));
        run_call(&contexts[rank], &Call { timeout, ..call(&contexts[rank], Collective::Allreduce, 1, tag) })
    };
    std::thread::scope(|scope| {
        let polls = scope.spawn(|| sum(0, 1));
        while contexts[0].lock().unwrap().waiters.sleeping.is_none() {
            std::thread::yield_now();
        }
        let waits = scope.spawn(|| sum(0, 2));
        while contexts[0].lock().unwrap().waiters.peers().is_empty() {
            std::thread::yield_now();
        }
        // The first look may have been set before the other thread slept.
        let turns = || contexts[0].lock().unwrap().turns();
        let is_still = |_: &u32| {
            let before = turns();
            std::thread::sleep(Duration::from_millis(20));
            turns() == before
        };
        let still = (0..20).find(is_still);
        assert_eq!(sum(1, 2).unwrap(), [3]);
        assert_eq!(waits.join().unwrap().unwrap(), [3]);
        assert_eq!((sum(1, 1).unwrap(), polls.join().unwrap().unwrap()), (vec![3], vec![3]));
        assert!(still.is_some(), "it looks by itself");
    });
}

#[test]
fn that_calls_differ_is_found_when_no_time_is_left_to_wait() {
    for algorithms in [["binomial", "shared_flat"], ["shared_flat", "binomial"]] {
        let contexts = connected(2, false);
        let call = |rank: usize| {
            let call = call(&contexts[rank], Collective::Broadcast, 1, 0);
            run_call(
                &contexts[rank],
                &Call { algorithm: Some(algorithms[rank]), timeout: Some(Duration::ZERO), ..call },
            )
        };
        assert!(call(0).is_ok());
        let error = call(1).unwrap_err();
        assert_eq!((error.kind(), error.details().rank), (ErrorKind::Mismatch, Some(0)), "{algorithms:?}: {error}");
    }
}

/// Writes words into the memory that a rank shares, as only this rank can, until `over`.
fn scribble(context: &Context, seed: u64, over: &AtomicBool) {
    const PAGE: usize = 4096;
    let group = context.lock().unwrap().messenger.connections().local_ranks().unwrap().clone();
    let (memory, bytes) = group.own_memory();
    let (table, lane) = (PAGE, PAGE + TABLE_BYTES);
    let mut random = Random::new(seed);
    while !over.load(Ordering::Relaxed) {
        for _ in 0..random.below(4) {
            let at = match random.below(8) {
                // The header, acknowledgements, the first entries, the link to rank 0, the lines of its ring, and
                // anything.
                0 => random.below(PAGE),
                1 => table + random.below(2 * PAGE),
                2 | 3 => table + PLACES[0] + random.below(4) * PLACES[1] + random.below(128),
                4 => lane + random.below(256),
                5 => lane + random.below(PAGE),
                6 => lane + PAGE + random.below(64) * 64,
                _ => random.below(bytes),
            };
            // SAFETY: within the memory, aligned, and kept by the group; others access it by atomics, or as bytes.
            let word = unsafe { &*memory.add(at & !7).cast::<AtomicU64>() };
            let value = match random.below(6) {
                0 => random.bits() & 0xff,
                1 => random.bits() & 0xffff_ffff,
                // A stamp of one of the ring's first laps.
                2 => ((1 + random.bits() % 4) << 16) | (random.bits() % 8000),
                3 => word.load(Ordering::Relaxed) ^ 1 << (random.bits() % 64),
                4 => word.load(Ordering::Relaxed).wrapping_add(random.bits() % 5),
                _ => random.bits(),
            };
            word.store(value, Ordering::Relaxed);
        }
        std::thread::yield_now();
    }
}

/// Whatever a rank writes there, the calls of others end: with an error, or a result, which may be wrong.
#[test]
fn a_rank_that_scribbles_over_the_memory_that_it_shares_harms_nobody_else() {
    const CALLS: [(&str, usize); 6] = [
        ("shared_flat", 1),
        ("ring", 10),
        ("shared_slices", 3000),
        ("ring", 2000),
        ("shared_flat", 300_000),
        ("ring", 100_000),
    ];
    let mut failed = 0;
    for seed in 0..Tier::from_environment().of(5, 20, 20) {
        let contexts = connected(2, false);
        contexts.iter().for_each(|context| context.set_timeout(Duration::from_millis(200)));
        let over = AtomicBool::new(false);
        let calls = |context: &Context| {
            (0..60).find_map(|n| {
                let (algorithm, count) = CALLS[n % CALLS.len()];
                let call = Call { algorithm: Some(algorithm), ..call(context, Collective::Allreduce, count, 0) };
                run_call(context, &call).err()
            })
        };
        std::thread::scope(|scope| {
            scope.spawn(|| scribble(&contexts[1], seed, &over));
            scope.spawn(|| calls(&contexts[1]));
            if let Some(error) = calls(&contexts[0]) {
                assert!(!matches!(error.kind(), ErrorKind::Internal | ErrorKind::InvalidArgument), "{error}");
                failed += 1;
            }
            over.store(true, Ordering::Relaxed);
        });
    }
    assert!(failed > 0, "nothing that was written had an effect");
}

/// By the device's thread, after a second.
#[test]
fn scratch_memory_is_given_back_though_no_call_follows() {
    // In place, a scan of three ranks needs as much memory as a buffer has, on the rank in the middle over shared
    // memory.
    for contexts in [connected(3, false), group(3)] {
        run(&contexts, |context| {
            for round in 0..2 {
                let result = run_call(context, &call(context, Collective::Scan, 2 * KEPT_BYTES / 8, 0)).unwrap();
                let sum: i64 = (1..=context.rank() as i64 + 1).sum();
                assert!(result.iter().all(|element| *element == sum), "round {round}");
                let start = std::time::Instant::now();
                while context.lock().unwrap().kept.is_much() {
                    assert!(start.elapsed() < Duration::from_secs(60), "rank {} keeps its memory", context.rank());
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
    }
}
