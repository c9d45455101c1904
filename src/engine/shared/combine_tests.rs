//! Long operations look at the clock between their pieces.

use std::sync::Arc;

use super::super::tests::{binding, by_reference, sum, work};
use super::super::{Call, Shared, Wait};
use crate::engine::Prepared;
use crate::engine::spin::LOOK_BYTES;
use crate::transport::shm::HostGroup;

const SIZE: usize = 2;
/// Not a multiple of a piece.
const COUNT: usize = (5 * LOOK_BYTES + 4096) / 4 + 1;
/// In the only operation of a rank whose result has [`COUNT`] elements.
const LOOKS: usize = 5;

/// Executes `work`. Returns how often it looks at the clock.
fn run(shared: &Shared, call: &Prepared, input: &[f32], output: &mut [f32]) -> usize {
    let (inputs, outputs) = ([input.as_ptr().cast()], [output.as_mut_ptr().cast()]);
    let binding = binding(call, &inputs, &outputs, 0);
    let work = work(shared, &binding);
    let (mut call, mut looks) = (Call::start(&work).ok().unwrap(), 0);
    while let Some(wait) = call.advance(&work).unwrap() {
        looks += usize::from(wait == Wait::Clock);
        call.look_around(&work, wait);
        std::thread::yield_now();
    }
    looks
}

#[test]
fn a_long_operation_looks_at_the_clock_between_its_pieces() {
    for (name, of) in [("streams", sum as fn(usize, usize, usize) -> Prepared), ("by reference", by_reference)] {
        let groups = HostGroup::in_process(SIZE);
        std::thread::scope(|scope| {
            for (rank, group) in groups.into_iter().enumerate() {
                scope.spawn(move || {
                    let shared = Shared::in_test(group, Arc::default());
                    let thousand =
                        |of: fn(usize, usize) -> usize| (0..1000).map(|i| of(i, rank) as f32).collect::<Vec<_>>();
                    let mut input = thousand(|i, rank| i + rank).repeat(COUNT.div_ceil(1000));
                    input.truncate(COUNT);
                    let expected = thousand(|i, _| 2 * i + 1);
                    let mut output = vec![0f32; COUNT];
                    let looks = run(&shared, &of(rank, SIZE, COUNT), &input, &mut output);
                    let wrong = output.chunks(1000).position(|sums| sums != &expected[..sums.len()]);
                    assert_eq!(wrong, None, "{name}, rank {rank}");
                    assert!(looks >= LOOKS, "{name}, rank {rank}: {looks} looks at the clock");
                });
            }
        });
    }
}
