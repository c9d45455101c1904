//! Every rank publishes its elements in shared memory and reduces those of all ranks, in rank order, into its output:
//! best for small buffers on one host.
//!
//! Three ranks with the elements a, b and c: each publishes its own and computes (a op b) op c. Rank 0 reduces its own
//! a with b, fetched from rank 1, and the result with c. Rank 1 fetches a, reduces it with its own b, and the result
//! with c. Rank 2 fetches a, reduces it with b, and the result with its own c. All ranks evaluate the same expression
//! and get the same bits, and the operation need not commute. In place, a copy of the elements is published.
//!
//! Steps: `P - 1`, since a rank fetches one rank's elements after the other's. It reads and reduces `S (P - 1)` bytes.

use super::super::phases::fan_out;
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
    let all = case.ranks() * others * bytes;
    Cost { path, messages: 0.0, sent: all, reduced: all }
}

pub(super) fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = begin(shape)?;
    let output = shape.output(0);
    if shape.count == 0 {
        return Ok(b.build());
    }
    let own = stable_contribution(&mut b, shape, 0, shape.count);
    if shape.size > 1 {
        b.publish(Readers::All, own);
    }
    reduce_in_order(&mut b, shape.rank, 0..shape.size, |_| (0, 0), own, output);
    b.divide(output, shape.divisor());
    if shape.size > 1 {
        b.await_readers();
    }
    fan_out(&mut b, shape, output);
    Ok(b.build())
}
