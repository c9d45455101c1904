//! Collectives and their algorithms: pure functions from a [`Shape`] to a [`Schedule`].

mod allgather;
mod allgatherv;
mod allreduce;
mod alltoall;
mod alltoallv;
mod barrier;
mod blocks;
mod broadcast;
mod calls;
pub mod constants;
mod contract;
mod double_binary_tree;
mod exscan;
mod gather;
mod gatherv;
mod grid;
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
#[cfg(test)]
mod tests;
pub use calls::Calls;
pub use constants::Constants;
pub use contract::{CollectiveContract, verify};

use crate::error::{Error, Result};
use crate::schedule::Schedule;
use crate::schedule::cost::{Cost, Hop, Network};
use crate::types::{Rank, ReduceOp};

/// What a collective call is about, as far as its schedule depends on it. All counts are in elements.
///
/// Buffers, by collective (`N` inputs, `M` outputs; `inputs == 0` means in place: the outputs hold the input):
///
/// | collective | each input | each output | in place |
/// |---|---|---|---|
/// | allreduce | `count` | `count`, M ≥ 1 | the M outputs are the inputs |
/// | reduce | `count` | `count`; root only (others may pass one, which is left alone) | the output is the input; on other ranks it is read and left alone |
/// | broadcast | `count`; root only, N ≤ 1 | `count`, M ≥ 1 (root: M ≥ 0 with an input) | root's `Output(0)` is sent |
/// | reduce_scatter | sum of `recv_counts` | `recv_counts[rank]`, M = 1 | `Output(0)` holds all of the input; the result is put at its start |
/// | allgather | `count` | `count * N * size`, M = 1 | the own block already lies at `rank * count` (N counts as 1) |
/// | allgatherv | `recv_counts[rank]`, N ≤ 1 | sum of `recv_counts`, M = 1 | the own block already lies in its place |
/// | gather | `count`, N ≤ 1 | `count * size`; root only | root only: the own block already lies in its place |
/// | gatherv | root: `recv_counts[rank]`, others: `count`; N ≤ 1 | sum of `recv_counts`; root only | as gather |
/// | scatter | root only: one of `count * size`, or `size` of `count` | `count`, M = 1 | root only, M = 1: `Output(0)` holds all blocks; the own block is moved to its start |
/// | scatterv | root only: sum of `send_counts` | root: `send_counts[rank]`, others: `count`; M = 1 | as scatter |
/// | alltoall | `count * size`, N ≤ 1 | `count * size`, M = 1 | allowed |
/// | alltoallv | sum of `send_counts`, N = 1 | sum of `recv_counts`, M = 1 | no |
/// | barrier | none | none | |
/// | pairwise_exchange | `count * destinations`, N = 1 | `count * destinations`, M = 1 | no |
/// | scan, exscan | `count`, N ≤ 1 | `count`, M = 1; exscan leaves rank 0's alone | allowed |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape<'a> {
    /// Which collective.
    pub collective: Collective,
    /// This process.
    pub rank: Rank,
    /// Processes.
    pub size: usize,
    /// The root, where the collective has one.
    pub root: Rank,
    /// Elements, where every rank has the same number.
    pub count: usize,
    /// Elements for each rank, in the order of ranks: scatterv (on the root), alltoallv.
    pub send_counts: &'a [usize],
    /// Elements of each rank: reduce_scatter, allgatherv, alltoallv, gatherv (on the root).
    pub recv_counts: &'a [usize],
    /// Number of input buffers; 0 for in place.
    pub inputs: usize,
    /// Number of output buffers.
    pub outputs: usize,
    /// Whether the reduction is an average: the schedule then divides by `size * max(inputs, 1)`
    /// (in place: by `size * outputs`).
    pub average: bool,
    /// Group size of `bcube`, at least 2.
    pub base: usize,
    /// Partners of a pairwise exchange: step `i` exchanges with rank XOR 2^i.
    pub destinations: usize,
    /// For algorithms with [`Uses::Groups`]: the group of each rank, such as its host. Empty: all are in one.
    pub groups: &'a [u32],
    /// For the same: extent of each dimension of the grid that the ranks form, the first one's neighbours having consecutive
    /// ranks; their product is `size`. Empty: the algorithm forms one, of the groups if they have equal sizes.
    pub dims: &'a [usize],
    /// For algorithms with [`Uses::Links`]: bandwidth from rank to rank, a row of `size` for each sender, in any unit; 0 for
    /// no link. Empty: all alike.
    pub links: &'a [u32],
    /// For algorithms with [`Uses::Counts`], what the others have: gatherv's `recv_counts` and scatterv's `send_counts` of the
    /// root, alltoallv's `send_counts` of every rank, one after the other.
    pub counts: &'a [usize],
}

/// The collectives. The numbers are the C ABI's and never change.
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

/// One way to do a collective.
#[derive(Clone, Copy)]
pub struct Algorithm {
    /// What a caller passes, and the name of the file it lives in.
    pub name: &'static str,
    /// Writes this rank's schedule. The shape has passed [`Shape::check`].
    pub generate: fn(&Shape<'_>) -> Result<Schedule>,
    /// What it costs; a pure function of what all ranks know.
    pub cost: fn(&Case<'_>) -> Cost,
    /// What it reads of the shape beyond the sizes: the rest may stay empty.
    pub uses: Uses,
}

/// What an algorithm must be told, beyond what the call itself says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uses {
    /// Nothing.
    Sizes,
    /// [`Shape::groups`] and [`Shape::dims`].
    Groups,
    /// [`Shape::links`].
    Links,
    /// [`Shape::counts`].
    Counts,
}

/// A call to be priced.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The call; its rank is of no importance.
    pub shape: &'a Shape<'a>,
    /// Bytes of one element.
    pub element_bytes: usize,
    /// Bytes of the pieces in which steps are worked through.
    pub segment_bytes: usize,
    /// What it runs on.
    pub network: &'a Network,
    /// What formulas go by that no network says.
    pub constants: &'a Constants,
}

impl Case<'_> {
    /// P.
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

    /// Messages that `bytes` are cut into.
    pub fn pieces(&self, bytes: f64) -> f64 {
        (bytes / self.segment_bytes as f64).ceil()
    }

    /// Seconds for `steps` messages of `bytes` over `link`, each of which streams behind the one before, segment by segment, as
    /// in a ring or a chain; `gamma` is 0 where they are not reduced. Of a message that is not cut, `steps (α + n/B + γn)`.
    pub fn stream(&self, link: Hop, steps: f64, bytes: f64, gamma: f64) -> f64 {
        if steps <= 0.0 || bytes <= 0.0 {
            return 0.0;
        }
        let segment = self.segment(bytes);
        let last = (self.wire(link, bytes) + gamma * segment)
            .max(segment / link.bandwidth + gamma * bytes + self.later(bytes) * link.busy);
        (steps - 1.0) * self.step(link, bytes, gamma) + link.latency + last
    }

    /// Seconds from one step of such a stream to the next.
    pub fn step(&self, link: Hop, bytes: f64, gamma: f64) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        let (segment, pieces) = (self.segment(bytes), self.pieces(bytes));
        let first = link.time(segment) + gamma * segment;
        let busy = gamma * bytes + pieces * link.busy;
        first.max(bytes / link.bandwidth).max(pieces * link.gap).max(busy)
    }

    /// Seconds from the first byte of `bytes` on a link to the last.
    pub fn wire(&self, link: Hop, bytes: f64) -> f64 {
        (bytes / link.bandwidth).max(self.segment(bytes) / link.bandwidth + self.later(bytes) * link.gap)
    }

    /// Messages behind the first one that `bytes` are cut into.
    pub fn later(&self, bytes: f64) -> f64 {
        (self.pieces(bytes) - 1.0).max(0.0)
    }

    /// Seconds to send `bytes` up a binomial tree. It is `floor(lg P)` edges high; for other numbers than powers of two the root
    /// has one more message to receive.
    pub fn tree(&self, bytes: f64, gamma: f64) -> f64 {
        self.series(self.tree_links(), bytes, gamma) + self.one_more(bytes, gamma)
    }

    /// Seconds to send `bytes` down a binomial tree. Segments gain nothing: their sum fills the root's link.
    pub fn tree_down(&self, bytes: f64) -> f64 {
        self.tree_links().map(|link| self.stream(link, 1.0, bytes, 0.0)).sum::<f64>() + self.one_more(bytes, 0.0)
    }

    /// The root only receives, or only sends.
    fn tree_links(&self) -> impl DoubleEndedIterator<Item = Hop> + Clone {
        (0..self.shape.size.ilog2()).map(|bit| self.lone_link(1 << bit).one_way())
    }

    fn one_more(&self, bytes: f64, gamma: f64) -> f64 {
        let top = self.lone_link(self.shape.size / 2);
        let turn = (bytes / top.bandwidth).max(gamma * bytes).max(self.pieces(bytes) * top.turn());
        if self.shape.size.is_power_of_two() { 0.0 } else { turn }
    }

    /// As [`Case::stream`], of one step over each link.
    pub fn series(&self, links: impl DoubleEndedIterator<Item = Hop> + Clone, bytes: f64, gamma: f64) -> f64 {
        let last = links
            .clone()
            .next_back()
            .map_or(0.0, |link| self.stream(link, 1.0, bytes, gamma) - self.step(link, bytes, gamma));
        links.map(|link| self.step(link, bytes, gamma)).sum::<f64>() + last
    }

    /// The link over a distance that only few ranks send over, so that none shares its host's card.
    pub fn lone_link(&self, distance: usize) -> Hop {
        let network = self.network;
        let near = network.per_host >= self.shape.size || network.consecutive && distance < network.per_host;
        if near { network.near() } else { network.far() }
    }

    /// Bytes of the first segment of a message of `bytes`.
    pub fn segment(&self, bytes: f64) -> f64 {
        bytes.min(self.segment_bytes as f64)
    }

    /// Whether nothing is sent.
    pub fn is_empty(&self) -> bool {
        self.shape.size <= 1 || self.bytes() <= 0.0
    }

    fn unpriced(_: &Case<'_>) -> Cost {
        Cost { path: f64::INFINITY, ..Cost::default() }
    }
}

impl Collective {
    /// Every collective.
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

    /// The name, as in the C ABI: `reduce_scatter`.
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

    /// Whether elements are combined, so that the call needs an operation.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::Allreduce | Self::Reduce | Self::ReduceScatter | Self::Scan | Self::Exscan)
    }

    /// Whether it combines by `op`: only those that combine what all ranks have give averages.
    pub const fn reduces_by(self, op: ReduceOp) -> bool {
        self.reduces() && !(matches!(op, ReduceOp::Average) && matches!(self, Self::Scan | Self::Exscan))
    }

    /// The algorithms of this collective.
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

    /// The algorithm of that name, or an error that lists the names there are.
    pub fn algorithm(self, name: &str) -> Result<&'static Algorithm> {
        self.algorithms().iter().find(|a| a.name == name).ok_or_else(|| {
            let names: Vec<_> = self.algorithms().iter().map(|a| a.name).collect();
            Error::invalid(format!("{} has no algorithm {name:?}; it has auto, {}", self.name(), names.join(", ")))
        })
    }
}
