//! The root sends every rank its block: best for large blocks, which are sent once, and for few ranks. Six ranks, root
//! 0: rank 0 sends blocks 1 to 5 to ranks 1 to 5 concurrently.
//!
//! Steps: 1. The root sends `S (P - 1) / P` bytes; `S` is the size of its input.

use super::super::blocks::one_to_all_cost;
use super::super::phases::distribute;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "direct", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    Ok(distribute(shape, |rank| match shape.inputs {
        0 => shape.output(0).slice(rank * shape.count, shape.count),
        1 => shape.input(0).slice(rank * shape.count, shape.count),
        _ => shape.input(rank),
    }))
}

/// `α + S (P - 1) / (P B)`.
fn cost(case: &Case<'_>) -> Cost {
    one_to_all_cost(case, &vec![case.shape.count; case.shape.size])
}
