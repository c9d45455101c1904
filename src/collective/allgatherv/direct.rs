//! Every rank sends its block to every other rank: one step, but `P - 1` messages per rank. Best for few ranks, where
//! each pair has its own link, and where one block is much longer than the others.
//!
//! Six ranks: rank 0 sends block 0 to ranks 1 to 5, rank 1 sends block 1 to 2, 3, 4, 5, 0, and so on. No message waits
//! for another; empty blocks are not sent.
//!
//! Steps: 1. Every rank sends its block `P - 1` times.

use super::super::blocks::Blocks;
use super::super::phases::direct_allgather;
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
    direct_allgather(&mut b, shape, own, |rank| blocks.span(shape.output(0), rank));
    Ok(b.build())
}

/// `α + S (P - 1) / (P B)` for equal blocks.
fn cost(case: &Case<'_>) -> Cost {
    let (all, longest, pieces) = case.blocks(case.shape.recv_counts);
    let others = case.ranks() - 1.0;
    // The rank with the longest block takes the longest.
    let path = case.at_once(others * longest, longest, others * case.pieces(longest), true);
    Cost { path, messages: others * pieces, sent: others * all, reduced: 0.0 }
}
