//! Every rank publishes a slice of its elements in shared memory for each other rank, and reduces its own slice of
//! those of all ranks in rank order; the root fetches the slices. Best for large buffers on one host.
//!
//! Three ranks with the elements a, b and c, each of three slices, root 0: each publishes the slices of the two others;
//! rank `r` computes slice `r` of (a op b) op c, rank 0 in its output, the others in scratch memory. Ranks 1 and 2
//! publish their slices for rank 0, which fetches them. In place, the root fetches a slice into published elements only
//! after the slice's rank has read them, because it published the slice after that.
//!
//! Steps: `P`. A rank reads `S (P - 1) / P` bytes, the root twice as many; it reduces `S (P - 1) / P`. Buffers with
//! fewer elements than there are ranks are left to `shared_flat`.

use super::super::phases::{contribution, sources};
use super::super::shared::{begin, number, others, path_in_slices, publish_blocks, reduce_in_order};
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
    let slice = case.of(case.shape.count.div_ceil(case.shape.size));
    Cost { path, messages: 0.0, sent: others * bytes + others * slice, reduced: others * bytes }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let Shape { rank, size, root, count, .. } = *shape;
    if count < size || size == 1 {
        return shared_flat::generate(shape);
    }
    let mut b = begin(shape)?;
    let is_root = rank == root;
    let sources = sources(shape);
    // Outputs of other ranks are not written.
    let target = if is_root { shape.output(0) } else { b.scratch(if sources.len() > 1 { count } else { 0 }) };
    let current = contribution(&mut b, &sources, 0, count, target);
    publish_blocks(&mut b, shape, |reader| current.part(size, reader));
    let mut own = current.part(size, rank);
    let slice = if is_root { target.part(size, rank) } else { b.scratch(own.len) };
    // The first operand may be where the result is.
    if own == slice && rank > 0 {
        own = b.scratch(slice.len);
        b.copy(slice, own);
    }
    reduce_in_order(&mut b, rank, 0..size, |from| (number(size, from, rank), 0), own, slice);
    b.divide(slice, shape.divisor());
    if is_root {
        for from in others(shape) {
            b.fetch(from, size as u32 - 1, 0, target.part(size, from));
        }
    } else {
        b.publish(Readers::One(root as u32), slice);
    }
    b.await_readers();
    Ok(b.build())
}
