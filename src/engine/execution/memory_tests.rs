use std::sync::Arc;
use std::time::Duration;

use crate::collective::{Collective, Shape};
use crate::engine::plan::Plan;
use crate::engine::shared::Shared;
use crate::engine::shared::program::MAX_LENGTHS;
use crate::engine::shared::steps::SharedSteps;
use crate::engine::{Binding, Engine, Prepared, Spin};
use crate::error::{Error, ErrorKind};
use crate::messaging::Messenger;
use crate::schedule::{Buffer, Builder, Readers, Schedule, Span};
use crate::testing::links::unconnected;
use crate::transport::SystemClock;
use crate::transport::shm::HostGroup;

const COUNT: usize = 100;

/// The first ranks of a job, which share memory; there is one more.
fn engines(groups: Vec<Arc<HostGroup>>) -> Vec<Engine> {
    let size = groups.len() + 1;
    let engine = |(rank, group): (usize, Arc<HostGroup>)| {
        let messenger = Messenger::new(rank, size, unconnected(None, None), None);
        let engine =
            Engine::new(messenger, Arc::new(SystemClock), |_| String::new(), Spin::of(Duration::ZERO)).unwrap();
        engine.lock().shared = Some(Arc::new(Shared::in_test(group, Arc::default())));
        engine
    };
    groups.into_iter().enumerate().map(engine).collect()
}

fn prepared(schedule: &Schedule, members: usize) -> Arc<Prepared> {
    let mut plan = Plan::new(schedule);
    plan.shared_steps = SharedSteps::new(schedule, &[], &(0..members).collect::<Vec<_>>());
    let shape = Shape::new(Collective::Allreduce, 0, 1, COUNT);
    let algorithm = Collective::Allreduce.algorithm("ring").unwrap();
    let call = Prepared::internal(Arc::new(plan), (&shape, algorithm), 1, 5, true).unwrap();
    Arc::new(Prepared { segment: 8, ..call })
}

fn binding<'a>(call: &'a Prepared, inputs: &'a [*const u8], outputs: &'a [*mut u8]) -> Binding<'a> {
    Binding { call, inputs, outputs, function: None, tag: 0, in_order: false }
}

/// Rank 0 starts to fetch what rank 1 publishes, or not, before it is lost. Returns what rank 0 has, and its error.
fn fetch_from_a_lost_rank(publishes: bool) -> (Vec<u8>, Option<Error>) {
    let engines = engines(HostGroup::in_process(2));
    let mut b = Builder::new();
    let kept = b.scratch(COUNT);
    b.fetch(1, 0, 0, kept);
    b.copy(kept, Span::new(Buffer::Output(0), 0, COUNT));
    let fetches = prepared(&b.build(), 2);
    let mut b = Builder::new();
    b.publish(Readers::One(0), Span::new(Buffer::Input(0), 0, COUNT));
    b.await_readers();
    let publishes_all = prepared(&b.build(), 2);
    let (input, mut output) = (vec![7u8; COUNT], vec![0u8; COUNT]);
    let (inputs, outputs) = ([input.as_ptr()], [output.as_mut_ptr()]);
    let index = engines[0].lock().start(fetches.clone(), &binding(&fetches, &inputs, &outputs), None).unwrap();
    assert!(!engines[0].lock().is_over(index));
    if publishes {
        let mut core = engines[1].lock();
        let binding = binding(&publishes_all, &inputs, &outputs);
        let index = core.start(publishes_all.clone(), &binding, None).unwrap();
        assert!(core.is_over(index), "what is copied needs no reader");
        assert!(core.end(index).is_none());
    }
    let mut core = engines[0].lock();
    core.messenger.disconnect(1, &Error::new(ErrorKind::ConnectionLost, "rank 1 is lost"));
    core.progress();
    assert!(core.is_over(index));
    let error = core.end(index);
    drop(core);
    (output, error)
}

#[test]
fn what_a_rank_has_published_is_fetched_though_it_is_lost() {
    let (output, error) = fetch_from_a_lost_rank(true);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(output, [7; COUNT]);
}

#[test]
fn a_rank_that_is_lost_before_it_publishes_fails_the_call() {
    let (output, error) = fetch_from_a_lost_rank(false);
    assert_eq!(error.unwrap().kind(), ErrorKind::ConnectionLost);
    assert_eq!(output, [0; COUNT]);
}

/// Bytes that go through a ring of so many, in many rounds.
const STREAM: usize = 100 * RING;
const RING: usize = 512;

/// Rank 0 publishes for `readers` what goes through a ring, and then waits for a message of the last rank. Calls
/// `check` with the engines of the ranks that share memory, after rank 1 has begun to read; the calls have the index 0.
/// Returns what rank 1 has read.
fn stream(readers: std::ops::Range<usize>, check: impl FnOnce(&[Engine])) -> Vec<u8> {
    let before = MAX_LENGTHS.replace((0, RING));
    let (members, other) = (readers.end, readers.end);
    let engines = engines(HostGroup::in_process_without_reads(members));
    let all = |buffer| Span::new(buffer, 0, STREAM);
    let mut b = Builder::new();
    b.publish(Readers::set(readers), all(Buffer::Input(0)));
    b.recv(other, all(Buffer::Output(0)));
    b.await_readers();
    let publishes = prepared(&b.build(), members);
    let mut b = Builder::new();
    b.fetch(0, 0, 0, all(Buffer::Output(0)));
    let fetches = prepared(&b.build(), members);
    let input: Vec<u8> = (0..STREAM).map(|at| (at % 251) as u8).collect();
    let mut outputs = [vec![0u8; STREAM], vec![0u8; STREAM]];
    let inputs = [input.as_ptr()];
    let pointers = outputs.each_mut().map(|output| [output.as_mut_ptr()]);
    for (rank, call) in [publishes, fetches].into_iter().enumerate() {
        let binding = binding(&call, &inputs, &pointers[rank]);
        assert_eq!(engines[rank].lock().start(call.clone(), &binding, None).unwrap(), 0);
    }
    check(&engines);
    engines.iter().take(2).for_each(|engine| drop(engine.lock().end(0)));
    MAX_LENGTHS.set(before);
    let [_, read] = outputs;
    read
}

#[test]
fn a_stream_is_written_on_while_its_rank_waits_for_a_message() {
    let read = stream(1..2, |engines| {
        for _ in 0..STREAM {
            engines[..2].iter().for_each(|engine| _ = engine.lock().progress());
        }
        assert!(engines[1].lock().is_over(0) && !engines[0].lock().is_over(0));
    });
    assert!(read.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
}

/// Whoever waits for the others may wait for this rank's stream.
#[test]
fn a_rank_that_is_lost_while_it_delays_a_stream_fails_the_call_though_that_waits_for_a_message_of_another() {
    stream(1..3, |engines| {
        for _ in 0..STREAM {
            engines[..2].iter().for_each(|engine| _ = engine.lock().progress());
        }
        let mut core = engines[0].lock();
        assert!(!core.is_over(0) && !engines[1].lock().is_over(0));
        core.messenger.disconnect(2, &Error::new(ErrorKind::ConnectionLost, "rank 2 is lost"));
        core.progress();
        assert!(core.has_failed(0));
    });
}
