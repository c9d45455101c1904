//! Bruck's allgather (Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", 1997): the fewest steps and the fewest bytes at once for any number of ranks, so the best
//! for small blocks where that is no power of two.
//!
//! Six ranks: rank 0 receives block 1 from rank 1, then the blocks 2 and 3 from rank 2, then 4 and 5 from rank 4; each time it
//! has sent all it had the other way: block 0 to rank 5, 0 and 1 to rank 4, and 0 and 1 to rank 2 (of its four only the two
//! that are missing there).
//!
//! Blocks are received where they belong. A message whose blocks go around the last rank is therefore sent as two: rank 4
//! sends the blocks 4 and 5 to rank 2, and 4, 5 to rank 0, but rank 5 sends 5 and 0 to rank 3 in two messages. That costs
//! a rank one message more in all, on the way together with the other; the paper's last rotation would cost a scratch buffer
//! and a copy of everything.
//!
//! Steps: `ceil(lg P)`. Every rank sends `S (P - 1) / P` bytes, `S` being those of the output.

use super::super::blocks::Blocks;
use super::super::phases::rounds;
use super::super::{Algorithm, Case, Shape, Uses};
use super::{assemble, block_bytes};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "bruck", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let own = assemble(&mut b, shape);
    let blocks = Blocks::equal(shape.size, own.len);
    for bit in 0..rounds(shape.size) {
        let distance = 1 << bit;
        let many = distance.min(shape.size - distance);
        let places = |first| {
            let pieces = blocks.around(first, many).into_iter();
            pieces.map(|(offset, len)| shape.output(0).slice(offset, len))
        };
        let to = shape.before(distance);
        match bit {
            0 => b.send(to, own),
            _ => places(shape.rank).for_each(|piece| b.send(to, piece)),
        }
        let from = shape.after(distance);
        places(from).for_each(|piece| b.recv(from, piece));
    }
    Ok(b.build())
}

/// `lg P α + S (P - 1) / (P B)`.
fn cost(case: &Case<'_>) -> Cost {
    let (size, block) = (case.shape.size, block_bytes(case));
    let mut cost = Cost::default();
    if block == 0.0 {
        return cost;
    }
    for bit in 0..rounds(size) {
        let many = (1 << bit).min(size - (1 << bit)) as f64;
        cost.path += case.link(1 << bit).time(many * block);
        // All but one of the blocks of a message can be the last rank's.
        cost.messages += case.ranks() * case.pieces(many * block) + (many - 1.0);
        cost.sent += case.ranks() * many * block;
    }
    cost
}
