//! Every rank waits for the signals of the ranks of its cache, then for a signal of each other cache of its socket,
//! then for one of each other socket: best on a host whose ranks do not all share a cache.
//!
//! Four ranks in caches of `0 1` and `2 3`: rank 0 waits for rank 1, then for rank 2, which sends that signal after it
//! has waited for rank 3; rank 1 waits for ranks 0 and 3, and so on. Where all ranks share one cache, or none does, it
//! is `shared_flat`.
//!
//! Steps: 1 for each level. With `n` ranks in each of `m` caches of one socket, a rank reads `n - 1` signals in its
//! cache and `m - 1` of others.

use super::super::domains::Tree;
use super::super::shared::begin;
use super::super::{Algorithm, Case, Shape, Uses};
use super::shared_flat;
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_hierarchical", generate, cost, uses: Uses::Domains };

/// `σ + (n - 1) f(0)` for each level, with `n` parts: σ is the time of a signal, f that of a fetch, both of the level.
fn cost(case: &Case<'_>) -> Cost {
    match Tree::of(case.shape) {
        None => (shared_flat::ALGORITHM.cost)(case),
        Some(tree) => Cost { path: tree.path(case, 0.0, 0.0), ..Cost::default() },
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let Some(tree) = Tree::of(shape) else { return shared_flat::generate(shape) };
    let (mut b, rank) = (begin(shape)?, shape.rank);
    let nothing = b.scratch(0);
    for level in 0..tree.levels() {
        if let Some(readers) = tree.readers(rank, level) {
            b.publish(readers, nothing);
        }
        for from in tree.sources(rank, level).into_iter().filter(|from| *from != rank) {
            b.fetch(from, tree.number(from, level), 0, nothing);
        }
    }
    b.await_readers();
    Ok(b.build())
}
