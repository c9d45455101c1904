//! Bruck's all-to-all ([`bruck`]; Bruck, Ho, Kipnis, Upfal and Weathersby 1997): blocks move by the bits of their
//! distance, many in one message. It has the fewest messages, but each block is sent up to `lg P` times: best for small
//! blocks and many ranks.
//!
//! Six ranks: in the first step rank 0 sends to rank 1 its blocks for ranks 1, 3 and 5, whose distances are odd, and
//! receives three blocks from rank 5. In the second step it sends to rank 2 the blocks with a total distance of 2 or 3:
//! its own for rank 2, and rank 5's, just received, for rank 2. In the third it sends to rank 4 the blocks with a total
//! distance of 4 or 5: its own for rank 4, and rank 5's for rank 4.
//!
//! Steps: `ceil(lg P)`. For a power of two a rank sends `lg P S / 2` bytes. Scratch memory holds everything sent and
//! received: twice that amount.

use super::super::blocks::{bruck, bruck_blocks};
use super::super::phases::rounds;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "bruck", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let from = if shape.inputs > 0 { shape.input(0) } else { shape.output(0) };
    let count = shape.count;
    let received = |rank| shape.output(0).slice(rank * count, count);
    Ok(bruck(shape, |_, _| count, |rank| from.slice(rank * count, count), received))
}

/// `lg P (α + S / (2 B))` for powers of two.
fn cost(case: &Case<'_>) -> Cost {
    let mut cost = Cost::default();
    if case.shape.count == 0 {
        return cost;
    }
    for bit in 0..rounds(case.shape.size) {
        let bytes = bruck_blocks(case.shape.size, bit) as f64 * case.bytes();
        cost.path += case.stream(case.link(1 << bit), 1.0, bytes, 0.0);
        cost.messages += case.ranks() * case.pieces(bytes);
        cost.sent += case.ranks() * bytes;
    }
    cost
}
