//! Aborts of a context, while its ranks wait, compute, or connect.

use std::sync::mpsc::channel;
use std::time::Instant;

use super::functions::sum;
use super::*;
use crate::collective::{Collective, Shape};
use crate::rendezvous::{InProcessStore, Store};
use crate::types::DataType;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Connected contexts that share memory, and such that use sockets.
fn groups(size: usize) -> [Vec<Arc<Context>>; 2] {
    [true, false]
        .map(|shared| agreement::on_this_host(size, shared, ContextOptions { timeout: LONG, ..Default::default() }))
}

/// Returns when `context` is aborted, though no thread waits on it.
fn await_abort(context: &Context) {
    let start = Instant::now();
    while !context.is_aborted().unwrap() {
        assert!(start.elapsed() < LONG, "rank {} has not been told", context.rank());
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn assert_aborted(error: &Error, by: usize, reason: &str) {
    assert_eq!((error.kind(), error.details().rank), (ErrorKind::Aborted, Some(by)), "{error}");
    assert!(error.message().contains(&format!("rank {by} has aborted this context: {reason}")), "{error}");
}

fn allreduce<'a>(context: &Context, count: usize, outputs: &'a [*mut u8], tag: u64) -> Call<'a> {
    let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), context.size(), count) };
    Call { outputs, tag, ..Call::new(shape, DataType::Int64) }
}

/// An allreduce of so many numbers.
fn call(context: &Context, count: usize) -> Result<()> {
    let mut data = vec![1i64; count];
    // SAFETY: the vector is as long as the shape says, and lives until the call returns.
    unsafe { context.run(&allreduce(context, count, &[data.as_mut_ptr().cast()], 0)) }
}

/// Every operation that could begin on this context.
fn operations(context: &Arc<Context>) -> Vec<(&'static str, Result<()>)> {
    let (mut data, mut memory) = ([1i64; 4], [0u8; 8]);
    let other = (context.rank() + 1) % context.size();
    // SAFETY: the arrays outlive the request and the buffers.
    let (request, buffer) = unsafe {
        let outputs = [data.as_mut_ptr().cast()];
        (context.request(&allreduce(context, 4, &outputs, 1)).map(drop), context.unbound_buffer(memory.as_mut_ptr(), 8))
    };
    let buffer = buffer.unwrap();
    buffer.recv(&[other], 1, 0, 8).unwrap();
    buffer.send(other, 1, 0, 8).unwrap();
    vec![
        ("allreduce", call(context, 4)),
        ("a large allreduce", call(context, 1 << 20)),
        ("prepare", request),
        ("receive", buffer.wait_recv(None).map(drop)),
        ("send", buffer.wait_send(None).map(drop)),
        ("split", context.split(Some(0), 0).map(drop)),
        ("connect", context.connect(&*InProcessStore::new())),
        ("connect of a pair", context.pair(other).unwrap().connect(&[]).map(drop)),
    ]
}

#[test]
fn an_abort_ends_what_other_threads_of_all_ranks_wait_for() {
    for contexts in groups(3) {
        // Rank 2 does not come to the call: it aborts, once the others wait.
        std::thread::scope(|scope| {
            let calls: Vec<_> = contexts[..2].iter().map(|context| scope.spawn(|| call(context, 1000))).collect();
            contexts[..2].iter().for_each(|context| await_wait(context));
            contexts[2].abort("it is enough").unwrap();
            for call in calls {
                assert_aborted(&call.join().unwrap().unwrap_err(), 2, "it is enough");
            }
        });
        for context in &contexts {
            await_abort(context);
            for (what, result) in operations(context) {
                let error = result.expect_err(what);
                assert_eq!(error.kind(), ErrorKind::Aborted, "{what}: {error}");
                assert_aborted(&error, 2, "it is enough");
            }
            assert_aborted(&context.broken().unwrap(), 2, "it is enough");
        }
    }
}

#[test]
fn the_error_of_the_rank_that_aborts_says_for_whom_its_own_call_waited() {
    for contexts in groups(2) {
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| call(&contexts[0], 4));
            await_wait(&contexts[0]);
            contexts[0].abort("stop").unwrap();
            let error = waits.join().unwrap().unwrap_err();
            assert_aborted(&error, 0, "stop");
            assert!(error.message().contains("; it waited ") && error.message().contains(" rank 1"), "{error}");
        });
    }
}

#[test]
fn ranks_on_which_nobody_waits_are_told_and_tell_others() {
    // Each rank has a connection to its neighbours only, and none waits in a call.
    let contexts = group(4);
    let mut memory = [0u8; 4];
    for (rank, context) in contexts.iter().enumerate().skip(1) {
        // SAFETY: the array outlives the buffers.
        let buffers = unsafe {
            [contexts[rank - 1].unbound_buffer(memory.as_mut_ptr(), 1), context.unbound_buffer(memory.as_mut_ptr(), 1)]
        };
        let [from, into] = buffers.map(Result::unwrap);
        into.recv(&[rank - 1], 1, 0, 1).unwrap();
        from.send(rank, 1, 0, 1).unwrap();
        into.wait_recv(None).unwrap();
    }
    contexts[0].abort("pass it on").unwrap();
    for context in &contexts {
        await_abort(context);
        let error = context.broken().unwrap();
        assert_aborted(&error, 0, "pass it on");
    }
}

#[test]
fn who_connects_later_is_told() {
    let mut contexts = group(3);
    let _device = contexts[0].device().clone();
    contexts[0].abort("too late").unwrap();
    // The device knows the reason after the context was destroyed.
    for destroyed in [false, true] {
        let context = contexts.pop().unwrap();
        if destroyed {
            drop(contexts.remove(0));
        }
        let mut memory = [0u8; 4];
        // SAFETY: the array outlives the buffer.
        let buffer = unsafe { context.unbound_buffer(memory.as_mut_ptr(), 4) }.unwrap();
        buffer.recv(&[0], 1, 0, 4).unwrap();
        assert_aborted(&buffer.wait_recv(None).unwrap_err(), 0, "too late");
        assert!(context.is_aborted().unwrap());
    }
}

#[test]
fn requests_and_buffers_end_with_the_abort() {
    for contexts in groups(2) {
        let (mut data, mut memory) = (vec![1i64; 1 << 20], [0u8; 8]);
        let outputs = [data.as_mut_ptr().cast()];
        // SAFETY: the vector and the array outlive the request and the buffer.
        let (request, buffer) = unsafe {
            let request = contexts[0].request(&allreduce(&contexts[0], 1 << 20, &outputs, 0)).unwrap();
            (request, contexts[0].unbound_buffer(memory.as_mut_ptr(), 8).unwrap())
        };
        request.start().unwrap();
        buffer.recv(&[0, 1], 1, 0, 8).unwrap();
        contexts[1].abort("over").unwrap();
        assert_aborted(&request.wait().unwrap_err(), 1, "over");
        assert_aborted(&buffer.wait_recv(None).unwrap_err(), 1, "over");
        assert_aborted(&request.start().unwrap_err(), 1, "over");
    }
}

#[test]
fn the_first_abort_counts() {
    for contexts in groups(2) {
        contexts[0].abort("first").unwrap();
        await_abort(&contexts[1]);
        contexts[1].abort("second").unwrap();
        contexts[0].abort("third").unwrap();
        for context in &contexts {
            assert_aborted(&call(context, 1).unwrap_err(), 0, "first");
            context.close();
            assert_aborted(&call(context, 1).unwrap_err(), 0, "first");
        }
    }
}

#[test]
fn a_closed_context_stays_closed() {
    let [contexts, _] = groups(2);
    contexts[0].close();
    contexts[0].abort("too late").unwrap();
    assert!(!contexts[0].is_aborted().unwrap());
    assert_eq!(call(&contexts[0], 1).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn an_abort_after_a_failure_keeps_its_reason() {
    for contexts in groups(2) {
        contexts[1].close();
        let lost = call(&contexts[0], 1).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::ConnectionLost, "{lost}");
        contexts[0].abort("give up").unwrap();
        let error = call(&contexts[0], 1).unwrap_err();
        assert_aborted(&error, 0, "give up; before that: rank 0: allreduce ");
        assert!(error.message().contains(" has closed its context"), "{error}");
    }
}

#[test]
fn a_reduction_function_may_abort() {
    for contexts in groups(2) {
        // It combines the inputs of rank 0, before any of rank 1 can have come.
        let abort = || contexts[0].abort("by the function").is_ok();
        assert_aborted(&sum(&contexts[0], 0, None, &[1, 2], &abort).unwrap_err(), 0, "by the function");
        assert_aborted(&sum(&contexts[1], 0, None, &[1, 2], &|| true).unwrap_err(), 0, "by the function");
    }
}

#[test]
fn an_abort_does_not_wait_for_a_function() {
    for contexts in groups(2) {
        let (entered, is_entered) = channel();
        let (resume, resumes) = channel();
        let slow = functions::waits(entered, resumes);
        std::thread::scope(|scope| {
            let own = scope.spawn(|| sum(&contexts[0], 0, None, &[1, 2], &slow));
            let other = scope.spawn(|| sum(&contexts[1], 0, None, &[1, 2], &|| true));
            is_entered.recv_timeout(LONG).unwrap();
            contexts[0].abort("meanwhile").unwrap();
            assert_aborted(&other.join().unwrap().unwrap_err(), 0, "meanwhile");
            assert!(!own.is_finished(), "the buffers are in use, since the function runs");
            resume.send(()).unwrap();
            assert_aborted(&own.join().unwrap().unwrap_err(), 0, "meanwhile");
        });
    }
}

/// Ends a context while it waits for the other rank of two to connect. Returns its error, and that of the other rank,
/// which comes then.
fn end_while_connecting(rank: usize, end: impl Fn(&Context)) -> [Error; 2] {
    let store = InProcessStore::new();
    let options = ContextOptions { timeout: LONG, ..Default::default() };
    let context = Context::new(device(), rank, 2, &options).unwrap();
    let own = std::thread::scope(|scope| {
        let connects = scope.spawn(|| context.connect(&*store));
        // It has published what the other rank needs, and waits for that.
        store.wait(&[&format!("host/{rank}")], LONG).unwrap();
        end(&context);
        connects.join().unwrap().unwrap_err()
    });
    assert_eq!(own.details().operation, "connect");
    let other = Context::new(device(), 1 - rank, 2, &options).unwrap();
    [own, other.connect(&*store).unwrap_err()]
}

#[test]
fn an_abort_ends_connecting_on_all_ranks() {
    for rank in [0, 1] {
        for error in end_while_connecting(rank, |context| context.abort("no more ranks").unwrap()) {
            assert_aborted(&error, rank, "no more ranks");
        }
    }
}

#[test]
fn who_closes_a_context_that_connects_does_not_let_the_others_wait() {
    for rank in [0, 1] {
        let [own, other] = end_while_connecting(rank, |context| context.close());
        assert_eq!(own.kind(), ErrorKind::Closed, "{own}");
        assert_eq!((other.kind(), other.details().rank), (ErrorKind::ConnectionLost, Some(rank)), "{other}");
        assert!(other.message().contains(&format!("rank {rank} has closed this context")), "{other}");
    }
}
