//! Scatterv: one block of the root's for each rank, each of its own length.

mod binomial;
mod direct;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[direct::ALGORITHM, binomial::ALGORITHM];
