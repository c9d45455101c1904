//! A collective call on buffers in any memory, and what its results must be.

use std::sync::Arc;
use std::time::Duration;

use crate::collective::{Collective, CollectiveContract, Shape};
use crate::context::{Call, Context, wait_for_several};
use crate::error::Result;
use crate::memory::Memory;
use crate::schedule::Buffer;
use crate::schedule::verify::{Contract, Expect, Leaf};
use crate::testing::cuda::driver::{Kind, Machine};
use crate::testing::reductions::Random;
use crate::types::{DataType, Rank, ReduceOp};

/// Less than a message takes.
const SHORT: Duration = Duration::from_micros(1);

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    Host,
    Driver(Kind),
}

/// A buffer of numbers.
pub(super) struct Numbers {
    /// The memory of a buffer on the host, which is accessed by its address.
    _host: Vec<i64>,
    pub len: usize,
    pub address: u64,
    pub place: Place,
}

impl Numbers {
    pub fn new(machine: &Machine, place: Place, mut content: Vec<i64>) -> Self {
        let address = match place {
            Place::Host => content.as_mut_ptr().expose_provenance() as u64,
            Place::Driver(kind) => machine.allocate(kind, 8 * content.len()),
        };
        if place != Place::Host && !content.is_empty() {
            let bytes: Vec<u8> = content.iter().flat_map(|value| value.to_ne_bytes()).collect();
            machine.write(address, &bytes);
        }
        Self { len: content.len(), _host: content, address, place }
    }

    pub fn content(&self, machine: &Machine) -> Vec<i64> {
        if self.place == Place::Host {
            let numbers = std::ptr::with_exposed_provenance::<i64>(self.address as usize);
            // SAFETY: the vector has these numbers, and no call accesses them.
            return unsafe { std::slice::from_raw_parts(numbers, self.len) }.to_vec();
        }
        if self.len == 0 {
            return Vec::new();
        }
        let bytes = machine.read(self.address, 8 * self.len);
        bytes.chunks(8).map(|value| i64::from_ne_bytes(value.try_into().unwrap())).collect()
    }

    pub fn free(&self, machine: &Machine) {
        if self.place != Place::Host {
            machine.free(self.address);
        }
    }
}

/// A collective call by all ranks.
pub(super) struct Case {
    pub collective: Collective,
    pub size: usize,
    pub root: Rank,
    pub count: usize,
    pub counts: Vec<usize>,
    pub in_place: bool,
    /// Buffers where a rank may have several.
    pub several: usize,
    pub op: ReduceOp,
    /// Whether the call is made by a request, which is waited for in one of several ways.
    pub by_request: bool,
    pub memory: Memory,
    pub seed: u64,
}

impl Case {
    pub fn random(random: &mut Random, collective: Collective, size: usize) -> Self {
        let in_place = random.below(3) == 0;
        Self {
            collective,
            size,
            root: random.below(size),
            count: random.below(30),
            counts: (0..size).map(|_| random.below(20)).collect(),
            in_place,
            several: 1 + random.below(3),
            op: [ReduceOp::Sum, ReduceOp::Sum, ReduceOp::Average][random.below(3)],
            by_request: random.below(2) == 0,
            memory: Memory::Auto,
            seed: random.next(),
        }
    }

    fn shape(&self, rank: Rank) -> Shape<'_> {
        use Collective::*;
        let is_root = rank == self.root;
        let (mut inputs, mut outputs) = match self.collective {
            Barrier => (0, 0),
            Allreduce => (self.several, self.several),
            Reduce => (self.several, usize::from(is_root)),
            ReduceScatter | Allgather => (self.several, 1),
            Broadcast => (usize::from(is_root), self.several),
            Gather | Gatherv => (1, usize::from(is_root)),
            Scatter | Scatterv => (usize::from(is_root), 1),
            _ => (1, 1),
        };
        let may = match self.collective {
            Allreduce | ReduceScatter | Allgatherv | Alltoall | Scan | Exscan => true,
            Allgather => self.several == 1,
            Reduce | Broadcast | Gather | Gatherv | Scatter | Scatterv => is_root,
            Alltoallv | Barrier | PairwiseExchange => false,
        };
        if self.in_place && may {
            (inputs, outputs) = (0, outputs.max(1));
        }
        let count = match self.collective {
            Gatherv | Scatterv => self.counts[rank],
            _ => self.count,
        };
        Shape {
            root: self.root,
            send_counts: &self.counts,
            recv_counts: &self.counts,
            inputs,
            outputs,
            average: self.op() == ReduceOp::Average,
            destinations: if self.size.is_power_of_two() { self.size.ilog2() as usize } else { 0 },
            ..Shape::new(self.collective, rank, self.size, count)
        }
    }

    /// Averages are for some collectives, and where all ranks have as many contributions.
    fn op(&self) -> ReduceOp {
        match self.op {
            ReduceOp::Average if self.collective.reduces_by(ReduceOp::Average) && !self.in_place => self.op,
            _ => ReduceOp::Sum,
        }
    }

    fn leaf(&self, leaf: Leaf) -> i64 {
        let Leaf { rank, input, element } = leaf;
        let mixed = (rank as u64 + 1) * 0x9E37_79B9 + element as u64 * 31 + u64::from(input) * 7;
        (self.seed ^ mixed.wrapping_mul(0x5851_F42D_4C95_7F2D)) as i64 >> 12
    }

    /// Makes the call on `context`, with each buffer where `place` says. The result is checked.
    pub fn run(&self, machine: &Machine, context: &Arc<Context>, place: impl Fn() -> Place) -> Result<()> {
        let rank = context.rank();
        let shapes: Vec<_> = (0..self.size).map(|rank| self.shape(rank)).collect();
        let rows: Vec<Vec<usize>> = self.counts.iter().map(|count| vec![*count; self.size]).collect();
        // In an alltoallv rank i sends as many elements to every rank.
        let is_alltoallv = self.collective == Collective::Alltoallv;
        let each = shapes.into_iter().zip(&rows);
        let shapes: Vec<Shape<'_>> =
            each.map(|(shape, row)| if is_alltoallv { Shape { send_counts: row, ..shape } } else { shape }).collect();
        let (shape, contract) = (shapes[rank], CollectiveContract::new(&shapes));
        let initial = |buffer, len| {
            let value = |i| contract.initial(rank, buffer, i).map_or(-1, |leaf| self.leaf(leaf));
            Numbers::new(machine, place(), (0..len).map(value).collect())
        };
        let inputs = (0..shape.inputs).map(|n| initial(Buffer::Input(n as u32), shape.input_len(n)));
        let inputs: Vec<Numbers> = inputs.collect();
        let outputs = (0..shape.outputs).map(|n| initial(Buffer::Output(n as u32), shape.output_len(n)));
        let outputs: Vec<Numbers> = outputs.collect();
        let pointer = |buffer: &Numbers| std::ptr::with_exposed_provenance_mut::<u8>(buffer.address as usize);
        let call = Call {
            inputs: &inputs.iter().map(|input| pointer(input).cast_const()).collect::<Vec<_>>(),
            outputs: &outputs.iter().map(pointer).collect::<Vec<_>>(),
            reduction: crate::context::Reduction::Op(self.op()),
            memory: self.memory,
            ..Call::new(shape, DataType::Int64)
        };
        let by_request = || {
            context.check(&call, None)?;
            let in_order = self.seed.is_multiple_of(2);
            // SAFETY: the buffers have the lengths given by the shape and live until the request is dropped.
            let request = unsafe { context.request_checked(&call, None, None, in_order) }?;
            request.start()?;
            match self.seed / 2 % 3 {
                0 => request.wait(),
                1 => {
                    while !request.wait_for(SHORT)? {}
                    Ok(())
                }
                _ => {
                    let mut result = Ok(());
                    let first = |_, ended: Result<()>| {
                        result = ended;
                        true
                    };
                    wait_for_several(&[Some(&request)], None, first)?;
                    result
                }
            }
        };
        // SAFETY: the buffers have the lengths given by the shape and live until the call has ended.
        let result = if self.by_request { by_request() } else { unsafe { context.run(&call) } };
        if result.is_ok() {
            for (n, output) in outputs.iter().enumerate() {
                for (index, value) in output.content(machine).into_iter().enumerate() {
                    let expected = match contract.expected(rank, n as u32, index) {
                        Expect::Copy(leaf) => self.leaf(leaf),
                        Expect::Reduced { ranks, element, divisor, .. } => {
                            let inputs = |rank| (0..contract.contributions(rank)).map(move |input| (rank, input));
                            let leaves = ranks.flat_map(inputs);
                            let leaves = leaves.map(|(rank, input)| self.leaf(Leaf { rank, input, element }));
                            leaves.fold(0i64, i64::wrapping_add) / divisor as i64
                        }
                        Expect::Untouched => {
                            contract.initial(rank, Buffer::Output(n as u32), index).map_or(-1, |leaf| self.leaf(leaf))
                        }
                        Expect::Anything => continue,
                    };
                    assert_eq!(value, expected, "{}: output {n}, element {index}", self.text(rank));
                }
            }
            for (n, input) in inputs.iter().enumerate() {
                let own = |element| self.leaf(Leaf { rank, input: n as u32, element });
                assert!(input.content(machine).into_iter().enumerate().all(|(i, value)| value == own(i)));
            }
        }
        inputs.iter().chain(&outputs).for_each(|buffer| buffer.free(machine));
        result
    }

    pub fn text(&self, rank: Rank) -> String {
        let Self { collective, size, root, count, counts, in_place, several, by_request, .. } = self;
        format!(
            "{} on rank {rank} of {size}: {count} {counts:?}, root {root}, in place {in_place}, {several} buffers, {}, \
             by request {by_request}",
            collective.name(),
            self.op()
        )
    }
}
