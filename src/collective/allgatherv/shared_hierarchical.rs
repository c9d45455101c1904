//! Publishes and fetches blocks of different lengths like `shared_hierarchical` of allgather: each block goes first to
//! one rank of each other socket, then to one of each other cache, then to the ranks of a cache.
//!
//! Four ranks, in caches of `0 1` and `2 3`, of which rank 2 has no elements: rank 0 publishes block 0 for rank 2; then
//! ranks 0 and 2 publish it for the other rank of their cache. Blocks 1 and 3 go the same way.
//!
//! Steps: with `n` ranks in each of `m` caches of one socket `m - 1 + m (n - 1)`. Every rank reads all blocks but its
//! own, one of them in `m` from other caches.

use super::super::blocks::Blocks;
use super::super::domains::Tree;
use super::super::shape::sum;
use super::super::shared::{begin, gather_by_caches, path_by_caches};
use super::super::{Algorithm, Case, Shape, Uses};
use super::{own, shared_flat};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_hierarchical", generate, cost, uses: Uses::Domains };

/// See [`path_by_caches`], for the longest block.
fn cost(case: &Case<'_>) -> Cost {
    let Some(tree) = Tree::of(case.shape) else { return (shared_flat::ALGORITHM.cost)(case) };
    let counts = case.shape.recv_counts;
    let longest = case.of(counts.iter().copied().max().unwrap_or(0));
    let sent = (case.ranks() - 1.0) * case.of(sum(counts));
    Cost { path: path_by_caches(case, &tree, longest), messages: 0.0, sent, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let Some(tree) = Tree::of(shape) else { return shared_flat::generate(shape) };
    let mut b = begin(shape)?;
    let blocks = Blocks::new(shape.recv_counts);
    let own = own(&mut b, shape, &blocks);
    gather_by_caches(&mut b, &tree, shape.rank, own, &|rank| blocks.span(shape.output(0), rank));
    Ok(b.build())
}
