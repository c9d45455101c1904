//! The ring of [`ring_allgather`], with blocks of different lengths; empty ones are not sent.
//!
//! Six ranks: rank 0 sends block 0 to rank 1 and receives 5 from rank 5, sends that on and receives 4, ..., and sends 2 and
//! receives 1 in the fifth step.
//!
//! Steps: `P - 1` if no block is empty. Every rank sends all blocks but its right neighbour's.

use super::super::phases::ring_allgather;
use super::super::{Algorithm, Case, Shape, Uses, shape};
use crate::error::Result;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "ring", generate, cost: |case| Case::unpriced(case), uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let block = |rank: usize| {
        let (offset, len) = shape::block(shape.recv_counts, rank);
        shape.output(0).slice(offset, len)
    };
    let own = block(shape.rank);
    let first = if shape.inputs == 1 { shape.input(0) } else { own };
    b.copy(first, own);
    ring_allgather(&mut b, shape, first, block, |_, _| ());
    Ok(b.build())
}
