//! The dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988): in step
//! `i` every rank sends a token to the rank `2^i` after it, after receiving the token of step `i - 1` from the rank
//! `2^(i-1)` before it.
//!
//! Six ranks: rank 0 sends to 1, receives from 5, sends to 2, receives from 4, sends to 4, receives from 2. These
//! tokens depend on ranks 5; 4 and 3; 2, 1, 0 and 5. A token must be sent after all earlier ones were received, not
//! only the last: each received token is therefore copied into the one that is sent next, which creates the dependency.
//!
//! Steps: `ceil(lg P)`. Every rank sends one token per step.

use super::super::phases::rounds;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "dissemination", generate, cost, uses: Uses::Sizes };

/// `lg P α`; a token is one element.
fn cost(case: &Case<'_>) -> Cost {
    let token = case.element_bytes as f64;
    let steps = rounds(case.shape.size);
    let messages = case.ranks() * f64::from(steps);
    let path = (0..steps).map(|round| case.link(1 << round).time(token)).sum();
    Cost { path, messages, sent: messages * token, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let token = b.scratch(1);
    for round in 0..rounds(shape.size) {
        b.send(shape.after(1 << round), token);
        let heard = b.scratch(1);
        b.recv(shape.before(1 << round), heard);
        b.copy(heard, token);
    }
    Ok(b.build())
}
