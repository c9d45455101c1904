//! Different collectives that run at the same time with one tag.

use std::cell::Cell;
use std::ffi::c_void;
use std::time::Duration;

use super::idle;
use super::job::play;
use crate::collective::{Collective, Shape};
use crate::context::{Call, Context, ContextOptions, Reduction};
use crate::error::{ErrorKind, Result};
use crate::messaging::matching::EAGER_BYTES;
use crate::testing::loopback::{LinkModel, Random};
use crate::testing::user_function::add;
use crate::types::DataType;

const TAG: u64 = u64::MAX;
const ROUNDS: usize = 4;
const SEEDS: u64 = 60;

/// What a reduction function does when it is called first: with what another rank has sent.
struct Act<'a> {
    act: &'a dyn Fn(),
    called: Cell<bool>,
}

unsafe extern "C" fn acts_and_adds(
    into: *mut c_void,
    left: *const c_void,
    right: *const c_void,
    count: usize,
    user: *mut c_void,
) -> i32 {
    // SAFETY: `allreduce` passes an `Act`, which lives until the call returns.
    let act = unsafe { &*user.cast::<Act<'_>>() };
    if !act.called.replace(true) {
        (act.act)();
    }
    // SAFETY: the library passes `count` elements of the call's type.
    unsafe { add::<i64>(into, left, right, count, user) }
}

/// Makes a call of int64: what comes out.
fn run(context: &Context, call: Call<'_>, input: &[i64]) -> Result<Vec<i64>> {
    let mut output = vec![0i64; if call.shape.outputs > 0 { call.shape.output_len(0) } else { 0 }];
    let call = Call {
        inputs: &[input.as_ptr().cast()][..call.shape.inputs],
        outputs: &[output.as_mut_ptr().cast()][..call.shape.outputs],
        tag: TAG,
        ..call
    };
    // SAFETY: the vectors are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }.map(|()| output)
}

/// A sum by `algorithm`, in the middle of which `act` is called, where elements are combined.
fn sum(context: &Context, shape: Shape<'_>, algorithm: &str, input: &[i64], act: &dyn Fn()) -> Result<Vec<i64>> {
    let act = Act { act, called: Cell::new(false) };
    let user = std::ptr::from_ref(&act).cast_mut().cast();
    let reduction = Reduction::User { function: acts_and_adds, user };
    run(context, Call { reduction, algorithm: Some(algorithm), ..Call::new(shape, DataType::Int64) }, input)
}

/// What rank `rank` contributes for `to` in a round.
fn value(collective: Collective, round: usize, rank: usize, to: usize) -> i64 {
    ((collective as usize * 1000 + round) * 100 + rank) as i64 * 100 + to as i64
}

fn broadcast(context: &Context, round: usize, count: usize) {
    let shape = Shape::new(Collective::Broadcast, context.rank(), context.size(), count);
    let shape = Shape { inputs: usize::from(context.rank() == 0), ..shape };
    let values = vec![value(Collective::Broadcast, round, 0, 0); count];
    assert_eq!(run(context, Call::new(shape, DataType::Int64), &values).unwrap(), values);
}

fn alltoall(context: &Context, round: usize, count: usize) {
    let (rank, size) = (context.rank(), context.size());
    let blocks = |value: &dyn Fn(usize) -> i64| (0..size).flat_map(|i| vec![value(i); count]).collect::<Vec<_>>();
    let input = blocks(&|to| value(Collective::Alltoall, round, rank, to));
    let call = Call::new(Shape::new(Collective::Alltoall, rank, size, count), DataType::Int64);
    let output = run(context, call, &input).unwrap();
    assert!(output == blocks(&|from| value(Collective::Alltoall, round, from, rank)));
}

fn options() -> ContextOptions {
    ContextOptions { check_calls: Some(false), agrees: false, ..Default::default() }
}

#[test]
fn different_collectives_run_at_the_same_time_with_one_tag() {
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let size = 2 << random.below(3);
        let model = LinkModel {
            delay: Duration::from_micros(1)..Duration::from_micros(2 + random.below(500) as u64),
            capacity: 10_000 + random.below(200_000),
            piece: 1000 + random.below(40_000),
            reads_above: (!random.one_in(3)).then(|| 64 << random.below(11)),
            places_above: (!random.one_in(3)).then(|| 64 << random.below(11)),
        };
        // Small ones meet unexpected; large ones wait for a grant, or are read. The root of a broadcast must not wait.
        let large = |random: &mut Random| if random.one_in(3) { EAGER_BYTES / 8 + 1 } else { 0 };
        let rounds: Vec<_> = (0..ROUNDS)
            .map(|_| (1 + random.below(8) + large(&mut random), 1 + random.below(8), 1 + large(&mut random)))
            .collect();
        let orders: Vec<Vec<bool>> =
            (0..size).map(|rank| (0..ROUNDS).map(|_| rank == 0 || random.one_in(2)).collect()).collect();
        play(model, size, &options(), |_, context| {
            for (round, (reduced, broadcasted, block)) in rounds.iter().copied().enumerate() {
                let others = || {
                    match orders[context.rank()][round] {
                        true => (broadcast(context, round, broadcasted), alltoall(context, round, block)),
                        false => (alltoall(context, round, block), broadcast(context, round, broadcasted)),
                    };
                };
                let own = |rank| value(Collective::Allreduce, round, rank, 0);
                let (rank, called) = (context.rank(), Cell::new(false));
                let shape = Shape::new(Collective::Allreduce, rank, size, reduced);
                let act = || {
                    called.set(true);
                    others();
                };
                let sums = sum(context, shape, "recursive_doubling", &vec![own(rank); reduced], &act).unwrap();
                assert!(called.get(), "seed {seed}");
                assert!(sums == vec![(0..size).map(own).sum::<i64>(); reduced], "seed {seed}");
            }
        });
    }
}

/// The other call's thread may be the one that takes the message.
#[test]
fn a_call_that_times_out_blames_no_message_of_another_call_that_runs() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let model = LinkModel {
        delay: Duration::from_micros(1)..Duration::from_micros(20),
        capacity: 1 << 20,
        piece: 1 << 20,
        reads_above: None,
        places_above: None,
    };
    play(model, 2, &options(), |network, context| {
        let (rank, is_root) = (context.rank(), context.rank() == 0);
        let shape = Shape { outputs: usize::from(is_root), ..Shape::new(Collective::Reduce, rank, 2, 1) };
        let act = || {
            // The other rank's part of the next reduce is there.
            idle(network, Duration::from_millis(1));
            assert_eq!(context.lock().unwrap().messenger.diagnosis().unmatched(TAG).count(), 1);
            let shape = Shape { inputs: 0, outputs: 0, ..Shape::new(Collective::Barrier, 0, 2, 0) };
            let barrier = Call { timeout: Some(TIMEOUT), ..Call::new(shape, DataType::Uint8) };
            let error = run(context, barrier, &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(!error.message().contains("no thread here has called"), "{error}");
        };
        let reduce = || sum(context, shape, "flat", &[1], &act).map(drop);
        if is_root {
            reduce().unwrap_err();
        } else {
            (0..2).for_each(|_| reduce().unwrap());
            idle(network, 2 * TIMEOUT);
        }
    });
}
