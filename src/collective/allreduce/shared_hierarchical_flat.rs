//! The ranks of each cache reduce all their elements, every rank by itself, then every rank reduces the results of the
//! caches of its socket, then those of the sockets: best for small buffers on a host whose ranks do not all share a
//! cache.
//!
//! Four ranks with the elements a, b, c and d, in caches of `0 1` and `2 3`: each publishes its elements for the other
//! rank of its cache. Ranks 0 and 1 compute a op b, ranks 2 and 3 c op d. Then rank 0 publishes a op b for rank 2, rank
//! 1 for rank 3, and so on; each computes (a op b) op (c op d). If a cache has fewer ranks than the other, several read
//! from one of its ranks.
//!
//! All ranks evaluate the same expression and get the same bits. The operands are in rank order if the ranks of each
//! cache and socket are consecutive. Where all ranks share one cache, or none does, it is `shared_flat`.
//!
//! Steps: with `n` ranks in each of `m` caches of one socket `n + m - 2`. A rank reads `S (n - 1)` bytes in its cache,
//! and `S (m - 1)` of other caches, where in `shared_flat` it reads `S n (m - 1)`.

use super::super::domains::Tree;
use super::super::phases::fan_out;
use super::super::shared::{begin, reduce_in_order, stable_contribution};
use super::super::{Algorithm, Case, Shape, Uses};
use super::shared_flat;
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "shared_hierarchical_flat", generate, cost, uses: Uses::Domains };

/// `σ + (n - 1) (f(S) + γS)` for each level, with `n` parts, and `w`: σ is the time of a signal, f that of a fetch, w
/// that of the wait for readers. The first two depend on the level.
fn cost(case: &Case<'_>) -> Cost {
    let Some(tree) = Tree::of(case.shape) else { return (shared_flat::ALGORITHM.cost)(case) };
    let bytes = case.bytes();
    let path = tree.path(case, bytes, case.network.gamma * bytes);
    let tree = &tree;
    let others = |rank| (0..tree.levels()).map(move |level| tree.units(rank, level).len() - 1);
    let all = (0..case.shape.size).flat_map(others).sum::<usize>() as f64 * bytes;
    Cost { path, messages: 0.0, sent: all, reduced: all }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let Some(tree) = Tree::of(shape) else { return shared_flat::generate(shape) };
    let mut b = begin(shape)?;
    let (rank, output) = (shape.rank, shape.output(0));
    if shape.count == 0 {
        return Ok(b.build());
    }
    let mut current = stable_contribution(&mut b, shape, 0, shape.count);
    for level in 0..tree.levels() {
        let sources = tree.sources(rank, level);
        if sources.len() == 1 {
            continue;
        }
        if let Some(readers) = tree.readers(rank, level) {
            b.publish(readers, current);
        }
        // Ranks that publish nothing at this level must not read it at one pace with the level below, which others
        // finish first.
        b.next_round();
        // Others may read what is published until the end.
        let into = if level + 1 < tree.levels() { b.scratch(shape.count) } else { output };
        reduce_in_order(&mut b, rank, sources, |from| (tree.number(from, level), 0), current, into);
        current = into;
    }
    b.copy(current, output);
    b.divide(output, shape.divisor());
    b.await_readers();
    fan_out(&mut b, shape, output);
    Ok(b.build())
}
