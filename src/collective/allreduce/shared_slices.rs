//! Every rank publishes a slice of its elements in shared memory for each other rank, reduces its own slice of those of
//! all ranks in rank order, publishes the result, and fetches the other slices. Best for large buffers on one host:
//! each element is reduced once.
//!
//! Three ranks with the elements a, b and c, each of three slices: rank 0 publishes slice 1 of a for rank 1 and slice 2
//! for rank 2, and so on. Rank 1 computes slice 1 of (a op b) op c: it fetches slice 1 of a, reduces it with its own
//! slice 1 of b and the result with slice 1 of c. Ranks 0 and 2 do the same with slices 0 and 2. Each publishes its
//! slice of the result in its output, and fetches the two others. The operation need not commute.
//!
//! In place, the published elements are in the output. A rank reduces its own slice there, which no other rank reads;
//! only a copy of its own elements of that slice is kept. It fetches slice `s` into its output after rank `s` has
//! published it, and rank `s` publishes it after it has read that slice of all ranks.
//!
//! Steps: `P`, since a slice is fetched after the others were reduced. Every rank reads `2 S (P - 1) / P` bytes and
//! reduces half of them. Buffers with fewer elements than there are ranks are left to `shared_flat`.

use super::super::phases::{contribution, fan_out, sources};
use super::super::shared::{all_others, begin, number, path_in_slices, publish_blocks, reduce_in_order};
use super::super::{Algorithm, Case, Shape, Uses};
use super::shared_flat;
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Readers, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_slices", generate, cost, uses: Uses::SharedMemory };

/// `2σ + (P - 1) (2 f(S/P) + γS/P) + w`: σ is the time of a signal, f that of a fetch, w that of the wait for readers.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, ranks) = (case.bytes(), case.ranks());
    if case.shape.count < case.shape.size {
        return (shared_flat::ALGORITHM.cost)(case);
    }
    let (path, others) = (path_in_slices(case), ranks - 1.0);
    Cost { path, messages: 0.0, sent: 2.0 * others * bytes, reduced: others * bytes }
}

pub(super) fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    if shape.count < shape.size || shape.size == 1 {
        return shared_flat::generate(shape);
    }
    let mut b = begin(shape)?;
    let Shape { rank, size, .. } = *shape;
    let output = shape.output(0);
    let current = contribution(&mut b, &sources(shape), 0, output.len, output);
    publish_blocks(&mut b, shape, |reader| current.part(size, reader));
    let slice = output.part(size, rank);
    let mut own = current.part(size, rank);
    // The first operand may be where the result is.
    if own == slice && rank > 0 {
        own = b.scratch(slice.len);
        b.copy(slice, own);
    }
    reduce_in_order(&mut b, rank, 0..size, |from| (number(size, from, rank), 0), own, slice);
    b.divide(slice, shape.divisor());
    b.publish(Readers::All, slice);
    fan_out(&mut b, shape, slice);
    for from in all_others(shape) {
        let part = output.part(size, from);
        b.fetch(from, size as u32 - 1, 0, part);
        fan_out(&mut b, shape, part);
    }
    b.await_readers();
    Ok(b.build())
}
