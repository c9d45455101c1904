//! Two binary trees over all ranks, one for each half of the data (Sanders, Speck and Träff, "Two-tree algorithms for
//! full bandwidth broadcast, reduction and scan", 2009). In a single binary tree the leaves, half of all ranks, do not
//! send. With two trees every rank that is an inner node of one tree is a leaf of the other, so all ranks send and
//! receive at full bandwidth.
//!
//! Both trees have the shape of the ruler function: position 0 is the root, and a position whose lowest set bit is `b`
//! has its children `b / 2` to the left and to the right. Odd positions are leaves. In the first tree position equals
//! rank; in the second tree odd and even positions are exchanged. With six ranks the second tree is the mirror image of
//! the first:
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
//! A rank has at most two edges to parents (one in each tree) and at most two to children (in one tree). The edges can
//! therefore be coloured with two colours such that a rank's two parent edges differ and its two child edges differ.
//! Edges of one colour are used in even steps, those of the other in odd steps, so no rank receives from two ranks or
//! sends to two ranks in one step. In the example the edges above 2 and 3 in the first tree and above 0, 1 and 4 in the
//! second have one colour.

use super::Case;
use super::phases::rounds;
use crate::schedule::Side;
use crate::schedule::cost::Cost;
use crate::types::Rank;

/// The name of every algorithm based on these trees.
pub(super) const NAME: &str = "double_binary_tree";

/// The ranks that are the roots of the two trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Roots {
    /// One rank is the root of both trees. Every other rank has children in at most one tree.
    Common(Rank),
    /// Rank 0 is the root of the first tree; the root of the second is the last rank if their number is even, else rank
    /// 0. The subtrees of a rank are the ranks next to it on either side, so a reduction up the tree keeps the order of
    /// ranks.
    Ends,
}

/// The trees of one call.
pub(super) struct DoubleBinaryTree {
    size: usize,
    roots: Roots,
    /// Colours of the edges to the parents in the two trees; indexed by rank relative to the root. `None`: no parent.
    colours: Vec<[Option<bool>; 2]>,
}

/// A rank's position in one of the trees.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TreePosition {
    /// 0 or 1: which tree, hence which half of the data.
    pub tree: usize,
    /// `None` at the root.
    pub parent: Option<Rank>,
    /// In the order of their steps; first the child whose edge is used in the step after the parent's.
    pub children: Vec<Rank>,
}

impl TreePosition {
    /// The children of `rank`, which has this position, in the order in which they send during a reduction: the reverse
    /// of the order in which they receive during a broadcast. The side is the side of the operation on which the
    /// child's data stands.
    pub fn children_going_up(&self, rank: Rank) -> impl Iterator<Item = (Rank, Side)> {
        self.children.iter().rev().map(move |&child| (child, if child < rank { Side::Left } else { Side::Right }))
    }
}

/// The cost of two trees, each for one half of the data, with a critical path of `path` seconds. `ways` is 1 for a
/// broadcast or a reduction and 2 for both. With `k` segments, each costing its ranks a time `c`, the estimated time is
/// lowest near `k = sqrt(S h / (2cB))`, as in the paper, where `c` is `α`.
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

    /// A rank's positions in the two trees. The tree whose parent edge (at a root: child edge) is used first comes
    /// first.
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

    /// The position of `node` (a rank relative to the root) in `tree`. With `back`, the inverse: the node at position
    /// `node`.
    fn position(&self, tree: usize, node: usize, back: bool) -> usize {
        let size = self.size;
        match self.roots {
            _ if tree == 0 => node,
            // The mirror image. With a common root, this applies if an even number of other ranks is left.
            _ if size % 2 == 1 => (size - node) % size,
            Roots::Ends => size - 1 - node,
            // The other positions are shifted by one; the first becomes the last.
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

    /// Colours the edge above `node`, and then every edge whose colour follows from it. These edges form a path or a
    /// cycle.
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

/// The terms of the time formulas, in seconds except `height`.
struct Terms {
    /// `h = ceil(lg P)`.
    height: f64,
    /// Latency from a leaf to the root: `hα`.
    latency: f64,
    /// Transfer time of half of the data, `S/2B`, and its reduction time.
    half: f64,
    half_reduced: f64,
    /// Between hosts: CPU time that a leaf spends on its own messages before it processes incoming ones, for which each
    /// level above waits; and the time in which its messages leave the network card.
    busy: f64,
    sends: f64,
    /// Delay of the second of a rank's two messages in one direction beyond its time on the link.
    turn: f64,
    /// Transfer time and reduction time of one segment.
    segment: f64,
    reduced: f64,
}

impl Terms {
    fn new(case: &Case<'_>) -> Self {
        let height = rounds(case.shape.size);
        let (half, gamma) = (case.bytes() / 2.0, case.network.gamma);
        // The ranks of one host have neighbours on two other hosts.
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

/// Seconds to broadcast: `hα + S/B + (2h - 2) s/B` with segments of `s` bytes, `hα + 2h S/2B` without segments. Where
/// the latency makes messages of both trees collide on a link, a fitted term is added.
pub(super) fn broadcast_time(case: &Case<'_>) -> f64 {
    if case.is_empty() {
        return 0.0;
    }
    let t = Terms::new(case);
    let meeting =
        if t.height > 2.0 { case.constants.double_binary_tree_down_meeting * t.segment.min(t.step()) } else { 0.0 };
    t.latency + 2.0 * t.half + (2.0 * t.height - 2.0) * t.segment + meeting + t.sends + t.height * t.turn
}

/// Seconds to reduce: the time to broadcast, plus between `hγs` and `(2h - 2) γs`, depending on how many of a rank's
/// two reductions run one after the other while the next segment is in transit. Leaves start `α` before the segments of
/// the other tree arrive; these then get less than half of the links' bandwidth.
pub(super) fn reduce_time(case: &Case<'_>) -> f64 {
    if case.is_empty() {
        return 0.0;
    }
    let t = Terms::new(case);
    let late = if t.height > 1.0 { t.step().min((t.half - t.segment) / 2.0) } else { 0.0 };
    if t.height < 2.0 {
        // Two ranks: the reduction of the first segment does not wait for another one.
        let rest = (2.0 * t.half - t.segment).max(2.0 * t.half_reduced - t.reduced);
        return t.latency + t.segment + rest + t.reduced;
    }
    let waiting = (case.constants.double_binary_tree_up_waiting * t.half_reduced / t.half).min(1.0);
    // Some reductions of the two trees overlap, and more in trees of even height.
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

/// Seconds for an allreduce: `2hα + (4h - 2) S/2B + (2h - 1) γS/2` without segments; with segments of `s` bytes `2hα +
/// 2S/B + (4h - 4) s/B + (2h - 1) γs`. It is less where the latency leaves time to send the first segments down before
/// the last ones are up. If reductions are slow, complete segments go down while the others are still being reduced.
pub(super) fn allreduce_time(case: &Case<'_>) -> f64 {
    if case.is_empty() {
        return 0.0;
    }
    let t = Terms::new(case);
    // With two ranks the root has one child; with more, up to two.
    let children = t.height.min(2.0);
    let down = (children * (t.half - t.segment) - (2.0 * children - 1.0) * t.step()).max(0.0);
    // In higher trees messages of the two trees collide on a link, for a part of a segment that was fitted.
    let meeting = if t.height > 3.0 { case.constants.double_binary_tree_both_meeting * t.segment } else { 0.0 };
    2.0 * t.latency
        + (children * (t.half - t.segment) + down).max(children * (t.half_reduced - t.reduced))
        + (children + (4.0 * t.height - 4.0).max(1.0)) * t.segment
        + (2.0 * t.height - 1.0) * t.reduced
        + meeting
        + (t.height - 2.0).max(0.0) * case.constants.double_binary_tree_both_waiting * t.busy
        + 2.0 * (t.height - 1.0) * t.turn
}

/// The parent of `position`, which is not 0, in a tree of `size` positions.
fn parent(position: usize, size: usize) -> usize {
    let bit = 1 << position.trailing_zeros();
    let up = (position ^ bit) | (bit << 1);
    if up < size { up } else { position ^ bit }
}

/// The children of `position` in a tree of `size` positions.
fn children(position: usize, size: usize) -> impl Iterator<Item = usize> {
    let half = match position {
        0 => size.next_power_of_two(),
        _ => (1 << position.trailing_zeros()) / 2,
    };
    let left = (position > 0 && half > 0).then(|| position - half);
    // If too few positions follow on the right, the root of a smaller subtree.
    let right = std::iter::successors(Some(half), |step| Some(step / 2)).take_while(|&step| step > 0);
    left.into_iter().chain(right.map(move |step| position + step).find(|&child| child < size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tier::Tier;

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
    fn each_tree_reaches_all_ranks_within_log2_steps() {
        for size in 1..=Tier::from_environment().of(200, 1024, 1024) {
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
    fn an_inner_node_of_one_tree_is_a_leaf_of_the_other() {
        for size in 1..=Tier::from_environment().of(200, 1024, 1024) {
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
        for size in 1..=Tier::from_environment().of(200, 1024, 1024) {
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
