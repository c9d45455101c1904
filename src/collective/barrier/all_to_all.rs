//! Everyone tells everyone (Gloo's `barrier_all_to_all`). Six ranks: each sends five tokens and waits for five.
//!
//! Steps: 1. Every rank sends `P - 1` tokens.

use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "all_to_all", generate, cost: |case| Case::unpriced(case), uses: Uses::Sizes };

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
