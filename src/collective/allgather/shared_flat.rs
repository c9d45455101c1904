//! Every rank publishes its block in shared memory and fetches those of all other ranks. One step: best on one host.
//!
//! Three ranks: rank 0 publishes block 0 and fetches block 1 from rank 1, then block 2 from rank 2; rank 1 fetches
//! block 0, then block 2; rank 2 block 0, then block 1. No fetch waits for another.
//!
//! Steps: 1. Every rank reads `S (P - 1) / P` bytes; `S` is the size of the output.

use super::super::shared::{all_others, begin};
use super::super::{Algorithm, Case, Shape, Uses};
use super::{assemble, block_bytes};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Readers, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + (P - 1) f(S/P) + w`: σ is the time of a signal, f that of a fetch, w that of the wait for readers.
fn cost(case: &Case<'_>) -> Cost {
    let (block, others) = (block_bytes(case), case.ranks() - 1.0);
    let path = case.shared_path(1.0, &[(1.0, block)], &[(others, block, block)], 0.0);
    Cost { path, messages: 0.0, sent: case.ranks() * others * block, reduced: 0.0 }
}

pub(super) fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = begin(shape)?;
    let own = assemble(&mut b, shape);
    if own.len == 0 || shape.size == 1 {
        return Ok(b.build());
    }
    b.publish(Readers::All, own);
    for from in all_others(shape) {
        b.fetch(from, 0, 0, shape.output(0).slice(from * own.len, own.len));
    }
    b.await_readers();
    Ok(b.build())
}
