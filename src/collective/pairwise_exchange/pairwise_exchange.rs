//! Step `i` exchanges block `i` with the rank whose number differs in bit `i` (Gloo's `pairwise_exchange`). Eight ranks (the
//! number must be a power of two, so six are refused) and three destinations: rank 5 exchanges with 4, 7 and 1.
//!
//! Steps: 1; the exchanges do not wait for one another. Every rank sends `destinations` blocks.

use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "pairwise_exchange", generate, cost: |case| Case::unpriced(case), uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    for step in 0..shape.destinations {
        let peer = shape.rank ^ (1 << step);
        let offset = step * shape.count;
        b.send(peer, shape.input(0).slice(offset, shape.count));
        b.recv(peer, shape.output(0).slice(offset, shape.count));
    }
    Ok(b.build())
}
