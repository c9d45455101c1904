//! The ring of [`ring_allgather`] (Gloo's `allgather_ring`; Patarasu and Yuan 2009). Ranks send only to their
//! neighbours, and no link carries a block twice: best for large blocks. A rank's inputs are sent as one block. Gloo
//! sends two halves of a block per step, so that one is forwarded while the other is received; here the engine
//! pipelines, since it cuts blocks of 64 KiB or more into at least two segments.
//!
//! Six ranks: rank 0 sends block 0 to rank 1 and receives block 5 from rank 5, sends block 5 and receives 4, and so on,
//! and in the fifth step sends 2 and receives 1.
//!
//! Steps: `P - 1`. Every rank sends `S (P - 1) / P` bytes; `S` is the size of the output.

use super::super::phases::{ring_allgather, ring_allgather_cost};
use super::super::{Algorithm, Case, Shape, Uses};
use super::{assemble, block_bytes};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "ring", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let own = assemble(&mut b, shape);
    let block = |rank: usize| shape.output(0).slice(rank * own.len, own.len);
    ring_allgather(&mut b, shape, own, block, |_, _| ());
    Ok(b.build())
}

/// `(P - 1) (α + S / (P B))`.
fn cost(case: &Case<'_>) -> Cost {
    let block = block_bytes(case);
    ring_allgather_cost(case, block, block * case.ranks(), case.pieces(block) * case.ranks())
}
