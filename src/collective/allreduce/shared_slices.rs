//! Every rank publishes its elements in shared memory, reduces one slice of those of all ranks in rank order, publishes
//! the result, and fetches the other slices. Best for large buffers on one host: each element is reduced once.
//!
//! Three ranks with the elements a, b and c, each of three slices: all publish their elements. Rank 1 computes slice 1 of
//! (a op b) op c: it fetches slice 1 of a, reduces it with its own slice 1 of b and the result with slice 1 of c. Ranks 0
//! and 2 do the same with slices 0 and 2. Each publishes its slice of the result in its output, and fetches the two
//! others. The operation need not commute.
//!
//! In place, the published elements are in the output. A rank reduces its own slice there, which no other rank reads;
//! only a copy of its own elements of that slice is kept. It fetches slice `s` into its output after rank `s` has
//! published it, and rank `s` publishes it after it has read that slice of all ranks.
//!
//! Of two ranks, each publishes only the slice that the other reduces.
//!
//! Steps: `P`, since a slice is fetched after the others were reduced. Every rank reads `2 S (P - 1) / P` bytes and
//! reduces half of them. Buffers with fewer elements than there are ranks are left to `shared_flat`.

use super::super::phases::{contribution, fan_out, sources};
use super::super::shared::{awaited, begin, others, path_in_slices, reduce_in_order};
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

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    if shape.count < shape.size || shape.size == 1 {
        return shared_flat::generate(shape);
    }
    let mut b = begin(shape)?;
    let Shape { rank, size, .. } = *shape;
    let output = shape.output(0);
    let current = contribution(&mut b, &sources(shape), 0, output.len, output);
    b.publish(Readers::All, awaited(shape, current));
    let slice = output.part(size, rank);
    let mut own = current.part(size, rank);
    // The first operand may be where the result is.
    if own == slice && rank > 0 {
        own = b.scratch(slice.len);
        b.copy(slice, own);
    }
    let at = if size == 2 { 0 } else { slice.offset };
    reduce_in_order(&mut b, rank, 0..size, at, own, slice);
    b.divide(slice, shape.divisor());
    b.publish(Readers::All, slice);
    fan_out(&mut b, shape, slice);
    for from in others(shape) {
        let part = output.part(size, from);
        b.fetch(from, 1, 0, part);
        fan_out(&mut b, shape, part);
    }
    b.await_readers();
    Ok(b.build())
}
