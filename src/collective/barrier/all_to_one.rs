//! Every rank sends a token to the root, then the root sends one to every rank (Gloo's `barrier_all_to_one`). Six
//! ranks, root 0: ranks 1 to 5 send a token to rank 0, which copies all five into the token that it sends back. These
//! copies make the sends depend on all receives.
//!
//! Steps: 2. The root sends `P - 1` tokens, every other rank one.

use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "all_to_one", generate, cost, uses: Uses::Sizes };

/// `2α`, plus the time for the root to receive and to send `P - 1` tokens of one element: `2 (P - 2) o` between hosts.
fn cost(case: &Case<'_>) -> Cost {
    let others = case.ranks() - 1.0;
    let tokens = others * case.element_bytes as f64;
    let path = 2.0 * case.at_once(tokens, case.element_bytes as f64, others, false);
    Cost { path, messages: 2.0 * others, sent: 2.0 * tokens, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let token = b.scratch(1);
    if shape.rank != shape.root {
        b.send(shape.root, token);
        b.recv(shape.root, token);
        return Ok(b.build());
    }
    for distance in 1..shape.size {
        let heard = b.scratch(1);
        b.recv(shape.after(distance), heard);
        b.copy(heard, token);
    }
    for distance in 1..shape.size {
        b.send(shape.after(distance), token);
    }
    Ok(b.build())
}
