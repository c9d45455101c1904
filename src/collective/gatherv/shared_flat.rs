//! Every rank but the root publishes its block in shared memory; the root fetches them. One step: best on one host.
//!
//! Three ranks, root 1: ranks 0 and 2 publish their blocks for rank 1, which fetches block 2, then block 0. Only the
//! root needs to know all counts; empty blocks are not published.
//!
//! Steps: 1. The root reads all blocks but its own.

use super::super::shape::block;
use super::super::shared::collect;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + (P - 1) f(S/P) + w` for equal blocks: σ is the time of a signal, f that of a fetch, w that of the wait for
/// readers. The counts are used only if all ranks know them.
fn cost(case: &Case<'_>) -> Cost {
    let others = case.shape.counts.iter().enumerate().filter(|(rank, _)| *rank != case.shape.root);
    let others = others.filter(|(_, count)| **count > 0).map(|(_, &count)| case.of(count));
    let fetched: Vec<_> = others.map(|bytes| (1.0, bytes, bytes)).collect();
    let longest = fetched.iter().map(|(.., bytes)| *bytes).fold(0.0, f64::max);
    let path = case.shared_path(1.0, &[(1.0, longest)], &fetched, 0.0);
    Cost { path, messages: 0.0, sent: fetched.iter().map(|(.., bytes)| bytes).sum(), reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    collect(shape, |rank| block(shape.recv_counts, rank))
}
