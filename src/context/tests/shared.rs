//! Contexts whose ranks share memory.

mod caches;
mod requests;

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
