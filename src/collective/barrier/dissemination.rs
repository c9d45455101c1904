//! The dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988): in step `i`
//! everyone tells the rank `2^i` after it, after it has heard from the rank `2^(i-1)` before it.
//!
//! Six ranks: rank 0 tells 1, hears from 5, tells 2, hears from 4, tells 4, hears from 2. By then it has heard, through others,
//! of 5; of 4 and 3; of 2, 1, 0 and 5. A token must follow all that were received before, not only the last:
//! so each is copied over the one that is sent next.
//!
//! Steps: `ceil(lg P)`. Every rank sends as many tokens.

use super::super::phases::rounds;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "dissemination", generate, cost, uses: Uses::Sizes };

/// `lg P α`; tokens are of one element.
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
