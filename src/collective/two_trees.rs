//! Two binary trees over all ranks for two halves of the data (Sanders, Speck and Träff, "Two-tree algorithms for full
//! bandwidth broadcast, reduction and scan", 2009). In one binary tree the leaves, half of all ranks, send nothing. So there
//! are two, and whoever has children in one is a leaf in the other: everyone sends and receives at full speed.
//!
//! Both are the tree of the ruler: position 0 is at the top, and a position `i` with lowest set bit `b` has its children
//! `b / 2` to the left and to the right. Odd positions are leaves. In the first tree the ranks stand in order, in the second
//! odd and even change places. Six ranks, whose second tree is the first one's mirror image:
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

use crate::types::Rank;

/// The name of every algorithm that is made of them.
pub(super) const NAME: &str = "double_binary_tree";

/// What stands on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Top {
    /// This rank, in both trees. Every other rank has children in one tree at most.
    Both(Rank),
    /// Rank 0, and in the second tree the last rank if their number is even. The subtrees of a rank then are the ranks next
    /// to it on either side, so what is combined on the way up stays in order.
    Ends,
}

/// The trees of one call.
pub(super) struct TwoTrees {
    size: usize,
    top: Top,
    /// By rank, counted from the root: of the edge above it in each tree.
    colours: Vec<[Option<bool>; 2]>,
}

/// A rank's place in one of the trees.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// 0 or 1: which tree, hence which half of the data.
    pub tree: usize,
    /// `None` at the top.
    pub parent: Option<Rank>,
    /// First the one whose edge has the next step after the parent's.
    pub children: Vec<Rank>,
}

impl TwoTrees {
    pub fn new(size: usize, top: Top) -> Self {
        let mut trees = Self { size, top, colours: vec![[None; 2]; size] };
        for node in 0..size {
            for tree in 0..2 {
                trees.colour(tree, node, false);
            }
        }
        trees
    }

    /// A rank's two places; first the one whose edge above (on top: below) has the first step.
    pub fn places(&self, rank: Rank) -> [Place; 2] {
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
            Place { tree, parent, children: children.into_iter().map(rank).collect() }
        })
    }

    fn root(&self) -> Rank {
        match self.top {
            Top::Both(root) => root,
            Top::Ends => 0,
        }
    }

    /// Where in the tree of the ruler `node`, a rank counted from the root, stands. With `back`, who stands at position `node`.
    fn position(&self, tree: usize, node: usize, back: bool) -> usize {
        let size = self.size;
        match self.top {
            _ if tree == 0 => node,
            // The mirror image, below the same top if that leaves an even number.
            _ if size % 2 == 1 => (size - node) % size,
            Top::Ends => size - 1 - node,
            // Moved by one, the first to the end.
            Top::Both(_) if node == 0 => 0,
            Top::Both(_) if back => node % (size - 1) + 1,
            Top::Both(_) => (node + size - 3) % (size - 1) + 1,
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

    /// Gives the edge above `node` its colour, and so all edges that this one decides about: a path or a circle.
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
    use crate::collective::phases::rounds;

    const TOPS: [Top; 2] = [Top::Both(0), Top::Ends];

    #[test]
    fn six_ranks() {
        let trees = TwoTrees::new(6, Top::Ends);
        let place = |tree, parent, children: &[Rank]| Place { tree, parent, children: children.to_vec() };
        let places: Vec<[Place; 2]> = (0..6).map(|rank| trees.places(rank)).collect();
        assert_eq!(places[0], [place(1, Some(1), &[]), place(0, None, &[4])]);
        assert_eq!(places[1], [place(1, Some(5), &[3, 0]), place(0, Some(2), &[])]);
        assert_eq!(places[2], [place(0, Some(4), &[1, 3]), place(1, Some(3), &[])]);
        assert_eq!(places[3], [place(0, Some(2), &[]), place(1, Some(1), &[4, 2])]);
        assert_eq!(places[4], [place(1, Some(3), &[]), place(0, Some(0), &[2, 5])]);
        assert_eq!(places[5], [place(1, None, &[1]), place(0, Some(4), &[])]);
    }

    #[test]
    fn each_tree_reaches_everyone_within_log2_steps() {
        for size in 1..=1024 {
            for top in TOPS {
                let trees = TwoTrees::new(size, top);
                for tree in 0..2 {
                    let tops: Vec<usize> = (0..size).filter(|&node| trees.parent(tree, node).is_none()).collect();
                    assert_eq!(tops, [if top == Top::Ends && tree == 1 && size % 2 == 0 { size - 1 } else { 0 }]);
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
                    assert!(seen.into_iter().all(|seen| seen), "{size} ranks, {top:?}, tree {tree}");
                }
            }
        }
    }

    #[test]
    fn whoever_has_children_in_one_tree_is_a_leaf_in_the_other() {
        for size in 1..=1024 {
            for top in TOPS {
                let trees = TwoTrees::new(size, top);
                for node in 0..size {
                    let numbers = [0, 1].map(|tree| trees.children(tree, node).len());
                    let shared = node == 0 && (top != Top::Ends || size % 2 == 1);
                    assert!(numbers.contains(&0) || shared && numbers == [1, 1], "{size} ranks, {top:?}, {node}");
                    assert!(numbers[0] + numbers[1] <= 2);
                }
            }
        }
    }

    #[test]
    fn two_edges_up_or_two_edges_down_have_different_colours() {
        for size in 1..=1024 {
            for top in TOPS {
                let trees = TwoTrees::new(size, top);
                for node in 0..size {
                    let above = [0, 1].map(|tree| trees.colours[node][tree]);
                    for tree in 0..2 {
                        assert_eq!(above[tree].is_some(), trees.parent(tree, node).is_some());
                    }
                    assert!(above[0] != above[1] || above == [None; 2], "{size} ranks, {top:?}, above {node}");
                    let below = [0, 1].map(|tree| {
                        let children = trees.children(tree, node);
                        children.into_iter().map(|child| trees.colours[child][tree]).collect::<Vec<_>>()
                    });
                    let below = below.concat();
                    assert!(below.len() < 2 || below[0] != below[1], "{size} ranks, {top:?}, below {node}");
                }
            }
        }
    }

    #[test]
    fn subtrees_are_neighbours() {
        for size in 1..=130 {
            let trees = TwoTrees::new(size, Top::Ends);
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
                let (trees, from_0) = (TwoTrees::new(size, Top::Both(root)), TwoTrees::new(size, Top::Both(0)));
                for node in 0..size {
                    let turned = |rank: usize| (rank + root) % size;
                    for (place, other) in trees.places(turned(node)).into_iter().zip(from_0.places(node)) {
                        let children = other.children.into_iter().map(turned).collect();
                        assert_eq!(place, Place { tree: other.tree, parent: other.parent.map(turned), children });
                    }
                }
            }
        }
    }
}
