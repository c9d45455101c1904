//! Blocks travel by the bits of their distance, many in one message ([`bruck`]; Bruck, Ho, Kipnis, Upfal and Weathersby 1997).
//! The fewest messages, so the best for small blocks and many ranks; each block is sent up to `lg P` times. Every rank needs the
//! counts of all: the call gathers them first.
//!
//! Six ranks: in the first step rank 0 sends to rank 1 its blocks for the ranks 1, 3 and 5, which have an odd distance to go,
//! and receives three from rank 5. In the second it sends to rank 2 those that must go 2 or 3 ranks in all: its own for rank
//! 2, and rank 5's, just received, for that same rank. In the third it sends to rank 4 those that must go 4 or 5 in all: its
//! own for rank 4, and rank 5's for that same rank. Where all blocks of a message are empty it is not sent.
//!
//! Steps: `ceil(lg P)`. A block is sent as often as the distance it goes has bits that are set. What is sent and received lies
//! in scratch memory.

use super::super::blocks::{Blocks, bruck, everyone_told};
use super::super::phases::rounds;
use super::super::price::UNKNOWN;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "bruck", generate, cost, uses: Uses::Counts };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let size = shape.size;
    let counts = everyone_told(shape)?;
    let (sent, received) = (Blocks::new(shape.send_counts), Blocks::new(shape.recv_counts));
    Ok(bruck(
        shape,
        |from, to| counts[from * size + to],
        |to| sent.span(shape.input(0), to),
        |from| received.span(shape.output(0), from),
    ))
}

/// In each step the rank that sends most counts.
fn cost(case: &Case<'_>) -> Cost {
    let size = case.shape.size;
    let Ok(counts) = everyone_told(case.shape) else { return UNKNOWN };
    let mut cost = Cost::default();
    for bit in 0..rounds(size) {
        let sent_by = |rank: usize| {
            let moving = (0..size).filter(|i| i >> bit & 1 == 1);
            let sources = moving.map(|i| ((rank + size - (i & ((1 << bit) - 1))) % size, i));
            case.of(sources.map(|(source, i)| counts[source * size + (source + i) % size]).sum())
        };
        let sent = (0..size).map(sent_by);
        let longest = sent.fold(0.0, |longest, bytes| {
            cost.sent += bytes;
            cost.messages += case.pieces(bytes);
            bytes.max(longest)
        });
        cost.path += case.stream(case.link(1 << bit), 1.0, longest, 0.0);
    }
    cost
}
