//! What the flight recorder has of calls, over messages and in shared memory. Virtual time makes its times exact.

use std::sync::Arc;
use std::time::Duration;

use super::idle;
use super::job::{contexts, contexts_of_hosts, play_over, reliable};
use super::requests::sum;
use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, ContextOptions, Request};
use crate::engine::recorder::snapshot::{self, State};
use crate::engine::recorder::{ENTRIES, Link, Snapshot};
use crate::error::{ErrorKind, Result};
use crate::testing::loopback::Network;
use crate::transport::Sharing;
use crate::types::DataType;
use crate::wire::fingerprint::number;

const TIMEOUT: Duration = Duration::from_secs(1);
/// How late a rank is.
const LATE: Duration = Duration::from_millis(300);
/// Longer than any call takes whose ranks are all in it.
const LONG: Duration = Duration::from_millis(100);
/// Maximum time for which a rank that timed out waits for the replies of its peers.
const QUERIES: Duration = Duration::from_millis(650);
/// An allreduce over messages, and one in shared memory, of which each rank waits for all others.
const PLACES: [(&str, Link); 2] = [("recursive_doubling", Link::Messages), ("shared_flat", Link::SharedMemory)];

fn options() -> ContextOptions {
    ContextOptions { timeout: TIMEOUT, check_calls: Some(false), ..Default::default() }
}

/// Runs `program` on each of two ranks that exchange messages, or share memory.
fn play<T>(link: Link, options: &ContextOptions, program: impl Fn(&Network, &Arc<Context>) -> T) -> Vec<T> {
    let network = Network::new(1, reliable());
    let contexts = match link {
        Link::Messages => contexts(&network, 2, options),
        _ => contexts_of_hosts(&network, &[1, 1], options, Sharing::Processes),
    };
    play_over(&network, &contexts, program).into_iter().map(|ended| ended.expect("an end")).collect()
}

/// A sum of ten numbers in place.
fn run(context: &Context, algorithm: &str, tag: u64) -> Result<()> {
    let mut data = [1i64; 10];
    let shape = Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), context.size(), data.len()) };
    let (outputs, algorithm) = ([data.as_mut_ptr().cast()], Some(algorithm));
    let call = Call { outputs: &outputs, algorithm, tag, ..Call::new(shape, DataType::Int64) };
    // SAFETY: the array is as long as the shape says, and lives until the call returns.
    unsafe { context.run(&call) }
}

fn look(context: &Context) -> Snapshot {
    context.lock().unwrap().snapshot()
}

/// A call without a claim on its end.
fn request(context: &Arc<Context>, algorithm: &str, tag: u64, data: &mut [i64]) -> Request {
    sum(context, Some(algorithm), tag, data)
}

/// The time between two ticks.
fn between(call: &snapshot::Call) -> Duration {
    assert!(call.run.created > 0 && call.run.created <= call.run.started, "{call:?}");
    Duration::from_nanos(call.ended - call.run.started)
}

#[test]
fn a_call_that_waited_has_its_times_and_for_whom_it_waited() {
    for (algorithm, link) in PLACES {
        play(link, &options(), |network, context| {
            run(context, algorithm, 7).unwrap();
            if context.rank() == 1 {
                idle(network, LATE);
            }
            run(context, algorithm, 7).unwrap();
            let found = look(context);
            assert_eq!(found.calls.iter().map(|call| call.run.number).collect::<Vec<_>>(), [1, 2], "{algorithm}");
            let last = &found.calls[1];
            assert_eq!((last.run.link, last.run.tag, last.run.bytes), (link, 7, 80), "{algorithm}");
            assert_eq!((number(last.run.fingerprint), &last.state), (2, &State::Completed), "{algorithm}");
            if context.rank() == 0 {
                assert_eq!(last.run.waited_for.rank(), Some(1), "{algorithm}");
                assert!((LATE..LATE + LONG).contains(&between(last)), "{algorithm}: {last:?}");
            }
            assert_eq!((found.begun, found.broken.is_none()), (2, true));
        });
    }
}

#[test]
fn a_call_in_progress_is_there_with_what_it_waits_for() {
    for (algorithm, link) in PLACES {
        play(link, &options(), |network, context| {
            run(context, algorithm, 0).unwrap();
            let mut data = [1i64; 10];
            let request = request(context, algorithm, 3, &mut data);
            if context.rank() == 1 {
                idle(network, LATE);
            }
            request.start().unwrap();
            if context.rank() == 0 {
                let began = network.now();
                idle(network, LONG);
                let last = look(context).calls.pop().unwrap();
                assert_eq!((last.run.number, last.run.tag, last.run.link, last.ended), (2, 3, link, 0), "{algorithm}");
                let State::Started(waits) = &last.state else { panic!("{algorithm}: {last:?}") };
                assert!(link == Link::SharedMemory || waits.contains("from rank 1 at node 1"), "{algorithm}: {waits}");
                assert_eq!(last.run.waited_for.rank(), Some(1), "{algorithm}");
                let scale = look(context).scale;
                let [started, now] = [last.run.started, context.lock().unwrap().recorder.now()]
                    .map(|ticks| scale.nanoseconds(ticks).unwrap());
                // The scale counts in nanoseconds since 1970, which a float holds to a quarter of a microsecond.
                let (since, passed) = (Duration::from_nanos(now - started), network.now() - began);
                assert!(since.abs_diff(passed) < Duration::from_micros(1), "{algorithm}: {since:?} {passed:?}");
            }
            request.wait().unwrap();
            let last = look(context).calls.pop().unwrap();
            assert_eq!((last.run.number, last.state), (2, State::Completed), "{algorithm}");
        });
    }
}

#[test]
fn a_call_that_fails_is_there_with_its_error_and_whom_it_blames() {
    for (algorithm, link) in PLACES {
        let folder = tempfile::tempdir().unwrap();
        let options = ContextOptions { recorder: Some(folder.path().join("job_")), ..options() };
        play(link, &options, |network, context| {
            run(context, algorithm, 0).unwrap();
            if context.rank() == 1 {
                return idle(network, TIMEOUT + QUERIES + LONG);
            }
            let error = run(context, algorithm, 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            let found = look(context);
            let last = found.calls.last().unwrap();
            assert_eq!((last.run.number, &last.state), (2, &State::Failed(ErrorKind::Timeout)), "{algorithm}");
            assert_eq!(last.run.waited_for.rank(), Some(1), "{algorithm}");
            assert!((TIMEOUT..TIMEOUT + QUERIES).contains(&between(last)), "{algorithm}: {last:?}");
            assert!(found.broken.is_some());
        });
        // Rank 1 was in no call.
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(files, ["job_0"], "{algorithm}");
        let text = std::fs::read_to_string(folder.path().join("job_0")).unwrap();
        let [_, last] = text.split("\"record_id\": 2").collect::<Vec<_>>()[..] else { panic!("{text}") };
        let states = ["\"state\": \"failed\"", "\"error\": \"TIMEOUT\"", "\"waited_for\": 1"];
        assert!(states.iter().all(|state| last.contains(state)), "{text}");
        assert!(text.contains("\"broken\": \"") && text.contains("\"rank\": 0,\n\"size\": 2"), "{text}");
    }
}

#[test]
fn the_last_calls_are_kept() {
    // In shared memory each wait gives up the core, which takes long on a busy machine.
    let (algorithm, link) = PLACES[0];
    play(link, &options(), |_, context| {
        let calls = ENTRIES as u64 + 10;
        (0..calls).for_each(|tag| run(context, algorithm, tag % 3).unwrap());
        let found: Vec<u64> = look(context).calls.iter().map(|call| call.run.number).collect();
        assert!(found.iter().copied().eq(11..=calls), "{found:?}");
    });
}

#[test]
fn calls_of_both_kinds_have_one_order() {
    play(Link::SharedMemory, &options(), |_, context| {
        for algorithm in ["shared_flat", "recursive_doubling", "shared_flat"] {
            run(context, algorithm, 0).unwrap();
        }
        let calls = look(context).calls;
        let found: Vec<_> = calls.iter().map(|call| (call.run.number, call.run.link)).collect();
        assert_eq!(found, [(1, Link::SharedMemory), (2, Link::Messages), (3, Link::SharedMemory)]);
    });
}
