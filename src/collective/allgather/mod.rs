//! Allgather: every rank receives the elements of all ranks.

mod bruck;
mod direct;
mod recursive_doubling;
mod ring;
mod shared_flat;
mod shared_hierarchical;

use super::{Algorithm, Case, Shape};
use crate::schedule::{Builder, Span};

// `recursive_doubling` and `bruck` have equal costs with powers of two; the first is listed earlier since it needs no
// copies.
pub(super) static ALGORITHMS: &[Algorithm] = &[
    ring::ALGORITHM,
    recursive_doubling::ALGORITHM,
    bruck::ALGORITHM,
    direct::ALGORITHM,
    shared_flat::ALGORITHM,
    shared_hierarchical::ALGORITHM,
];

/// Copies this rank's inputs to its block of the output. Returns what to send: a single input, which need not wait for
/// its copy, or the block.
fn assemble(b: &mut Builder, shape: &Shape<'_>) -> Span {
    let len = shape.count * shape.inputs.max(1);
    let own = shape.output(0).slice(shape.rank * len, len);
    for input in 0..shape.inputs {
        b.copy(shape.input(input), own.slice(input * shape.count, shape.count));
    }
    if shape.inputs == 1 { shape.input(0) } else { own }
}

/// Size of one rank's block in bytes.
fn block_bytes(case: &Case<'_>) -> f64 {
    case.bytes() * case.shape.inputs.max(1) as f64
}
