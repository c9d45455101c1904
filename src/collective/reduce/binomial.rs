//! Reduction of whole buffers up a binomial tree (Thakur, Rabenseifner and Gropp 2005).
//!
//! Six ranks, root 0: ranks 1, 3, 5 send to 0, 2, 4; then 2 sends to 0; then 4 sends to 0. Segments are pipelined.
//!
//! Steps: `ceil(lg P)`. Every rank but the root sends `S` bytes.

use super::super::phases::{Binomial, contribution, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "binomial", generate, cost, uses: Uses::Sizes };

/// `lg P (α + S/B + γS)`.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    Cost {
        path: case.tree(bytes, case.network.gamma),
        messages: others * case.pieces(bytes),
        sent: others * bytes,
        reduced: others * bytes,
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let tree = Binomial::new(shape);
    let sources = sources(shape);
    let (parent, children) = (tree.parent(), tree.children());
    let target = match parent {
        None => shape.output(0),
        Some(_) if children.is_empty() && sources.len() == 1 => b.scratch(0),
        Some(_) => b.scratch(shape.count),
    };
    let mut current = contribution(&mut b, &sources, 0, shape.count, target);
    for child in children {
        b.recv_reduce(child, target, current, Side::Right);
        current = target;
    }
    match parent {
        Some(parent) => b.send(parent, current),
        None => {
            b.copy(current, target);
            b.divide(target, shape.divisor());
        }
    }
    Ok(b.build())
}
