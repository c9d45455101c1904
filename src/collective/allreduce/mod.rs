//! Allreduce: every rank receives the reduction over all ranks. Each algorithm reduces the local buffers first and
//! copies the result to the other outputs last, range by range, so that both overlap with communication.

mod bcube;
mod branches;
mod double_binary_tree;
mod halving_doubling;
mod hierarchical;
mod hierarchical_direct;
mod local;
mod mesh_2d;
mod recursive_doubling;
mod reduce_broadcast;
mod ring;
mod ring_chunked;
mod ring_segmented;
mod shared_flat;
mod shared_hierarchical_flat;
mod shared_hierarchical_slices;
mod shared_slices;
pub(super) mod spanning_trees;
mod torus_2d;
mod torus_nd;
mod tree;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[
    ring_segmented::ALGORITHM,
    ring_chunked::ALGORITHM,
    halving_doubling::ALGORITHM,
    recursive_doubling::ALGORITHM,
    bcube::ALGORITHM,
    ring::ALGORITHM,
    tree::ALGORITHM,
    reduce_broadcast::ALGORITHM,
    double_binary_tree::ALGORITHM,
    hierarchical::ALGORITHM,
    hierarchical_direct::ALGORITHM,
    torus_2d::ALGORITHM,
    torus_nd::ALGORITHM,
    mesh_2d::ALGORITHM,
    spanning_trees::ALGORITHM,
    local::ALGORITHM,
    shared_flat::ALGORITHM,
    shared_slices::ALGORITHM,
    shared_hierarchical_flat::ALGORITHM,
    shared_hierarchical_slices::ALGORITHM,
];
