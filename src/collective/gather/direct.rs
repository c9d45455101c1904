//! Everyone sends to the root. Six ranks, root 0: ranks 1 to 5 each send their block to rank 0, which receives all at once.
//!
//! Steps: 1. Every rank but the root sends its block.

use super::super::phases::collect;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "direct", generate, cost: |case| Case::unpriced(case), uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    Ok(collect(shape, |rank| (rank * shape.count, shape.count)))
}
