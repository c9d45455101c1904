//! Every rank sends its block to every other rank: one step, but `P - 1` messages per rank. Best for few ranks, and
//! where each pair has its own link, as on one host.
//!
//! Six ranks: rank 0 sends block 0 to ranks 1 to 5, rank 1 sends block 1 to 2, 3, 4, 5, 0, and so on. At any time all
//! ranks receive the same amount. No message waits for another.
//!
//! Steps: 1. Every rank sends `S (P - 1) / P` bytes; `S` is the size of the output.

use super::super::phases::direct_allgather;
use super::super::{Algorithm, Case, Shape, Uses};
use super::{assemble, block_bytes};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "direct", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let own = assemble(&mut b, shape);
    direct_allgather(&mut b, shape, own, |rank| shape.output(0).slice(rank * own.len, own.len));
    Ok(b.build())
}

/// `α + S (P - 1) / (P B)`, or between hosts `2 (P - 1) o` if that is more.
fn cost(case: &Case<'_>) -> Cost {
    let (block, others) = (block_bytes(case), case.ranks() - 1.0);
    Cost {
        path: case.at_once(others * block, block, others * case.pieces(block), true),
        messages: case.ranks() * others * case.pieces(block),
        sent: case.ranks() * others * block,
        reduced: 0.0,
    }
}
