//! Allgatherv: everyone's elements, a number of its own for each rank, for everyone.

mod direct;
mod ring;

use super::blocks::Blocks;
use super::{Algorithm, Shape};
use crate::schedule::{Builder, Span};

pub(super) const ALGORITHMS: &[Algorithm] = &[ring::ALGORITHM, direct::ALGORITHM];

/// Puts this rank's block in place. Returns where to send it from, which need not wait for that.
fn own(b: &mut Builder, shape: &Shape<'_>, blocks: &Blocks) -> Span {
    let place = blocks.span(shape.output(0), shape.rank);
    let from = if shape.inputs == 1 { shape.input(0) } else { place };
    b.copy(from, place);
    from
}
