//! Packs spanning trees into a graph of links with a greedy algorithm: each tree takes the links with the most capacity
//! left (Thorup, "Fully-dynamic min-cut", Combinatorica 2007, shows that the loads approach the optimum as the number
//! of trees grows).
//!
//! All ranks compute the same trees.

use crate::types::Rank;

/// A spanning tree, rooted at its centre.
#[derive(Debug)]
pub(super) struct Tree {
    /// Parent of each rank; `None` for the root.
    pub parents: Vec<Option<Rank>>,
    /// The number of edges from each rank to the farthest rank below it.
    heights: Vec<usize>,
    /// The tree's share of the data, relative to the sum of all trees' weights.
    pub weight: u64,
}

/// Trees that together use the links well.
#[derive(Debug)]
pub(super) struct Packing {
    pub trees: Vec<Tree>,
    /// The total weight on the link with the highest ratio of weight to bandwidth.
    load: u64,
    /// The bandwidth of that link.
    capacity: u64,
    /// The largest bandwidth of any link.
    pub fastest: u64,
}

/// Maximum number of trees, in graphs that are small enough for [`MAX_EVALUATIONS`].
const MAX_TREES: usize = 256;
/// Maximum number of link evaluations.
const MAX_EVALUATIONS: usize = 1 << 24;
/// Each additional tree costs messages. The first trees are used that reach this percentage of the best rate.
const ENOUGH_PERCENT: u64 = 99;
/// In the second pass, links may be loaded up to this fraction of the best rate before their loads are compared.
const EASE_FRACTION: f64 = 0.97;

impl Packing {
    /// The sum of all trees' weights.
    pub fn weight(&self) -> u64 {
        self.trees.iter().map(|tree| tree.weight).sum()
    }

    /// The total rate of all trees in each direction, in the unit of the links' bandwidths.
    pub fn rate(&self) -> f64 {
        self.weight() as f64 * self.capacity as f64 / self.load.max(1) as f64
    }
}

impl Tree {
    /// The tree `parents` with its root moved to the centre; of two centres, to the lower rank.
    fn centred(parents: &[Option<Rank>]) -> Self {
        let mut neighbours = vec![Vec::new(); parents.len()];
        for (child, parent) in parents.iter().enumerate().filter_map(|(child, parent)| Some((child, (*parent)?))) {
            neighbours[child].push(parent);
            neighbours[parent].push(child);
        }
        let rooted = (0..parents.len()).map(|root| Self::rooted(&neighbours, root));
        rooted.min_by_key(Self::height).expect("a tree has a rank")
    }

    fn rooted(neighbours: &[Vec<Rank>], root: Rank) -> Self {
        let mut parents = vec![None; neighbours.len()];
        let mut order = vec![root];
        for next in 0..neighbours.len() {
            let rank = order[next];
            for &child in &neighbours[rank] {
                if parents[rank] != Some(child) {
                    parents[child] = Some(rank);
                    order.push(child);
                }
            }
        }
        let mut heights = vec![0; neighbours.len()];
        for &rank in order.iter().rev() {
            if let Some(parent) = parents[rank] {
                heights[parent] = heights[parent].max(heights[rank] + 1);
            }
        }
        Self { parents, heights, weight: 1 }
    }

    /// The number of edges from the root to the farthest rank.
    pub fn height(&self) -> usize {
        self.heights.iter().copied().max().unwrap_or(0)
    }

    /// The children of `rank`, those with the lowest subtrees first.
    pub fn children(&self, rank: Rank) -> Vec<Rank> {
        let mut children: Vec<Rank> =
            (0..self.parents.len()).filter(|child| self.parents[*child] == Some(rank)).collect();
        children.sort_by_key(|child| self.heights[*child]);
        children
    }
}

/// A fraction. Loads are at most [`MAX_TREES`] and bandwidths below 2^32, so cross products fit in 64 bits.
#[derive(Clone, Copy)]
struct Ratio(u64, u64);

impl Ratio {
    fn is_less(self, other: Self) -> bool {
        self.0 * other.1 < other.0 * self.1
    }
}

struct Graph<'a> {
    size: usize,
    links: &'a [u32],
    /// The largest bandwidth of any link.
    fastest: u64,
    /// Number of trees on each link so far.
    loads: Vec<u32>,
}

/// Trees in the order in which they were found; after each, the load and bandwidth of the most loaded link.
struct Found {
    trees: Vec<Vec<Option<Rank>>>,
    fullest: Vec<Ratio>,
}

impl Graph<'_> {
    /// The bandwidth available in both directions at the same time: a tree needs the same in both.
    fn capacity(&self, a: Rank, b: Rank) -> u64 {
        self.links[a * self.size + b].min(self.links[b * self.size + a]).into()
    }

    /// The index of the link in [`Graph::loads`].
    fn index(&self, a: Rank, b: Rank) -> usize {
        a.min(b) * self.size + a.max(b)
    }

    /// The spanning tree with the lowest load per bandwidth after adding it (Prim 1957), starting at `start`; ties
    /// prefer shorter paths. Fails with a rank that no link reaches.
    ///
    /// Links whose load per bandwidth would be at most `ease` are considered equal.
    fn tree(&self, start: Rank, ease: f64) -> Result<Vec<Option<Rank>>, Rank> {
        let mut parents = vec![None; self.size];
        // Each rank outside the tree has the load per bandwidth of its best link, and the rank at the other end.
        let mut outside: Vec<Option<(Ratio, Rank)>> = vec![None; self.size];
        let mut inside = vec![false; self.size];
        let mut last = start;
        for _ in 1..self.size {
            inside[last] = true;
            let mut next: Option<(Ratio, Rank)> = None;
            for rank in (0..self.size).filter(|rank| !inside[*rank]) {
                let capacity = self.capacity(last, rank);
                let load = u64::from(self.loads[self.index(last, rank)]) + 1;
                let is_easy = load as f64 <= ease * capacity as f64;
                let carries = if is_easy { Ratio(0, 1) } else { Ratio(load, capacity) };
                if capacity > 0 && outside[rank].is_none_or(|(min, _)| carries.is_less(min)) {
                    outside[rank] = Some((carries, last));
                }
                if let Some((carries, _)) = outside[rank]
                    && next.is_none_or(|(min, _)| carries.is_less(min))
                {
                    next = Some((carries, rank));
                }
            }
            let unreached = || (0..self.size).find(|rank| !inside[*rank]).unwrap_or(start);
            last = next.ok_or_else(unreached)?.1;
            parents[last] = outside[last].map(|(_, parent)| parent);
        }
        Ok(parents)
    }
}

impl Graph<'_> {
    /// Packs `count` trees. With `rate`, they are expected to reach that total rate.
    fn pack(&mut self, count: usize, rate: Option<f64>) -> Result<Found, (Rank, Rank)> {
        self.loads.fill(0);
        let mut found = Found { trees: Vec::new(), fullest: Vec::new() };
        let mut full = Ratio(0, 1);
        for turn in 0..count {
            let start = turn % self.size;
            // The load per bandwidth of this tree and those before it at that rate, plus that of one tree on the
            // fastest link.
            let ease = rate.map_or(0.0, |rate| (turn as f64 + 1.0) / rate + 1.0 / self.fastest as f64);
            let tree = self.tree(start, ease).map_err(|rank| (start, rank))?;
            for (child, parent) in tree.iter().enumerate().filter_map(|(child, parent)| Some((child, (*parent)?))) {
                let index = self.index(child, parent);
                self.loads[index] += 1;
                let carries = Ratio(self.loads[index].into(), self.capacity(child, parent));
                if full.is_less(carries) {
                    full = carries;
                }
            }
            found.trees.push(tree);
            found.fullest.push(full);
        }
        Ok(found)
    }
}

impl Found {
    /// The total rate of the first `count` trees.
    fn rate(&self, count: usize) -> Ratio {
        let Ratio(load, capacity) = self.fullest[count - 1];
        Ratio(count as u64 * capacity, load.max(1))
    }

    fn best(&self) -> Ratio {
        let rates = (1..=self.trees.len()).map(|count| self.rate(count));
        rates.fold(Ratio(0, 1), |best, rate| if best.is_less(rate) { rate } else { best })
    }

    /// The number of trees to use.
    fn enough(&self) -> usize {
        let Ratio(max, by) = self.best();
        let enough = Ratio(ENOUGH_PERCENT * max, 100 * by);
        (1..=self.trees.len()).find(|count| !self.rate(*count).is_less(enough)).unwrap_or(self.trees.len())
    }
}

/// Packs at least one tree into the graph of `size` ranks with [`links`](crate::collective::Shape::links). Fails with
/// two ranks that are not connected if the graph is not connected.
///
/// If few trees suffice, they are used. Otherwise the trees are packed again for nearly the rate that was found: a tree
/// then takes a detour only if necessary, because forwarded data waits behind data that needs no forwarding.
pub(super) fn pack(size: usize, links: &[u32]) -> Result<Packing, (Rank, Rank)> {
    let tries = MAX_TREES.min(MAX_EVALUATIONS / (size * size)).max(1);
    let fastest = links.iter().copied().max().unwrap_or(1).max(1).into();
    let mut graph = Graph { size, links, fastest, loads: vec![0; size * size] };
    let mut found = graph.pack(tries, None)?;
    if found.enough() > 2 * size {
        let Ratio(best, by) = found.best();
        found = graph.pack(tries, Some(EASE_FRACTION * best as f64 / by as f64))?;
    }
    let count = found.enough();
    let mut trees: Vec<Tree> = Vec::new();
    for tree in found.trees[..count].iter().map(|parents| Tree::centred(parents)) {
        match trees.iter_mut().find(|other| other.parents == tree.parents) {
            Some(same) => same.weight += 1,
            None => trees.push(tree),
        }
    }
    // The trees with the slowest links come first.
    let slowest = |tree: &Tree| {
        let edges = tree.parents.iter().enumerate().filter_map(|(child, parent)| Some((child, (*parent)?)));
        edges.map(|(child, parent)| graph.capacity(child, parent)).min()
    };
    trees.sort_by_key(|tree| (slowest(tree), std::cmp::Reverse(tree.height())));
    let Ratio(load, capacity) = found.fullest[count - 1];
    Ok(Packing { trees, load, capacity, fastest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tier::Tier;

    /// Links in both directions for all `edges`.
    fn graph(size: usize, edges: impl IntoIterator<Item = (Rank, Rank, u32)>) -> Vec<u32> {
        let mut links = vec![0; size * size];
        for (a, b, bandwidth) in edges {
            (links[a * size + b], links[b * size + a]) = (bandwidth, bandwidth);
        }
        links
    }

    fn complete(size: usize, bandwidth: impl Fn(Rank, Rank) -> u32) -> Vec<u32> {
        let pairs = (0..size).flat_map(|a| (0..a).map(move |b| (b, a)));
        graph(size, pairs.map(|(a, b)| (a, b, bandwidth(a, b))))
    }

    /// The maximum total rate of any packing: the minimum, over all partitions of the ranks into `k` groups, of the
    /// bandwidth between groups divided by `k - 1` (Tutte 1961, Nash-Williams 1961). For two groups that is a cut.
    fn bound(size: usize, links: &[u32]) -> f64 {
        let mut min = f64::INFINITY;
        let mut groups = vec![0; size];
        loop {
            let count = groups.iter().max().unwrap() + 1;
            if count > 1 {
                let crossing =
                    (0..size).flat_map(|a| (0..a).map(move |b| (a, b))).filter(|(a, b)| groups[*a] != groups[*b]);
                let sum: f64 = crossing.map(|(a, b)| f64::from(links[a * size + b].min(links[b * size + a]))).sum();
                min = min.min(sum / (count as f64 - 1.0));
            }
            // The next partition: a rank may be in any group of the ranks before it, or in a new one.
            let highest = |rank: usize| groups[..rank].iter().max().unwrap() + 1;
            let Some(last) = (1..size).rev().find(|rank| groups[*rank] < highest(*rank)) else { return min };
            groups[last] += 1;
            groups[last + 1..].fill(0);
        }
    }

    /// Packs, checks the properties of every packing, and returns its rate.
    fn check(size: usize, links: &[u32]) -> (Packing, f64) {
        let packing = pack(size, links).unwrap();
        let mut loads = vec![0; size * size];
        for tree in &packing.trees {
            assert!(tree.weight > 0);
            assert_eq!(tree.parents.iter().filter(|parent| parent.is_none()).count(), 1, "one root");
            for (rank, parent) in tree.parents.iter().enumerate().filter_map(|(rank, parent)| Some((rank, (*parent)?)))
            {
                let above = |rank: &Rank| tree.parents[*rank];
                let way = std::iter::successors(Some(rank), above).take(size + 1).count();
                assert!(way <= tree.height() + 1, "rank {rank} does not reach the root: {:?}", tree.parents);
                assert!(tree.children(parent).contains(&rank));
                loads[rank.min(parent) * size + rank.max(parent)] += tree.weight;
            }
        }
        let rate = packing.rate();
        for a in 0..size {
            for b in a..size {
                let carried = loads[a * size + b] as f64 * rate / packing.weight() as f64;
                let capacity = f64::from(links[a * size + b].min(links[b * size + a]));
                assert!(carried <= capacity * (1.0 + 1e-12), "{a} to {b}: {carried} of {capacity}");
            }
        }
        (packing, rate)
    }

    #[track_caller]
    fn near_bound(size: usize, links: &[u32]) -> Packing {
        let (packing, rate) = check(size, links);
        let bound = bound(size, links);
        assert!(rate <= bound * (1.0 + 1e-12), "{rate} is above the bound {bound}: the bound is wrong");
        assert!(rate >= 0.93 * bound, "{rate} of {bound}");
        packing
    }

    #[test]
    fn the_bound_of_known_graphs() {
        assert_eq!(bound(2, &complete(2, |_, _| 7)), 7.0);
        assert_eq!(bound(6, &complete(6, |_, _| 1)), 3.0, "half the ranks");
        assert_eq!(bound(6, &graph(6, (0..6).map(|a| (a, (a + 1) % 6, 5)))), 6.0, "a ring but for one link");
        assert_eq!(bound(4, &graph(4, [(0, 1, 5), (1, 2, 2), (2, 3, 9)])), 2.0, "a chain's slowest link");
    }

    #[test]
    fn rates_are_near_what_cuts_allow() {
        for size in 2..=8 {
            let packing = near_bound(size, &complete(size, |_, _| 1000));
            assert!(packing.trees.iter().all(|tree| tree.height() == 1), "stars: {packing:?}");
            near_bound(size, &complete(size, |a, _| if a == 0 { 1 } else { 3 }));
            // One slow link.
            near_bound(size, &complete(size, |a, b| if (a, b) == (1, 0) { 100 } else { 1000 }));
            // Two hosts.
            near_bound(size, &complete(size, |a, b| if (2 * a < size) == (2 * b < size) { 5000 } else { 120 }));
            near_bound(size, &complete(size, |a, b| (a * 7 + b * 13) as u32 % 11 + 1));
        }
        for size in 3..=8 {
            near_bound(size, &graph(size, (0..size).map(|a| (a, (a + 1) % size, 10))));
            near_bound(size, &graph(size, (0..size).map(|a| (a, (a + 1) % size, 1 + (a == 0) as u32 * 9))));
        }
        // A mesh of 3 by 2, a chain, a wheel, and the eight GPUs of a DGX-1 with their links of one and two lanes.
        near_bound(6, &graph(6, [(0, 1, 1), (1, 2, 1), (3, 4, 1), (4, 5, 1), (0, 3, 1), (1, 4, 1), (2, 5, 1)]));
        near_bound(5, &graph(5, [(0, 1, 5), (1, 2, 2), (2, 3, 9), (3, 4, 8)]));
        near_bound(6, &graph(6, (1..6).flat_map(|a| [(0, a, 3), (a, a % 5 + 1, 2)])));
        let lanes = [(0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2), (2, 6, 1)];
        let more = [(3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)];
        near_bound(8, &graph(8, lanes.into_iter().chain(more)));
    }

    #[test]
    fn one_direction_counts_as_much_as_the_slower() {
        let mut links = complete(2, |_, _| 10);
        links[1] = 3;
        assert_eq!(check(2, &links).1, 3.0);
        assert_eq!(check(1, &[0]).0.trees.len(), 1);
    }

    #[test]
    fn ranks_that_no_links_join() {
        assert_eq!(pack(3, &graph(3, [(0, 1, 1)])).unwrap_err(), (0, 2));
        let mut links = graph(3, [(0, 1, 1), (1, 2, 1)]);
        links[2 * 3 + 1] = 0;
        assert_eq!(pack(3, &links).unwrap_err(), (0, 2), "a link one way only");
    }

    #[test]
    fn few_trees_are_preferred() {
        let ring = near_bound(6, &graph(6, (0..6).map(|a| (a, (a + 1) % 6, 10))));
        assert_eq!(ring.trees.len(), 6, "the ring without one edge, another for each");
        assert!(ring.trees.iter().all(|tree| tree.height() == 3));
        assert_eq!(near_bound(5, &graph(5, (1..5).map(|a| (a - 1, a, 10)))).trees.len(), 1, "a chain");
    }

    #[test]
    fn large_graphs() {
        let all = Tier::from_environment() > Tier::Check;
        for size in [64, 200].into_iter().take(if all { 2 } else { 1 }) {
            let (packing, rate) = check(size, &complete(size, |_, _| u32::MAX));
            assert!(rate >= 0.93 * f64::from(u32::MAX) * size as f64 / 2.0);
            assert!(packing.trees.len() <= size);
        }
        if all {
            assert!(check(1000, &complete(1000, |a, b| (a + b) as u32)).0.weight() <= 16, "fewer tries");
        }
    }
}
