//! The root sends to everyone. Six ranks, root 0: rank 0 sends the blocks 1 to 5 to the ranks 1 to 5, all at once; empty
//! blocks are not sent.
//!
//! Steps: 1. The root sends all blocks but its own.

use super::super::phases::distribute;
use super::super::shape::block;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "direct", generate, cost: |case| Case::unpriced(case), uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    Ok(distribute(shape, |rank| {
        let (offset, len) = block(shape.send_counts, rank);
        if shape.inputs == 0 { shape.output(0).slice(offset, len) } else { shape.input(0).slice(offset, len) }
    }))
}
