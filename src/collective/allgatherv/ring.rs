//! The ring of [`ring_allgather`] with blocks of different lengths; empty blocks are not sent (Patarasu and Yuan 2009).
//! Best for large blocks.
//!
//! Six ranks: rank 0 sends block 0 to rank 1 and receives block 5 from rank 5, sends block 5 and receives 4, and so on,
//! and in the fifth step sends 2 and receives 1.
//!
//! Steps: `P - 1` if no block is empty. Every rank sends all blocks but its right neighbour's.

use super::super::blocks::Blocks;
use super::super::phases::{ring_allgather, ring_allgather_cost};
use super::super::{Algorithm, Case, Shape, Uses};
use super::own;
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "ring", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let blocks = Blocks::new(shape.recv_counts);
    let first = own(&mut b, shape, &blocks);
    ring_allgather(&mut b, shape, first, |rank| blocks.span(shape.output(0), rank), |_, _| ());
    Ok(b.build())
}

/// Every step takes as long as the longest block: `(P - 1) (α + S / (P B))` for equal blocks.
fn cost(case: &Case<'_>) -> Cost {
    let (all, longest, pieces) = case.blocks(case.shape.recv_counts);
    ring_allgather_cost(case, longest, all, pieces)
}
