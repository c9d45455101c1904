//! The ring of [`ring_allgather`] (Gloo's `allgather_ring`). A rank's several inputs travel as one block. The engine cuts
//! each block into two segments or more, so that a rank passes one half on while it receives the other.
//!
//! Six ranks: rank 0 sends block 0 to rank 1 and receives 5 from rank 5, sends that on and receives 4, ..., and sends 2 and
//! receives 1 in the fifth step.
//!
//! Steps: `P - 1`. Every rank sends `S (P - 1) / P` bytes, `S` being those of the output.

use super::super::phases::ring_allgather;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "ring", generate, cost: |case| Case::unpriced(case), uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let len = shape.count * shape.inputs.max(1);
    let block = |rank: usize| shape.output(0).slice(rank * len, len);
    let own = block(shape.rank);
    for input in 0..shape.inputs {
        b.copy(shape.input(input), own.slice(input * shape.count, shape.count));
    }
    // One input need not wait for its copy.
    let first = if shape.inputs == 1 { shape.input(0) } else { own };
    ring_allgather(&mut b, shape, first, block, |_, _| ());
    Ok(b.build())
}
