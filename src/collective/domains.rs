//! The tree of a host's ranks: those that share a cache, the caches of a socket, the sockets.

use std::collections::BTreeMap;

use super::{Case, Collective, Shape};
use crate::schedule::Readers;
use crate::sys::topology::socket;
use crate::types::Rank;

/// The ranks of a host by caches and sockets. Level 0 is that of the ranks in a cache, the next that of the caches in a
/// socket, and so on; levels at which nothing has several parts are left out. A **unit** of level `l` is a part of what
/// its level joins: at level 0 a rank, at the last level for example a socket.
pub(super) struct Tree {
    /// The position of each rank's unit, at each level, among those that are joined with it, which are in the order of
    /// their lowest ranks.
    positions: Vec<Vec<usize>>,
    /// Whether each level joins ranks that do not share a cache.
    far: Vec<bool>,
    /// How many units are joined into the one to which each rank belongs, at each level.
    joined: Vec<Vec<usize>>,
}

/// The unit of a rank that `depth` joins lead to, as a number.
fn unit(domains: &[u32], rank: Rank, depth: u32) -> u32 {
    match depth {
        0 => rank as u32,
        1 => domains[rank],
        2 => socket(domains[rank]),
        _ => 0,
    }
}

impl Tree {
    /// The tree for a call; `None` if it has fewer than two levels, so that an algorithm without levels does the same,
    /// or more ranks than a set of readers can have.
    pub fn of(shape: &Shape<'_>) -> Option<Self> {
        let few = shape.size <= u64::BITS as usize && !shape.domains.is_empty();
        few.then(|| Self::new(shape.domains)).filter(|tree| tree.levels() > 1)
    }

    fn new(domains: &[u32]) -> Self {
        let size = domains.len();
        let mut tree = Self { positions: vec![Vec::new(); size], far: Vec::new(), joined: vec![Vec::new(); size] };
        for depth in 0..3 {
            // The units of each unit above, in the order of their first ranks.
            let mut joined = BTreeMap::<u32, Vec<u32>>::new();
            let mut positions = Vec::with_capacity(size);
            for rank in 0..size {
                let units = joined.entry(unit(domains, rank, depth + 1)).or_default();
                let own = unit(domains, rank, depth);
                positions.push(units.iter().position(|other| *other == own).unwrap_or(units.len()));
                if positions[rank] == units.len() {
                    units.push(own);
                }
            }
            if joined.values().any(|units| units.len() > 1) {
                for rank in 0..size {
                    tree.positions[rank].push(positions[rank]);
                    tree.joined[rank].push(joined[&unit(domains, rank, depth + 1)].len());
                }
                tree.far.push(depth > 0);
            }
        }
        tree
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.positions.len()
    }

    /// Number of levels.
    pub fn levels(&self) -> usize {
        self.far.len()
    }

    /// The position of the unit of `rank` at `level` among those that are joined with it.
    pub fn position(&self, rank: Rank, level: usize) -> usize {
        self.positions[rank][level]
    }

    /// The units that are joined with that of `rank` at `level`, with it: their ranks, in ascending order.
    pub fn units(&self, rank: Rank, level: usize) -> Vec<Vec<Rank>> {
        let above = |rank: Rank| &self.positions[rank][level + 1..];
        let mut units = Vec::<Vec<Rank>>::new();
        for other in (0..self.size()).filter(|other| above(*other) == above(rank)) {
            let position = self.position(other, level);
            units.resize_with(units.len().max(position + 1), Vec::new);
            units[position].push(other);
        }
        units
    }

    /// The ranks at the same place in each of the units that are joined with that of `rank` at `level`.
    pub fn group(&self, rank: Rank, level: usize) -> Vec<Rank> {
        let below = |rank: Rank| &self.positions[rank][..level];
        let same = |unit: Vec<Rank>| unit.into_iter().find(|other| below(*other) == below(rank));
        self.units(rank, level).into_iter().filter_map(same).collect()
    }

    /// The least number of units that are joined at `level`: each of these exists everywhere.
    pub fn min_joined(&self, level: usize) -> usize {
        self.joined.iter().map(|of| of[level]).min().unwrap_or(1)
    }

    /// The largest number of units that are joined at `level`.
    pub fn max_joined(&self, level: usize) -> usize {
        self.joined.iter().map(|of| of[level]).max().unwrap_or(1)
    }

    /// How many units are joined at `level` into the one to which `rank` belongs.
    pub fn joined(&self, rank: Rank, level: usize) -> usize {
        self.joined[rank][level]
    }

    /// Whether `rank` is the one that has `block` among the ranks that the first `depth` levels join. There is a block
    /// for each rank. Among its own neighbours that rank itself has it; elsewhere the rank with the same positions has
    /// it, modulo the numbers of units.
    pub fn holds(&self, rank: Rank, depth: usize, block: Rank) -> bool {
        let agrees = |level| self.position(block, level) % self.joined(rank, level) == self.position(rank, level);
        (0..depth).all(agrees)
    }

    /// The rank of `unit`, which is what the first `depth` levels join, that has `block`; see [`Tree::holds`].
    pub fn holder(&self, unit: &[Rank], depth: usize, block: Rank) -> Rank {
        unit.iter().copied().find(|rank| self.holds(*rank, depth, block)).expect("each unit has each block")
    }

    /// The largest number of blocks that a rank has of what the first `depth` levels join; see [`Tree::holds`].
    pub fn max_held(&self, depth: usize) -> usize {
        let of = |rank| (0..self.size()).filter(|block| self.holds(rank, depth, *block)).count();
        (0..self.size()).map(of).max().unwrap_or(0)
    }

    /// Seconds if a rank publishes `bytes` at each level, and then fetches what each of the other units has, which
    /// takes `reducing` seconds each besides. Finally it waits for its readers.
    pub fn path(&self, case: &Case<'_>, bytes: f64, reducing: f64) -> f64 {
        if bytes <= 0.0 && case.shape.collective != Collective::Barrier {
            return 0.0;
        }
        let memory = &case.network.memory;
        let level = |level: usize| {
            let (far, others) = (self.far[level], self.max_joined(level) as f64 - 1.0);
            let fetching = others * (memory.fetch(bytes, bytes, far) + reducing);
            // In a reduce, what a rank publishes before it has fetched anything is not copied before others read it.
            let alone = level == 0 && case.shape.collective == Collective::Reduce;
            memory.publish(bytes, alone) + memory.access(far).signal + fetching
        };
        let last_is_far = self.far.last().is_some_and(|far| *far);
        let switches = case.switches(self.levels() as f64);
        switches + (0..self.levels()).map(level).sum::<f64>() + memory.readers(bytes, last_is_far, false)
    }

    /// Whether `level` joins ranks that do not share a cache.
    pub fn is_far(&self, level: usize) -> bool {
        self.far[level]
    }

    /// If every rank has a value of its unit at each level: whose value `rank` reads at `level`, in the order of the
    /// units; its own for its own unit. The readers of a unit are spread over its ranks.
    pub fn sources(&self, rank: Rank, level: usize) -> Vec<Rank> {
        let units = self.units(rank, level);
        let own = self.position(rank, level);
        let index = units[own].iter().position(|other| *other == rank).expect("a rank is in its unit");
        units.iter().enumerate().map(|(at, unit)| if at == own { rank } else { unit[index % unit.len()] }).collect()
    }

    /// The ranks that read the value of `rank` at `level` in this way; `None` if there are none.
    pub fn readers(&self, rank: Rank, level: usize) -> Option<Readers> {
        let others = self.units(rank, level).into_iter().flatten().filter(|other| *other != rank);
        let readers: Vec<Rank> = others.filter(|other| self.sources(*other, level).contains(&rank)).collect();
        (!readers.is_empty()).then(|| Readers::set(readers))
    }

    /// The number of the publication of `rank` at `level`, if it publishes at each level at which it has readers.
    pub fn number(&self, rank: Rank, level: usize) -> u32 {
        (0..level).filter(|level| self.readers(rank, *level).is_some()).count() as u32
    }
}
