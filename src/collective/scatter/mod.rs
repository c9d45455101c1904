//! Scatter: every rank receives one block of the root's elements.

mod binomial;
mod direct;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[direct::ALGORITHM, binomial::ALGORITHM];
