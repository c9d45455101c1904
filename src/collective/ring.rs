//! Ring reduce-scatter and ring allgather over all or some of the ranks (Patarasu and Yuan, "Bandwidth optimal
//! all-reduce algorithms for clusters of workstations", 2009).

use super::Shape;
use crate::schedule::{Builder, Side, Span};
use crate::types::Rank;

/// The ranks of a ring and this rank's position in it. The data is cut into one chunk per position.
pub(super) struct Ring {
    ranks: Vec<Rank>,
    position: usize,
}

impl Ring {
    /// The ring of `ranks` in this order; `rank` must be one of them.
    pub fn new(ranks: Vec<Rank>, rank: Rank) -> Self {
        let position = ranks.iter().position(|other| *other == rank).expect("a rank is in its own ring");
        Self { ranks, position }
    }

    /// The ring of all ranks in rank order.
    pub fn of_all(shape: &Shape<'_>) -> Self {
        Self { ranks: (0..shape.size).collect(), position: shape.rank }
    }

    /// Number of ranks in the ring.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the position of this rank in the ring.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The position `distance` before this rank's; `distance` is at most the length.
    fn before(&self, distance: usize) -> usize {
        (self.position + self.len() - distance) % self.len()
    }

    fn left(&self) -> Rank {
        self.ranks[self.before(1)]
    }

    fn right(&self) -> Rank {
        self.ranks[(self.position + 1) % self.len()]
    }

    /// Ring reduce-scatter. Chunk `c` starts at position `c + 1` and moves to the right. Each rank adds its own
    /// contribution, and the chunk is complete at position `c`. The chunk that each of six ranks (columns) sends in
    /// each of the five steps (rows):
    ///
    /// | step | 0 | 1 | 2 | 3 | 4 | 5 |
    /// |---|---|---|---|---|---|---|
    /// | 0 | 5 | 0 | 1 | 2 | 3 | 4 |
    /// | 1 | 4 | 5 | 0 | 1 | 2 | 3 |
    /// | 2 | 3 | 4 | 5 | 0 | 1 | 2 |
    /// | 3 | 2 | 3 | 4 | 5 | 0 | 1 |
    /// | 4 | 1 | 2 | 3 | 4 | 5 | 0 |
    ///
    /// `P - 1` steps. Every rank sends all chunks but one: `S (P - 1) / P` bytes.
    ///
    /// `chunk` returns where this rank's contribution to a chunk is and where the partial result must be stored. It is
    /// called once per chunk, in step order. Returns where this rank's complete chunk is: where it was stored or, on a
    /// single rank, its own contribution.
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

    /// Ring allgather: every block moves around the ring to the right. The block that each of six ranks (columns) sends
    /// in each of the five steps (rows):
    ///
    /// | step | 0 | 1 | 2 | 3 | 4 | 5 |
    /// |---|---|---|---|---|---|---|
    /// | 0 | 0 | 1 | 2 | 3 | 4 | 5 |
    /// | 1 | 5 | 0 | 1 | 2 | 3 | 4 |
    /// | 2 | 4 | 5 | 0 | 1 | 2 | 3 |
    /// | 3 | 3 | 4 | 5 | 0 | 1 | 2 |
    /// | 4 | 2 | 3 | 4 | 5 | 0 | 1 |
    ///
    /// `P - 1` steps. Every rank sends all blocks but its right neighbour's.
    ///
    /// `own` is where this rank's block is; `block` returns where each other block must be stored; `arrived` is called
    /// after each receive.
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
