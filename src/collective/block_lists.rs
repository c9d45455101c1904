//! Calls with a buffer of the caller's for each block, in place of one that has a block for each rank.

use super::{Algorithm, Collective, Shape};
use crate::error::Result;
use crate::schedule::{Buffer, Schedule};
use crate::types::Rank;

impl Collective {
    /// Whether a buffer of this collective may have one block per rank.
    pub const fn has_blocks(self) -> bool {
        use Collective::*;
        matches!(
            self,
            ReduceScatter | Allgather | Allgatherv | Gather | Gatherv | Scatter | Scatterv | Alltoall | Alltoallv
        )
    }
}

impl Shape<'_> {
    /// Elements of the block of `rank` in the input, or in the output, if the caller has a buffer for each.
    fn block(&self, output: bool, rank: Rank) -> Option<usize> {
        use Collective::*;
        let of = |counts: &[usize]| Some(counts.get(rank).copied().unwrap_or(0));
        let buffers = if output { self.outputs } else { self.inputs };
        match (self.collective, output) {
            _ if !self.blocks || buffers == 0 => None,
            (ReduceScatter, false) | (Allgatherv | Gatherv | Alltoallv, true) => of(self.recv_counts),
            (Scatterv | Alltoallv, false) => of(self.send_counts),
            (Allgather, true) => Some(self.count.saturating_mul(self.inputs.max(1))),
            (Gather | Alltoall, true) | (Scatter | Alltoall, false) => Some(self.count),
            _ => None,
        }
    }

    /// The numbers of the caller's input and output buffers.
    #[inline]
    pub fn buffers(&self) -> (usize, usize) {
        if !self.blocks {
            return (self.inputs, self.outputs);
        }
        let number = |output, buffers| if self.block(output, 0).is_some() { self.size } else { buffers };
        (number(false, self.inputs), number(true, self.outputs))
    }

    /// Elements of the caller's input buffer `index`.
    pub fn input_buffer_len(&self, index: usize) -> usize {
        self.block(false, index).unwrap_or_else(|| self.input_len(index))
    }

    /// Elements of the caller's output buffer `index`.
    pub fn output_buffer_len(&self, index: usize) -> usize {
        self.block(true, index).unwrap_or_else(|| self.output_len(index))
    }

    /// This shape of a call whose `inputs` and `outputs` are those of the caller, with a buffer for each block.
    pub fn in_blocks(self) -> Result<Self> {
        let given = Self { blocks: true, ..self };
        let mut shape = given;
        for (output, number) in [(false, self.inputs), (true, self.outputs)] {
            let one = if output { &mut shape.outputs } else { &mut shape.inputs };
            if given.block(output, 0).is_some() {
                if number != self.size {
                    let kind = if output { "outputs" } else { "inputs" };
                    return Err(self.refuse(format!("{kind} is {number}; with blocks it must be {}", self.size)));
                }
                *one = 1;
            }
        }
        Ok(shape)
    }

    /// Refuses calls in place that have no blocks, and collectives without blocks.
    pub(super) fn check_blocks(&self) -> Result<()> {
        use Collective::*;
        if !self.blocks {
            return Ok(());
        }
        if !self.collective.has_blocks() {
            return Err(self.refuse("no buffer has a block for each rank".into()));
        }
        let needs_input = match self.collective {
            ReduceScatter => true,
            Scatter | Scatterv => self.rank == self.root,
            _ => false,
        };
        if needs_input && self.inputs == 0 {
            return Err(self.refuse(format!("inputs is 0; with blocks it must be {}", self.size)));
        }
        if needs_input && self.inputs > 1 {
            return Err(self.refuse("with blocks there is one contribution".into()));
        }
        Ok(())
    }

    /// Where element `index` of a buffer of the caller is if blocks are contiguous.
    pub(super) fn contiguous(&self, buffer: Buffer, index: usize) -> (Buffer, usize) {
        let start = |output, block| match self.block(output, 0) {
            Some(_) => (0..block as usize).filter_map(|rank| self.block(output, rank)).sum::<usize>(),
            None => 0,
        };
        match buffer {
            Buffer::Input(block) if self.block(false, 0).is_some() => (Buffer::Input(0), start(false, block) + index),
            Buffer::Output(block) if self.block(true, 0).is_some() => (Buffer::Output(0), start(true, block) + index),
            other => (other, index),
        }
    }

    /// The lengths of the blocks, of the output or of the input, if the caller has a buffer for each.
    pub(super) fn blocks_of(&self, output: bool) -> Option<Vec<usize>> {
        (0..self.size).map(|rank| self.block(output, rank)).collect()
    }
}

impl Algorithm {
    /// The schedule of the rank of `shape`, for the buffers that its caller has.
    pub fn schedule(&self, shape: &Shape<'_>) -> Result<Schedule> {
        let schedule = (self.generate)(shape)?;
        if !shape.blocks {
            return Ok(schedule);
        }
        Ok(schedule.in_blocks(shape.blocks_of(false).as_deref(), shape.blocks_of(true).as_deref()))
    }
}
