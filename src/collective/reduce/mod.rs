//! Reduce: the root receives the reduction over all ranks. Outputs of other ranks are not written.

mod binomial;
mod double_binary_tree;
mod flat;
mod ring;
mod shared_flat;
mod shared_hierarchical;
mod shared_slices;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[
    ring::ALGORITHM,
    binomial::ALGORITHM,
    double_binary_tree::ALGORITHM,
    flat::ALGORITHM,
    shared_flat::ALGORITHM,
    shared_slices::ALGORITHM,
    shared_hierarchical::ALGORITHM,
];
