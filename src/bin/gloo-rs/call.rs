//! A collective call of so many bytes, as every rank would make it: for what is computed without running anything.

use gloo_rs::collective::{Collective, Shape, Uses};
use gloo_rs::schedule::split;

/// One call of all ranks. The v forms' blocks are as equal as can be.
#[derive(Clone, Debug)]
pub struct Call {
    collective: Collective,
    ranks: usize,
    root: usize,
    count: usize,
    /// Elements of each rank, where the collective has such.
    counts: Vec<usize>,
    destinations: usize,
    elements: usize,
    /// What [`Shape::groups`], [`Shape::dims`], [`Shape::links`] and [`Shape::base`] say.
    pub groups: Vec<u32>,
    pub dims: Vec<usize>,
    pub links: Vec<u32>,
    pub base: usize,
    /// [`Shape::counts`].
    all_counts: Vec<usize>,
}

impl Call {
    /// `elements` are those of S in docs/tool.md, the larger of a rank's two buffers; what does not divide evenly is rounded
    /// down, to one element at least.
    pub fn new(collective: Collective, ranks: usize, elements: usize, root: usize) -> Self {
        use Collective::*;
        let destinations = ranks.max(1).ilog2() as usize;
        let whole = elements.max(1);
        let (parts, blocks) = match collective {
            Allreduce | Reduce | Broadcast | Scan | Exscan => (1, false),
            ReduceScatter | Allgatherv | Gatherv | Scatterv => (1, true),
            Allgather | Gather | Scatter | Alltoall | Alltoallv => (ranks, false),
            PairwiseExchange => (destinations.max(1), false),
            Barrier => (0, false),
        };
        let count = whole.checked_div(parts).map_or(0, |count| count.max(1));
        let counts = match collective {
            Alltoallv => vec![count; ranks],
            _ if blocks => (0..ranks).map(|rank| split(whole, ranks, rank).1).collect(),
            _ => Vec::new(),
        };
        Self {
            collective,
            ranks,
            root,
            count,
            counts,
            destinations,
            elements: count.saturating_mul(parts),
            groups: Vec::new(),
            dims: Vec::new(),
            links: Vec::new(),
            base: 2,
            all_counts: Vec::new(),
        }
    }

    /// Tells what an algorithm that uses more than sizes must know.
    pub fn tell(&mut self, uses: Uses) {
        self.all_counts = match (uses, self.collective) {
            (Uses::Counts, Collective::Alltoallv) => vec![self.count; self.ranks * self.ranks],
            (Uses::Counts, _) => self.counts.clone(),
            _ => Vec::new(),
        };
    }

    /// S in elements, as rounded.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The call of one rank.
    pub fn shape(&self, rank: usize) -> Shape<'_> {
        use Collective::*;
        let is_root = rank == self.root;
        let (inputs, outputs) = match self.collective {
            Reduce | Gather | Gatherv => (1, usize::from(is_root)),
            Broadcast => (0, 1),
            Scatter | Scatterv => (usize::from(is_root), 1),
            Barrier => (0, 0),
            _ => (1, 1),
        };
        let own = matches!(self.collective, Gatherv | Scatterv);
        let sends = matches!(self.collective, Alltoallv | Scatterv);
        let receives = matches!(self.collective, Alltoallv | ReduceScatter | Allgatherv | Gatherv);
        Shape {
            root: self.root,
            count: if own { self.counts[rank] } else { self.count },
            send_counts: if sends { &self.counts } else { &[] },
            recv_counts: if receives { &self.counts } else { &[] },
            inputs,
            outputs,
            base: self.base,
            destinations: self.destinations,
            groups: &self.groups,
            dims: &self.dims,
            links: &self.links,
            counts: &self.all_counts,
            ..Shape::new(self.collective, rank, self.ranks, 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gloo_rs::collective::verify;

    #[test]
    fn every_collective_can_be_called_and_is_right() {
        for &collective in Collective::ALL {
            for (ranks, elements) in [(1, 5), (4, 1), (4, 64), (8, 103)] {
                let call = Call::new(collective, ranks, elements, ranks / 2);
                let shapes: Vec<_> = (0..ranks).map(|rank| call.shape(rank)).collect();
                verify(&shapes, &collective.algorithms()[0]).unwrap();
            }
        }
    }

    #[test]
    fn sizes_are_those_of_the_larger_buffer() {
        for &collective in Collective::ALL {
            let call = Call::new(collective, 8, 103, 0);
            let shape = call.shape(0);
            let larger = shape.input_len(0).max(shape.output_len(0));
            assert_eq!(call.elements(), larger, "{}", collective.name());
            assert!(larger == 0 || (larger > 103 - 8 && larger <= 103), "{}: {larger}", collective.name());
        }
    }
}
