//! Ring reduce-scatter, after which every rank sends its chunk to the root (Gloo's `reduce`). The root receives the
//! minimum amount.
//!
//! Six ranks, root 0: after the five steps of [`ring_reduce_scatter`] rank `c` has all of chunk `c` (and divides it for
//! an average); ranks 1 to 5 send theirs to rank 0. Partial results are in the root's output and, on other ranks, in
//! two chunks of scratch memory.
//!
//! Steps: `P`. A rank sends `S` bytes, the root `S (P - 1) / P`.

use super::super::phases::{ring_reduce_scatter, ring_reduce_scatter_times, two_scratch_buffers};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Span, split};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "ring", generate, cost, uses: Uses::Sizes };

/// `(P - 1) (α + S/(PB) + γS/P) + α + (P - 1) S/(PB)`. As in the allreduce, complete segments are sent without waiting
/// for the rest.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    let (chunk, root) = (bytes / case.ranks(), case.link(case.shape.size / 2));
    let (first, last) = ring_reduce_scatter_times(case, chunk);
    let (pieces, segment) = (case.pieces(chunk), case.segment(chunk));
    let gathered = case.outside(root, others * chunk, chunk, others * pieces, false);
    let link = case.link(1);
    let around = first.max(others * case.wire(link, chunk)).max(others * pieces * link.busy);
    let full = around + gathered;
    let path = full.max(last + case.outside(root, others * segment, segment, others, false));
    Cost {
        path: if case.is_empty() { 0.0 } else { path },
        messages: (case.ranks() + 1.0) * others * case.pieces(chunk),
        sent: others * (bytes + chunk),
        reduced: others * bytes,
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, root, count, .. } = *shape;
    let chunk = |index| split(count, size, index);
    if rank != root {
        let target = two_scratch_buffers(&mut b, chunk(0).1, |index| chunk(index).1);
        let complete = ring_reduce_scatter(&mut b, shape, chunk, target);
        b.divide(complete, shape.divisor());
        b.send(root, complete);
        return Ok(b.build());
    }
    let target = |index| -> Span { shape.output(0).part(size, index) };
    let complete = ring_reduce_scatter(&mut b, shape, chunk, target);
    let own = target(rank);
    b.copy(complete, own);
    b.divide(own, shape.divisor());
    for distance in 1..size {
        let from = shape.after(distance);
        b.recv(from, target(from));
    }
    Ok(b.build())
}
