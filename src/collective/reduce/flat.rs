//! Everyone sends to the root, which combines in the order of ranks. One step, so it is best for the smallest buffers and few
//! ranks; the root's link carries everything.
//!
//! Six ranks, root 2: rank 2 receives from 0, 1, 3, 4, 5 at once, and adds: 0 and 1, its own, then 3, 4, 5.
//!
//! Steps: 1. Every rank but the root sends `S` bytes; the root needs `S (P - 1)` bytes of scratch memory. (Known as the flat
//! or linear tree: Pjesivac-Grbovic et al., "Performance analysis of MPI collective operations", 2005.)

use super::super::phases::{at_root, combine_at_root, contribution, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "flat", generate, cost, uses: Uses::Sizes };

/// `α + (P - 1) S/B + γS`, or between hosts `α + S/B + γS + (P - 2) o` if that is more.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    Cost {
        path: at_root(case, 0.0),
        messages: others * case.pieces(bytes),
        sent: others * bytes,
        reduced: others * bytes,
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let sources = sources(shape);
    let place = match shape.rank == shape.root {
        true => shape.output(0),
        false => b.scratch(if sources.len() > 1 { shape.count } else { 0 }),
    };
    let held = contribution(&mut b, &sources, 0, shape.count, place);
    if shape.rank == shape.root {
        combine_at_root(&mut b, shape, held, place);
        b.divide(place, shape.divisor());
    } else {
        b.send(shape.root, held);
    }
    Ok(b.build())
}
