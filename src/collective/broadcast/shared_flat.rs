//! The root publishes its elements in shared memory, and all other ranks fetch them at the same time. One step: best on
//! one host.
//!
//! Three ranks, root 1: rank 1 publishes its elements, ranks 0 and 2 fetch them.
//!
//! Steps: 1. Every rank but the root reads `S` bytes.

use super::super::phases::fan_out;
use super::super::shared::begin;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Readers, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + f(S) + w`: σ is the time of a signal, f that of a fetch, w that of the wait for readers.
fn cost(case: &Case<'_>) -> Cost {
    let bytes = case.bytes();
    let path = case.shared_path(1.0, &[(1.0, bytes)], &[(1.0, bytes, bytes)], 0.0);
    Cost { path, messages: 0.0, sent: (case.ranks() - 1.0) * bytes, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = begin(shape)?;
    let output = shape.output(0);
    if shape.count == 0 {
        return Ok(b.build());
    }
    let mut current = output;
    if shape.rank != shape.root {
        b.fetch(shape.root, 0, 0, output);
    } else {
        if shape.inputs > 0 {
            current = shape.input(0);
        }
        if shape.size > 1 {
            b.publish(Readers::All, current);
            b.await_readers();
        }
    }
    if shape.outputs > 0 {
        b.copy(current, output);
        fan_out(&mut b, shape, output);
    }
    Ok(b.build())
}
