//! All-to-allv: every rank sends one block to every rank; each block has its own length.

mod bruck;
mod pairwise;
mod shared_flat;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[pairwise::ALGORITHM, bruck::ALGORITHM, shared_flat::ALGORITHM];
