//! Every rank publishes a signal in shared memory and waits for those of all other ranks. One step: best on one host.
//!
//! Three ranks: rank 0 publishes a signal and waits for those of ranks 1 and 2; rank 1 for those of 2 and 0; rank 2 for
//! those of 0 and 1.
//!
//! Steps: 1. Every rank reads `P - 1` signals.

use super::super::shared::{begin, others};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Readers, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + (P - 1) f(0)`: σ is the time of a signal, f that of a fetch.
fn cost(case: &Case<'_>) -> Cost {
    let path = case.shared_path(1.0, &[(1.0, 0.0)], &[(case.ranks() - 1.0, 0.0, 0.0)], 0.0);
    Cost { path, ..Cost::default() }
}

pub(super) fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = begin(shape)?;
    if shape.size == 1 {
        return Ok(b.build());
    }
    let nothing = b.scratch(0);
    b.publish(Readers::All, nothing);
    for from in others(shape) {
        b.fetch(from, 0, 0, nothing);
    }
    b.await_readers();
    Ok(b.build())
}
