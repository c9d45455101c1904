//! A rank of each cache reduces the elements of its ranks, a rank of each socket what these have, and the root the
//! rest: best for small buffers on a host whose ranks do not all share a cache.
//!
//! Four ranks with the elements a, b, c and d, in caches of `0 1` and `2 3`, root 1: rank 0 publishes a for rank 1,
//! which computes a op b, and rank 3 d for rank 2, which publishes c op d for rank 1. The lowest rank of a cache
//! reduces, in that of the root the root. Where all ranks share one cache, or none does, it is `shared_flat`.
//!
//! Steps: with `n` ranks in each of `m` caches of one socket `n + m - 2`. The root reads `S (n - 1)` bytes in its
//! cache, and `S (m - 1)` of other caches.

use super::super::domains::Tree;
use super::super::shared::{begin, reduce_in_order, stable_contribution};
use super::super::{Algorithm, Case, Shape, Uses};
use super::shared_flat;
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Readers, Schedule};
use crate::types::Rank;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_hierarchical", generate, cost, uses: Uses::Domains };

/// `σ + (n - 1) (f(S) + γS)` for each level, with `n` parts, and `w`: σ is the time of a signal, f that of a fetch, w
/// that of the wait for readers. The first two depend on the level.
fn cost(case: &Case<'_>) -> Cost {
    let Some(tree) = Tree::of(case.shape) else { return (shared_flat::ALGORITHM.cost)(case) };
    let bytes = case.bytes();
    let path = tree.path(case, bytes, case.network.gamma * bytes);
    let all = (case.ranks() - 1.0) * bytes;
    Cost { path, messages: 0.0, sent: all, reduced: all }
}

/// The rank of `unit` that reduces.
fn leader(unit: &[Rank], root: Rank) -> Rank {
    if unit.contains(&root) { root } else { unit[0] }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let Some(tree) = Tree::of(shape) else { return shared_flat::generate(shape) };
    let mut b = begin(shape)?;
    let Shape { rank, root, count, .. } = *shape;
    if count == 0 {
        return Ok(b.build());
    }
    let whole = shape.inputs != 0 || rank == root;
    let mut current = if whole { stable_contribution(&mut b, shape, 0, count) } else { shape.output(0) };
    for level in 0..tree.levels() {
        let units = tree.units(rank, level);
        let leaders: Vec<Rank> = units.iter().map(|unit| leader(unit, root)).collect();
        let above = leader(&units.concat(), root);
        if above != rank {
            b.publish(Readers::One(above as u32), current);
            b.await_readers();
            return Ok(b.build());
        }
        if units.len() > 1 {
            let into = b.scratch(count);
            reduce_in_order(&mut b, rank, leaders, |_| (0, 0), current, into);
            current = into;
        }
    }
    let output = shape.output(0);
    b.copy(current, output);
    b.divide(output, shape.divisor());
    Ok(b.build())
}
