//! What goes on while no thread of the program is in a call.

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Instant;

use super::functions::{Act, waits};
use super::shared;
use super::*;
use crate::collective::{Collective, Shape};
use crate::context::Completions;
use crate::testing::tier::Tier;
use crate::types::{DataType, ReduceOp};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

/// Returns when `done` says so.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Connected contexts of which no rank has waited with its context's lock, as far as that can be.
fn fresh(size: usize) -> Vec<Arc<Context>> {
    let options = ContextOptions { timeout: LONG, tuning: Some("default".into()), ..Default::default() };
    agreement::on_this_host(size, true, options)
}

fn sum(context: &Arc<Context>, tag: u64, data: &mut [i64]) -> Request {
    let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), context.size(), data.len()) };
    let call = Call {
        outputs: &[data.as_mut_ptr().cast()],
        tag,
        reduction: Reduction::Op(ReduceOp::Sum),
        ..Call::new(shape, DataType::Int64)
    };
    // SAFETY: the callers' arrays are as long as the shape says, outlive the request, and are not used while it is
    // active.
    unsafe { context.request(&call) }.unwrap()
}

#[test]
fn a_posted_receive_ends_on_a_rank_that_has_never_waited() {
    for bytes in [100_000, 1_000_000] {
        let contexts = fresh(3);
        let (mut sent, mut got) = (random_bytes(1, bytes), vec![0; bytes]);
        // SAFETY: the vectors outlive the buffers.
        let [from, into] = unsafe {
            [
                contexts[0].unbound_buffer(sent.as_mut_ptr(), bytes).unwrap(),
                contexts[2].unbound_buffer(got.as_mut_ptr(), bytes).unwrap(),
            ]
        };
        into.recv(&[0], 7, 0, bytes).unwrap();
        from.send(2, 7, 0, bytes).unwrap();
        // The receiver reads them out of the sender's memory.
        from.wait_send(None).unwrap().unwrap();
        assert_eq!(into.wait_recv(Some(Duration::ZERO)).unwrap(), Some((0, bytes)), "it has not ended");
        drop((from, into));
        assert!(sent == got);
    }
}

#[test]
fn a_rank_that_is_in_no_call_replies_that_it_is_in_none() {
    let contexts = fresh(3);
    run(&contexts[..2], |context| {
        let mut data = [1i64; 4];
        let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), 3, 4) };
        let call = Call {
            outputs: &[data.as_mut_ptr().cast()],
            timeout: Some(Duration::from_millis(300)),
            ..Call::new(shape, DataType::Int64)
        };
        // SAFETY: the array is as long as the shape says, and lives until the call returns.
        let error = unsafe { context.run(&call) }.unwrap_err();
        assert_eq!(error.details().rank, Some(2), "{error}");
        if error.kind() == ErrorKind::Timeout && !error.is_reported_by_peer() {
            assert!(error.message().contains("it says that it is in no collective"), "{error}");
        }
    });
}

/// Rank 0 waits for the result of ranks 1 and 2, of which rank 1 has started the call and computes, and rank 2 does not
/// come.
#[test]
fn a_rank_with_a_started_call_replies_that_it_is_in_it() {
    let contexts = fresh(3);
    let start = |rank: usize, data: &mut [i64], timeout| {
        let shape = Shape { inputs: 0, groups: &[0, 1, 1], ..Shape::new(Collective::Allreduce, rank, 3, data.len()) };
        let call = Call {
            algorithm: Some("shared_hierarchical_flat"),
            outputs: &[data.as_mut_ptr().cast()],
            timeout: Some(timeout),
            ..Call::new(shape, DataType::Int64)
        };
        // SAFETY: the arrays are as long as the shape says, and outlive the requests.
        let request = unsafe { contexts[rank].request(&call) }.unwrap();
        request.start().unwrap();
        request
    };
    let mut data = [[1i64; 4]; 2];
    let [first, second] = &mut data;
    let others = start(1, second, LONG);
    let error = start(0, first, Duration::from_millis(300)).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.message().contains("it says that it is in allreduce shared_hierarchical_flat"), "{error}");
    drop(others);
}

/// Calls of a pair's few bytes, in a slot, copied, and piece by piece; the last with others before it that are longer.
#[test]
fn a_started_call_ends_though_no_thread_waits_for_it() {
    for size in [2, 3] {
        let contexts = shared::connected(size, false);
        for round in 0..Tier::from_environment().of(2, 5, 5) {
            for counts in [&[1][..], &[3], &[100], &[100_000], &[700_001], &[700_001, 100_000, 1]] {
                run(&contexts, |context| {
                    let mut data: Vec<Vec<i64>> =
                        counts.iter().map(|count| vec![context.rank() as i64 + 1; *count]).collect();
                    let started: Vec<_> =
                        data.iter_mut().enumerate().map(|(tag, data)| sum(context, tag as u64, data)).collect();
                    started.iter().for_each(|request| request.start().unwrap());
                    let memory = context.shared_memory.get().unwrap();
                    let what = format!(
                        "a call has not ended: {counts:?}, {size} ranks, round {round}, rank {}",
                        context.rank()
                    );
                    until(&what, || !memory.has_started_calls());
                    started.iter().for_each(|request| request.wait().unwrap());
                    let total = (1..=size as i64).sum::<i64>();
                    assert!(data.iter().flatten().all(|sum| *sum == total), "{counts:?}, round {round}");
                });
            }
        }
    }
}

/// Over sockets, they end as the context is watched from the start on; but the device's thread lets the thread that has
/// started one come again first.
#[test]
fn a_started_call_that_sends_messages_is_watched_at_once() {
    let contexts = group(2);
    let looked = Barrier::new(2);
    run(&contexts, |context| {
        let mut data = [context.rank() as i64; 1000];
        let request = sum(context, 0, &mut data);
        (0..3).for_each(|_| request.start().and_then(|()| request.wait()).unwrap());
        if context.rank() == 0 {
            request.start().unwrap();
            assert!(context.engine().is_watched());
            assert!(context.engine().take_visits() > 0 && context.engine().take_visits() == 0, "by the start, once");
            looked.wait();
            request.wait().unwrap();
        } else {
            looked.wait();
            request.start().and_then(|()| request.wait()).unwrap();
        }
    });
}

/// Ranks that share memory are told of what comes, so their devices have nothing to look for.
#[test]
fn ranks_that_share_memory_are_watched_whenever_no_thread_waits() {
    let contexts = shared::connected(3, false);
    run(&contexts, |context| {
        let plain = |tag| {
            let mut data = [1i64; 3];
            let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), 3, 3) };
            let call = Call { outputs: &[data.as_mut_ptr().cast()], tag, ..Call::new(shape, DataType::Int64) };
            // SAFETY: the array is as long as the shape says, and lives until the call returns.
            unsafe { context.run(&call) }.unwrap();
        };
        // The messages of the connecting have passed.
        until("it is never watched", || context.engine().is_watched());
        for round in 0..5 {
            // The others wait with their contexts' locks, and some of them sleep.
            if context.rank() == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
            plain(0);
            assert!(context.engine().is_watched(), "round {round}");
        }
    });
}

#[test]
fn an_idle_context_does_nothing() {
    for contexts in [group(2), shared::connected(2, false)] {
        run(&contexts, |context| {
            let mut data = [1i64; 3];
            let request = sum(context, 0, &mut data);
            request.start().and_then(|()| request.wait()).unwrap();
        });
        for context in &contexts {
            let turns = || context.lock().unwrap().turns();
            until("it is never quiet", || {
                let before = turns();
                std::thread::sleep(Duration::from_millis(30));
                turns() == before
            });
        }
    }
}

/// While a rank is in its reduction function, its device goes on with what else was posted.
#[test]
fn a_function_at_work_keeps_no_message_from_its_receiver() {
    for contexts in [group(2), shared::connected(2, false)] {
        let bytes = 1_000_000;
        let (mut sent, mut got) = (random_bytes(1, bytes), vec![0; bytes]);
        // SAFETY: the vectors outlive the buffers.
        let [from, into] = unsafe {
            [
                contexts[1].unbound_buffer(sent.as_mut_ptr(), bytes).unwrap(),
                contexts[0].unbound_buffer(got.as_mut_ptr(), bytes).unwrap(),
            ]
        };
        into.recv(&[1], 3, 0, bytes).unwrap();
        let ((entered, is_entered), (resume, resumes)) = (channel(), channel());
        let slow = waits(entered, resumes);
        std::thread::scope(|scope| {
            let calls = [&slow as Act<'_>, &|| true].into_iter().zip(&contexts);
            for (act, context) in calls {
                scope.spawn(move || assert_eq!(functions::sum(context, 1, None, &[1], act).unwrap(), 2));
            }
            is_entered.recv_timeout(LONG).unwrap();
            from.send(0, 3, 0, bytes).unwrap();
            let is_sent = from.wait_send(None);
            resume.send(()).unwrap();
            assert_eq!(is_sent.unwrap(), Some(0));
        });
        assert_eq!(into.wait_recv(None).unwrap(), Some((1, bytes)));
        drop((from, into));
        assert!(sent == got);
    }
}

#[test]
fn sends_beside_the_attachment_of_their_buffer_are_counted_once() {
    const ROUNDS: usize = 300;
    const COUNT: usize = 4;
    let contexts = fresh(2);
    for round in 0..ROUNDS {
        let (mut sent, mut got) = ([round as u8; COUNT], [0; COUNT]);
        // SAFETY: the arrays outlive the buffers.
        let [from, into] = unsafe {
            [
                contexts[0].unbound_buffer(sent.as_mut_ptr(), COUNT).unwrap(),
                contexts[1].unbound_buffer(got.as_mut_ptr(), COUNT).unwrap(),
            ]
        };
        let queue = Completions::new().unwrap();
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                (0..COUNT).for_each(|at| from.send(1, at as u64, at, 1).unwrap());
            });
            barrier.wait();
            (0..round % 64).for_each(|_| std::hint::spin_loop());
            queue.attach_buffer(&from, 0).unwrap();
        });
        for at in 0..COUNT {
            into.recv(&[0], at as u64, at, 1).unwrap();
            into.wait_recv(None).unwrap().unwrap();
        }
        for _ in 0..COUNT {
            let ended = queue.wait(Some(Duration::from_secs(30))).unwrap().expect("a send is not reported");
            ended.result.unwrap();
        }
        assert_eq!(queue.count(), 0, "round {round}: an operation was counted twice");
    }
}
