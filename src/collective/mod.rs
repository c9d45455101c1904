//! Collectives and their algorithms. Each algorithm is a pure function from a [`Shape`] to a [`Schedule`].

mod allgather;
mod allgatherv;
mod allreduce;
mod alltoall;
mod alltoallv;
mod barrier;
mod block_lists;
mod blocks;
mod broadcast;
mod calls;
pub mod constants;
mod contract;
mod domains;
mod double_binary_tree;
mod exscan;
mod gather;
mod gatherv;
mod grid;
pub mod mean;
mod order;
mod pairwise_exchange;
mod phases;
mod prefix;
mod price;
mod reduce;
mod reduce_scatter;
mod ring;
mod scan;
mod scatter;
mod scatterv;
mod shape;
mod shared;
#[cfg(test)]
mod tests;
pub use calls::Calls;
pub use constants::Constants;
pub use contract::{CollectiveContract, verify};
pub use order::Order;
pub use shape::DEFAULT_BASE;

use crate::error::{Error, Result};
use crate::nearest::hint;
use crate::schedule::Schedule;
use crate::schedule::compiled::Compiled;
use crate::schedule::cost::{Cost, Hop, Network};
use crate::types::{Rank, ReduceOp};

/// The parameters of a collective call on which its schedule depends. All counts are in elements.
///
/// Buffers, by collective. `N` is the number of inputs, `M` the number of outputs. `inputs == 0` means in place: the
/// outputs hold the input when the call starts.
///
/// | collective | each input | each output | in place |
/// |---|---|---|---|
/// | allreduce | `count` | `count`, M ≥ 1 | the M outputs are the inputs |
/// | reduce | `count` | `count`; root only (other ranks may pass one; it is not written) | the output is the input; on
/// other ranks it is read and not written |
/// | broadcast | `count`; root only, N ≤ 1 | `count`, M ≥ 1 (root: M ≥ 0 with an input) | the root sends `Output(0)` |
/// | reduce_scatter | sum of `recv_counts` | `recv_counts[rank]`, M = 1 | `Output(0)` holds all of the input; the
/// result is written to its start |
/// | allgather | `count` | `count * N * size`, M = 1 | this rank's block is already at `rank * count` (N counts as 1) |
/// | allgatherv | `recv_counts[rank]`, N ≤ 1 | sum of `recv_counts`, M = 1 | this rank's block is already at its offset
/// |
/// | gather | `count`, N ≤ 1 | `count * size`; root only | root only: its block is already at its offset |
/// | gatherv | root: `recv_counts[rank]`, others: `count`; N ≤ 1 | sum of `recv_counts`; root only | as gather |
/// | scatter | root only: one of `count * size`, or `size` of `count` | `count`, M = 1 | root only, M = 1: `Output(0)`
/// holds all blocks; the root's block is moved to its start |
/// | scatterv | root only: sum of `send_counts` | root: `send_counts[rank]`, others: `count`; M = 1 | as scatter |
/// | alltoall | `count * size`, N ≤ 1 | `count * size`, M = 1 | allowed |
/// | alltoallv | sum of `send_counts`, N = 1 | sum of `recv_counts`, M = 1 | not allowed |
/// | barrier | none | none | |
/// | pairwise_exchange | `count * destinations`, N = 1 | `count * destinations`, M = 1 | not allowed |
/// | scan, exscan | `count`, N ≤ 1 | `count`, M = 1; exscan does not write rank 0's | allowed |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape<'a> {
    /// The collective.
    pub collective: Collective,
    /// The rank of this process.
    pub rank: Rank,
    /// Number of ranks.
    pub size: usize,
    /// The root rank; ignored by collectives without a root.
    pub root: Rank,
    /// Elements per rank, for collectives in which all ranks have the same number.
    pub count: usize,
    /// Elements sent to each rank, indexed by rank: scatterv (on the root), alltoallv.
    pub send_counts: &'a [usize],
    /// Elements received from each rank, indexed by rank: reduce_scatter, allgatherv, alltoallv, gatherv (on the root).
    pub recv_counts: &'a [usize],
    /// Number of input buffers; 0 for in place.
    pub inputs: usize,
    /// Number of output buffers.
    pub outputs: usize,
    /// Whether the caller has a buffer for each block, where a buffer of the table above has one block per rank. For
    /// `inputs` and `outputs` these count as one. Ranks need not agree.
    pub blocks: bool,
    /// Whether the reduction is an average: the schedule then divides by `size * max(inputs, 1)`
    /// (in place: by `size * outputs`).
    pub average: bool,
    /// Whether each reduction of an average computes the mean of its operands, so that nothing is left to be divided;
    /// see [`weights`](crate::schedule::weights).
    pub means: bool,
    /// The order in which the algorithm, which [folds](Shape::folds) unless that is any, combines the contributions.
    pub order: Order,
    /// Group size of `bcube`, at least 2.
    pub base: usize,
    /// Number of partners in a pairwise exchange: partner `i` is rank XOR 2^i.
    pub destinations: usize,
    /// The group number of each rank, for example its host; empty for one group. Algorithms with [`Uses::Groups`] read
    /// it.
    pub groups: &'a [u32],
    /// The extent of each dimension of the grid of ranks; consecutive ranks are neighbours in the first dimension. The
    /// product is `size`. If it is empty, the algorithm chooses, from the groups if they have equal sizes. Algorithms
    /// with [`Uses::Groups`] read it.
    pub dims: &'a [usize],
    /// Whether the ranks of each group, without groups all ranks, are those of one host and share memory.
    pub shared: bool,
    /// The last-level cache of each rank, as [`domain`](crate::sys::topology::domain) gives it: equal numbers are one
    /// cache. If it is empty, all ranks share one. Algorithms with [`Uses::Domains`] read it, and cost formulas of all
    /// algorithms on shared memory.
    pub domains: &'a [u32],
    /// A `size` × `size` matrix in row-major order of the bandwidth from each sender (row) to each receiver, in any
    /// unit; 0 means no link. If it is empty, all links are equal. Algorithms with [`Uses::Links`] read it.
    pub links: &'a [u32],
    /// The counts that only other ranks pass: the root's `recv_counts` (gatherv) or `send_counts` (scatterv), or the
    /// `send_counts` of all ranks concatenated (alltoallv). Algorithms with [`Uses::Counts`] read them.
    pub counts: &'a [usize],
}

/// The collectives. The C ABI fixes the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Collective {
    Allreduce = 0,
    Reduce = 1,
    ReduceScatter = 2,
    Broadcast = 3,
    Allgather = 4,
    Allgatherv = 5,
    Gather = 6,
    Gatherv = 7,
    Scatter = 8,
    Scatterv = 9,
    Alltoall = 10,
    Alltoallv = 11,
    Barrier = 12,
    PairwiseExchange = 13,
    Scan = 14,
    Exscan = 15,
}

/// An algorithm for one collective.
#[derive(Clone, Copy)]
pub struct Algorithm {
    /// The name by which a caller selects it; also the name of its source file.
    pub name: &'static str,
    /// Generates this rank's schedule. The shape must have passed [`Shape::check`].
    pub generate: fn(&Shape<'_>) -> Result<Schedule>,
    /// Estimates the cost. It depends only on values that all ranks know, so all ranks get the same result.
    pub cost: fn(&Case<'_>) -> Cost,
    /// The optional fields of the shape that the algorithm reads; the others may be empty.
    pub uses: Uses,
}

/// The optional fields of a [`Shape`] that an algorithm reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uses {
    /// None.
    Sizes,
    /// [`Shape::groups`], [`Shape::dims`] and [`Shape::shared`].
    Groups,
    /// [`Shape::links`].
    Links,
    /// [`Shape::counts`].
    Counts,
    /// [`Shape::shared`], which must be true if there is more than one rank.
    SharedMemory,
    /// [`Shape::shared`], which must be true if there is more than one rank, and [`Shape::domains`].
    Domains,
}

impl Uses {
    /// Whether all ranks must be on one host and share memory.
    pub const fn needs_shared_memory(self) -> bool {
        matches!(self, Self::SharedMemory | Self::Domains)
    }
}

/// The input of a cost formula.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The call; its rank is ignored.
    pub shape: &'a Shape<'a>,
    /// Bytes of one element.
    pub element_bytes: usize,
    /// Maximum segment size in bytes.
    pub segment_bytes: usize,
    /// The network model.
    pub network: &'a Network,
    /// The constants of the cost model that are not part of the network model.
    pub constants: &'a Constants,
}

impl Case<'_> {
    /// P: the number of ranks.
    pub fn ranks(&self) -> f64 {
        self.shape.size as f64
    }

    /// S: bytes of one buffer of `count` elements.
    pub fn bytes(&self) -> f64 {
        self.shape.count as f64 * self.element_bytes as f64
    }

    /// [`Network::link`] for this call's ranks.
    pub fn link(&self, distance: usize) -> Hop {
        self.network.link(self.shape.size, distance)
    }

    /// Number of messages (segments) for a transfer of `bytes`.
    pub fn pieces(&self, bytes: f64) -> f64 {
        (bytes / self.segment_bytes as f64).ceil()
    }

    /// Seconds for `steps` consecutive transfers of `bytes` each over `link`, pipelined by segments as in a ring or a
    /// chain. `gamma` is the reduction time in seconds per byte; 0 if the data is not reduced. With one segment per
    /// transfer this is `steps (α + n/B + γn)`.
    pub fn stream(&self, link: Hop, steps: f64, bytes: f64, gamma: f64) -> f64 {
        if steps <= 0.0 || bytes <= 0.0 {
            return 0.0;
        }
        let segment = self.segment(bytes);
        let last = (self.wire(link, bytes) + gamma * segment)
            .max(segment / link.bandwidth + gamma * bytes + self.later(bytes) * link.busy);
        (steps - 1.0) * self.step(link, bytes, gamma) + link.latency + last
    }

    /// Seconds from one step of [`Case::stream`] to the next.
    pub fn step(&self, link: Hop, bytes: f64, gamma: f64) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        let (segment, pieces) = (self.segment(bytes), self.pieces(bytes));
        let first = link.time(segment) + gamma * segment;
        let busy = gamma * bytes + pieces * link.busy;
        first.max(bytes / link.bandwidth).max(pieces * link.gap).max(busy)
    }

    /// Seconds between the first and the last byte of `bytes` on a link.
    pub fn wire(&self, link: Hop, bytes: f64) -> f64 {
        (bytes / link.bandwidth).max(self.segment(bytes) / link.bandwidth + self.later(bytes) * link.gap)
    }

    /// Number of segments of `bytes` after the first.
    pub fn later(&self, bytes: f64) -> f64 {
        (self.pieces(bytes) - 1.0).max(0.0)
    }

    /// Seconds to reduce `bytes` up a binomial tree. The tree is `floor(lg P)` edges high; if P is not a power of two,
    /// the root receives one more message.
    pub fn tree(&self, bytes: f64, gamma: f64) -> f64 {
        self.series(self.tree_links(), bytes, gamma) + self.one_more(bytes, gamma)
    }

    /// Seconds to broadcast `bytes` down a binomial tree. Segmentation does not help: the root's sends take all of its
    /// bandwidth.
    pub fn tree_down(&self, bytes: f64) -> f64 {
        self.tree_links().map(|link| self.stream(link, 1.0, bytes, 0.0)).sum::<f64>() + self.one_more(bytes, 0.0)
    }

    /// The links of a binomial tree, by level. The root only receives or only sends, hence [`Hop::one_way`].
    fn tree_links(&self) -> impl DoubleEndedIterator<Item = Hop> + Clone {
        (0..self.shape.size.ilog2()).map(|bit| self.lone_link(1 << bit).one_way())
    }

    fn one_more(&self, bytes: f64, gamma: f64) -> f64 {
        let top = self.lone_link(self.shape.size / 2);
        let turn = (bytes / top.bandwidth).max(gamma * bytes).max(self.pieces(bytes) * top.turn());
        if self.shape.size.is_power_of_two() { 0.0 } else { turn }
    }

    /// Like [`Case::stream`], with one step over each of `links`.
    pub fn series(&self, links: impl DoubleEndedIterator<Item = Hop> + Clone, bytes: f64, gamma: f64) -> f64 {
        let last = links
            .clone()
            .next_back()
            .map_or(0.0, |link| self.stream(link, 1.0, bytes, gamma) - self.step(link, bytes, gamma));
        links.map(|link| self.step(link, bytes, gamma)).sum::<f64>() + last
    }

    /// The link between ranks `distance` apart when so few ranks send over that distance that no two share a network
    /// card.
    pub fn lone_link(&self, distance: usize) -> Hop {
        let network = self.network;
        let near = network.per_host >= self.shape.size || network.consecutive && distance < network.per_host;
        if near { network.near() } else { network.far() }
    }

    /// Size in bytes of the first segment of a message of `bytes`.
    pub fn segment(&self, bytes: f64) -> f64 {
        bytes.min(self.segment_bytes as f64)
    }

    /// Whether the call sends nothing.
    pub fn is_empty(&self) -> bool {
        self.shape.size <= 1 || self.bytes() <= 0.0
    }

    fn unpriced(_: &Case<'_>) -> Cost {
        Cost { path: f64::INFINITY, ..Cost::default() }
    }
}

impl Algorithm {
    /// Elements of scratch memory of the rank of `shape`: what the engine keeps aside, if it reduces by an operation of
    /// the library. A function of the caller may need more.
    pub fn scratch(&self, shape: &Shape<'_>) -> Result<usize> {
        let schedule = self.schedule(shape)?;
        let compiled = shape.shared.then(|| Compiled::new(&schedule, &[], shape.size, true)).flatten();
        Ok(compiled.map_or(schedule.scratch, |program| program.scratch))
    }
}

impl Collective {
    /// All collectives.
    pub const ALL: &'static [Self] = &[
        Self::Allreduce,
        Self::Reduce,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Allgather,
        Self::Allgatherv,
        Self::Gather,
        Self::Gatherv,
        Self::Scatter,
        Self::Scatterv,
        Self::Alltoall,
        Self::Alltoallv,
        Self::Barrier,
        Self::PairwiseExchange,
        Self::Scan,
        Self::Exscan,
    ];

    /// The name in the C ABI, for example `reduce_scatter`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allreduce => "allreduce",
            Self::Reduce => "reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::Allgather => "allgather",
            Self::Allgatherv => "allgatherv",
            Self::Gather => "gather",
            Self::Gatherv => "gatherv",
            Self::Scatter => "scatter",
            Self::Scatterv => "scatterv",
            Self::Alltoall => "alltoall",
            Self::Alltoallv => "alltoallv",
            Self::Barrier => "barrier",
            Self::PairwiseExchange => "pairwise_exchange",
            Self::Scan => "scan",
            Self::Exscan => "exscan",
        }
    }

    /// Whether the collective combines elements and therefore needs a reduction operation.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::Allreduce | Self::Reduce | Self::ReduceScatter | Self::Scan | Self::Exscan)
    }

    /// Whether the collective accepts `op`. Averages need the contributions of all ranks, so scans do not accept them.
    pub const fn reduces_by(self, op: ReduceOp) -> bool {
        self.reduces() && !(matches!(op, ReduceOp::Average) && matches!(self, Self::Scan | Self::Exscan))
    }

    /// The algorithms of this collective: statics, because they are compared by address, and a constant may have
    /// several.
    pub const fn algorithms(self) -> &'static [Algorithm] {
        match self {
            Self::Allreduce => allreduce::ALGORITHMS,
            Self::Reduce => reduce::ALGORITHMS,
            Self::ReduceScatter => reduce_scatter::ALGORITHMS,
            Self::Broadcast => broadcast::ALGORITHMS,
            Self::Allgather => allgather::ALGORITHMS,
            Self::Allgatherv => allgatherv::ALGORITHMS,
            Self::Gather => gather::ALGORITHMS,
            Self::Gatherv => gatherv::ALGORITHMS,
            Self::Scatter => scatter::ALGORITHMS,
            Self::Scatterv => scatterv::ALGORITHMS,
            Self::Alltoall => alltoall::ALGORITHMS,
            Self::Alltoallv => alltoallv::ALGORITHMS,
            Self::Barrier => barrier::ALGORITHMS,
            Self::PairwiseExchange => pairwise_exchange::ALGORITHMS,
            Self::Scan => scan::ALGORITHMS,
            Self::Exscan => exscan::ALGORITHMS,
        }
    }

    /// The algorithm called `name`. The error for an unknown name lists the valid names.
    pub fn algorithm(self, name: &str) -> Result<&'static Algorithm> {
        self.algorithms().iter().find(|a| a.name == name).ok_or_else(|| {
            let names: Vec<_> = self.algorithms().iter().map(|a| a.name).collect();
            let near = hint(name, names.iter().copied());
            Error::invalid(format!(
                "{} has no algorithm {name:?}{near}; it has auto, {}",
                self.name(),
                names.join(", ")
            ))
        })
    }
}
