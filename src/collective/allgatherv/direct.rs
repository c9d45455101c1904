//! Everyone sends its block to everyone: one step, but `P - 1` messages for each rank. Best for few ranks, where each pair has
//! a link of its own, and where one block is much longer than the others.
//!
//! Six ranks: rank 0 sends block 0 to the ranks 1 to 5, rank 1 sends block 1 to 2, 3, 4, 5, 0, ... No message waits for
//! another; empty blocks are not sent.
//!
//! Steps: 1. Every rank sends its block `P - 1` times.

use super::super::blocks::Blocks;
use super::super::phases::to_everyone;
use super::super::{Algorithm, Case, Shape, Uses};
use super::own;
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "direct", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let blocks = Blocks::new(shape.recv_counts);
    let own = own(&mut b, shape, &blocks);
    to_everyone(&mut b, shape, own, |rank| blocks.span(shape.output(0), rank));
    Ok(b.build())
}

/// `α + S (P - 1) / (P B)` for equal blocks.
fn cost(case: &Case<'_>) -> Cost {
    let (all, longest, pieces) = case.blocks(case.shape.recv_counts);
    let others = case.ranks() - 1.0;
    // The rank with the longest block sends that to everyone.
    let path = case.at_once(others * longest, longest, others * case.pieces(longest), true);
    Cost { path, messages: others * pieces, sent: others * all, reduced: 0.0 }
}
