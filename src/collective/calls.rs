//! One call as every rank makes it: for what is computed about a call without running it, in the tool and in tests.

use super::{Collective, Shape};
use crate::schedule::split;
use crate::types::Rank;

/// The shapes of all ranks of one call.
#[derive(Clone, Debug)]
pub struct Calls {
    collective: Collective,
    ranks: usize,
    root: Rank,
    /// Elements, where all ranks have the same number.
    count: usize,
    /// Of what each rank sends to each, or receives from each: a row for every rank, or one row that all have.
    sent: Vec<Vec<usize>>,
    received: Vec<Vec<usize>>,
    /// Input and output buffers, where there are any: of the root, if it has others than the rest.
    pub inputs: usize,
    /// See [`Calls::inputs`].
    pub outputs: usize,
    /// See [`Shape::average`].
    pub average: bool,
    /// See [`Shape::base`].
    pub base: usize,
    /// See [`Shape::groups`].
    pub groups: Vec<u32>,
    /// See [`Shape::dims`].
    pub dims: Vec<usize>,
    /// See [`Shape::links`].
    pub links: Vec<u32>,
    /// See [`Shape::counts`].
    pub told: Vec<usize>,
}

impl Calls {
    /// `elements` are those of S in docs/tool.md, the larger of a rank's two buffers; what does not divide evenly is rounded
    /// down, to one element at least. The v forms' blocks are as equal as can be.
    pub fn new(collective: Collective, ranks: usize, elements: usize, root: Rank) -> Self {
        use Collective::*;
        let whole = elements.max(1);
        let each = |parts: usize| (whole / parts.max(1)).max(1);
        match collective {
            Allreduce | Reduce | Broadcast | Scan | Exscan => Self::of_count(collective, ranks, whole, root),
            ReduceScatter | Allgatherv | Gatherv | Scatterv => {
                Self::of_blocks(collective, (0..ranks).map(|rank| split(whole, ranks, rank).1).collect(), root)
            }
            // What every rank has told would be too much of more ranks.
            Alltoallv if ranks > 4096 => Self { told: Vec::new(), ..Self::of_row(vec![each(ranks); ranks]) },
            Alltoallv => Self::of_row(vec![each(ranks); ranks]),
            Allgather | Gather | Scatter | Alltoall => Self::of_count(collective, ranks, each(ranks), root),
            PairwiseExchange => Self::of_count(collective, ranks, each(ranks.max(1).ilog2() as usize), root),
            Barrier => Self::of_count(collective, ranks, 0, root),
        }
    }

    /// A call in which every rank has [`Shape::count`] elements; not of a v form.
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
            base: 2,
            groups: Vec::new(),
            dims: Vec::new(),
            links: Vec::new(),
            told: Vec::new(),
        }
    }

    /// A reduce_scatter, allgatherv, gatherv or scatterv of these blocks, one for each rank.
    pub fn of_blocks(collective: Collective, blocks: Vec<usize>, root: Rank) -> Self {
        use Collective::*;
        let none = vec![Vec::new()];
        let told = if matches!(collective, Gatherv | Scatterv) { blocks.clone() } else { Vec::new() };
        let ranks = blocks.len();
        let (sent, received) = if collective == Scatterv { (vec![blocks], none) } else { (none, vec![blocks]) };
        Self { sent, received, told, ..Self::of_count(collective, ranks, 0, root) }
    }

    /// An alltoallv in which every rank sends its row.
    pub fn of_rows(sent: Vec<Vec<usize>>) -> Self {
        let received = (0..sent.len()).map(|rank| sent.iter().map(|row| row[rank]).collect()).collect();
        let (ranks, told) = (sent.len(), sent.concat());
        Self { sent, received, told, ..Self::of_count(Collective::Alltoallv, ranks, 0, 0) }
    }

    /// The same, in which all send the same row, of equal entries.
    fn of_row(row: Vec<usize>) -> Self {
        let (ranks, told) = (row.len(), row.repeat(row.len()));
        let (sent, received) = (vec![row.clone()], vec![row]);
        Self { sent, received, told, ..Self::of_count(Collective::Alltoallv, ranks, 0, 0) }
    }

    /// Which collective.
    pub fn collective(&self) -> Collective {
        self.collective
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// S in elements, as rounded.
    pub fn elements(&self) -> usize {
        let shape = self.shape(self.root);
        shape.input_len(0).max(shape.output_len(0))
    }

    /// The call of one rank. Of a reduce, only the root has an output, unless the others' is their input.
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
            base: self.base,
            destinations: if collective == PairwiseExchange { self.ranks.max(1).ilog2() as usize } else { 0 },
            groups: &self.groups,
            dims: &self.dims,
            links: &self.links,
            counts: &self.told,
            ..Shape::new(collective, rank, self.ranks, 0)
        }
    }

    /// The calls of all ranks.
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
