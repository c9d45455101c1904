//! Every rank sends its block to the root; only the root needs to know all counts. Best for large blocks and for few
//! ranks. Six ranks, root 0: ranks 1 to 5 send their blocks to rank 0, which receives them concurrently; empty blocks
//! are not sent.
//!
//! Steps: 1. Every rank but the root sends its block.

use super::super::blocks::one_to_all_cost;
use super::super::phases::collect;
use super::super::shape::block;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "direct", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    Ok(collect(shape, |rank| block(shape.recv_counts, rank)))
}

/// `α + S (P - 1) / (P B)` for equal blocks. The counts are used only if all ranks know them.
fn cost(case: &Case<'_>) -> Cost {
    one_to_all_cost(case, case.shape.counts)
}
