//! Reduce-scatter: every rank receives one block of the reduction over all ranks.

mod direct;
mod halving_doubling;
mod ring;
mod shared_flat;
mod shared_hierarchical;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[
    ring::ALGORITHM,
    halving_doubling::ALGORITHM,
    direct::ALGORITHM,
    shared_flat::ALGORITHM,
    shared_hierarchical::ALGORITHM,
];
