//! Every rank sends to the root, which reduces in rank order. It has one step, but the root's link carries all data:
//! best for the smallest buffers and few ranks. (Known as the flat or linear tree: Pjesivac-Grbovic et al.,
//! "Performance analysis of MPI collective operations", 2005.)
//!
//! Six ranks, root 2: rank 2 receives from 0, 1, 3, 4, 5 concurrently and reduces in the order 0, 1, 2, 3, 4, 5.
//!
//! In a reproducible call rank 2 receives all contributions of the others, and reduces them at once.
//!
//! Steps: 1. Every rank but the root sends `S` bytes; the root needs `S (P - 1)` bytes of scratch memory.

use super::super::phases::{apart, at_root, combine_apart, combine_at_root, contribution, sources};
use super::super::{Algorithm, Case, Order, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Span};

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
    if shape.order == Order::Reproducible {
        let own = apart(&sources, Span::new(sources[0], 0, shape.count));
        if shape.rank == shape.root {
            combine_apart(
                &mut b,
                (1..shape.size).map(|distance| shape.after(distance)),
                own.collect(),
                shape.output(0),
            );
            b.divide(shape.output(0), shape.divisor());
        } else {
            own.for_each(|own| b.send(shape.root, own));
        }
        return Ok(b.build());
    }
    let target = match shape.rank == shape.root {
        true => shape.output(0),
        false => b.scratch(if sources.len() > 1 { shape.count } else { 0 }),
    };
    let current = contribution(&mut b, &sources, 0, shape.count, target);
    if shape.rank == shape.root {
        combine_at_root(&mut b, shape, current, target);
        b.divide(target, shape.divisor());
    } else {
        b.send(shape.root, current);
    }
    Ok(b.build())
}
