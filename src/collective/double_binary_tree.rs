//! Two binary trees over all ranks for two halves of the data (Sanders, Speck and Träff, "Two-tree algorithms for full
//! bandwidth broadcast, reduction and scan", 2009). In one binary tree the leaves, half of all ranks, send nothing. So there
//! are two, and whoever has children in one is a leaf in the other: everyone sends and receives at full speed.
//!
//! Both are the tree of the ruler: position 0 is at the roots, and a position `i` with lowest set bit `b` has its children
//! `b / 2` to the left and to the right. Odd positions are leaves. In the first tree the ranks stand in order, in the second
//! odd and even change positions. Six ranks, whose second tree is the first one's mirror image:
//!
//! ```text
//! first:    0           second:  5
//!           └─ 4                 └─ 1
//!              ├─ 2                 ├─ 0
//!              │  ├─ 1              └─ 3
//!              │  └─ 3                 ├─ 2
//!              └─ 5                    └─ 4
//! ```
//!
//! A rank has at most two edges up (one in each tree) and at most two down (in one tree). So the edges can have two colours,
//! such that neither the two up nor the two down are alike: in even steps the edges of one colour are used, in odd steps those
//! of the other, and nobody receives from two or sends to two at a time. Here the edges above 2 and 3 in the first tree and
//! above 0, 1, 4 in the second have one colour, the others the other.

use super::Case;
use super::phases::rounds;
use crate::schedule::Side;
use crate::schedule::cost::Cost;
use crate::types::Rank;

/// The name of every algorithm that is made of them.
pub(super) const NAME: &str = "double_binary_tree";

/// What stands on roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Roots {
    /// This rank, in both trees. Every other rank has children in one tree at most.
    Common(Rank),
    /// Rank 0, and in the second tree the last rank if their number is even. The subtrees of a rank then are the ranks next
    /// to it on either side, so what is combined on the way up stays in order.
    Ends,
}

/// The trees of one call.
pub(super) struct DoubleBinaryTree {
    size: usize,
    roots: Roots,
    /// By rank, counted from the root: of the edge above it in each tree.
    colours: Vec<[Option<bool>; 2]>,
}

/// A rank's position in one of the trees.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TreePosition {
    /// 0 or 1: which tree, hence which half of the data.
    pub tree: usize,
    /// `None` at the roots.
    pub parent: Option<Rank>,
    /// First the one whose edge has the next step after the parent's.
    pub children: Vec<Rank>,
}

impl TreePosition {
    /// The children of `rank`, whose position it is, in the order in which they send: the reverse of that in which they receive.
    pub fn children_going_up(&self, rank: Rank) -> impl Iterator<Item = (Rank, Side)> {
        self.children.iter().rev().map(move |&child| (child, if child < rank { Side::Left } else { Side::Right }))
    }
}

/// The cost of two trees, each for one half of the data, that take `path` seconds and go `ways` ways, up or down or both. Each of
/// `k` segments costs its ranks some time `c`, and the way up and down some segments on the links: the price, as the tuner looks at
/// it, is lowest near `k = sqrt(S h / (2cB))`, as with Sanders, Speck and Träff, for whom `c` is `α`.
pub(super) fn cost(case: &Case<'_>, path: f64, ways: f64, reduces: bool) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    Cost {
        path,
        messages: 2.0 * ways * others * case.pieces(bytes / 2.0),
        sent: ways * others * bytes,
        reduced: if reduces { others * bytes } else { 0.0 },
    }
}

impl DoubleBinaryTree {
    pub fn new(size: usize, roots: Roots) -> Self {
        let mut trees = Self { size, roots, colours: vec![[None; 2]; size] };
        for node in 0..size {
            for tree in 0..2 {
                trees.colour(tree, node, false);
            }
        }
        trees
    }

    /// A rank's two positions; first the one whose edge above (on roots: below) has the first step.
    pub fn positions(&self, rank: Rank) -> [TreePosition; 2] {
        let node = (rank + self.size - self.root()) % self.size;
        let above = |tree: usize| self.colours[node][tree];
        let below = |tree: usize| self.children(tree, node).first().and_then(|&child| self.colours[child][tree]);
        let mut trees = [0, 1];
        trees.sort_by_key(|&tree| above(tree).or(below(tree)));
        trees.map(|tree| {
            let mut children = self.children(tree, node);
            children.sort_by_key(|&child| above(tree).is_some() && self.colours[child][tree] == above(tree));
            let rank = |node: usize| (node + self.root()) % self.size;
            let parent = self.parent(tree, node).map(rank);
            TreePosition { tree, parent, children: children.into_iter().map(rank).collect() }
        })
    }

    fn root(&self) -> Rank {
        match self.roots {
            Roots::Common(root) => root,
            Roots::Ends => 0,
        }
    }

    /// Where in the tree of the ruler `node`, a rank counted from the root, stands. With `back`, who stands at position `node`.
    fn position(&self, tree: usize, node: usize, back: bool) -> usize {
        let size = self.size;
        match self.roots {
            _ if tree == 0 => node,
            // The mirror image, below the same top if that leaves an even number.
            _ if size % 2 == 1 => (size - node) % size,
            Roots::Ends => size - 1 - node,
            // Moved by one, the first to the end.
            Roots::Common(_) if node == 0 => 0,
            Roots::Common(_) if back => node % (size - 1) + 1,
            Roots::Common(_) => (node + size - 3) % (size - 1) + 1,
        }
    }

    fn parent(&self, tree: usize, node: usize) -> Option<usize> {
        let position = self.position(tree, node, false);
        (position > 0).then(|| self.position(tree, parent(position, self.size), true))
    }

    fn children(&self, tree: usize, node: usize) -> Vec<usize> {
        let position = self.position(tree, node, false);
        children(position, self.size).map(|child| self.position(tree, child, true)).collect()
    }

    /// Gives the edge above `node` its colour, and so all edges that this one decides about: a path or a ring.
    fn colour(&mut self, tree: usize, node: usize, colour: bool) {
        let mut open = vec![(tree, node, colour)];
        while let Some((tree, node, colour)) = open.pop() {
            let Some(parent) = self.parent(tree, node).filter(|_| self.colours[node][tree].is_none()) else { continue };
            self.colours[node][tree] = Some(colour);
            open.push((1 - tree, node, !colour));
            for other in 0..2 {
                let siblings = self.children(other, parent).into_iter().filter(|&child| (other, child) != (tree, node));
                open.extend(siblings.map(|child| (other, child, !colour)));
            }
        }
    }
}

/// What the prices are made of: all in seconds, but for `height`.
struct Terms {
    /// `h = ceil(lg P)`.
    height: f64,
    /// Latencies from a leaf to the roots: `hα`.
    latency: f64,
    /// Half of the data on a link, `S/2B`, and the reduction of it.
    half: f64,
    half_reduced: f64,
    /// Between hosts: what a leaf does for all its messages before it takes in others, for which each level above waits, and the
    /// time in which they leave it.
    busy: f64,
    sends: f64,
    /// By how much the second of a rank's two messages one way comes later than its link needs.
    turn: f64,
    /// A segment on a link, and its reduction.
    segment: f64,
    reduced: f64,
}

impl Terms {
    fn new(case: &Case<'_>) -> Self {
        let height = rounds(case.shape.size);
        let (half, gamma) = (case.bytes() / 2.0, case.network.gamma);
        // A host's ranks have neighbours on two others.
        let link = case.link(2);
        let segment = case.segment(half) / link.bandwidth;
        Self {
            height: f64::from(height),
            latency: (0..height).map(|bit| case.lone_link(1 << bit).latency).sum(),
            half: (half / link.bandwidth).max(segment + case.later(half) * link.busy.max(link.gap)),
            half_reduced: half * gamma + case.later(half) * link.busy,
            busy: case.later(half) * link.one_way().busy,
            sends: case.later(half) * link.turn(),
            turn: (link.turn() - segment).max(0.0),
            segment,
            reduced: case.segment(half) * gamma,
        }
    }

    /// α of one step.
    fn step(&self) -> f64 {
        self.latency / self.height
    }
}

/// Seconds to broadcast: `hα + S/B + (2h - 2) s/B` with segments of `s` bytes, `hα + 2h S/2B` without; a little more where
/// latency makes messages of both trees meet.
pub(super) fn broadcast_time(case: &Case<'_>) -> f64 {
    if case.is_empty() {
        return 0.0;
    }
    let t = Terms::new(case);
    let meeting =
        if t.height > 2.0 { case.constants.double_binary_tree_down_meeting * t.segment.min(t.step()) } else { 0.0 };
    t.latency + 2.0 * t.half + (2.0 * t.height - 2.0) * t.segment + meeting + t.sends + t.height * t.turn
}

/// Seconds to reduce: as to broadcast, and `hγs` to `(2h - 2) γs`, as few of a rank's two reductions as come one after the
/// other while the next segment is on its way. Leaves begin `α` before the segments of the other tree come, which then have
/// less than half of the links.
pub(super) fn reduce_time(case: &Case<'_>) -> f64 {
    if case.is_empty() {
        return 0.0;
    }
    let t = Terms::new(case);
    let late = if t.height > 1.0 { t.step().min((t.half - t.segment) / 2.0) } else { 0.0 };
    if t.height < 2.0 {
        // From one rank to the other: the first segment's reduction has nothing to wait for.
        let rest = (2.0 * t.half - t.segment).max(2.0 * t.half_reduced - t.reduced);
        return t.latency + t.segment + rest + t.reduced;
    }
    let waiting = (case.constants.double_binary_tree_up_waiting * t.half_reduced / t.half).min(1.0);
    // Of the two trees' reductions some meet, and in trees of an even height more.
    let fewer = match rounds(case.shape.size) {
        ..4 => 0.0,
        height if height % 2 == 0 => case.constants.double_binary_tree_even_saved,
        _ => case.constants.double_binary_tree_odd_saved,
    };
    let reductions = t.height + (t.height - 2.0) * waiting - fewer;
    let own = t.sends.max((t.height - 1.0) * t.busy) + t.height * t.turn;
    t.latency
        + 2.0 * t.half.max(t.half_reduced)
        + (2.0 * t.height - 2.0) * t.segment
        + reductions * t.reduced
        + late
        + own
}

/// Seconds for an allreduce: `2hα + (4h - 2) S/2B + (2h - 1) γS/2` without segments; with segments of `s` bytes
/// `2hα + 2S/B + (4h - 4) s/B + (2h - 1) γs`, or less where latency leaves time to send some of them down before the last
/// ones are up; while slow reductions go on, what is complete goes down.
pub(super) fn allreduce_time(case: &Case<'_>) -> f64 {
    if case.is_empty() {
        return 0.0;
    }
    let t = Terms::new(case);
    // Two ranks have one child each, others up to two.
    let children = t.height.min(2.0);
    let down = (children * (t.half - t.segment) - (2.0 * children - 1.0) * t.step()).max(0.0);
    // In higher trees messages of the two meet: by that much, between nothing and one of them.
    let meeting = if t.height > 3.0 { case.constants.double_binary_tree_both_meeting * t.segment } else { 0.0 };
    2.0 * t.latency
        + (children * (t.half - t.segment) + down).max(children * (t.half_reduced - t.reduced))
        + (children + (4.0 * t.height - 4.0).max(1.0)) * t.segment
        + (2.0 * t.height - 1.0) * t.reduced
        + meeting
        + (t.height - 2.0).max(0.0) * case.constants.double_binary_tree_both_waiting * t.busy
        + 2.0 * (t.height - 1.0) * t.turn
}

/// The position above `position`, which is not 0, of `size`.
fn parent(position: usize, size: usize) -> usize {
    let bit = 1 << position.trailing_zeros();
    let up = (position ^ bit) | (bit << 1);
    if up < size { up } else { position ^ bit }
}

/// The positions below `position`.
fn children(position: usize, size: usize) -> impl Iterator<Item = usize> {
    let half = match position {
        0 => size.next_power_of_two(),
        _ => (1 << position.trailing_zeros()) / 2,
    };
    let left = (position > 0 && half > 0).then(|| position - half);
    // Where there are fewer on the right, a smaller tree.
    let right = std::iter::successors(Some(half), |step| Some(step / 2)).take_while(|&step| step > 0);
    left.into_iter().chain(right.map(move |step| position + step).find(|&child| child < size))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOTS: [Roots; 2] = [Roots::Common(0), Roots::Ends];

    #[test]
    fn six_ranks() {
        let trees = DoubleBinaryTree::new(6, Roots::Ends);
        let position = |tree, parent, children: &[Rank]| TreePosition { tree, parent, children: children.to_vec() };
        let positions: Vec<[TreePosition; 2]> = (0..6).map(|rank| trees.positions(rank)).collect();
        assert_eq!(positions[0], [position(1, Some(1), &[]), position(0, None, &[4])]);
        assert_eq!(positions[1], [position(1, Some(5), &[3, 0]), position(0, Some(2), &[])]);
        assert_eq!(positions[2], [position(0, Some(4), &[1, 3]), position(1, Some(3), &[])]);
        assert_eq!(positions[3], [position(0, Some(2), &[]), position(1, Some(1), &[4, 2])]);
        assert_eq!(positions[4], [position(1, Some(3), &[]), position(0, Some(0), &[2, 5])]);
        assert_eq!(positions[5], [position(1, None, &[1]), position(0, Some(4), &[])]);
    }

    #[test]
    fn each_tree_reaches_everyone_within_log2_steps() {
        for size in 1..=1024 {
            for roots in ROOTS {
                let trees = DoubleBinaryTree::new(size, roots);
                for tree in 0..2 {
                    let tops: Vec<usize> = (0..size).filter(|&node| trees.parent(tree, node).is_none()).collect();
                    assert_eq!(tops, [if roots == Roots::Ends && tree == 1 && size % 2 == 0 { size - 1 } else { 0 }]);
                    let mut seen = vec![false; size];
                    let mut level = tops;
                    for height in 0.. {
                        assert!(height <= rounds(size), "{size} ranks");
                        level.iter().for_each(|&node| assert!(!std::mem::replace(&mut seen[node], true)));
                        let below = level.iter().flat_map(|&node| {
                            let children = trees.children(tree, node);
                            assert!(children.iter().all(|&child| trees.parent(tree, child) == Some(node)));
                            children
                        });
                        level = below.collect();
                        if level.is_empty() {
                            break;
                        }
                    }
                    assert!(seen.into_iter().all(|seen| seen), "{size} ranks, {roots:?}, tree {tree}");
                }
            }
        }
    }

    #[test]
    fn whoever_has_children_in_one_tree_is_a_leaf_in_the_other() {
        for size in 1..=1024 {
            for roots in ROOTS {
                let trees = DoubleBinaryTree::new(size, roots);
                for node in 0..size {
                    let numbers = [0, 1].map(|tree| trees.children(tree, node).len());
                    let shared = node == 0 && (roots != Roots::Ends || size % 2 == 1);
                    assert!(numbers.contains(&0) || shared && numbers == [1, 1], "{size} ranks, {roots:?}, {node}");
                    assert!(numbers[0] + numbers[1] <= 2);
                }
            }
        }
    }

    #[test]
    fn two_edges_up_or_two_edges_down_have_different_colours() {
        for size in 1..=1024 {
            for roots in ROOTS {
                let trees = DoubleBinaryTree::new(size, roots);
                for node in 0..size {
                    let above = [0, 1].map(|tree| trees.colours[node][tree]);
                    assert_eq!(
                        above.map(|colour| colour.is_some()),
                        [0, 1].map(|tree| trees.parent(tree, node).is_some())
                    );
                    assert!(above[0] != above[1] || above == [None; 2], "{size} ranks, {roots:?}, above {node}");
                    let below = [0, 1].map(|tree| {
                        let children = trees.children(tree, node);
                        children.into_iter().map(|child| trees.colours[child][tree]).collect::<Vec<_>>()
                    });
                    let below = below.concat();
                    assert!(below.len() < 2 || below[0] != below[1], "{size} ranks, {roots:?}, below {node}");
                }
            }
        }
    }

    #[test]
    fn subtrees_are_neighbours() {
        for size in 1..=130 {
            let trees = DoubleBinaryTree::new(size, Roots::Ends);
            for tree in 0..2 {
                for node in 0..size {
                    let mut below = vec![node];
                    let mut next = 0;
                    while next < below.len() {
                        below.extend(trees.children(tree, below[next]));
                        next += 1;
                    }
                    let (first, last) = (below.iter().min().unwrap(), below.iter().max().unwrap());
                    assert_eq!(last - first + 1, below.len(), "{size} ranks, tree {tree}, below {node}");
                }
            }
        }
    }

    #[test]
    fn any_root() {
        for size in 1..=20 {
            for root in 0..size {
                let (trees, from_0) =
                    (DoubleBinaryTree::new(size, Roots::Common(root)), DoubleBinaryTree::new(size, Roots::Common(0)));
                for node in 0..size {
                    let turned = |rank: usize| (rank + root) % size;
                    for (position, other) in trees.positions(turned(node)).into_iter().zip(from_0.positions(node)) {
                        let children = other.children.into_iter().map(turned).collect();
                        assert_eq!(
                            position,
                            TreePosition { tree: other.tree, parent: other.parent.map(turned), children }
                        );
                    }
                }
            }
        }
    }
}
