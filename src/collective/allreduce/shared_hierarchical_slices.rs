//! Reduces slices like `shared_slices`, first among the ranks of each cache, then with what each rank has of its
//! cache's sum among the caches of a socket, then among the sockets; the results go back in the same way. Best for
//! large buffers on a host whose ranks do not all share a cache: each cache reads as many bytes of others as one rank
//! does in `shared_slices`.
//!
//! Four ranks, in caches of `0 1` and `2 3`: ranks 0 and 2 reduce the first half of the buffer, of the ranks of their
//! cache, ranks 1 and 3 the second half. Rank 0 reduces the first quarter of the buffer, of its own and of rank 2's
//! half, and rank 2 the second quarter; rank 1 the third, rank 3 the fourth. Each publishes its quarter for the rank
//! from which it has read the half, and then the half, which is complete, for the other rank of its cache.
//!
//! If caches differ in their number of ranks, the buffer has as many slices as the smallest cache has ranks. Further
//! ranks of the larger ones reduce none; the same applies to sockets. The operands are in rank order if the ranks of
//! each cache and socket are consecutive. Where all ranks share one cache, or none does, it is `shared_slices`; that,
//! too, leaves buffers with fewer elements than ranks to `shared_flat`.
//!
//! Steps: with `n` ranks in each of `m` caches of one socket `2 (n + m - 2)`. A rank reads `2 S (n - 1) / n` bytes in
//! its cache, and `2 S (m - 1) / (n m)` of other caches; it reduces half of both.

use super::super::domains::Tree;
use super::super::phases::{contribution, fan_out, sources};
use super::super::shared::{begin, reduce_in_order};
use super::super::{Algorithm, Case, Shape, Uses};
use super::shared_slices;
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Readers, Schedule};
use crate::types::Rank;

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "shared_hierarchical_slices", generate, cost, uses: Uses::Domains };

/// `2σ + (n - 1) (2 f(s) + γs)` for each level, with `n` parts of `s` bytes, and `w`: σ is the time of a signal, f that
/// of a fetch, w that of the wait for readers. The first two depend on the level.
fn cost(case: &Case<'_>) -> Cost {
    let Some(tree) = tree(case.shape) else { return (shared_slices::ALGORITHM.cost)(case) };
    let (memory, gamma) = (&case.network.memory, case.network.gamma);
    let (mut path, mut part, mut largest) = (0.0, case.bytes(), 0.0_f64);
    for level in 0..tree.levels() {
        let (owners, others, far) =
            (tree.min_joined(level) as f64, tree.max_joined(level) as f64 - 1.0, tree.is_far(level));
        part /= owners;
        largest = largest.max(part);
        let (published, fetch) = (memory.publish(part, false), memory.fetch(part, part, far));
        path += (owners - 1.0) * published + others * (fetch + gamma * part);
        path += published + (owners - 1.0) * fetch + 2.0 * memory.access(far).signal;
    }
    path += case.switches(2.0 * tree.levels() as f64);
    path += memory.readers(largest, tree.is_far(0), false);
    let (mut sent, mut reduced) = (0.0, 0.0);
    for rank in 0..case.shape.size {
        let mut part = case.bytes();
        for place in Place::all(&tree, rank) {
            part /= place.owners as f64;
            let (read, back) = match place.is_owner() {
                true => (place.group.len() - 1, place.owners - 1),
                false => (0, place.owners),
            };
            reduced += read as f64 * part;
            sent += (read + back) as f64 * part;
        }
    }
    Cost { path, messages: 0.0, sent, reduced }
}

/// `None` if it is `shared_slices`.
fn tree(shape: &Shape<'_>) -> Option<Tree> {
    Tree::of(shape).filter(|_| shape.count >= shape.size)
}

/// A rank at a level.
struct Place {
    /// The ranks with which it exchanges parts.
    group: Vec<Rank>,
    /// The rank's position in the group.
    position: usize,
    /// How many ranks of the group, the first ones, own a part each.
    owners: usize,
}

impl Place {
    /// The places of `rank`, from level 0 on, up to the first at which it owns no part.
    fn all(tree: &Tree, rank: Rank) -> Vec<Self> {
        let mut places = Vec::new();
        for level in 0..tree.levels() {
            let (group, position) = (tree.group(rank, level), tree.position(rank, level));
            places.push(Self { group, position, owners: tree.min_joined(level) });
            if position >= tree.min_joined(level) {
                break;
            }
        }
        places
    }

    fn is_owner(&self) -> bool {
        self.position < self.owners
    }

    /// The owners but this rank: their positions.
    fn other_owners(&self) -> impl Iterator<Item = usize> {
        (0..self.owners).filter(|owner| *owner != self.position)
    }

    /// The number of the publication for `owner` among those of this level.
    fn number(&self, owner: usize) -> usize {
        self.other_owners().take_while(|other| *other < owner).count()
    }
}

/// The number of the first publication of a rank with these places at `level`, on the way down.
fn first_number(places: &[Place], level: usize) -> usize {
    places[..level].iter().map(|place| place.other_owners().count()).sum()
}

/// The number of the publication of the result at `level` by a rank with these places, of which it is an owner.
fn result_number(places: &[Place], level: usize) -> usize {
    // The way back begins at the last level.
    first_number(places, places.len()) + places[level + 1..].iter().filter(|place| publishes_result(place)).count()
}

fn publishes_result(place: &Place) -> bool {
    place.is_owner() && place.group.len() > 1
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let Some(tree) = tree(shape) else { return shared_slices::generate(shape) };
    let mut b = begin(shape)?;
    let (rank, output) = (shape.rank, shape.output(0));
    let all: Vec<Vec<Place>> = (0..shape.size).map(|rank| Place::all(&tree, rank)).collect();
    let places = &all[rank];
    let mut current = contribution(&mut b, &sources(shape), 0, output.len, output);
    // What the rank reduces of the output, at each level and after the last.
    let mut targets = vec![output];
    for (level, place) in places.iter().enumerate() {
        let target = targets[level];
        for owner in place.other_owners() {
            b.publish(Readers::One(place.group[owner] as u32), current.part(place.owners, owner));
        }
        if !place.is_owner() {
            break;
        }
        let slice = target.part(place.owners, place.position);
        let mut own = current.part(place.owners, place.position);
        // The first operand may be where the result is.
        if own == slice && place.position > 0 {
            own = b.scratch(slice.len);
            b.copy(slice, own);
        }
        let number = |from: Rank| first_number(&all[from], level) + all[from][level].number(place.position);
        reduce_in_order(&mut b, rank, place.group.iter().copied(), |from| (number(from) as u32, 0), own, slice);
        current = slice;
        targets.push(slice);
    }
    if targets.len() > places.len() {
        b.divide(current, shape.divisor());
    }
    for (level, place) in places.iter().enumerate().rev() {
        if publishes_result(place) {
            let others = place.group.iter().copied().filter(|other| *other != rank);
            b.publish(Readers::set(others), targets[level + 1]);
        }
        for owner in place.other_owners() {
            let from = place.group[owner];
            let number = result_number(&all[from], level) as u32;
            b.fetch(from, number, 0, targets[level].part(place.owners, owner));
        }
    }
    b.await_readers();
    fan_out(&mut b, shape, output);
    Ok(b.build())
}
