//! The root sends every rank its block; only the root needs to know all counts. Best for large blocks and for few
//! ranks. Six ranks, root 0: rank 0 sends blocks 1 to 5 to ranks 1 to 5 concurrently; empty blocks are not sent.
//!
//! Steps: 1. The root sends all blocks but its own.

use super::super::blocks::one_to_all_cost;
use super::super::phases::distribute;
use super::super::shape::block;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "direct", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    Ok(distribute(shape, |rank| {
        let (offset, len) = block(shape.send_counts, rank);
        if shape.inputs == 0 { shape.output(0).slice(offset, len) } else { shape.input(0).slice(offset, len) }
    }))
}

/// `α + S (P - 1) / (P B)` for equal blocks. The counts are used only if all ranks know them.
fn cost(case: &Case<'_>) -> Cost {
    one_to_all_cost(case, case.shape.counts)
}
