//! Random collective calls and their expected results.

use std::sync::Arc;
use std::time::Duration;

use super::idle;
use crate::collective::{Algorithm, Collective, CollectiveContract, Order, Shape, Uses};
use crate::context::{Call, Context};
use crate::error::Result;
use crate::messaging::matching::EAGER_BYTES;
use crate::schedule::verify::{Contract, Expect, Leaf};
use crate::schedule::{Buffer, Schedule};
use crate::testing::loopback::{Network, Random};
use crate::types::{DataType, Rank};

/// A collective call by all ranks.
pub struct CollectiveCall {
    collective: Collective,
    algorithm: Option<&'static Algorithm>,
    root: Rank,
    count: usize,
    counts: Vec<usize>,
    in_place: bool,
    segment: Option<usize>,
    /// How often the call is made.
    rounds: usize,
    /// The ranks that make it by a persistent request, as bits.
    requests: u64,
    /// The cache of each rank, if all are on one host and share memory.
    caches: Vec<u32>,
    seed: i64,
}

/// A rank's buffers in a call. After the call they are filled with a pattern that must not change.
pub struct Buffers {
    inputs: Vec<Vec<i64>>,
    outputs: Vec<Vec<i64>>,
}

const PATTERN: i64 = 0x0bad_cafe_0bad_cafe;

impl Buffers {
    /// Fills the buffers with the pattern after the call.
    pub fn seal(&mut self) {
        self.inputs.iter_mut().chain(&mut self.outputs).for_each(|buffer| buffer.fill(PATTERN));
    }

    /// Whether the pattern is unchanged.
    pub fn are_sealed(&self) -> bool {
        self.inputs.iter().chain(&self.outputs).flatten().all(|value| *value == PATTERN)
    }
}

/// The collectives that support `size` ranks.
pub fn collectives(size: usize) -> impl Iterator<Item = Collective> {
    Collective::ALL.iter().copied().filter(move |c| *c != Collective::PairwiseExchange || size.is_power_of_two())
}

impl CollectiveCall {
    /// A random call for `size` ranks; with `large` its messages may be large enough to need a grant.
    pub fn random(random: &mut Random, size: usize, large: bool) -> Self {
        let all: Vec<_> = collectives(size).collect();
        let collective = all[random.below(all.len())];
        let algorithm = &collective.algorithms()[random.below(collective.algorithms().len())];
        let max = if large && random.one_in(6) { EAGER_BYTES / 8 + 600 } else { 40 };
        let auto = random.one_in(4);
        let rounds = if random.one_in(3) { 3 } else { 1 };
        Self { rounds, ..Self::new(random, collective, (!auto).then_some(algorithm), size, max) }
    }

    /// A random small call of another collective.
    pub fn another(&self, random: &mut Random) -> Self {
        let size = self.counts.len();
        let others: Vec<_> = collectives(size).filter(|other| *other != self.collective).collect();
        let other = others[random.below(others.len())];
        Self::new(random, other, None, size, 40)
    }

    /// A random call with at most `max` elements per rank.
    pub fn new(
        random: &mut Random,
        collective: Collective,
        algorithm: Option<&'static Algorithm>,
        size: usize,
        max: usize,
    ) -> Self {
        // Requests share counts only once, so either all ranks have one or none.
        let shares_counts = algorithm.is_some_and(|algorithm| algorithm.uses == Uses::Counts);
        Self {
            collective,
            // Not every algorithm supports every number of ranks; `auto` does.
            algorithm: algorithm.filter(|a| Self::serves(a, collective, size)),
            root: random.below(size),
            count: random.below(max + 1),
            counts: (0..size).map(|_| random.below(max + 1)).collect(),
            in_place: random.one_in(3),
            segment: random.one_in(2).then(|| 8 * (1 + random.below(64))),
            rounds: 1,
            requests: match random.below(3) {
                0 => 0,
                1 if !shares_counts => random.bits(),
                _ => u64::MAX,
            },
            seed: random.bits() as i64,
            caches: Vec::new(),
        }
    }

    /// A random call of an algorithm for ranks of one host, with at most `max` elements per rank.
    pub fn of_one_host(random: &mut Random, size: usize, max: usize) -> Self {
        let shared = |c: &Collective| c.algorithms().iter().filter(|a| a.uses.needs_shared_memory());
        let all: Vec<_> = collectives(size).flat_map(|c| shared(&c).map(move |algorithm| (c, algorithm))).collect();
        let (collective, algorithm) = all[random.below(all.len())];
        let caches = (0..size).map(|_| random.below(3) as u32).collect();
        Self { algorithm: Some(algorithm), caches, ..Self::new(random, collective, None, size, max) }
    }

    /// A plain call of `count` elements by the algorithm with this name.
    pub fn plain(collective: Collective, algorithm: &str, size: usize, count: usize) -> Self {
        let algorithm = Some(collective.algorithm(algorithm).unwrap());
        let any = Self::new(&mut Random::new(1), collective, None, size, 1);
        Self { algorithm, count, in_place: false, segment: None, requests: 0, ..any }
    }

    /// From now on, `context` executes the schedule that `generate` makes for this call, in place of the algorithm's.
    pub fn replace_schedule(&self, context: &Context, generate: fn(&Shape<'_>) -> Result<Schedule>) -> Result<()> {
        let rows = self.rows();
        let call = Call {
            algorithm: self.algorithm.map(|algorithm| algorithm.name),
            max_segment_bytes: self.segment,
            ..Call::new(self.shapes(&rows)[context.rank()], DataType::Int64)
        };
        context.replace_schedule(&call, generate)
    }

    /// A random allreduce, which may combine in the memory of each host, with at most `max` elements per rank.
    pub fn between_hosts(random: &mut Random, size: usize, max: usize) -> Self {
        let all: Vec<_> = Collective::Allreduce.algorithms().iter().filter(|a| a.uses == Uses::Groups).collect();
        let algorithm = (!random.one_in(4)).then(|| all[random.below(all.len())]);
        let rounds = if random.one_in(3) { 3 } else { 1 };
        Self { rounds, ..Self::new(random, Collective::Allreduce, algorithm, size, max) }
    }

    fn serves(algorithm: &Algorithm, collective: Collective, size: usize) -> bool {
        // Algorithms that need counts support any number of ranks once the counts are known.
        if algorithm.uses == Uses::Counts {
            return true;
        }
        let counts = vec![1; size];
        let buffers = usize::from(collective != Collective::Barrier);
        let shape = Shape {
            send_counts: &counts,
            recv_counts: &counts,
            inputs: buffers,
            outputs: buffers,
            ..Shape::new(collective, 0, size, 1)
        };
        (algorithm.generate)(&shape).is_ok()
    }

    fn shape(&self, rank: Rank) -> Shape<'_> {
        use Collective::*;
        let is_root = rank == self.root;
        let (mut inputs, mut outputs) = match self.collective {
            Barrier => (0, 0),
            Reduce | Gather | Gatherv => (1, usize::from(is_root)),
            Broadcast | Scatter | Scatterv => (usize::from(is_root), 1),
            _ => (1, 1),
        };
        let may = match self.collective {
            Allreduce | ReduceScatter | Allgather | Allgatherv | Alltoall | Scan | Exscan => true,
            Reduce | Broadcast | Gather | Gatherv | Scatter | Scatterv => is_root,
            Alltoallv | Barrier | PairwiseExchange => false,
        };
        if self.in_place && may {
            (inputs, outputs) = (0, 1);
        }
        let size = self.counts.len();
        let count = match self.collective {
            Gatherv | Scatterv => self.counts[rank],
            _ => self.count,
        };
        let has_caches = self.algorithm.is_some_and(|algorithm| algorithm.uses == Uses::Domains);
        Shape {
            root: self.root,
            groups: if has_caches { &self.caches } else { &[] },
            send_counts: &self.counts,
            recv_counts: &self.counts,
            inputs,
            outputs,
            destinations: if size.is_power_of_two() { size.ilog2() as usize } else { 0 },
            ..Shape::new(self.collective, rank, size, count)
        }
    }

    /// The shapes of all ranks. In an alltoallv rank i sends `counts[i]` elements to every rank, including itself. The
    /// seed says which ranks have a buffer for each block, and whether elements are combined in the order of ranks.
    fn shapes<'a>(&'a self, rows: &'a [Vec<usize>]) -> Vec<Shape<'a>> {
        let may_be_ordered = self.algorithm.is_none_or(|algorithm| self.collective.folds(algorithm));
        let is_ordered = may_be_ordered && self.collective.has_order() && self.seed >> 40 & 1 != 0;
        let order = if is_ordered { Order::Ranks } else { Order::Any };
        let shape = |rank: Rank| {
            let mut shape = Shape { order, ..self.shape(rank) };
            if self.collective == Collective::Alltoallv {
                shape.send_counts = &rows[rank];
            }
            let in_blocks = Shape { blocks: true, ..shape };
            if self.seed >> rank & 1 != 0 && in_blocks.check().is_ok() { in_blocks } else { shape }
        };
        (0..self.counts.len()).map(shape).collect()
    }

    fn rows(&self) -> Vec<Vec<usize>> {
        self.counts.iter().map(|count| vec![*count; self.counts.len()]).collect()
    }

    fn leaf(&self, round: usize, Leaf { rank, input, element }: Leaf) -> i64 {
        let mixed = (rank as i64 + 1).wrapping_mul(0x9e37_79b9).wrapping_add(element as i64 * 31 + i64::from(input));
        let seed = self.seed.wrapping_add(round as i64);
        seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(mixed) >> 8
    }

    /// Makes the call on `context`, in all its rounds. Returns its buffers, whether or not it succeeded. A rank that
    /// makes it by a request does something else for `between` start and wait.
    pub fn run(&self, network: &Network, context: &Arc<Context>, tag: u64, between: Duration) -> (Result<()>, Buffers) {
        let rows = self.rows();
        let shapes = self.shapes(&rows);
        let (shape, contract) = (shapes[context.rank()], CollectiveContract::new(&shapes));
        let rank = context.rank();
        let initial = |round: usize, buffer: Buffer, i: usize| {
            contract.initial(rank, buffer, i).map_or(-1, |leaf| self.leaf(round, leaf))
        };
        let mut buffers = Buffers {
            inputs: (0..shape.buffers().0).map(|n| vec![0; shape.input_buffer_len(n)]).collect(),
            outputs: (0..shape.buffers().1).map(|n| vec![0; shape.output_buffer_len(n)]).collect(),
        };
        // Only these pointers are used from now on.
        let inputs: Vec<*mut i64> = buffers.inputs.iter_mut().map(Vec::as_mut_ptr).collect();
        let outputs: Vec<*mut i64> = buffers.outputs.iter_mut().map(Vec::as_mut_ptr).collect();
        let call = Call {
            inputs: &inputs.iter().map(|input| input.cast_const().cast()).collect::<Vec<_>>(),
            outputs: &outputs.iter().map(|output| output.cast()).collect::<Vec<_>>(),
            algorithm: self.algorithm.map(|algorithm| algorithm.name),
            tag,
            max_segment_bytes: self.segment,
            ..Call::new(shape, DataType::Int64)
        };
        // SAFETY: the vectors have the lengths given by the shape and live until the request is dropped.
        let prepare = || unsafe { context.request(&call) };
        let request = (self.requests >> rank & 1 != 0).then(prepare).transpose();
        let once = |round: usize| {
            // SAFETY: the vectors have these lengths, and no call runs.
            unsafe {
                for (n, input) in inputs.iter().enumerate() {
                    (0..shape.input_buffer_len(n))
                        .for_each(|i| *input.add(i) = initial(round, Buffer::Input(n as u32), i));
                }
                for (n, output) in outputs.iter().enumerate() {
                    (0..shape.output_buffer_len(n))
                        .for_each(|i| *output.add(i) = initial(round, Buffer::Output(n as u32), i));
                }
            }
            match &request {
                Err(error) => return Err(error.clone()),
                // SAFETY: the vectors have the lengths given by the shape and live until the call returns.
                Ok(None) => unsafe { context.run(&call) }?,
                Ok(Some(request)) => {
                    request.start()?;
                    idle(network, between);
                    request.wait()?;
                }
            }
            for (n, output) in outputs.iter().enumerate() {
                for index in 0..shape.output_buffer_len(n) {
                    let expected = match contract.expected(rank, n as u32, index) {
                        Expect::Copy(leaf) => self.leaf(round, leaf),
                        Expect::Reduced { ranks, element, .. } => ranks.fold(0i64, |sum, rank| {
                            sum.wrapping_add(self.leaf(round, Leaf { rank, input: 0, element }))
                        }),
                        Expect::Untouched => initial(round, Buffer::Output(n as u32), index),
                        Expect::Anything => continue,
                    };
                    // SAFETY: the vector has this length, and no call runs.
                    let value = unsafe { *output.add(index) };
                    assert_eq!(value, expected, "{self}: rank {rank}, round {round}, element {index}");
                }
            }
            Ok(())
        };
        let result = (0..self.rounds).try_for_each(once);
        drop(request);
        (result, buffers)
    }
}

impl std::fmt::Display for CollectiveCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let algorithm = self.algorithm.map_or("auto", |algorithm| algorithm.name);
        let Self { count, counts, root, in_place, requests, caches, .. } = self;
        write!(
            f,
            "{} {algorithm} of {count} {counts:?}, root {root}, in place {in_place}, requests {requests:x}, caches {caches:?}",
            self.collective.name()
        )
    }
}
