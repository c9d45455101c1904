use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::program::{COPIED_BYTES, Program};
use super::*;
use crate::collective::{Collective, Shape};
use crate::engine::plan::Plan;
use crate::engine::prepared::{Binding, BufferBounds, Combine};
use crate::engine::shared::quick_start::QuickStart;
use crate::reduce;
use crate::schedule::{Buffer, Builder, Readers, Schedule, Side, Span};
use crate::sys::{self, Pollable};
use crate::testing::loopback::Random;
use crate::testing::tier::Tier;
use crate::transport::local::PUBLICATIONS;
use crate::transport::shm::HostGroup;
use crate::types::{DataType, ReduceOp};
use crate::wire::fingerprint::kind;

mod memory;
mod recorded;
mod starts;

/// Every rank publishes its input, and reduces all inputs in the order of ranks.
fn flat(rank: usize, size: usize, count: usize) -> Schedule {
    let mut b = Builder::new();
    let (input, output) = (Span::new(Buffer::Input(0), 0, count), Span::new(Buffer::Output(0), 0, count));
    b.publish(Readers::All, input);
    if rank == 0 {
        b.copy(input, output);
    } else {
        b.fetch(0, 0, 0, output);
    }
    for other in 1..size {
        if other == rank {
            b.reduce(output, input, output);
        } else {
            b.fetch_reduce(other, 0, 0, output, output, Side::Right);
        }
    }
    b.await_readers();
    b.build()
}

pub(super) fn binding<'a>(
    call: &'a Prepared,
    inputs: &'a [*const u8],
    outputs: &'a [*mut u8],
    tag: u64,
) -> Binding<'a> {
    Binding { call, inputs, outputs, function: None, tag, in_order: false }
}

pub(super) fn work<'a>(shared: &'a Shared, binding: &'a Binding<'a>) -> Work<'a> {
    Work { shared, program: binding.call.plan.program.as_ref().unwrap(), binding }
}

fn run(work: &Work<'_>) {
    let mut call = Call::start(work).ok().unwrap();
    while let Some(wait) = call.advance(work).unwrap() {
        call.look_around(work, wait);
        std::thread::yield_now();
    }
}

/// A call of float32.
fn sum_by(plan: Arc<Plan>) -> Prepared {
    let (dtype, op) = (DataType::Float32, ReduceOp::Sum);
    let combine = Combine::Kernel(reduce::kernel(dtype, op).unwrap(), None, (dtype, op));
    let shape = Shape::new(Collective::Allreduce, 0, 1, 1);
    let algorithm = Collective::Allreduce.algorithm("ring").unwrap();
    Prepared { combine, ..Prepared::internal(plan, (&shape, algorithm), 4, 5, true).unwrap() }
}

/// One of `count` elements on each of two ranks, with what it needs to start in few steps.
pub(in crate::engine) fn prepared(plan: Arc<Plan>, count: usize) -> Prepared {
    let call = sum_by(plan);
    let program = call.plan.program.as_ref().unwrap();
    let quick_start = QuickStart::new(&call.plan, program, 4, call.combine.kernel(), 5, true);
    let bounds = [Some(BufferBounds::new(4 * count, 4)); 2];
    Prepared { quick_start: Some(QuickStart { first: None, pair: None, ..quick_start }), bounds, count, ..call }
}

fn sum_of(schedule: &Schedule, size: usize) -> Prepared {
    let mut plan = Plan::new(schedule);
    plan.program = Program::new(schedule, &[], size, true);
    sum_by(Arc::new(plan))
}

pub(in crate::engine) fn sum(rank: usize, size: usize, count: usize) -> Prepared {
    sum_of(&flat(rank, size, count), size)
}

fn program(call: &mut Prepared) -> &mut Program {
    Arc::get_mut(&mut call.plan).unwrap().program.as_mut().unwrap()
}

/// Calls whose long publications are by reference.
pub(super) fn by_reference(rank: usize, size: usize, count: usize) -> Prepared {
    let mut call = sum(rank, size, count);
    program(&mut call).streams = false;
    call
}

/// Allreduce in place.
fn in_place(rank: usize, size: usize, count: usize) -> Prepared {
    let shape = Shape { inputs: 0, shared: true, ..Shape::new(Collective::Allreduce, rank, size, count) };
    sum_of(&(Collective::Allreduce.algorithm("shared_flat").unwrap().generate)(&shape).unwrap(), size)
}

fn sums(size: usize, count: usize, calls: usize) {
    sums_by(sum, size, count, calls);
}

fn sums_by(of: fn(usize, usize, usize) -> Prepared, size: usize, count: usize, calls: usize) {
    sums_of(HostGroup::in_process(size), of, count, calls);
}

fn sums_of(groups: Vec<Arc<HostGroup>>, of: fn(usize, usize, usize) -> Prepared, count: usize, calls: usize) {
    let size = groups.len();
    std::thread::scope(|scope| {
        for (rank, group) in groups.into_iter().enumerate() {
            scope.spawn(move || {
                let shared = Shared::in_test(group, Arc::default());
                let sum = of(rank, size, count);
                for call in 0..calls {
                    let input: Vec<f32> = (0..count).map(|i| (i % 100 + rank * 7 + call) as f32).collect();
                    let mut output = vec![0f32; count];
                    let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
                    run(&work(&shared, &binding(&sum, &inputs, &outputs, (call % 3) as u64)));
                    let expected = |i: usize| (size * (i % 100 + call) + 7 * size * (size - 1) / 2) as f32;
                    let wrong = (0..count).find(|i| output[*i] != expected(*i));
                    assert_eq!(wrong, None, "{size} ranks, {count} elements, rank {rank}, call {call}: {output:?}");
                }
                assert_eq!(shared.begun(), calls as u64);
            });
        }
    });
}

#[test]
fn ranks_reduce_what_all_have_published() {
    for (size, count, calls) in
        [(2, 1, 1000), (3, 8, 300), (4, 9, 300), (9, 100, 100), (2, 40_000, 50), (3, 100_000, 30)]
    {
        sums(size, count, calls);
    }
}

/// Calls all of whose publications with one reader are by reference.
fn sole_by_reference(rank: usize, size: usize, count: usize) -> Prepared {
    let mut call = sum(rank, size, count);
    program(&mut call).by_reference = 1..=usize::MAX;
    call
}

#[test]
fn two_ranks_reduce_what_both_publish_by_reference() {
    for (count, calls) in [(1, 300), (8, 300), (9, 100), (40_000, 50), (COPIED_BYTES, 5)] {
        sums_by(sole_by_reference, 2, count, calls);
    }
    sums_by(sole_by_reference, 3, 1000, 20);
}

/// Streams of one ring, of several, and of a piece that is not full; and with more ranks than a cell has room for long
/// rings.
#[test]
fn ranks_reduce_what_all_publish_piece_by_piece() {
    let all = [(2, (COPIED_BYTES >> 2) + 1, 5), (3, 700_003, 3), (9, 300_000, 2), (2, 5_000_001, 3)];
    for (size, count, calls) in all.into_iter().take(Tier::from_environment().of(2, 4, 4)) {
        sums(size, count, calls);
    }
}

/// The buffer of a rank that has written its stream to the end belongs to the caller again, so it may be filled for the
/// next call.
#[test]
fn a_call_ends_only_when_its_stream_is_written() {
    const COUNT: usize = (COPIED_BYTES >> 2) + 70_000;
    // More ranks than cores: one that is preempted between two looks at its readers finds something else.
    const RANKS: usize = 6;
    let calls: u32 = Tier::from_environment().of(150, 1500, 1500);
    let groups = HostGroup::in_process(RANKS);
    std::thread::scope(|scope| {
        for (rank, group) in groups.into_iter().enumerate() {
            scope.spawn(move || {
                let shared = Shared::in_test(group, Arc::default());
                let shape = Shape::new(Collective::Broadcast, rank, RANKS, COUNT);
                let shape = Shape { inputs: 0, outputs: 1, shared: true, ..shape };
                let schedule = (Collective::Broadcast.algorithm("shared_flat").unwrap().generate)(&shape).unwrap();
                let broadcast = sum_of(&schedule, RANKS);
                let mut cells = vec![0u32; COUNT];
                for call in 1..=calls {
                    if rank == 0 {
                        cells.fill(call);
                    }
                    run(&work(&shared, &binding(&broadcast, &[], &[cells.as_mut_ptr().cast()], 0)));
                    assert!(cells.iter().all(|cell| *cell == call), "rank {rank}, call {call}");
                }
            });
        }
    });
}

/// In place: what is published is a copy of the output, in shared memory itself or in scratch memory.
#[test]
fn ranks_reduce_in_place_what_all_have_published() {
    for (size, count, copies) in
        [(2, 1, true), (3, 9, true), (2, COPIED_BYTES / 4, true), (2, COPIED_BYTES / 4 + 1, false)]
    {
        let groups = HostGroup::in_process(size);
        std::thread::scope(|scope| {
            for (rank, group) in groups.into_iter().enumerate() {
                scope.spawn(move || {
                    let shared = Shared::in_test(group, Arc::default());
                    let sum = in_place(rank, size, count);
                    assert_eq!(sum.plan.program.as_ref().unwrap().skips_copy(4).is_some(), copies, "{count} elements");
                    for call in 0..5 {
                        let mut cells: Vec<f32> = (0..count).map(|i| (i % 100 + rank * 7 + call) as f32).collect();
                        run(&work(&shared, &binding(&sum, &[], &[cells.as_mut_ptr().cast()], 0)));
                        let expected = |i: usize| (size * (i % 100 + call) + 7 * size * (size - 1) / 2) as f32;
                        let wrong = (0..count).find(|i| cells[*i] != expected(*i));
                        assert_eq!(wrong, None, "{size} ranks, {count} elements, rank {rank}, call {call}");
                    }
                });
            }
        });
    }
}

/// Memory that is read in place is published by a copy all the same, if the result replaces it.
#[test]
fn ranks_reduce_in_place_in_memory_that_others_could_read() {
    const COUNT: usize = 4096;
    let groups = HostGroup::in_process(2);
    let allocations = groups.iter().map(|group| group.allocations()).collect::<Vec<_>>();
    let cells: Vec<*mut f32> =
        allocations.iter().map(|own| own.allocate(4 * COUNT, false).unwrap().as_ptr().cast()).collect();
    for (rank, cells) in cells.iter().enumerate() {
        // SAFETY: so many were allocated.
        unsafe { std::slice::from_raw_parts_mut(*cells, COUNT) }.fill(rank as f32 + 1.0);
    }
    let shared: Vec<Shared> = groups.into_iter().map(|group| Shared::in_test(group, Arc::default())).collect();
    let sums = [0, 1].map(|rank| in_place(rank, 2, COUNT));
    let outputs = [0, 1].map(|rank: usize| [cells[rank].cast::<u8>()]);
    let bindings = [0, 1].map(|rank| binding(&sums[rank], &[], &outputs[rank], 0));
    let works = [0, 1].map(|rank| work(&shared[rank], &bindings[rank]));
    let mut calls = works.each_ref().map(|work| Call::start(work).ok().unwrap());
    assert!(calls[0].advance(&works[0]).unwrap().is_some(), "it waits for the other");
    assert!(calls[1].advance(&works[1]).unwrap().is_none() && calls[0].advance(&works[0]).unwrap().is_none());
    for (cells, own) in cells.iter().zip(&allocations) {
        // SAFETY: so many were allocated, and no call uses them any more.
        unsafe {
            assert!(std::slice::from_raw_parts(*cells, COUNT).iter().all(|cell| *cell == 3.0));
            own.free_all();
        }
    }
}

#[test]
fn a_shorter_publication_is_a_mismatch() {
    let groups = HostGroup::in_process(2);
    let shared: Vec<Arc<Shared>> =
        groups.into_iter().map(|group| Arc::new(Shared::in_test(group, Arc::default()))).collect();
    let (input, mut output) = (vec![1f32; 8], vec![0f32; 8]);
    let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
    let sums = [sum(0, 2, 8), sum(1, 2, 4)];
    let bindings = sums.each_ref().map(|sum| binding(sum, &inputs, &outputs, 0));
    let [long, short] = [0, 1].map(|rank| work(&shared[rank], &bindings[rank]));
    assert!(Call::start(&short).ok().unwrap().advance(&short).unwrap().is_some());
    let error = Call::start(&long).ok().unwrap().advance(&long).unwrap_err();
    assert_eq!(error.details().rank, Some(1));
    assert!(error.message().contains("has published 16 bytes, of which this rank needs 32"), "{error}");
}

/// What a reduction function of the caller does in [`a_publication_that_is_withdrawn_while_it_is_read`].
unsafe extern "C" fn withdraws(
    _into: *mut c_void,
    _left: *const c_void,
    _right: *const c_void,
    _count: usize,
    user: *mut c_void,
) -> i32 {
    // SAFETY: the test passes these.
    let (call, shared) = unsafe { &mut *user.cast::<(Call, Arc<Shared>)>() };
    call.withdraw(shared);
    0
}

#[test]
fn a_publication_that_is_withdrawn_while_it_is_read_leaves_the_reason_to_be_waited_for() {
    let count = COPIED_BYTES;
    let input = vec![1f32; count];
    withdrawn_while_it_is_read(HostGroup::in_process(2), input.as_ptr().cast(), count);
    let groups = HostGroup::in_process(2);
    let allocations = groups[1].allocations();
    let input = allocations.allocate(4 * count, false).unwrap();
    withdrawn_while_it_is_read(groups, input.as_ptr(), count);
    // SAFETY: nothing uses it any more.
    unsafe { allocations.free_all() };
}

fn withdrawn_while_it_is_read(groups: Vec<Arc<HostGroup>>, input: *const u8, count: usize) {
    let shared: Vec<Arc<Shared>> =
        groups.into_iter().map(|group| Arc::new(Shared::in_test(group, Arc::default()))).collect();
    let mut output = vec![0f32; count];
    let (inputs, outputs) = ([input], [output.as_mut_ptr().cast()]);
    let [reads, publishes] = [0, 1].map(|rank| by_reference(rank, 2, count));
    let reads = Prepared { combine: Combine::User, ..reads };
    let plain = binding(&publishes, &inputs, &outputs, 0);
    let publisher = work(&shared[1], &plain);
    let mut published = Call::start(&publisher).ok().unwrap();
    assert!(published.advance(&publisher).unwrap().is_some());
    let mut user = (published, shared[1].clone());
    let withdrawing = Binding { call: &reads, function: Some((withdraws, (&raw mut user).cast())), ..plain };
    let reader = work(&shared[0], &withdrawing);
    let mut call = Call::start(&reader).ok().unwrap();
    let wait = call.advance(&reader).unwrap();
    assert_eq!(wait, Some(Wait::Reason { member: 1 }), "its peer says why over the link, or is seen to have ended");
    assert!(!call.is_ready(&reader, Wait::Reason { member: 1 }));
}

/// Starts a call of `count` elements on three ranks, for `check`.
fn on_three_ranks(count: usize, check: impl FnOnce(&[Arc<HostGroup>], &[Work<'_>], &mut [Call])) {
    let groups = HostGroup::in_process(3);
    let shared: Vec<Shared> = groups.iter().cloned().map(|group| Shared::in_test(group, Arc::default())).collect();
    let input = vec![1f32; count];
    let mut outputs = vec![vec![0f32; count]; 3];
    let inputs = [input.as_ptr().cast()];
    let outputs: Vec<[*mut u8; 1]> = outputs.iter_mut().map(|output| [output.as_mut_ptr().cast()]).collect();
    let sums: Vec<_> = (0..3).map(|rank| by_reference(rank, 3, count)).collect();
    let bindings: Vec<_> = sums.iter().zip(&outputs).map(|(sum, own)| binding(sum, &inputs, own, 0)).collect();
    let works: Vec<_> = (0..3).map(|rank| work(&shared[rank], &bindings[rank])).collect();
    let mut calls: Vec<_> = works.iter().map(|work| Call::start(work).ok().unwrap()).collect();
    check(&groups, &works, &mut calls);
}

#[test]
fn a_wait_for_readers_is_for_one_at_a_time_so_that_the_end_of_each_is_noticed() {
    on_three_ranks(COPIED_BYTES, |_, works, calls| {
        let waits: Vec<_> = (0..3).rev().map(|rank| calls[rank].advance(&works[rank]).unwrap()).collect();
        assert_eq!(waits[2], Some(Wait::Reader { member: 1 }));
        assert!(!calls[0].is_ready(&works[0], Wait::Reader { member: 1 }));
        calls[1].advance(&works[1]).unwrap();
        assert!(calls[0].is_ready(&works[0], Wait::Reader { member: 1 }), "rank 1 has read all, and rank 2 nothing");
        assert_eq!(calls[0].advance(&works[0]).unwrap(), Some(Wait::Reader { member: 2 }));
    });
}

#[test]
fn a_call_that_needs_several_publications_waits_for_the_last_that_is_missing() {
    on_three_ranks(4, |groups, works, calls| {
        let wait = calls[0].advance(&works[0]).unwrap().unwrap();
        assert_eq!(wait, Wait::Publication { member: 2, number: 0 });
        assert_eq!(calls[0].awaited(&works[0], wait), 1 << 2);
        calls[2].advance(&works[2]).unwrap();
        assert!(calls[0].is_ready(&works[0], wait));
        let wait = calls[0].advance(&works[0]).unwrap().unwrap();
        assert_eq!(wait, Wait::Publication { member: 1, number: 0 });
        assert_eq!(calls[0].awaited(&works[0], Wait::Earlier { member: 1 }), Members::MAX, "it stands for all");
        // Ranks 1 and 2 sleep, and rank 2 waits for publications of rank 1 only.
        let rung = |rank: usize| sys::poll(&[Pollable::Socket(groups[rank].doorbell())], Duration::ZERO);
        for (rank, members) in [(1, 1 << 0), (2, 1 << 1)] {
            groups[rank].waiting().wait_only_for(members);
            groups[rank].waiting().begin(PUBLICATIONS);
        }
        calls[0].look_around(&works[0], wait);
        assert!(rung(1) && !rung(2));
    });
}

/// Two ranks of which one, after it has published `count` elements, does nothing until the other waits for it.
fn stream(count: usize, check: impl FnOnce(&[Arc<HostGroup>], &[Work<'_>], &mut [Call], Wait)) {
    let groups = HostGroup::in_process(2);
    let shared: Vec<Shared> = groups.iter().cloned().map(|group| Shared::in_test(group, Arc::default())).collect();
    let input: Vec<f32> = (0..count).map(|i| (i % 1000) as f32).collect();
    let mut outputs = vec![vec![0f32; count]; 2];
    let inputs = [input.as_ptr().cast()];
    let outs: Vec<[*mut u8; 1]> = outputs.iter_mut().map(|output| [output.as_mut_ptr().cast()]).collect();
    let sums: Vec<_> = (0..2).map(|rank| sum(rank, 2, count)).collect();
    let bindings: Vec<_> = sums.iter().zip(&outs).map(|(sum, own)| binding(sum, &inputs, own, 0)).collect();
    let works: Vec<_> = (0..2).map(|rank| work(&shared[rank], &bindings[rank])).collect();
    let mut calls: Vec<_> = works.iter().map(|work| Call::start(work).ok().unwrap()).collect();
    assert!(calls[1].advance(&works[1]).unwrap().is_some());
    let wait = calls[0].advance(&works[0]).unwrap().unwrap();
    assert!(matches!(wait, Wait::Piece { member: 1, number: 0, .. }), "{wait:?}");
    check(&groups, &works, &mut calls, wait);
}

#[test]
fn a_rank_that_only_looks_writes_on_and_wakes_its_reader() {
    stream(1 << 20, |groups, works, calls, wait| {
        let rung = || sys::poll(&[Pollable::Socket(groups[0].doorbell())], Duration::ZERO);
        assert!(!calls[0].is_ready(&works[0], wait));
        groups[0].waiting().begin(PUBLICATIONS);
        let wait = calls[1].advance(&works[1]).unwrap().unwrap();
        assert!(calls[0].is_ready(&works[0], wait));
        calls[1].look_around(&works[1], wait);
        assert!(rung());
    });
}

#[test]
fn a_stream_that_is_withdrawn_leaves_the_reason_to_be_waited_for() {
    stream(1 << 20, |groups, works, calls, wait| {
        let _ = groups;
        calls[1].withdraw(works[1].shared);
        assert!(calls[0].is_ready(&works[0], wait), "no piece comes any more");
        let wait = calls[0].advance(&works[0]).unwrap().unwrap();
        assert_eq!(wait.member(), Some(1));
        assert!(!calls[0].is_ready(&works[0], wait));
    });
}

#[test]
fn so_is_a_wait_for_readers_of_earlier_calls() {
    let groups = HostGroup::in_process(3);
    let shared: Vec<Shared> = groups.into_iter().map(|group| Shared::in_test(group, Arc::default())).collect();
    let (input, mut output) = ([1f32], [0f32]);
    let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
    let calls = [0, 1].map(|rank| {
        let mut b = Builder::new();
        if rank == 0 {
            b.publish(Readers::All, Span::new(Buffer::Input(0), 0, 1));
        } else {
            b.fetch(0, 0, 0, Span::new(Buffer::Output(0), 0, 1));
        }
        sum_of(&b.build(), 3)
    });
    let bindings = calls.each_ref().map(|call| binding(call, &inputs, &outputs, 0));
    let [root, reader] = [0, 1].map(|rank| work(&shared[rank], &bindings[rank]));
    let mut calls = 0;
    let (mut call, wait) = loop {
        let mut call = Call::start(&root).ok().unwrap();
        match call.advance(&root).unwrap() {
            Some(wait) => break (call, wait),
            None => calls += 1,
        }
    };
    assert_eq!(wait, Wait::Earlier { member: 1 });
    (0..calls).for_each(|_| run(&reader));
    assert!(call.is_ready(&root, wait), "rank 1 has read all, and rank 2 nothing");
    assert_eq!(call.advance(&root).unwrap(), Some(Wait::Earlier { member: 2 }));
}

/// If calls waited for memory in the publication table that others of their rank have, they would wait for ever here.
#[test]
fn calls_that_start_in_different_orders_do_not_wait_for_each_other() {
    const CALLS: usize = 300;
    // One that is published in the entry, one that is copied, and one that is combined in place if it is copied.
    type Make = fn(usize, usize, usize) -> Prepared;
    for (case, (count, of)) in [(1, sum as Make), (100, sum), (1, in_place), (100, in_place)].into_iter().enumerate() {
        let groups = HostGroup::in_process(2);
        std::thread::scope(|scope| {
            for (rank, group) in groups.into_iter().enumerate() {
                scope.spawn(move || {
                    let shared = Shared::in_test(group, Arc::default());
                    let sum = of(rank, 2, count);
                    let data = |call| [(); 2].map(|()| vec![(call + rank) as f32; count]);
                    let mut data: Vec<[Vec<f32>; 2]> = (0..CALLS).map(data).collect();
                    let pointers = |[input, output]: &mut [Vec<f32>; 2]| {
                        ([input.as_ptr().cast::<u8>()], [output.as_mut_ptr().cast::<u8>()])
                    };
                    let pointers: Vec<_> = data.iter_mut().map(pointers).collect();
                    let bindings: Vec<_> = pointers
                        .iter()
                        .zip(0..)
                        .map(|((inputs, outputs), tag)| binding(&sum, inputs, outputs, tag))
                        .collect();
                    let works: Vec<_> = bindings.iter().map(|binding| work(&shared, binding)).collect();
                    let order = |n: usize| if rank == 0 { n } else { CALLS - 1 - n };
                    let start = |n: usize| (n, Call::start(&works[n]).ok().unwrap());
                    let mut calls: Vec<_> = (0..CALLS).map(order).map(start).collect();
                    let mut ended = [false; CALLS];
                    let deadline = Instant::now() + Duration::from_secs(60);
                    // Every call goes on as far as it can before another one is waited for.
                    while ended.contains(&false) {
                        for (n, call) in &mut calls {
                            if ended[*n] {
                                continue;
                            }
                            match call.advance(&works[*n]).unwrap() {
                                Some(wait) => call.look_around(&works[*n], wait),
                                None => ended[*n] = true,
                            }
                        }
                        let count = ended.iter().filter(|ended| **ended).count();
                        assert!(Instant::now() < deadline, "case {case}, rank {rank}: only {count} calls have ended");
                        std::thread::yield_now();
                    }
                    let right = |call: usize| vec![(2 * call + 1) as f32; count];
                    let wrong = data.iter().enumerate().find(|(call, [_, output])| *output != right(*call));
                    assert_eq!(wrong.map(|(call, _)| call), None, "case {case}, rank {rank}");
                });
            }
        });
    }
}

#[test]
fn a_peer_that_sleeps_until_its_publications_are_read_is_woken_before_the_call_of_the_reader_ends() {
    on_three_ranks(COPIED_BYTES / 4 + 1, |groups, works, calls| {
        let wait = calls[0].advance(&works[0]).unwrap().unwrap();
        calls[0].look_around(&works[0], wait);
        (1..3).for_each(|rank| assert!(calls[rank].advance(&works[rank]).unwrap().is_some()));
        groups[1].waiting().begin(PUBLICATIONS);
        let wait = calls[0].advance(&works[0]).unwrap().unwrap();
        assert_eq!(wait, Wait::Reader { member: 1 }, "rank 0 has read what the others have published");
        let rung = || sys::poll(&[Pollable::Socket(groups[1].doorbell())], Duration::ZERO);
        assert!(!rung());
        calls[0].look_around(&works[0], wait);
        assert!(rung());
    });
}

#[test]
fn a_peer_that_sleeps_is_woken_by_a_long_publication_while_its_rank_goes_on() {
    // Copied, through a ring, and short.
    for (count, wakes) in [(COPIED_BYTES / 4, true), (COPIED_BYTES / 4 + 1, true), (100, false)] {
        on_three_ranks(count, |groups, works, calls| {
            groups[1].waiting().begin(PUBLICATIONS);
            let wait = calls[0].advance(&works[0]).unwrap().unwrap();
            let rung = || sys::poll(&[Pollable::Socket(groups[1].doorbell())], Duration::ZERO);
            assert_eq!(rung(), wakes, "{count}");
            calls[0].look_around(&works[0], wait);
            assert!(rung());
        });
    }
}

/// What the fuzz target of the same name has not found yet, on every machine.
#[test]
fn a_rank_that_scribbles_over_its_board_harms_nobody_else() {
    let mut random = Random::new(3);
    let starts: Vec<[u8; 4]> = (0..40).map(|n| [0, n % 8, n / 8, n % 4]).collect();
    for round in 0..Tier::from_environment().of(200, 1000, 1000) {
        // All ranks start a call, and go on with it while one scribbles.
        let mut actions = starts[round % 40].to_vec();
        for _ in 0..random.below(20) {
            actions.push([3, 5, 6, 6, 6, 7][random.below(6)]);
            actions.extend(random.bits().to_ne_bytes().iter().take(1 + random.below(8)));
        }
        fuzz::shared_memory(&actions);
    }
}
