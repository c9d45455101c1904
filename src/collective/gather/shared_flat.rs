//! Every rank but the root publishes its block in shared memory; the root fetches them. One step: best on one host.
//!
//! Three ranks, root 1: ranks 0 and 2 publish their blocks for rank 1, which fetches block 2, then block 0.
//!
//! Steps: 1. The root reads all blocks but its own.

use super::super::shared::collect;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + (P - 1) f(S/P) + w`: σ is the time of a signal, f that of a fetch, w that of the wait for readers.
fn cost(case: &Case<'_>) -> Cost {
    let (block, others) = (case.bytes(), case.ranks() - 1.0);
    let path = case.shared_path(1.0, &[(1.0, block)], &[(others, block, block)], 0.0);
    Cost { path, messages: 0.0, sent: others * block, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    collect(shape, |rank| (rank * shape.count, shape.count))
}
