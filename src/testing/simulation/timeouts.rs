//! Ranks that do not make a call, or time out: which rank the errors name, and when. Virtual time makes the times
//! exact.

use std::sync::Arc;
use std::time::Duration;

use super::idle;
use super::job::{play, reliable};
use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, ContextOptions, Reduction};
use crate::error::{Details, ErrorKind, Result};
use crate::messaging::matching::EAGER_BYTES;
use crate::testing::loopback::Network;
use crate::types::{DataType, ReduceOp};

const LONG: Duration = Duration::from_secs(30);
/// Long enough for data to arrive.
const SOON: Duration = Duration::from_millis(1);
/// Maximum time for which a rank that timed out waits for the replies of its peers; these may query others first.
const QUERIES: Duration = Duration::from_millis(650);

fn options() -> ContextOptions {
    ContextOptions { timeout: LONG, check_calls: Some(false), agrees: false, ..Default::default() }
}

/// A call that all ranks can make; only its mismatches matter.
#[derive(Clone, Copy)]
struct TestCall {
    collective: Collective,
    algorithm: Option<&'static str>,
    count: usize,
    dtype: DataType,
    op: ReduceOp,
    timeout: Option<Duration>,
}

const ALLREDUCE: TestCall = TestCall {
    collective: Collective::Allreduce,
    algorithm: Some("ring_segmented"),
    count: 1000,
    dtype: DataType::Float32,
    op: ReduceOp::Sum,
    timeout: None,
};

impl TestCall {
    fn make(&self, context: &Context) -> Result<()> {
        let Self { collective, algorithm, dtype, op, timeout, .. } = *self;
        let sends = collective != Collective::Broadcast || context.rank() == 0;
        let shape =
            Shape { inputs: usize::from(sends), ..Shape::new(collective, context.rank(), context.size(), self.count) };
        let input = vec![0u8; shape.input_len(0) * dtype.size()];
        let mut output = vec![0u8; shape.output_len(0) * dtype.size()];
        let call = Call {
            algorithm,
            reduction: Reduction::Op(op),
            inputs: &[input.as_ptr()][..shape.inputs],
            outputs: &[output.as_mut_ptr()],
            tag: 3,
            timeout,
            ..Call::new(shape, dtype)
        };
        // SAFETY: the vectors have the lengths given by the shape and live until the call returns.
        unsafe { context.run(&call) }
    }
}

/// The result of a rank's call, and its duration.
type Timed = (Result<()>, Duration);

fn timed(network: &Network, call: impl FnOnce() -> Result<()>) -> Timed {
    let began = network.now();
    let result = call();
    (result, network.now().duration_since(began))
}

#[test]
fn a_silent_rank_is_named_after_the_timeout() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let call = TestCall { timeout: Some(TIMEOUT), ..ALLREDUCE };
    let ended = play(reliable(), 3, &options(), |network, context| {
        if context.rank() == 2 {
            idle(network, 2 * TIMEOUT);
            return (Ok(()), TIMEOUT);
        }
        timed(network, || call.make(context))
    });
    let texts: Vec<String> = ended[..2]
        .iter()
        .map(|(result, took)| {
            let error = result.as_ref().unwrap_err();
            assert!((TIMEOUT..TIMEOUT + QUERIES).contains(took), "{took:?}: {error}");
            assert!(
                error.message().contains("allreduce ring_segmented of 1000 float32 (4000 bytes), tag 3"),
                "{error}"
            );
            error.message().to_owned()
        })
        .collect();
    let details = |rank: usize| *ended[rank].0.as_ref().unwrap_err().details();
    let silent = Details { rank: Some(2), operation: "allreduce", ..Details::default() };
    assert_eq!(details(0), Details { bytes: (0, 4000), ..silent });
    // Rank 0 waits for rank 2, whose reply says that it is in no collective; rank 1 waits for rank 0.
    assert_eq!(ended[1].0.as_ref().unwrap_err().kind(), ErrorKind::ConnectionLost);
    assert_eq!(details(1), silent, "it is told");
    let named = "timed out after 1s, in collective number 1 of this context, waiting to receive 0 of ";
    let silent = "from rank 2 at node 2 (connected; it says that it is in no collective, after 0 on this context)";
    assert!(texts[0].contains(named) && texts[0].contains(silent), "{texts:#?}");
    assert!(texts[1].contains(silent), "{texts:#?}");
}

#[test]
fn a_rank_that_times_out_ends_the_calls_of_ranks_that_wait_for_others() {
    const TIMEOUT: Duration = Duration::from_millis(500);
    let ended = play(reliable(), 3, &options(), |network, context| {
        // Connect all pairs of ranks.
        TestCall { collective: Collective::Alltoall, algorithm: None, count: 300, ..ALLREDUCE }.make(context).unwrap();
        idle(network, SOON);
        // A broadcast from rank 0: rank 2 waits only for rank 0, which waits for nothing. Rank 1 makes another call,
        // which times out.
        timed(network, || match context.rank() {
            0 => {
                idle(network, 2 * LONG);
                Ok(())
            }
            1 => TestCall { op: ReduceOp::Max, timeout: Some(TIMEOUT), ..ALLREDUCE }.make(context),
            _ => TestCall { collective: Collective::Broadcast, algorithm: None, ..ALLREDUCE }.make(context),
        })
    });
    let (own, told) = (ended[1].0.as_ref().unwrap_err(), ended[2].0.as_ref().unwrap_err());
    assert!(told.message().contains("rank 1 at node 1"), "{told}");
    // What rank 1 gives up for, rank 2 blames: rank 0, for which it has waited, or whose call differs.
    assert_eq!((own.details().rank, told.details().rank), (Some(0), Some(0)), "{own}; {told}");
    // Ranks 1 and 2 meet each other's messages at once, or rank 1's timeout ends both.
    let interval = ended[2].1.abs_diff(ended[1].1);
    assert!(interval < SOON && ended[1].1 < TIMEOUT + QUERIES, "{:?} and {:?}: {own}; {told}", ended[1].1, ended[2].1);
}

#[test]
fn a_root_that_makes_no_call_is_named_with_the_call() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let gatherv = |context: &Context| {
        let shape = Shape { outputs: 0, ..Shape::new(Collective::Gatherv, context.rank(), 3, 2) };
        let call = Call {
            algorithm: Some("binomial"),
            inputs: &[[0u32; 2].as_ptr().cast()],
            timeout: Some(TIMEOUT),
            ..Call::new(shape, DataType::Uint32)
        };
        // SAFETY: the array has two elements, as the shape says, and lives until the call returns.
        unsafe { context.run(&call) }
    };
    let ended = play(reliable(), 3, &options(), |network, context| {
        if context.rank() == 0 {
            idle(network, 2 * TIMEOUT);
            return (Ok(()), TIMEOUT);
        }
        timed(network, || gatherv(context))
    });
    for (rank, (result, took)) in ended.iter().enumerate().skip(1) {
        let error = result.as_ref().unwrap_err();
        let start = format!("rank {rank}: gatherv binomial of 2 uint32 (8 bytes), tag 0: after 1.");
        assert!(error.message().starts_with(&start) && error.message().contains("from rank 0 at node 0"), "{error}");
        assert!((TIMEOUT..TIMEOUT + QUERIES).contains(took), "{took:?}: {error}");
    }
}

#[test]
fn ranks_in_different_calls_notice_and_say_so() {
    for (what, odd, expected) in [
        ("another type", TestCall { dtype: DataType::Int32, ..ALLREDUCE }, "of int32 by sum"),
        ("another operation", TestCall { op: ReduceOp::Max, ..ALLREDUCE }, "of float32 by max"),
        ("another count", TestCall { count: 999, ..ALLREDUCE }, "there too, but its counts, root, segment size or"),
        ("another algorithm", TestCall { algorithm: Some("ring_chunked"), ..ALLREDUCE }, "allreduce ring_chunked"),
    ] {
        for size in [2, 4] {
            let ended = play(reliable(), size, &options(), |network, context: &Arc<Context>| {
                let ended = timed(network, || if context.rank() == 0 { &odd } else { &ALLREDUCE }.make(context));
                idle(network, SOON);
                // A rank that finished before the mismatch was detected learns of it now.
                assert!(context.broken().is_some(), "{what}, {size} ranks");
                assert!(ALLREDUCE.make(context).unwrap_err().message().contains("the context is broken"));
                ended
            });
            let failed = ended.iter().enumerate().filter_map(|(rank, (result, took))| {
                assert!(*took < SOON, "{what}: somebody waited for {took:?}");
                assert!(result.is_err(), "{what}: rank {rank}");
                result.as_ref().err().map(|error| (rank, error))
            });
            // The first rank to receive a message of the other call reports it; rank 0 itself sees the regular
            // allreduce.
            let told = failed.into_iter().any(|(rank, error)| {
                let expected = if rank == 0 { "allreduce ring_segmented of float32 by sum" } else { expected };
                let text = error.message();
                error.kind() == ErrorKind::Mismatch && text.contains(" is in another") && text.contains(expected)
            });
            assert!(told, "{what}, {size} ranks: {ended:#?}");
        }
    }
}

/// Another thread might have called the other collective: only time tells that none has.
#[test]
fn ranks_in_different_collectives_say_so_at_the_deadline() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let usual = TestCall { timeout: Some(TIMEOUT), ..ALLREDUCE };
    let large = TestCall { count: EAGER_BYTES, ..usual };
    let other = |collective, usual| TestCall { collective, algorithm: None, ..usual };
    for (what, usual, odd, [odd_sends, usual_sends]) in [
        // The root of a broadcast sends and is done: it has seen nothing wrong.
        ("broadcast", usual, other(Collective::Broadcast, usual), [Some("has sent 4000 bytes of broadcast"), None]),
        (
            "alltoall",
            usual,
            other(Collective::Alltoall, usual),
            [Some("has sent 4000 bytes of alltoall"), Some("bytes of allreduce ring_segmented of float32 by sum")],
        ),
        // In this case neither rank sends anything but the grants of its receives.
        (
            "large alltoall",
            TestCall { algorithm: Some("direct"), ..other(Collective::Allgather, large) },
            other(Collective::Alltoall, large),
            [Some("waits to receive a message of alltoall"), Some("waits to receive a message of allgather")],
        ),
    ] {
        for size in [2, 4] {
            let ended = play(reliable(), size, &options(), |network, context: &Arc<Context>| {
                let ended = timed(network, || if context.rank() == 0 { &odd } else { &usual }.make(context));
                idle(network, 2 * TIMEOUT);
                assert!(context.broken().is_some(), "{what}, {size} ranks");
                ended
            });
            let mut noticed = 0;
            for (rank, (result, took)) in ended.iter().enumerate() {
                let sends = if rank == 0 { usual_sends } else { odd_sends };
                let Err(error) = result else {
                    assert_eq!(sends, None, "{what}, {size} ranks: rank {rank}");
                    continue;
                };
                let all = || format!("{what}, {size} ranks: rank {rank}, {took:?}: {error}");
                // Nobody waits for answers where one knows the reason, and tells it.
                assert!((TIMEOUT..TIMEOUT + SOON).contains(took), "{}", all());
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{}", all());
                assert!(error.message().contains(" with this tag, which no thread here has called"), "{}", all());
                if *took == TIMEOUT {
                    assert!(error.message().contains(sends.unwrap()), "{}", all());
                    noticed += 1;
                }
            }
            assert!(noticed > 0, "{what}, {size} ranks: {ended:#?}");
        }
    }
}

/// Every kind of wait between two ranks that a timeout ends, on rank 0: for what rank 1 does by [`serve`]. What the
/// error says that was waited for.
const WAITS: [(&str, &str); 4] = [
    ("collective", "in collective number 2 of this context, waiting to receive 0 of 4000 bytes from rank 1 at node 1"),
    ("receive", "waiting to receive 0 of 8 bytes from rank 1 at node 1 (connected) in slot 0x1"),
    ("send", "waiting for rank 1 at node 1 (connected) to receive: 0 of 80000 bytes sent in slot 0x2"),
    ("write", "waiting for rank 1 at node 1 (connected) to write into a buffer of 8 bytes in slot 0x3"),
];

/// From rank 1, the root.
fn broadcast(context: &Context, timeout: Option<Duration>) -> Result<()> {
    let sends = context.rank() == 1;
    let shape =
        Shape { root: 1, inputs: usize::from(sends), ..Shape::new(Collective::Broadcast, context.rank(), 2, 1000) };
    let (input, mut output) = ([0f32; 1000], [0f32; 1000]);
    let call = Call {
        algorithm: Some("one_to_all"),
        inputs: &[input.as_ptr().cast()][..shape.inputs],
        outputs: &[output.as_mut_ptr().cast()],
        timeout,
        ..Call::new(shape, DataType::Float32)
    };
    // SAFETY: the arrays are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }
}

/// Hands `waits` a wait of [`WAITS`] that is to be made with a timeout, on rank 0.
fn wait_for(
    what: &str,
    context: &Arc<Context>,
    memory: &mut [u8],
    waits: impl Fn(&dyn Fn(Option<Duration>) -> Result<()>),
) {
    // SAFETY: the memory outlives the buffers.
    let unbound = || unsafe { context.unbound_buffer(memory.as_ptr().cast_mut(), memory.len()) }.unwrap();
    match what {
        "collective" => waits(&|timeout| broadcast(context, timeout)),
        "receive" => {
            let buffer = unbound();
            buffer.recv(&[1], 1, 0, 8).unwrap();
            waits(&|timeout| buffer.wait_recv(timeout).map(drop));
        }
        "send" => {
            let buffer = unbound();
            buffer.send(1, 2, 0, memory.len()).unwrap();
            waits(&|timeout| buffer.wait_send(timeout).map(drop));
        }
        "write" => {
            // SAFETY: as above.
            let buffer = unsafe { context.pair(1).unwrap().recv_buffer(3, memory.as_mut_ptr(), 8) }.unwrap();
            waits(&|timeout| buffer.wait_recv(timeout).map(drop));
        }
        other => panic!("{other}"),
    }
}

/// What ends a wait of [`WAITS`], on rank 1.
fn serve(what: &str, context: &Arc<Context>, memory: &mut [u8]) {
    // SAFETY: the memory outlives the buffers.
    let unbound = unsafe { context.unbound_buffer(memory.as_mut_ptr(), memory.len()) }.unwrap();
    match what {
        "collective" => broadcast(context, None).unwrap(),
        "receive" => {
            unbound.send(0, 1, 0, 8).unwrap();
            unbound.wait_send(None).unwrap();
        }
        "send" => {
            unbound.recv(&[0], 2, 0, memory.len()).unwrap();
            unbound.wait_recv(None).unwrap();
        }
        "write" => {
            // SAFETY: as above.
            let buffer = unsafe { context.pair(0).unwrap().send_buffer(3, memory.as_ptr(), 8) }.unwrap();
            buffer.send(0, 8, 0).unwrap();
            buffer.wait_send(None).unwrap();
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_timeout_of_zero_takes_no_time_and_takes_what_is_here() {
    for (what, waited) in WAITS {
        for in_time in [false, true] {
            let ended = play(reliable(), 2, &options(), |network, context| {
                let mut memory = vec![0u8; if what == "send" { 80_000 } else { 8 }];
                broadcast(context, None).unwrap();
                if context.rank() == 1 {
                    if in_time {
                        serve(what, context, &mut memory);
                    }
                    idle(network, 4 * LONG);
                    return None;
                }
                let failed = std::cell::RefCell::new(None);
                wait_for(what, context, &mut memory, |wait| {
                    // What has arrived meanwhile lies in the link, unread; a message that waits for its receive goes
                    // now.
                    if in_time {
                        super::sleep(network.now() + LONG);
                    }
                    let (result, took) = timed(network, || wait(Some(Duration::ZERO)));
                    assert_eq!(took, Duration::ZERO, "{what}: {result:?}");
                    *failed.borrow_mut() = result.err();
                });
                failed.into_inner()
            });
            match (&ended[0], in_time) {
                (None, true) => {}
                (Some(error), false) => {
                    let text = error.message();
                    assert_eq!(error.kind(), ErrorKind::Timeout, "{what}: {error}");
                    assert!(
                        text.contains("timed out without waiting (the timeout is 0), ") && text.contains(waited),
                        "{error}"
                    );
                }
                (ended, _) => panic!("{what}, in time: {in_time}: {ended:?}"),
            }
        }
    }
}

#[test]
fn a_timeout_without_end_does_not_end() {
    const YEARS: Duration = Duration::from_secs(30 * 365 * 86_400);
    for (what, _) in WAITS {
        for own in [true, false] {
            let options = ContextOptions { timeout: if own { LONG } else { Duration::MAX }, ..options() };
            play(reliable(), 2, &options, |network, context| {
                let mut memory = vec![0u8; if what == "send" { 80_000 } else { 8 }];
                broadcast(context, None).unwrap();
                if context.rank() == 1 {
                    idle(network, YEARS);
                    return serve(what, context, &mut memory);
                }
                wait_for(what, context, &mut memory, |wait| {
                    let (result, took) = timed(network, || wait(own.then_some(Duration::MAX)));
                    assert!(result.is_ok() && took >= YEARS - SOON, "{what}: {result:?} after {took:?}");
                });
            });
        }
    }
}
