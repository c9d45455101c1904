//! Every rank publishes its elements in shared memory, as a block for each other rank or, if they are few, at once, and
//! fetches its block of those of all other ranks. One step: best on one host.
//!
//! Three ranks: all publish their three blocks; rank 0 fetches block 0 of rank 1, then of rank 2; rank 1 block 1 of
//! rank 2, then of rank 0; rank 2 block 2 of rank 0, then of rank 1. In place, a copy of the elements is published.
//!
//! Steps: 1. Every rank reads `S (P - 1) / P` bytes.

use super::super::shared::{all_others, begin, is_at_once, others, path_of_parts, publish_parts, stable_contribution};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + (P - 1) f(S/P) + w`: σ is the time of a signal, f that of a fetch, w that of the wait for readers.
fn cost(case: &Case<'_>) -> Cost {
    let (block, ranks) = (case.bytes(), case.ranks());
    let path = path_of_parts(case, (ranks * block, block), case.shape.size * case.shape.count, 0.0);
    Cost { path, messages: 0.0, sent: ranks * (ranks - 1.0) * block, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = begin(shape)?;
    let Shape { rank, size, count, .. } = *shape;
    if count == 0 {
        return Ok(b.build());
    }
    let block = |from: usize| shape.output(0).slice(from * count, count);
    let own = if size == 1 && shape.inputs == 0 {
        shape.output(0)
    } else {
        stable_contribution(&mut b, shape, 0, size * count)
    };
    let place = publish_parts(&mut b, shape, own, &|reader| (reader * count, count));
    let sources: Vec<usize> =
        if is_at_once(shape, own.len) { all_others(shape).collect() } else { others(shape).collect() };
    for from in sources {
        let (number, at) = place(from);
        b.fetch(from, number, at, block(from));
    }
    if shape.inputs > 0 {
        b.copy(own.slice(rank * count, count), block(rank));
    }
    if size > 1 {
        b.await_readers();
    }
    Ok(b.build())
}
