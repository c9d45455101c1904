//! Rings over all or some of the ranks (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", 2009).

use super::Shape;
use crate::schedule::{Builder, Side, Span};
use crate::types::Rank;

/// Ranks in a ring, seen from one of them. What is reduced or gathered is cut into a chunk for each position in it.
pub(super) struct Ring {
    ranks: Vec<Rank>,
    position: usize,
}

impl Ring {
    /// A ring of `ranks`, `rank` among them.
    pub fn new(ranks: Vec<Rank>, rank: Rank) -> Self {
        let position = ranks.iter().position(|other| *other == rank).expect("a rank is in its own ring");
        Self { ranks, position }
    }

    /// All ranks.
    pub fn of_all(shape: &Shape<'_>) -> Self {
        Self { ranks: (0..shape.size).collect(), position: shape.rank }
    }

    /// Ranks in it.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's position.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The position `distance` before this one; `distance` is at most the length.
    fn before(&self, distance: usize) -> usize {
        (self.position + self.len() - distance) % self.len()
    }

    fn left(&self) -> Rank {
        self.ranks[self.before(1)]
    }

    fn right(&self) -> Rank {
        self.ranks[(self.position + 1) % self.len()]
    }

    /// Ring reduce-scatter. Chunk `c` starts at the position after `c`, travels to the right, and each rank it passes adds its
    /// own, until it is complete at position `c`. Six ranks, what each sends in each of the five steps:
    ///
    /// | step | 0 | 1 | 2 | 3 | 4 | 5 |
    /// |---|---|---|---|---|---|---|
    /// | 0 | 5 | 0 | 1 | 2 | 3 | 4 |
    /// | 1 | 4 | 5 | 0 | 1 | 2 | 3 |
    /// | 2 | 3 | 4 | 5 | 0 | 1 | 2 |
    /// | 3 | 2 | 3 | 4 | 5 | 0 | 1 |
    /// | 4 | 1 | 2 | 3 | 4 | 5 | 0 |
    ///
    /// `P - 1` steps, and everything but one chunk is sent: `S (P - 1) / P` bytes.
    ///
    /// `chunk` tells where this rank's own part of a chunk is and where it puts what it gets of it; it is asked once for each
    /// chunk, in the order of the steps. Returns where this rank's complete chunk is: where it was put, but on a single rank,
    /// which gets nothing, its own part.
    pub fn reduce_scatter(&self, b: &mut Builder, mut chunk: impl FnMut(&mut Builder, usize) -> (Span, Span)) -> Span {
        let (mut current, _) = chunk(b, self.before(1));
        for step in 0..self.len() - 1 {
            b.send(self.right(), current);
            let (own, into) = chunk(b, self.before(step + 2));
            b.recv_reduce(self.left(), into, own, Side::Left);
            current = into;
        }
        current
    }

    /// Ring allgather: every rank's block goes around to the right. Six ranks, what each sends in each of the five steps:
    ///
    /// | step | 0 | 1 | 2 | 3 | 4 | 5 |
    /// |---|---|---|---|---|---|---|
    /// | 0 | 0 | 1 | 2 | 3 | 4 | 5 |
    /// | 1 | 5 | 0 | 1 | 2 | 3 | 4 |
    /// | 2 | 4 | 5 | 0 | 1 | 2 | 3 |
    /// | 3 | 3 | 4 | 5 | 0 | 1 | 2 |
    /// | 4 | 2 | 3 | 4 | 5 | 0 | 1 |
    ///
    /// `P - 1` steps; every rank sends all blocks but its right neighbour's.
    ///
    /// `own` is where this rank's block is, `block` where the others go; `arrived` is called after each.
    pub fn allgather(
        &self,
        b: &mut Builder,
        own: Span,
        block: impl Fn(usize) -> Span,
        mut arrived: impl FnMut(&mut Builder, Span),
    ) {
        let mut current = own;
        for step in 0..self.len() - 1 {
            b.send(self.right(), current);
            current = block(self.before(step + 1));
            b.recv(self.left(), current);
            arrived(b, current);
        }
    }
}
