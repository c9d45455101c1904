//! Pairwise exchange: in step `i` every rank sends to the rank `i` after it and receives from the rank `i` before it
//! (Thakur, Rabenseifner and Gropp 2005). At any time all ranks receive the same amount. Every block is sent once: best
//! except for small blocks.
//!
//! Six ranks: rank 0 sends to 1 and receives from 5, then to 2 and from 4, to 3 and from 3, to 4 and from 2, to 5 and
//! from 1. The steps start in this order but do not wait for each other. In place, the sent data is first copied to
//! scratch memory; otherwise two ranks could each wait for the other's receive.
//!
//! Steps: 1, since none of the `P - 1` messages waits for another. Every rank sends `S (P - 1) / P` bytes.

use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "pairwise", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let block = |of: Span, rank: usize| of.slice(rank * shape.count, shape.count);
    let output = shape.output(0);
    for distance in 1..shape.size {
        let to = shape.after(distance);
        let from = if shape.inputs > 0 {
            block(shape.input(0), to)
        } else {
            let copy = b.scratch(shape.count);
            b.copy(block(output, to), copy);
            copy
        };
        b.send(to, from);
    }
    for distance in 1..shape.size {
        let from = shape.before(distance);
        b.recv(from, block(output, from));
    }
    if shape.inputs > 0 {
        b.copy(block(shape.input(0), shape.rank), block(output, shape.rank));
    }
    Ok(b.build())
}

/// `α + S (P - 1) / (P B)`, or between hosts `2 (P - 1) o` if that is more.
fn cost(case: &Case<'_>) -> Cost {
    let (block, others) = (case.bytes(), case.ranks() - 1.0);
    Cost {
        path: case.at_once(others * block, block, others * case.pieces(block), true),
        messages: case.ranks() * others * case.pieces(block),
        sent: case.ranks() * others * block,
        reduced: 0.0,
    }
}
