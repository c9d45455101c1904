//! Each rank of a cache reduces some of the blocks, of the elements that the ranks of this cache have; then every rank
//! reduces its own block of what the caches of its socket have, and then of what the sockets have. Best for large
//! buffers on a host whose ranks do not all share a cache: a rank reads one block of each other cache, instead of one
//! of each rank there.
//!
//! Four ranks, in caches of `0 1` and `2 3`: rank 0 reduces blocks 0 and 2 of the elements of ranks 0 and 1, rank 1
//! their blocks 1 and 3; rank 2 blocks 0 and 2 of the elements of ranks 2 and 3. Then rank 0 fetches block 0 from rank
//! 2, and rank 2 block 2 from rank 0.
//!
//! In a cache, a block is reduced by the rank at the position which the block's rank has in its own cache, modulo the
//! number of ranks of the cache; the same applies to sockets. The operands are in rank order if the ranks of each cache
//! and socket are consecutive. Where all ranks share one cache, or none does, it is `shared_flat`.
//!
//! Steps: with `n` ranks in each of `m` caches of one socket `m (n - 1) + m - 1`. A rank reads `S (n - 1) / n` bytes in
//! its cache, and `S (m - 1) / (n m)` of other caches, and reduces as much.

use super::super::blocks::Blocks;
use super::super::domains::Tree;
use super::super::phases::sources;
use super::super::shape::sum;
use super::super::shared::{begin, reduce_in_order, stable_contribution};
use super::super::{Algorithm, Case, Shape, Uses};
use super::shared_flat;
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Readers, Schedule, Span};
use crate::types::Rank;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_hierarchical", generate, cost, uses: Uses::Domains };

/// `p + σ + k (u - 1) (f(n) + γn)` for each level with `u` units, at which a rank has `k` blocks, of which the longest
/// has n bytes, and `w`: p is the time to publish the blocks that others have, σ that of a signal, f that of a fetch, w
/// that of the wait for readers. σ and f depend on the level.
fn cost(case: &Case<'_>) -> Cost {
    let Some(tree) = Tree::of(case.shape) else { return (shared_flat::ALGORITHM.cost)(case) };
    let (all, longest, _) = case.blocks(case.shape.recv_counts);
    let moved = (case.ranks() - 1.0) * all;
    if all <= 0.0 {
        return Cost::default();
    }
    let (memory, gamma) = (&case.network.memory, case.network.gamma);
    let level = |level: usize| {
        let (before, after, far) = (tree.max_held(level), tree.max_held(level + 1), tree.is_far(level));
        let fetches = (after * (tree.max_joined(level) - 1)) as f64;
        let publishing = (before - after) as f64 * memory.publish(longest, false);
        publishing + memory.access(far).signal + fetches * (memory.fetch(longest, longest, far) + gamma * longest)
    };
    let levels = tree.levels();
    let path = case.switches(levels as f64) + (0..levels).map(level).sum::<f64>();
    Cost {
        path: path + memory.readers(longest, tree.is_far(levels - 1), false),
        messages: 0.0,
        sent: moved,
        reduced: moved,
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let Some(tree) = Tree::of(shape) else { return shared_flat::generate(shape) };
    let mut b = begin(shape)?;
    let (rank, all, blocks) = (shape.rank, sum(shape.recv_counts), Blocks::new(shape.recv_counts));
    if all == 0 {
        return Ok(b.build());
    }
    let in_place = shape.inputs == 0;
    let own = if in_place { Span::new(sources(shape)[0], 0, all) } else { stable_contribution(&mut b, shape, 0, all) };
    let result = shape.output(0).slice(0, blocks.of_rank(rank).1);
    // What this rank has of each block.
    let mut parts: Vec<Span> = (0..shape.size).map(|block| blocks.span(own, block)).collect();
    let is_empty = |block: Rank| shape.recv_counts[block] == 0;
    for level in 0..tree.levels() {
        let units = tree.units(rank, level);
        let above = units.concat();
        let held: Vec<Rank> =
            (0..shape.size).filter(|block| !is_empty(*block) && tree.holds(rank, level, *block)).collect();
        for &block in &held {
            let holder = tree.holder(&above, level + 1, block);
            if holder != rank {
                b.publish(Readers::One(holder as u32), parts[block]);
            }
        }
        for block in held.into_iter().filter(|block| tree.holds(rank, level + 1, *block)) {
            if units.len() == 1 {
                continue;
            }
            let is_result = level + 1 == tree.levels() && !in_place;
            let into = if is_result { result } else { b.scratch(parts[block].len) };
            let from = units.iter().map(|unit| tree.holder(unit, level, block));
            let place = |from| (number(&tree, &is_empty, from, level, block), 0);
            reduce_in_order(&mut b, rank, from, place, parts[block], into);
            parts[block] = into;
        }
    }
    b.divide(parts[rank], shape.divisor());
    b.await_readers();
    b.copy(parts[rank], result);
    Ok(b.build())
}

/// The number of the publication of `block` by `from` at `level`.
fn number(tree: &Tree, is_empty: &dyn Fn(Rank) -> bool, from: Rank, level: usize, block: Rank) -> u32 {
    let publishes =
        |level, block| !is_empty(block) && tree.holds(from, level, block) && !tree.holds(from, level + 1, block);
    let earlier = (0..level).map(|level| (0..tree.size()).filter(|block| publishes(level, *block)).count());
    (earlier.sum::<usize>() + (0..block).filter(|block| publishes(level, *block)).count()) as u32
}
