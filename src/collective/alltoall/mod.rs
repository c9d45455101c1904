//! All-to-all: every rank sends one block to every rank.

mod bruck;
mod pairwise;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[pairwise::ALGORITHM, bruck::ALGORITHM];
