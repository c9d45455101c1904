//! Allgather: everyone's elements, for everyone.

mod bruck;
mod direct;
mod recursive_doubling;
mod ring;

use super::{Algorithm, Case, Shape};
use crate::schedule::{Builder, Span};

// Where powers of two make `recursive_doubling` and `bruck` cost the same, the first is chosen: it needs no copies.
pub(super) const ALGORITHMS: &[Algorithm] =
    &[ring::ALGORITHM, recursive_doubling::ALGORITHM, bruck::ALGORITHM, direct::ALGORITHM];

/// Puts this rank's inputs in place as one block. Returns where to send that from: one input need not wait for its copy.
fn assemble(b: &mut Builder, shape: &Shape<'_>) -> Span {
    let len = shape.count * shape.inputs.max(1);
    let own = shape.output(0).slice(shape.rank * len, len);
    for input in 0..shape.inputs {
        b.copy(shape.input(input), own.slice(input * shape.count, shape.count));
    }
    if shape.inputs == 1 { shape.input(0) } else { own }
}

/// Bytes of one rank's block.
fn block_bytes(case: &Case<'_>) -> f64 {
    case.bytes() * case.shape.inputs.max(1) as f64
}
