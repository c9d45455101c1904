//! Every rank publishes its elements in shared memory and reduces those of the ranks whose elements it needs, in rank
//! order. One step: best for small buffers on one host.
//!
//! Three ranks with the elements a, b and c: each publishes them for the ranks behind it. Rank 0 copies a, rank 1
//! computes a op b, rank 2 (a op b) op c.
//!
//! Steps: at most `P - 1`. The last rank reads `S (P - 1)` bytes.

use super::super::shared::prefix;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + (P - 1) (f(S) + γS) + w`: σ is the time of a signal, f that of a fetch, w that of the wait for readers.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    let reduced = others;
    let path = case.shared_path(1.0, &[(1.0, bytes)], &[(others, bytes, bytes)], reduced * bytes);
    let (sent, all) = (others * case.ranks() / 2.0 * bytes, reduced * case.ranks() / 2.0 * bytes);
    Cost { path, messages: 0.0, sent, reduced: all }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    prefix(shape, shape.rank + 1)
}
