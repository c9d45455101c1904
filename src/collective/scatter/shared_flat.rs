//! The root publishes each rank's block in shared memory, and each rank fetches its own. One step: best on one host.
//!
//! Three ranks, root 1: rank 1 publishes block 0 for rank 0 and block 2 for rank 2, which fetch them at the same time.
//!
//! Steps: 1. Every rank but the root reads its block.

use super::super::shared::distribute;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + (P - 1) p(S/P) + f(S/P) + w`: σ is the time of a signal, p that of a publication, f that of a fetch, w that of
/// the wait for readers.
fn cost(case: &Case<'_>) -> Cost {
    let (block, others) = (case.bytes(), case.ranks() - 1.0);
    let path = case.shared_path(1.0, &[(others, block)], &[(1.0, block, block)], 0.0);
    Cost { path, messages: 0.0, sent: others * block, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    distribute(shape, |rank| match shape.inputs {
        0 => shape.output(0).slice(rank * shape.count, shape.count),
        1 => shape.input(0).slice(rank * shape.count, shape.count),
        _ => shape.input(rank),
    })
}
