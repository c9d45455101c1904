//! Bruck's allgather (Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", 1997). It has the minimum number of steps and of bytes for any number of ranks:
//! best for small blocks if the number of ranks is not a power of two.
//!
//! Six ranks: rank 0 receives block 1 from rank 1, then blocks 2 and 3 from rank 2, then 4 and 5 from rank 4. In the
//! same steps it sends block 0 to rank 5, blocks 0 and 1 to rank 4, and, of its four blocks, only the missing 0 and 1
//! to rank 2.
//!
//! A rank stores the blocks starting with its own, so that each message is contiguous; a final copy puts them in rank
//! order. Rank 0 already has that order and receives into the output. Without scratch memory, a message that wraps
//! around the last rank would become two; the first of them is ready too early and delays others, which doubles the
//! time in the simulator for large blocks.
//!
//! Steps: `ceil(lg P)`. Every rank sends `S (P - 1) / P` bytes; `S` is the size of the output.

use super::super::phases::rounds;
use super::super::{Algorithm, Case, Shape, Uses};
use super::{assemble, block_bytes};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "bruck", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, .. } = *shape;
    let own = assemble(&mut b, shape);
    let output = shape.output(0);
    // Entry `i` is block `rank + i`, modulo the number of ranks.
    let current = if rank == 0 { output } else { b.scratch(output.len) };
    let blocks = |first: usize, many: usize| current.slice(first * own.len, many * own.len);
    if rank > 0 && size > 2 {
        b.copy(own, blocks(0, 1));
    }
    for bit in 0..rounds(size) {
        let distance = 1 << bit;
        let many = distance.min(size - distance);
        b.send(shape.before(distance), if bit == 0 { own } else { blocks(0, many) });
        b.recv(shape.after(distance), blocks(distance, many));
    }
    if rank > 0 {
        let ahead = size - rank;
        b.copy(blocks(1, ahead - 1), output.slice((rank + 1) * own.len, (ahead - 1) * own.len));
        b.copy(blocks(ahead, rank), output.slice(0, rank * own.len));
    }
    Ok(b.build())
}

/// `lg P α + S (P - 1) / (P B)`. If P is not a power of two, the blocks of the last step may be ready before the step
/// before is complete; the two steps then overlap.
fn cost(case: &Case<'_>) -> Cost {
    let (size, block) = (case.shape.size, block_bytes(case));
    let mut cost = Cost::default();
    if block == 0.0 {
        return cost;
    }
    for bit in 0..rounds(size) {
        let many = (1 << bit).min(size - (1 << bit)) as f64;
        let (link, bytes) = (case.link(1 << bit), many * block);
        let waits = rounds(many as usize) == bit;
        cost.path += if waits { case.stream(link, 1.0, bytes, 0.0) } else { case.wire(link, bytes).max(link.turn()) };
        cost.messages += case.ranks() * case.pieces(many * block);
        cost.sent += case.ranks() * many * block;
    }
    cost
}
