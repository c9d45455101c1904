//! Broadcast: every rank receives the root's elements.

mod binomial;
mod double_binary_tree;
mod one_to_all;
mod pipelined_chain;
mod scatter_allgather;
mod shared_flat;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[
    binomial::ALGORITHM,
    one_to_all::ALGORITHM,
    pipelined_chain::ALGORITHM,
    scatter_allgather::ALGORITHM,
    double_binary_tree::ALGORITHM,
    shared_flat::ALGORITHM,
];
