//! Gatherv: everyone's elements, a number of its own for each rank, for the root.

mod binomial;
mod direct;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[direct::ALGORITHM, binomial::ALGORITHM];
