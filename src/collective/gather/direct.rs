//! Every rank sends its block to the root: best for large blocks, which are sent once, and for few ranks. Six ranks,
//! root 0: ranks 1 to 5 send their blocks to rank 0, which receives them concurrently.
//!
//! Steps: 1. Every rank but the root sends its block; the root receives `S (P - 1) / P` bytes in `P - 1` messages; `S`
//! is the size of its output.

use super::super::blocks::one_to_all_cost;
use super::super::phases::collect;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "direct", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    Ok(collect(shape, |rank| (rank * shape.count, shape.count)))
}

/// `α + S (P - 1) / (P B)`.
fn cost(case: &Case<'_>) -> Cost {
    one_to_all_cost(case, &vec![case.shape.count; case.shape.size])
}
