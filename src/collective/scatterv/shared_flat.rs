//! The root publishes each rank's block in shared memory, and each rank fetches its own. One step: best on one host.
//!
//! Three ranks, root 1: rank 1 publishes block 0 for rank 0 and block 2 for rank 2, which fetch them at the same time.
//! Only the root needs to know all counts; it publishes empty blocks, too.
//!
//! Steps: 1. Every rank but the root reads its block.

use super::super::shape::block;
use super::super::shared::distribute;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + (P - 1) p(S/P) + f(S/P) + w` for equal blocks: σ is the time of a signal, p that of a publication, f that of a
/// fetch, w that of the wait for readers. The counts are used only if all ranks know them.
fn cost(case: &Case<'_>) -> Cost {
    let others = case.shape.counts.iter().enumerate().filter(|(rank, _)| *rank != case.shape.root);
    let published: Vec<_> = others.map(|(_, &count)| (1.0, case.of(count))).collect();
    let longest = published.iter().map(|(_, bytes)| *bytes).fold(0.0, f64::max);
    let path = case.shared_path(1.0, &published, &[(1.0, longest, longest)], 0.0);
    Cost { path, messages: 0.0, sent: published.iter().map(|(_, bytes)| bytes).sum(), reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    distribute(shape, |rank| {
        let (offset, len) = block(shape.send_counts, rank);
        if shape.inputs == 0 { shape.output(0).slice(offset, len) } else { shape.input(0).slice(offset, len) }
    })
}
