//! Every rank sends a token to every other rank (Gloo's `barrier_all_to_all`). Six ranks: each sends five tokens and
//! waits for five.
//!
//! Steps: 1. Every rank sends `P - 1` tokens.

use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "all_to_all", generate, cost, uses: Uses::Sizes };

/// `α`, plus the time to send and receive `P - 1` tokens of one element: `2 (P - 1) o` between hosts.
fn cost(case: &Case<'_>) -> Cost {
    let others = case.ranks() - 1.0;
    let tokens = others * case.element_bytes as f64;
    let path = case.at_once(tokens, case.element_bytes as f64, others, true);
    Cost { path, messages: case.ranks() * others, sent: case.ranks() * tokens, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let token = b.scratch(1);
    for distance in 1..shape.size {
        b.send(shape.after(distance), token);
        let heard = b.scratch(1);
        b.recv(shape.before(distance), heard);
    }
    Ok(b.build())
}
