//! What each collective promises, element by element: the other half of a proof that an algorithm is right. Written from
//! the table at [`Shape`] only, not from the algorithms.

use super::shape::block;
use super::{Algorithm, Collective, Shape};
use crate::error::Result;
use crate::schedule::verify::{Contract, Expect, Leaf, Report};
use crate::schedule::{Buffer, Schedule, verify as prove};
use crate::types::Rank;

/// The promise of one call, given the shapes of all ranks in the order of ranks.
pub struct Promise<'a>(pub &'a [Shape<'a>]);

/// Generates the schedules of all ranks with `algorithm` and proves them; the shapes are those of all ranks, in order.
pub fn verify(shapes: &[Shape<'_>], algorithm: &Algorithm) -> Result<Report> {
    let generate = |shape: &Shape<'_>| {
        shape.check()?;
        (algorithm.generate)(shape)
    };
    let schedules = shapes.iter().map(generate).collect::<Result<Vec<Schedule>>>()?;
    prove(&schedules, &Promise(shapes))
}

impl Promise<'_> {
    fn reduced(shape: &Shape<'_>, ranks: std::ops::Range<Rank>, element: usize) -> Expect {
        let in_order = matches!(shape.collective, Collective::Scan | Collective::Exscan);
        Expect::Reduced { ranks, element, divisor: u64::from(shape.divisor()), in_order }
    }

    /// Whose block element `index` lies in, and where in it.
    fn find(counts: &[usize], index: usize) -> (Rank, usize) {
        let rank = (0..counts.len()).find(|&rank| index < block(counts, rank).0 + counts[rank]);
        let rank = rank.expect("the index lies in the buffer");
        (rank, index - block(counts, rank).0)
    }
}

impl Contract for Promise<'_> {
    fn ranks(&self) -> usize {
        self.0.len()
    }

    fn len(&self, rank: Rank, buffer: Buffer) -> Option<usize> {
        let shape = &self.0[rank];
        match buffer {
            Buffer::Input(index) => ((index as usize) < shape.inputs).then(|| shape.input_len(index as usize)),
            Buffer::Output(index) => ((index as usize) < shape.outputs).then(|| shape.output_len(index as usize)),
            Buffer::Scratch => None,
        }
    }

    fn contributions(&self, rank: Rank) -> u32 {
        self.0[rank].contributions().max(1) as u32
    }

    fn initial(&self, rank: Rank, buffer: Buffer, index: usize) -> Option<Leaf> {
        use Collective::*;
        let shape = &self.0[rank];
        let output = match buffer {
            Buffer::Input(input) => return Some(Leaf { rank, input, element: index }),
            Buffer::Output(output) if shape.inputs == 0 => output,
            _ => return None,
        };
        let is_root = rank == shape.root;
        // The own block, in those collectives where only that lies in the output.
        let own = match shape.collective {
            Allgather | Gather => (rank * shape.count, shape.count),
            Allgatherv | Gatherv if rank < shape.recv_counts.len() => block(shape.recv_counts, rank),
            _ => (0, usize::MAX),
        };
        let holds = match shape.collective {
            Allreduce | Reduce | ReduceScatter | Scan | Exscan | Alltoall => true,
            Broadcast => is_root && output == 0,
            Scatter | Scatterv => is_root,
            Allgather | Allgatherv | Gather | Gatherv => (own.0..own.0 + own.1).contains(&index),
            Alltoallv | Barrier | PairwiseExchange => false,
        };
        holds.then(|| Leaf { rank, input: output, element: index - own.0 })
    }

    fn expected(&self, rank: Rank, _output: u32, index: usize) -> Expect {
        use Collective::*;
        let shape = &self.0[rank];
        let Shape { size, root, count, .. } = *shape;
        let copy = |rank, input: usize, element| Expect::Copy(Leaf { rank, input: input as u32, element });
        match shape.collective {
            Allreduce => Self::reduced(shape, 0..size, index),
            Reduce if rank == root => Self::reduced(shape, 0..size, index),
            Reduce => Expect::Untouched,
            ReduceScatter => match block(shape.recv_counts, rank) {
                (offset, len) if index < len => Self::reduced(shape, 0..size, offset + index),
                _ => Expect::Anything,
            },
            Broadcast => copy(root, 0, index),
            Allgather => {
                let inputs = shape.inputs.max(1);
                copy(index / (count * inputs), index / count % inputs, index % count)
            }
            Gather => copy(index / count, 0, index % count),
            Allgatherv | Gatherv => {
                let (from, element) = Self::find(shape.recv_counts, index);
                copy(from, 0, element)
            }
            Scatter if index >= count => Expect::Anything,
            Scatter if self.0[root].inputs > 1 => copy(root, rank, index),
            Scatter => copy(root, 0, rank * count + index),
            Scatterv => match block(self.0[root].send_counts, rank) {
                (offset, len) if index < len => copy(root, 0, offset + index),
                _ => Expect::Anything,
            },
            Alltoall => copy(index / count, 0, rank * count + index % count),
            Alltoallv => {
                let (from, element) = Self::find(shape.recv_counts, index);
                copy(from, 0, block(self.0[from].send_counts, rank).0 + element)
            }
            Barrier => Expect::Anything,
            PairwiseExchange => copy(rank ^ (1 << (index / count)), 0, index),
            Scan => Self::reduced(shape, 0..rank + 1, index),
            Exscan if rank == 0 => Expect::Untouched,
            Exscan => Self::reduced(shape, 0..rank, index),
        }
    }

    fn synchronizes(&self) -> bool {
        self.0.iter().any(|shape| shape.collective == Collective::Barrier)
    }
}
