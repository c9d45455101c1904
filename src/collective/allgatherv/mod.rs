//! Allgatherv: every rank receives the elements of all ranks; each rank has its own count.

mod direct;
mod ring;
mod shared_flat;
mod shared_hierarchical;

use super::blocks::Blocks;
use super::{Algorithm, Shape};
use crate::schedule::{Builder, Span};

pub(super) static ALGORITHMS: &[Algorithm] =
    &[ring::ALGORITHM, direct::ALGORITHM, shared_flat::ALGORITHM, shared_hierarchical::ALGORITHM];

/// Copies this rank's block to its offset in the output. Returns what to send; with an input, sending does not wait for
/// the copy.
fn own(b: &mut Builder, shape: &Shape<'_>, blocks: &Blocks) -> Span {
    let target = blocks.span(shape.output(0), shape.rank);
    let from = if shape.inputs == 1 { shape.input(0) } else { target };
    b.copy(from, target);
    from
}
