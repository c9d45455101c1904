//! Bruck's all-to-all ([`bruck`]; Bruck, Ho, Kipnis, Upfal and Weathersby 1997) with blocks of different lengths:
//! blocks move by the bits of their distance, many in one message. It has the fewest messages, but each block is sent
//! up to `lg P` times: best for small blocks and many ranks. Every rank needs the counts of all ranks; the call gathers
//! them first.
//!
//! Six ranks: in the first step rank 0 sends to rank 1 its blocks for ranks 1, 3 and 5, whose distances are odd, and
//! receives three blocks from rank 5. In the second step it sends to rank 2 the blocks with a total distance of 2 or 3:
//! its own for rank 2, and rank 5's, just received, for rank 2. In the third it sends to rank 4 the blocks with a total
//! distance of 4 or 5: its own for rank 4, and rank 5's for rank 4. A message whose blocks are all empty is not sent.
//!
//! Steps: `ceil(lg P)`. A block is sent as many times as its distance has bits set. Everything sent and received is in
//! scratch memory.

use super::super::blocks::{Blocks, all_counts, bruck};
use super::super::phases::rounds;
use super::super::price::UNKNOWN;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "bruck", generate, cost, uses: Uses::Counts };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let size = shape.size;
    let counts = all_counts(shape)?;
    let (sent, received) = (Blocks::new(shape.send_counts), Blocks::new(shape.recv_counts));
    Ok(bruck(
        shape,
        |from, to| counts[from * size + to],
        |to| sent.span(shape.input(0), to),
        |from| received.span(shape.output(0), from),
    ))
}

/// Each step takes as long as the rank that sends most.
fn cost(case: &Case<'_>) -> Cost {
    let size = case.shape.size;
    let Ok(counts) = all_counts(case.shape) else { return UNKNOWN };
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
