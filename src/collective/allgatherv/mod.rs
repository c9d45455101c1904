//! Allgatherv: everyone's elements, a number of its own for each rank, for everyone.

mod ring;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[ring::ALGORITHM];
