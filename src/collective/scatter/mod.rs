//! Scatter: one block of the root's for each rank.

mod binomial;
mod direct;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[direct::ALGORITHM, binomial::ALGORITHM];
