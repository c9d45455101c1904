//! Every rank but the root publishes its elements in shared memory; the root reduces them in rank order. One step: best
//! for small buffers on one host.
//!
//! Three ranks with the elements a, b and c, root 1: ranks 0 and 2 publish a and c for rank 1, which fetches a, reduces
//! it with its own b, and the result with c.
//!
//! Steps: `P - 1`, since the root fetches one rank's elements after the other's. It reads and reduces `S (P - 1)`
//! bytes.

use super::super::shared::{begin, reduce_in_order, stable_contribution};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Readers, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + (P - 1) (f(S) + γS) + w`: σ is the time of a signal, f that of a fetch, w that of the wait for readers.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    let path = case.shared_path(1.0, &[(1.0, bytes)], &[(others, bytes, bytes)], others * bytes);
    Cost { path, messages: 0.0, sent: others * bytes, reduced: others * bytes }
}

pub(super) fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = begin(shape)?;
    if shape.count == 0 {
        return Ok(b.build());
    }
    let whole = shape.inputs != 0 || shape.rank == shape.root;
    let own = if whole { stable_contribution(&mut b, shape, 0, shape.count) } else { shape.output(0) };
    if shape.rank == shape.root {
        let output = shape.output(0);
        reduce_in_order(&mut b, shape.rank, 0..shape.size, |_| (0, 0), own, output);
        b.divide(output, shape.divisor());
    } else {
        b.publish(Readers::One(shape.root as u32), own);
        b.await_readers();
    }
    Ok(b.build())
}
