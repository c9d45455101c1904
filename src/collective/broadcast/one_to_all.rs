//! The root sends to every other rank (Gloo's `broadcast_one_to_all`). Six ranks, root 0: rank 0 sends to 1, 2, 3, 4,
//! 5.
//!
//! Steps: 1. The root sends `S (P - 1)` bytes.

use super::super::phases::fan_out;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "one_to_all", generate, cost, uses: Uses::Sizes };

/// `α + (P - 1) S/B`, or between hosts `α + S/B + (P - 2) o` if that is more.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    Cost {
        path: case.at_once(others * bytes, bytes, others * case.pieces(bytes), false),
        messages: others * case.pieces(bytes),
        sent: others * bytes,
        reduced: 0.0,
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let output = shape.output(0);
    let mut current = output;
    if shape.rank == shape.root {
        if shape.inputs > 0 {
            current = shape.input(0);
        }
        for distance in 1..shape.size {
            b.send(shape.after(distance), current);
        }
    } else {
        b.recv(shape.root, output);
    }
    if shape.outputs > 0 {
        b.copy(current, output);
        fan_out(&mut b, shape, output);
    }
    Ok(b.build())
}
