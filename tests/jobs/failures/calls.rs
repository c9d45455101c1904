//! Calls of any collective, whose results are not checked.

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, Reduction};
use gloo_rs::error::Error;
use gloo_rs::types::{DataType, ReduceOp};

/// A call on one rank. `count` is the length of each block, for the collectives with blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    pub collective: Collective,
    pub algorithm: Option<&'static str>,
    pub count: usize,
    pub dtype: DataType,
    pub op: ReduceOp,
    pub root: usize,
    pub tag: u64,
}

impl Case {
    pub fn new(collective: Collective, count: usize) -> Self {
        let (dtype, op) = (DataType::Float32, ReduceOp::Sum);
        Self { collective, algorithm: None, count, dtype, op, root: 0, tag: 3 }
    }

    pub fn run(&self, context: &Context) -> Result<(), Error> {
        use Collective::*;
        let (rank, size, collective) = (context.rank(), context.size(), self.collective);
        let is_root = rank == self.root;
        let counts = vec![self.count; size];
        let list = |holds: bool| if holds { &counts[..] } else { &[] };
        let (inputs, outputs) = match collective {
            Barrier => (0, 0),
            Broadcast | Scatter | Scatterv if !is_root => (0, 1),
            Reduce | Gather | Gatherv if !is_root => (1, 0),
            _ => (1, 1),
        };
        let shape = Shape {
            root: self.root,
            inputs,
            outputs,
            send_counts: list(collective == Alltoallv || collective == Scatterv && is_root),
            recv_counts: list(
                matches!(collective, ReduceScatter | Allgatherv | Alltoallv) || collective == Gatherv && is_root,
            ),
            destinations: if collective == PairwiseExchange { size.ilog2() as usize } else { 0 },
            ..Shape::new(collective, rank, size, self.count)
        };
        let bytes = self.dtype.size();
        let input = vec![0u8; shape.input_len(0) * bytes];
        let mut output = vec![0u8; shape.output_len(0) * bytes];
        let call = Call {
            inputs: &[input.as_ptr()][..inputs],
            outputs: &[output.as_mut_ptr()][..outputs],
            algorithm: self.algorithm,
            reduction: Reduction::Op(self.op),
            tag: self.tag,
            ..Call::new(shape, self.dtype)
        };
        // SAFETY: the vectors are as long as the shape says and live until the call returns.
        unsafe { context.run(&call) }
    }
}

/// A sum of ones over all ranks, whose result is checked.
pub fn count_ranks(context: &Context) -> Result<f32, Error> {
    let mut sums = vec![1f32; 1000];
    let call = Call {
        outputs: &[sums.as_mut_ptr().cast()],
        ..Call::new(
            Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), context.size(), sums.len()) },
            DataType::Float32,
        )
    };
    // SAFETY: the vector is as long as the shape says and lives until the call returns.
    unsafe { context.run(&call) }?;
    assert!(sums.iter().all(|s| *s == sums[0]));
    Ok(sums[0])
}
