//! Gather: everyone's elements, for the root.

mod binomial;
mod direct;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[direct::ALGORITHM, binomial::ALGORITHM];
