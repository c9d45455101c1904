//! Everyone sends to rank 0, which combines in the order of ranks and sends the result to everyone. Two steps, so it is best
//! for the smallest buffers where latency is high and there are few ranks; rank 0's link carries everything.
//!
//! Six ranks: rank 0 receives from 1 to 5 at once, adds them to its own one after the other, and sends the sum to all five.
//!
//! Steps: 2. Rank 0 sends `S (P - 1)` bytes and needs as much scratch memory, the others send `S`. No paper describes it:
//! it is what one would do by hand.

use super::super::phases::{at_root, combine_at_root, contribution, fan_out, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "reduce_broadcast", generate, cost, uses: Uses::Sizes };

/// `2 (α + n S/B) + γS`, where `n` is P - 1 or what [`Case::in_turn`] says, or `(P - 1) γS` instead of all receptions but one if
/// that is more. Segments of all ranks come by turns and are sent on at once.
pub(super) fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    let link = case.link(case.shape.size / 2);
    let (segment, outside) = (case.segment(bytes), case.leaving() * others);
    let back = case.outside(link, case.in_turn() * segment, segment, outside, false);
    // What goes back while more comes is the root's work, too.
    let path = at_root(case, outside * case.later(bytes)) + back;
    Cost {
        path: if case.is_empty() { 0.0 } else { path },
        messages: 2.0 * others * case.pieces(bytes),
        sent: 2.0 * others * bytes,
        reduced: others * bytes,
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let output = shape.output(0);
    let held = contribution(&mut b, &sources(shape), 0, shape.count, output);
    if shape.rank == 0 {
        combine_at_root(&mut b, shape, held, output);
        b.divide(output, shape.divisor());
        for to in 1..shape.size {
            b.send(to, output);
        }
    } else {
        b.send(0, held);
        b.recv(0, output);
    }
    fan_out(&mut b, shape, output);
    Ok(b.build())
}
