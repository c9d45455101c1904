//! Reduce-scatter: every rank receives one block of the reduction over all ranks.

mod direct;
mod halving_doubling;
mod ring;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[ring::ALGORITHM, halving_doubling::ALGORITHM, direct::ALGORITHM];
