//! All-to-allv: one block from every rank for every rank, each of its own length.

mod bruck;
mod pairwise;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[pairwise::ALGORITHM, bruck::ALGORITHM];
