//! Publishes and fetches blocks like `shared_flat`, first among the sockets, then among the caches of a socket, then
//! among the ranks of a cache. Best for large buffers on a host whose ranks do not all share a cache: a block is read
//! once by each other cache, instead of once by each rank there.
//!
//! Four ranks, in caches of `0 1` and `2 3`: rank 0 publishes block 0 for rank 2, which has its position in the other
//! cache, and fetches block 2; then it publishes both for rank 1, and fetches blocks 1 and 3 from rank 1, which has
//! exchanged them with rank 3.
//!
//! If caches differ in their number of ranks, the position counts modulo that number; the same applies to sockets.
//! Where all ranks share one cache, or none does, it is `shared_flat`.
//!
//! Steps: with `n` ranks in each of `m` caches of one socket `m - 1 + m (n - 1)`. A rank reads `S (n - 1) / n` bytes in
//! its cache, and `S (m - 1) / (n m)` of other caches; `S` is the size of the output.

use super::super::domains::Tree;
use super::super::shared::{begin, gather_by_caches, path_by_caches};
use super::super::{Algorithm, Case, Shape, Uses};
use super::{assemble, block_bytes, shared_flat};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_hierarchical", generate, cost, uses: Uses::Domains };

/// See [`path_by_caches`].
fn cost(case: &Case<'_>) -> Cost {
    let Some(tree) = Tree::of(case.shape) else { return (shared_flat::ALGORITHM.cost)(case) };
    let sent = case.ranks() * (case.ranks() - 1.0) * block_bytes(case);
    Cost { path: path_by_caches(case, &tree, block_bytes(case)), messages: 0.0, sent, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let Some(tree) = Tree::of(shape) else { return shared_flat::generate(shape) };
    let mut b = begin(shape)?;
    let own = assemble(&mut b, shape);
    gather_by_caches(&mut b, &tree, shape.rank, own, &|rank| shape.output(0).slice(rank * own.len, own.len));
    Ok(b.build())
}
