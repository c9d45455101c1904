//! What is counted of calls and of links.

use std::sync::Barrier;

use super::*;
use crate::collective::{Collective, Shape};
use crate::context::counters::ContextTotals;
use crate::engine::recorder::counters::CallTotals;
use crate::messaging::Traffic;
use crate::wire::header::HEADER_BYTES;

/// The kinds of links of the contexts of [`groups`].
const LINKS: [&str; 2] = ["messages", "shared_memory"];

/// Two ranks that send messages, and two that share memory.
fn groups() -> [Vec<Arc<Context>>; 2] {
    [group(2), shared::connected(2, false)]
}

fn allreduce<'a>(context: &Context, algorithm: &'a str, tag: u64, data: &'a [*mut u8; 1], count: usize) -> Call<'a> {
    let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), context.size(), count) };
    Call { outputs: data, tag, algorithm: Some(algorithm), ..Call::new(shape, DataType::Int64) }
}

fn sum(context: &Context, algorithm: &str, tag: u64, data: &mut [i64]) -> Result<()> {
    // SAFETY: the slice is as long as the call says, and lives until that returns.
    unsafe { context.run(&allreduce(context, algorithm, tag, &[data.as_mut_ptr().cast()], data.len())) }
}

/// The totals of calls of `collective` by `algorithm`, and over what.
fn of(totals: &ContextTotals, collective: &str, algorithm: &str) -> Vec<(&'static str, CallTotals)> {
    let of = totals.calls.iter().filter(|(kind, _)| kind.names() == (collective, algorithm));
    of.map(|(kind, totals)| (kind.link.name(), *totals)).collect()
}

#[test]
fn calls_of_several_threads_and_requests_are_counted_by_algorithm_and_link() {
    const ROUNDS: u64 = 20;
    const THREADS: u64 = 3;
    for (contexts, link) in groups().into_iter().zip(LINKS) {
        let own = if link == "messages" { "recursive_doubling" } else { "shared_flat" };
        run(&contexts, |context| {
            std::thread::scope(|scope| {
                for tag in 0..THREADS {
                    scope.spawn(move || {
                        let mut data = [1i64; 10];
                        // SAFETY: the array is as long as the call says, and lives longer than the request.
                        let request = unsafe {
                            context.request(&allreduce(context, "ring", tag, &[data.as_mut_ptr().cast()], 10)).unwrap()
                        };
                        for round in 0..ROUNDS as usize {
                            sum(context, own, tag, &mut vec![1; 1 + round % 3]).unwrap();
                            request.start().unwrap();
                            request.wait().unwrap();
                        }
                        request.retire().unwrap();
                    });
                }
            });
            let totals = context.totals().unwrap();
            let calls = THREADS * ROUNDS;
            let elements = THREADS * (0..ROUNDS).map(|round| 1 + round % 3).sum::<u64>();
            let own_totals = CallTotals { calls, failures: 0, bytes: 8 * elements };
            assert_eq!(of(&totals, "allreduce", own), [(link, own_totals)]);
            let ring = CallTotals { calls, failures: 0, bytes: 80 * calls };
            assert_eq!(of(&totals, "allreduce", "ring"), [("messages", ring)]);
            assert_eq!(totals.calls.len(), 2, "{totals:?}");
        });
    }
}

/// Such as with comparisons, which are exchanges of their own.
#[test]
fn calls_that_are_prepared_each_time_are_counted_without_what_precedes_them() {
    for contexts in
        [group_with(2, &ContextOptions { check_calls: Some(true), ..Default::default() }), shared::connected(2, true)]
    {
        run(&contexts, |context| {
            let (send, mut recv) = ([7u64; 3], [0u64; 3]);
            let counts: &[usize] = if context.rank() == 0 { &[1, 2] } else { &[2, 1] };
            let shape = Shape::new(Collective::Alltoallv, context.rank(), 2, 3);
            let shape = Shape { send_counts: counts, recv_counts: counts, ..shape };
            let (inputs, outputs) = ([send.as_ptr().cast()], [recv.as_mut_ptr().cast()]);
            let call = Call { inputs: &inputs, outputs: &outputs, ..Call::new(shape, DataType::Uint64) };
            for _ in 0..5 {
                // SAFETY: the arrays are as long as the counts say.
                unsafe { context.run(&call) }.unwrap();
            }
            let totals = context.totals().unwrap();
            let [(kind, found)] = totals.calls[..] else { panic!("{totals:?}") };
            assert_eq!((kind.names().0, found.calls, found.failures), ("alltoallv", 5, 0));
        });
    }
}

#[test]
fn a_failure_is_counted_once() {
    for contexts in groups() {
        run(&contexts, |context| {
            sum(context, "ring", 0, &mut [1]).unwrap();
            context.set_timeout(Duration::from_millis(1));
            if context.rank() == 0 {
                let algorithms = context.totals().unwrap().calls;
                assert_eq!(algorithms.len(), 1);
                for algorithm in ["ring", "recursive_doubling"] {
                    // The second one is refused, since the first has broken the context.
                    sum(context, algorithm, 0, &mut [1]).unwrap_err();
                }
                let totals = context.totals().unwrap();
                assert_eq!(of(&totals, "allreduce", "ring")[0].1, CallTotals { calls: 2, failures: 1, bytes: 16 });
                assert_eq!(totals.calls.len(), 1);
            }
        });
    }
}

#[test]
fn the_bytes_of_links_are_those_of_messages_and_headers() {
    const BYTES: usize = 300_000;
    const HEADERS: u64 = 12 * HEADER_BYTES as u64;
    for (contexts, link) in groups().into_iter().zip(LINKS) {
        let barrier = Barrier::new(2);
        run(&contexts, |context| {
            // What was sent before, as when ranks measure their links, has arrived with the sum.
            let meet = || {
                sum(context, "ring", 0, &mut [1, 2]).unwrap();
                barrier.wait();
                let totals = context.totals().unwrap();
                barrier.wait();
                let [(peer, traffic)] = totals.links[..] else { panic!("{link}: {totals:?}") };
                assert_eq!(peer, 1 - context.rank());
                traffic
            };
            let mut data = vec![0u8; BYTES];
            // SAFETY: the vector outlives the buffer.
            let buffer = unsafe { context.unbound_buffer(data.as_mut_ptr(), BYTES).unwrap() };
            let before = meet();
            for bytes in [10, BYTES] {
                if context.rank() == 0 {
                    buffer.send(1, 5, 0, bytes).unwrap();
                    buffer.wait_send(None).unwrap();
                } else {
                    buffer.recv(&[0], 5, 0, bytes).unwrap();
                    buffer.wait_recv(None).unwrap();
                }
            }
            let Traffic { sent, received } = meet();
            let (sent, received) = (sent - before.sent, received - before.received);
            let (large, small) = if context.rank() == 0 { (sent, received) } else { (received, sent) };
            let payload = BYTES as u64 + 10 + 16;
            assert!((payload..payload + HEADERS).contains(&large), "{link}: {large} and {small} bytes");
            assert!((16..16 + HEADERS).contains(&small), "{link}: {large} and {small} bytes");
            // They stay when the link has ended.
            context.close();
            assert!(context.totals().unwrap().links[0].1.sent >= before.sent + sent);
        });
    }
}
