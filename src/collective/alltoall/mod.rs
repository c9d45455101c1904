//! All-to-all: one block from every rank for every rank.

mod bruck;
mod pairwise;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[pairwise::ALGORITHM, bruck::ALGORITHM];
