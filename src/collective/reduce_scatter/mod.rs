//! Reduce-scatter: the combination of everyone's elements, one block of it for each rank.

mod direct;
mod halving_doubling;
mod ring;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[ring::ALGORITHM, halving_doubling::ALGORITHM, direct::ALGORITHM];
