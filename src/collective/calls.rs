//! The shapes of all ranks of one call: for tools and tests that analyse a call without running it.

use super::{Collective, Order, Shape};
use crate::schedule::split;
use crate::types::Rank;

/// The shapes of all ranks of one call.
#[derive(Clone, Debug)]
pub struct Calls {
    collective: Collective,
    ranks: usize,
    root: Rank,
    /// Elements, if all ranks have the same number.
    count: usize,
    /// Elements that each rank sends to and receives from each other rank: one row per rank, or one row that applies to
    /// all.
    sent: Vec<Vec<usize>>,
    received: Vec<Vec<usize>>,
    /// Number of input buffers; the root's, if the root has a different number.
    pub inputs: usize,
    /// Number of output buffers; see [`Calls::inputs`].
    pub outputs: usize,
    /// See [`Shape::average`].
    pub average: bool,
    /// See [`Shape::order`].
    pub order: Order,
    /// See [`Shape::base`].
    pub base: usize,
    /// See [`Shape::groups`].
    pub groups: Vec<u32>,
    /// See [`Shape::shared`].
    pub shared: bool,
    /// See [`Shape::domains`].
    pub domains: Vec<u32>,
    /// See [`Shape::dims`].
    pub dims: Vec<usize>,
    /// See [`Shape::links`].
    pub links: Vec<u32>,
    /// See [`Shape::counts`].
    pub counts: Vec<usize>,
}

impl Calls {
    /// A call of about `elements` elements: S in docs/tool.md, the size of the larger of a rank's two buffers.
    /// Divisions round down, but to at least one element. The blocks of the v collectives are as equal as possible.
    pub fn new(collective: Collective, ranks: usize, elements: usize, root: Rank) -> Self {
        use Collective::*;
        let whole = elements.max(1);
        let each = |parts: usize| (whole / parts.max(1)).max(1);
        match collective {
            Allreduce | Reduce | Broadcast | Scan | Exscan => Self::of_count(collective, ranks, whole, root),
            ReduceScatter | Allgatherv | Gatherv | Scatterv => {
                Self::of_blocks(collective, (0..ranks).map(|rank| split(whole, ranks, rank).1).collect(), root)
            }
            // The counts of all ranks would need too much memory for more ranks.
            Alltoallv if ranks > 4096 => Self { counts: Vec::new(), ..Self::of_row(vec![each(ranks); ranks]) },
            Alltoallv => Self::of_row(vec![each(ranks); ranks]),
            Allgather | Gather | Scatter | Alltoall => Self::of_count(collective, ranks, each(ranks), root),
            PairwiseExchange => Self::of_count(collective, ranks, each(ranks.max(1).ilog2() as usize), root),
            Barrier => Self::of_count(collective, ranks, 0, root),
        }
    }

    /// A call in which every rank has [`Shape::count`] elements; not for v collectives.
    pub fn of_count(collective: Collective, ranks: usize, count: usize, root: Rank) -> Self {
        let (inputs, outputs) = match collective {
            Collective::Broadcast => (0, 1),
            Collective::Barrier => (0, 0),
            _ => (1, 1),
        };
        Self {
            collective,
            ranks,
            root,
            count,
            sent: vec![Vec::new()],
            received: vec![Vec::new()],
            inputs,
            outputs,
            average: false,
            order: Order::Any,
            base: 2,
            groups: Vec::new(),
            shared: false,
            domains: Vec::new(),
            dims: Vec::new(),
            links: Vec::new(),
            counts: Vec::new(),
        }
    }

    /// A reduce_scatter, allgatherv, gatherv or scatterv with these block lengths, indexed by rank.
    pub fn of_blocks(collective: Collective, blocks: Vec<usize>, root: Rank) -> Self {
        use Collective::*;
        let none = vec![Vec::new()];
        let counts = if matches!(collective, Gatherv | Scatterv) { blocks.clone() } else { Vec::new() };
        let ranks = blocks.len();
        let (sent, received) = if collective == Scatterv { (vec![blocks], none) } else { (none, vec![blocks]) };
        Self { sent, received, counts, ..Self::of_count(collective, ranks, 0, root) }
    }

    /// An alltoallv in which rank `i` sends the counts in row `i`.
    pub fn of_rows(sent: Vec<Vec<usize>>) -> Self {
        let received = (0..sent.len()).map(|rank| sent.iter().map(|row| row[rank]).collect()).collect();
        let (ranks, counts) = (sent.len(), sent.concat());
        Self { sent, received, counts, ..Self::of_count(Collective::Alltoallv, ranks, 0, 0) }
    }

    /// An alltoallv in which all ranks send the same row, whose entries are equal.
    fn of_row(row: Vec<usize>) -> Self {
        let (ranks, counts) = (row.len(), row.repeat(row.len()));
        let (sent, received) = (vec![row.clone()], vec![row]);
        Self { sent, received, counts, ..Self::of_count(Collective::Alltoallv, ranks, 0, 0) }
    }

    /// The collective.
    pub fn collective(&self) -> Collective {
        self.collective
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The actual number of elements, S, after rounding.
    pub fn elements(&self) -> usize {
        let shape = self.shape(self.root);
        shape.input_len(0).max(shape.output_len(0))
    }

    /// The shape of one rank. In a reduce only the root has an output, except in place.
    pub fn shape(&self, rank: Rank) -> Shape<'_> {
        use Collective::*;
        let Self { collective, root, inputs, outputs, .. } = *self;
        let is_root = rank == root;
        let (inputs, outputs) = match collective {
            Reduce if !is_root && inputs > 0 => (inputs, 0),
            Broadcast if !is_root => (0, outputs.max(1)),
            Gather | Gatherv if !is_root => (1, 0),
            Scatter | Scatterv if !is_root => (0, 1),
            Barrier => (0, 0),
            _ => (inputs, outputs),
        };
        let (sent, received) = (&self.sent[rank % self.sent.len()], &self.received[rank % self.received.len()]);
        Shape {
            root,
            count: match collective {
                Gatherv => received[rank],
                Scatterv => sent[rank],
                _ => self.count,
            },
            send_counts: sent,
            recv_counts: received,
            inputs,
            outputs,
            average: self.average,
            order: self.order,
            base: self.base,
            destinations: if collective == PairwiseExchange { self.ranks.max(1).ilog2() as usize } else { 0 },
            groups: &self.groups,
            shared: self.shared,
            domains: &self.domains,
            dims: &self.dims,
            links: &self.links,
            counts: &self.counts,
            ..Shape::new(collective, rank, self.ranks, 0)
        }
    }

    /// The shapes of all ranks, in rank order.
    pub fn shapes(&self) -> Vec<Shape<'_>> {
        (0..self.ranks).map(|rank| self.shape(rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::verify;

    #[test]
    fn every_collective_can_be_called_and_is_right() {
        for &collective in Collective::ALL {
            for (ranks, elements) in [(1, 5), (4, 1), (4, 64), (8, 103)] {
                let calls = Calls::new(collective, ranks, elements, ranks / 2);
                verify(&calls.shapes(), &collective.algorithms()[0]).unwrap();
            }
        }
    }

    #[test]
    fn sizes_are_those_of_the_larger_buffer() {
        for &collective in Collective::ALL {
            let calls = Calls::new(collective, 8, 103, 0);
            let shape = calls.shape(0);
            let larger = shape.input_len(0).max(shape.output_len(0));
            assert_eq!(calls.elements(), larger, "{}", collective.name());
            assert!(larger == 0 || (larger > 103 - 8 && larger <= 103), "{}: {larger}", collective.name());
        }
    }
}
