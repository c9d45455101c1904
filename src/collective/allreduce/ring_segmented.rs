//! Ring allreduce with one chunk per rank: a reduce-scatter, then an allgather (Patarasu and Yuan 2009; made popular by
//! Baidu in 2017).
//!
//! Six ranks: the output is cut into six chunks. In the five steps of [`ring_reduce_scatter`] chunk `c` moves from rank
//! `c + 1` around the ring to rank `c`, which then has all of it and divides it for an average; in the five steps of
//! [`ring_allgather`] it moves around once more. The engine cuts each chunk into segments: a rank forwards the first
//! segment while it receives the second.
//!
//! Steps: `2 (P - 1)`. Every rank sends `2 S (P - 1) / P` bytes.

use super::super::phases::{fan_out, ring_allgather, ring_reduce_scatter, ring_reduce_scatter_times};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, split};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "ring_segmented", generate, cost, uses: Uses::Sizes };

/// `2 (P - 1) (α + S/(PB)) + (P - 1) γS/P`. With segments, the first complete one is sent around the ring while the
/// rest of the chunk is in transit or being reduced.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others, link) = (case.bytes(), case.ranks() - 1.0, case.link(1));
    let chunk = bytes / case.ranks();
    let (first, last) = ring_reduce_scatter_times(case, chunk);
    let around = last + others * link.time(case.segment(chunk));
    let scattered = first.max(others * case.wire(link, chunk)).max(others * case.pieces(chunk) * link.busy);
    let full = scattered + case.stream(link, others, chunk, 0.0);
    Cost {
        path: if case.is_empty() { 0.0 } else { around.max(full) },
        messages: 2.0 * case.ranks() * others * case.pieces(chunk),
        sent: 2.0 * others * bytes,
        reduced: others * bytes,
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let output = shape.output(0);
    let chunk = |index| output.part(shape.size, index);
    let complete = ring_reduce_scatter(&mut b, shape, |index| split(shape.count, shape.size, index), chunk);
    let own = chunk(shape.rank);
    b.copy(complete, own);
    b.divide(own, shape.divisor());
    fan_out(&mut b, shape, own);
    ring_allgather(&mut b, shape, own, chunk, |b, chunk| fan_out(b, shape, chunk));
    Ok(b.build())
}
