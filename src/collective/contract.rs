//! The required result of each collective, element by element. The verifier compares schedules with it. It is derived
//! only from the table at [`Shape`], not from the algorithms.

use super::{Algorithm, Collective, Shape};
use crate::error::Result;
use crate::schedule::verify::{Contract, Expect, Leaf, Report};
use crate::schedule::{Buffer, verify as prove};
use crate::types::Rank;

/// The required result of one call.
pub struct CollectiveContract<'a> {
    shapes: &'a [Shape<'a>],
    /// Indexed by rank: the offset of each block, followed by the end of the last block.
    sent: Vec<Vec<usize>>,
    received: Vec<Vec<usize>>,
}

/// Generates the schedules of all ranks with `algorithm` and verifies them. `shapes` are the shapes of all ranks, in
/// rank order.
pub fn verify(shapes: &[Shape<'_>], algorithm: &Algorithm) -> Result<Report> {
    shapes.iter().try_for_each(Shape::check)?;
    let mut failed = None;
    let schedules = shapes.iter().map_while(|shape| algorithm.schedule(shape).map_err(|e| failed = Some(e)).ok());
    let report = prove(schedules, &CollectiveContract::new(shapes));
    failed.map_or(report, Err)
}

impl<'a> CollectiveContract<'a> {
    /// The contract of the call whose shapes, in rank order, are `shapes`.
    pub fn new(shapes: &'a [Shape<'a>]) -> Self {
        let begins = |counts: &[usize]| {
            let ends = counts.iter().scan(0usize, |end, &count| {
                *end = end.saturating_add(count);
                Some(*end)
            });
            std::iter::once(0).chain(ends).collect()
        };
        let sent = shapes.iter().map(|shape| begins(shape.send_counts)).collect();
        let received = shapes.iter().map(|shape| begins(shape.recv_counts)).collect();
        Self { shapes, sent, received }
    }
}

impl CollectiveContract<'_> {
    fn reduced(shape: &Shape<'_>, ranks: std::ops::Range<Rank>, element: usize) -> Expect {
        let in_order = matches!(shape.collective, Collective::Scan | Collective::Exscan);
        Expect::Reduced { ranks, element, divisor: u64::from(shape.divisor()), in_order }
    }

    /// Returns the rank to whose block element `index` that `rank` receives belongs, and its offset in that block.
    fn find(&self, rank: Rank, index: usize) -> (Rank, usize) {
        let begins = &self.received[rank];
        let from = begins.partition_point(|&begin| begin <= index) - 1;
        (from, index - begins[from])
    }
}

/// Offset and length of block `index`; `begins` are the offsets of the blocks and the end of the last.
fn block(begins: &[usize], index: usize) -> (usize, usize) {
    (begins[index], begins[index + 1] - begins[index])
}

impl Contract for CollectiveContract<'_> {
    fn ranks(&self) -> usize {
        self.shapes.len()
    }

    fn len(&self, rank: Rank, buffer: Buffer) -> Option<usize> {
        let shape = &self.shapes[rank];
        match buffer {
            Buffer::Input(index) => {
                ((index as usize) < shape.buffers().0).then(|| shape.input_buffer_len(index as usize))
            }
            Buffer::Output(index) => {
                ((index as usize) < shape.buffers().1).then(|| shape.output_buffer_len(index as usize))
            }
            Buffer::Scratch => None,
        }
    }

    fn contributions(&self, rank: Rank) -> u32 {
        self.shapes[rank].contributions().max(1) as u32
    }

    fn initial(&self, rank: Rank, buffer: Buffer, index: usize) -> Option<Leaf> {
        use Collective::*;
        let shape = &self.shapes[rank];
        let (buffer, index) = shape.contiguous(buffer, index);
        let output = match buffer {
            Buffer::Input(input) => return Some(Leaf { rank, input, element: index }),
            Buffer::Output(output) if shape.inputs == 0 => output,
            _ => return None,
        };
        let is_root = rank == shape.root;
        // The part of the output that holds this rank's input, for collectives where that is only its own block.
        let own = match shape.collective {
            Allgather | Gather => (rank * shape.count, shape.count),
            Allgatherv | Gatherv if rank < shape.recv_counts.len() => block(&self.received[rank], rank),
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

    fn expected(&self, rank: Rank, output: u32, index: usize) -> Expect {
        use Collective::*;
        let shape = &self.shapes[rank];
        let (_, index) = shape.contiguous(Buffer::Output(output), index);
        let Shape { size, root, count, .. } = *shape;
        let copy = |rank, input: usize, element| Expect::Copy(Leaf { rank, input: input as u32, element });
        match shape.collective {
            Allreduce => Self::reduced(shape, 0..size, index),
            Reduce if rank == root => Self::reduced(shape, 0..size, index),
            Reduce => Expect::Untouched,
            ReduceScatter => match block(&self.received[rank], rank) {
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
                let (from, element) = self.find(rank, index);
                copy(from, 0, element)
            }
            Scatter if index >= count => Expect::Anything,
            Scatter if self.shapes[root].inputs > 1 => copy(root, rank, index),
            Scatter => copy(root, 0, rank * count + index),
            Scatterv => match block(&self.sent[root], rank) {
                (offset, len) if index < len => copy(root, 0, offset + index),
                _ => Expect::Anything,
            },
            Alltoall => copy(index / count, 0, rank * count + index % count),
            Alltoallv => {
                let (from, element) = self.find(rank, index);
                copy(from, 0, self.sent[from][rank] + element)
            }
            Barrier => Expect::Anything,
            PairwiseExchange => copy(rank ^ (1 << (index / count)), 0, index),
            Scan => Self::reduced(shape, 0..rank + 1, index),
            Exscan if rank == 0 => Expect::Untouched,
            Exscan => Self::reduced(shape, 0..rank, index),
        }
    }

    fn host(&self, rank: Rank) -> u32 {
        self.shapes[rank].groups.get(rank).copied().unwrap_or(0)
    }

    fn synchronizes(&self) -> bool {
        self.shapes.iter().any(|shape| shape.collective == Collective::Barrier)
    }
}
