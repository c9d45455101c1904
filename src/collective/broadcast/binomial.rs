//! Broadcast down a binomial tree (Thakur, Rabenseifner and Gropp 2005).
//!
//! Six ranks, root 0: rank 0 sends to 4, then to 2, then to 1; rank 4 sends to 5 and rank 2 to 3 as soon as they have
//! the first segment. The largest subtree comes first.
//!
//! Steps: `ceil(lg P)`, counting the root's consecutive sends. The root sends `S ceil(lg P)` bytes, other ranks less.

use super::super::phases::{Binomial, fan_out};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "binomial", generate, cost, uses: Uses::Sizes };

/// `lg P (α + S/B)`.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    Cost { path: case.tree_down(bytes), messages: others * case.pieces(bytes), sent: others * bytes, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let tree = Binomial::new(shape);
    let output = shape.output(0);
    let current = match tree.parent() {
        None if shape.inputs > 0 => shape.input(0),
        None => output,
        Some(parent) => {
            b.recv(parent, output);
            output
        }
    };
    for child in tree.children().into_iter().rev() {
        b.send(child, current);
    }
    if shape.outputs > 0 {
        b.copy(current, output);
        fan_out(&mut b, shape, output);
    }
    Ok(b.build())
}
