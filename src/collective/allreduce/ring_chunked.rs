//! Ring allreduce with two chunks per rank and receives separate from reductions (Gloo's `allreduce_ring_chunked`).
//!
//! Works like `ring_segmented`, but the output is cut into `2 P` chunks, and a chunk is first received into one of two
//! scratch buffers: while one is reduced the other is filled. It suits links that cannot reduce while they receive.
//!
//! Six ranks, twelve chunks: rank 0 sends chunks 10 and 11, receives 8 and 9 into the two buffers, reduces 8 and sends
//! it while 9 is still arriving, receives 6 into the buffer of 8, and so on, until 0 and 1 are complete; then all
//! chunks move around the ring once more.
//!
//! Steps: `2 (P - 1)` for each of the two streams of chunks; every rank sends `4 (P - 1)` messages, together `2 S (P -
//! 1) / P` bytes. (Some tables list `4 P`: they count messages, and two more of each kind.)

use super::super::phases::{contribution, fan_out, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "ring_chunked", generate, cost, uses: Uses::Sizes };

/// At most `(P - 1) (2α + 2S/(PB) + γS/P)`; less where one stream of chunks is in transit while the other is reduced.
/// The second stream is behind the first by one chunk's transfer or reduction.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others, link) = (case.bytes(), case.ranks() - 1.0, case.link(1));
    let chunk = bytes / (2.0 * case.ranks());
    let pieces = case.pieces(chunk);
    let (gamma, on_link) = (case.network.gamma, (chunk / link.bandwidth).max(pieces * link.turn()));
    let busy = |gamma: f64| 2.0 * (gamma * chunk + pieces * link.busy);
    let each = |gamma: f64| case.step(link, chunk, gamma).max(2.0 * on_link).max(busy(gamma));
    let first = case.stream(link, 1.0, chunk, 0.0) + gamma * case.segment(chunk);
    let reduced = (others - 1.0) * each(gamma) + first;
    let behind = reduced + others * case.step(link, chunk, 0.0) + on_link.max(gamma * chunk);
    let full = reduced.max(2.0 * others * on_link) + others * each(0.0) + link.latency.min(on_link);
    Cost {
        path: if case.is_empty() { 0.0 } else { behind.max(full) },
        messages: 4.0 * case.ranks() * others * case.pieces(chunk),
        sent: 2.0 * others * bytes,
        reduced: others * bytes,
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let sources = sources(shape);
    let (left, right) = (shape.before(1), shape.after(1));
    let output = shape.output(0);
    let chunk = |rank: usize, half: usize| output.part(2 * shape.size, 2 * rank + half);
    let local = |b: &mut Builder, chunk: Span| contribution(b, &sources, chunk.offset, chunk.len, chunk);

    let mut current = [0, 1].map(|half| local(&mut b, chunk(left, half)));
    if shape.size > 1 {
        let longest = chunk(0, 0).len;
        let buffers = [b.scratch(longest), b.scratch(longest)];
        for step in 0..shape.size - 1 {
            let rank = shape.before(step + 2);
            for (half, current) in current.iter_mut().enumerate() {
                b.send(right, *current);
                let into = chunk(rank, half);
                let arrived = buffers[half].slice(0, into.len);
                b.recv(left, arrived);
                let own = local(&mut b, into);
                b.reduce(arrived, own, into);
                *current = into;
            }
        }
    }
    for (half, current) in current.iter_mut().enumerate() {
        let own = chunk(shape.rank, half);
        b.copy(*current, own);
        b.divide(own, shape.divisor());
        fan_out(&mut b, shape, own);
        *current = own;
    }
    for step in 0..shape.size - 1 {
        for (half, current) in current.iter_mut().enumerate() {
            b.send(right, *current);
            *current = chunk(shape.before(step + 1), half);
            b.recv(left, *current);
            fan_out(&mut b, shape, *current);
        }
    }
    Ok(b.build())
}
