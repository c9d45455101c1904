//! Estimates the cost of a call for each algorithm.

use std::collections::{HashMap, HashSet};

use crate::collective::{Algorithm, Calls, Case, Collective, Constants, Order, Shape, Uses};
use crate::schedule::cost::{Cost, Link, Network};
use crate::schedule::simulate::{Options, simulate};
use crate::tuner::file::Tuning;

/// Group sizes of `bcube` for which the cost is estimated.
const BASES: [usize; 4] = [2, 3, 4, 8];

/// Larger calls are taken to need as much scratch memory as one of this size.
const LARGE_BYTES: usize = 1 << 40;
/// Scratch memory is that of the first so many ranks: among them are the root, and leaders and others of hosts.
const SCRATCH_RANKS: usize = 64;

/// The distribution of the ranks of a context over hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The host number of each rank; 0 for rank 0's host.
    pub hosts: Vec<u32>,
    /// Number of cores shared by the ranks of a host; the minimum, if hosts differ.
    pub cores: usize,
    /// Whether the ranks of each host share memory.
    pub shared: bool,
    /// See [`Shape::domains`].
    pub domains: Vec<u32>,
}

impl Topology {
    /// One rank per host: the assumption before anything is known.
    pub fn one_rank_per_host(size: usize) -> Self {
        Self::without_shared_memory((0..size as u32).collect(), 1)
    }

    /// All ranks on one host, without shared memory.
    pub fn one_host(size: usize, cores: usize) -> Self {
        Self::without_shared_memory(vec![0; size], cores)
    }

    /// Ranks of these hosts, without shared memory.
    pub fn without_shared_memory(hosts: Vec<u32>, cores: usize) -> Self {
        Self { hosts, cores, shared: false, domains: Vec::new() }
    }

    /// The number of hosts.
    pub fn host_count(&self) -> usize {
        self.hosts.iter().max().map_or(0, |last| *last as usize + 1)
    }

    /// The largest number of ranks of a host.
    pub fn max_on_a_host(&self) -> usize {
        let mut counts = HashMap::new();
        self.hosts.iter().for_each(|host| *counts.entry(*host).or_insert(0) += 1);
        counts.values().copied().max().unwrap_or(0)
    }

    /// Whether all ranks are on one host and share memory.
    pub fn shares_memory(&self) -> bool {
        self.shared && self.hosts.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Whether `auto` may select the algorithm: all data that it requires is available.
    pub fn can_run(&self, collective: Collective, algorithm: &Algorithm, links: &[u32]) -> bool {
        let size = self.hosts.len();
        match algorithm.uses {
            Uses::Counts => false,
            Uses::Links => size > 1 && links.len() == size.saturating_mul(size),
            Uses::SharedMemory => size > 1 && self.shares_memory(),
            Uses::Domains => size > 1 && self.shares_memory() && !self.domains.is_empty(),
            // A single rank uses `local`, and only a single rank does.
            Uses::Sizes | Uses::Groups => {
                (algorithm.name == "local") == (collective == Collective::Allreduce && size <= 1)
            }
        }
    }

    /// The network model for this topology.
    pub fn network(&self, tuning: &Tuning) -> Network {
        let constants = tuning.constants();
        let hosts: HashSet<_> = self.hosts.iter().collect();
        // If the ranks of every host are consecutive, each host begins once.
        let begins = self.hosts.windows(2).filter(|pair| pair[0] != pair[1]).count() + 1;
        let per_host = self.max_on_a_host().max(1);
        let oversubscribed = per_host > self.cores.max(1);
        // It was measured between two ranks while the others slept. In a call, a message to a rank that shares its core
        // with others waits for a change of threads.
        let least = if oversubscribed { constants.memory_signal_shared_us * 1e-6 } else { 0.0 };
        Network {
            local: Link { latency: constants.local.latency.max(least), ..constants.local },
            remote: constants.remote,
            overhead: (constants.overhead_us * 1e-6).min(constants.remote.latency / 2.0),
            gap: constants.gap_us * 1e-6,
            gamma: constants.gamma,
            per_host,
            consecutive: begins <= hosts.len().max(1),
            cores: self.cores.max(1),
            memory: constants.shared_memory(oversubscribed, per_host, per_host >= self.hosts.len()),
        }
    }
}

/// An algorithm with its best segment size and its estimated cost.
#[derive(Clone, Copy)]
pub struct PricedAlgorithm {
    /// The algorithm.
    pub algorithm: &'static Algorithm,
    /// Maximum segment size in bytes.
    pub segment_bytes: usize,
    /// Group size of `bcube`.
    pub base: Option<usize>,
    /// The estimated time in seconds, by which algorithms are compared: `path`, extended by waiting for shared cores,
    /// plus `work`, and what `scratch` costs. Infinite if the algorithm has no cost formula for the call.
    pub total: f64,
    /// Seconds from the first message to the last result if every rank has its own core.
    pub path: f64,
    /// Messages sent by all ranks together, segments counted.
    pub messages: f64,
    /// CPU seconds per core of a host. If each rank has its own core, this is also part of the path, and is counted
    /// twice.
    pub work: f64,
    /// Bytes of scratch memory, on the rank and in the form of the call that needs most; 0 until
    /// [`PricingInput::complete`], which adds what they cost.
    pub scratch: usize,
}

/// A call as all ranks know it. `bytes` is defined by [`bytes`].
#[derive(Clone, Copy, Debug)]
pub struct PricingInput<'a> {
    /// The collective.
    pub collective: Collective,
    /// Size in bytes.
    pub bytes: usize,
    /// The network model.
    pub network: &'a Network,
    /// The other constants of the cost model.
    pub constants: &'a Constants,
    /// The ranks.
    pub topology: &'a Topology,
    /// See [`Shape::links`].
    pub links: &'a [u32],
    /// Maximum segment size in bytes.
    pub max_segment_bytes: usize,
    /// See [`Shape::order`].
    pub order: Order,
}

/// The size of a call in bytes, as in the benchmark: that of the buffer that every rank has or, if the root or the
/// result has the blocks of all ranks, of all blocks. 0 if no rank knows the counts of the others.
pub fn bytes(shape: &Shape<'_>, element_bytes: usize) -> usize {
    use Collective::*;
    let elements = match shape.collective {
        Allreduce | Reduce | Broadcast | Scan | Exscan => shape.count,
        Allgather => shape.count.saturating_mul(shape.inputs.max(1)).saturating_mul(shape.size),
        Gather | Scatter | Alltoall => shape.count.saturating_mul(shape.size),
        PairwiseExchange => shape.count.saturating_mul(shape.destinations),
        ReduceScatter | Allgatherv => shape.recv_counts.iter().fold(0, |sum: usize, n| sum.saturating_add(*n)),
        Gatherv | Scatterv | Alltoallv | Barrier => 0,
    };
    elements.saturating_mul(element_bytes)
}

impl PricingInput<'_> {
    /// Number of ranks.
    fn size(&self) -> usize {
        self.topology.hosts.len()
    }

    /// Every algorithm that can be used, in the order of the collective's list.
    pub fn candidates(&self) -> Vec<PricedAlgorithm> {
        let algorithms = self.collective.algorithms().iter();
        // A graph of links does not tell which of them share a network card.
        let one_host = self.is_one_host();
        let run = |algorithm: &&Algorithm| {
            self.topology.can_run(self.collective, algorithm, self.links)
                && (one_host || algorithm.uses != Uses::Links)
                && (self.order == Order::Any || self.collective.folds(algorithm))
        };
        let mut candidates: Vec<_> =
            self.in_formula_units(|input| algorithms.filter(run).map(|a| input.price(a)).collect());
        self.simulate(&mut candidates);
        candidates
    }

    /// If the ranks of several hosts share network cards, replaces the formulas' paths by simulated ones: collisions on
    /// a card depend on all messages, and formulas are off by up to a factor of five. Either all candidates are
    /// simulated or, if they have too many messages, none, so that comparisons are fair. All ranks compute the same.
    fn simulate(&self, candidates: &mut [PricedAlgorithm]) {
        let network = self.network;
        let several = network.per_host > 1 && network.per_host < self.size();
        let messages: f64 = candidates.iter().map(|priced| priced.messages).sum();
        let few = (0.0..=self.constants.simulated_messages).contains(&messages);
        if !several || candidates.len() < 2 || !few {
            return;
        }
        let simulated: Option<Vec<PricedAlgorithm>> = candidates.iter().map(|priced| self.simulated(*priced)).collect();
        if let Some(simulated) = simulated {
            candidates.copy_from_slice(&simulated);
        }
    }

    /// The cost with the simulated path; `None` if the simulation fails.
    fn simulated(&self, priced: PricedAlgorithm) -> Option<PricedAlgorithm> {
        let calls = self.calls(self.bytes, priced.base);
        let segment_bytes = super::segment_bytes(&calls.shape(0), 1, priced.segment_bytes);
        let (network, memory) = (*self.network, self.constants.simulated_memory_bytes as usize);
        let options =
            Options { hosts: &self.topology.hosts, element_bytes: 1, segment_bytes, memory, ..Options::new(network) };
        let generate = |rank| (priced.algorithm.generate)(&calls.shape(rank));
        let path = simulate(self.size(), &generate, &options).ok()?.seconds;
        Some(PricedAlgorithm { path, total: self.waiting() * path + priced.work, ..priced })
    }

    /// The candidates with what their scratch memory costs.
    pub fn complete(&self, candidates: &[PricedAlgorithm]) -> Vec<PricedAlgorithm> {
        candidates.iter().map(|priced| self.with_scratch(*priced)).collect()
    }

    /// The algorithm that `auto` selects among `candidates`: the first with the lowest cost, that of its scratch memory
    /// included; the first of all if none has a finite cost.
    pub fn best(&self, candidates: &[PricedAlgorithm]) -> PricedAlgorithm {
        let mut ascending = candidates.to_vec();
        ascending.sort_by(|a, b| a.total.total_cmp(&b.total));
        let mut best: Option<PricedAlgorithm> = None;
        for other in ascending {
            // To find out how much scratch memory an algorithm needs takes longer than to compute its other costs.
            if best.is_some_and(|best| best.total <= other.total) {
                break;
            }
            let other = if self.may_need_scratch() { self.with_scratch(other) } else { other };
            best = best.filter(|best| best.total <= other.total).or(Some(other));
        }
        best.expect("every collective has an algorithm")
    }

    fn may_need_scratch(&self) -> bool {
        // A root may keep a buffer for each other rank.
        let max = self.bytes.saturating_mul(self.size() + 1);
        self.is_one_host() && max as f64 > self.constants.memory_scratch_bytes
    }

    /// Returns `priced` with its scratch memory, and what that costs among ranks of one host: above a limit, memory is
    /// given back when the context has not needed it for a while, and taken again.
    fn with_scratch(&self, priced: PricedAlgorithm) -> PricedAlgorithm {
        let scratch = self.scratch(&priced);
        let costs = self.is_one_host() && scratch as f64 > self.constants.memory_scratch_bytes;
        let seconds = scratch as f64 * self.constants.memory_fresh_ns * 1e-9 * self.on_a_core();
        PricedAlgorithm { total: priced.total + if costs { seconds } else { 0.0 }, scratch, ..priced }
    }

    /// Bytes of scratch memory of one algorithm, on the rank that needs most. Some ranks may make the call in place,
    /// and all must select the same algorithm, so this is for the form in which it needs more.
    fn scratch(&self, priced: &PricedAlgorithm) -> usize {
        let PricedAlgorithm { algorithm, base, .. } = *priced;
        let mut calls = self.calls(self.bytes.min(LARGE_BYTES), base);
        calls.links = self.links.to_vec();
        let of = |calls: &Calls, rank| {
            let shape = calls.shape(rank).only(algorithm.uses);
            // The collective may have no form in place.
            let exists = shape.check().is_ok();
            exists.then(|| algorithm.scratch(&shape).ok()).flatten().unwrap_or(0)
        };
        let max = |calls: &Calls| (0..self.size().min(SCRATCH_RANKS)).map(|rank| of(calls, rank)).max().unwrap_or(0);
        let out_of_place = max(&calls);
        calls.inputs = 0;
        out_of_place.max(max(&calls))
    }

    fn is_one_host(&self) -> bool {
        self.topology.hosts.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// The shapes of all ranks in a call of `bytes` elements of one byte.
    fn calls(&self, bytes: usize, base: Option<usize>) -> Calls {
        let mut calls = Calls::new(self.collective, self.size(), bytes, 0);
        calls.groups = self.topology.hosts.clone();
        calls.shared = self.topology.shared;
        calls.domains = self.topology.domains.clone();
        calls.base = base.unwrap_or(2);
        calls.order = self.order;
        calls
    }

    /// The factor by which shared cores extend a path: a rank that could proceed waits for others on its core.
    fn waiting(&self) -> f64 {
        1.0 + (self.on_a_core() - 1.0) * self.constants.core_waiting
    }

    /// Ranks that share a core; at least 1.
    fn on_a_core(&self) -> f64 {
        let here = self.network.per_host.min(self.size()).max(1);
        (here as f64 / self.network.cores as f64).max(1.0)
    }

    /// The cost of one algorithm.
    pub fn candidate(&self, algorithm: &'static Algorithm) -> PricedAlgorithm {
        self.in_formula_units(|input| input.price(algorithm))
    }

    fn in_formula_units<T>(&self, ask: impl FnOnce(&UnitInput<'_>) -> T) -> T {
        use Collective::*;
        let (size, bytes) = (self.size().max(1), self.bytes);
        let each = bytes.div_ceil(size);
        let counts = match self.collective {
            ReduceScatter | Allgatherv | Gatherv | Scatterv | Alltoallv => vec![each; size],
            _ => Vec::new(),
        };
        let destinations = if self.collective == PairwiseExchange { size.ilog2() as usize } else { 0 };
        let count = match self.collective {
            Allgather | Gather | Scatter | Alltoall => each,
            PairwiseExchange => bytes.div_ceil(destinations.max(1)),
            ReduceScatter | Allgatherv | Gatherv | Scatterv | Alltoallv => each,
            Allreduce | Reduce | Broadcast | Scan | Exscan | Barrier => bytes,
        };
        let shape = Shape {
            send_counts: &counts,
            recv_counts: &counts,
            groups: &self.topology.hosts,
            shared: self.topology.shared,
            domains: &self.topology.domains,
            links: self.links,
            destinations,
            order: self.order,
            ..Shape::new(self.collective, 0, size, count)
        };
        ask(&UnitInput { input: self, shape })
    }
}

/// The input in the units of the formulas: elements of one byte, blocks of equal length, root 0.
struct UnitInput<'a> {
    input: &'a PricingInput<'a>,
    shape: Shape<'a>,
}

impl UnitInput<'_> {
    /// The cost with the best segment size; the largest of equally good ones.
    fn price(&self, algorithm: &'static Algorithm) -> PricedAlgorithm {
        let max = self.input.max_segment_bytes;
        let bases = if algorithm.name == "bcube" { BASES.map(Some).to_vec() } else { vec![None] };
        let mut best: Option<PricedAlgorithm> = None;
        for base in bases {
            let shape = Shape { base: base.unwrap_or(2), ..self.shape };
            let mut limit = max;
            loop {
                let priced = PricedAlgorithm { base, ..self.price_segments(algorithm, &shape, limit) };
                if best.is_none_or(|best| priced.total < best.total) {
                    best = Some(priced);
                }
                // The cost of an algorithm that needs counts is unknown here, for any segment size.
                if ((limit / 2) as f64) < self.input.constants.least_segment_bytes || algorithm.uses == Uses::Counts {
                    break;
                }
                limit /= 2;
            }
        }
        best.expect("a segment size was priced")
    }

    fn price_segments(&self, algorithm: &'static Algorithm, shape: &Shape<'_>, limit: usize) -> PricedAlgorithm {
        let PricingInput { network, constants, .. } = *self.input;
        let unpriced = PricedAlgorithm {
            algorithm,
            segment_bytes: limit,
            base: None,
            total: f64::INFINITY,
            path: f64::INFINITY,
            messages: 0.0,
            work: 0.0,
            scratch: 0,
        };
        if algorithm.uses == Uses::Counts {
            return unpriced;
        }
        let segment_bytes = super::segment_bytes(shape, 1, limit);
        let cost = (algorithm.cost)(&Case { shape, element_bytes: 1, segment_bytes, network, constants });
        let here = network.per_host.min(shape.size).max(1);
        let (message, byte) = (constants.message_cpu_us * 1e-6, constants.byte_cpu_ns * 1e-9);
        let busy = cost.messages * message + cost.sent * byte + cost.reduced * network.gamma;
        let work = match algorithm.uses {
            // The path is their CPU time.
            Uses::SharedMemory | Uses::Domains => (self.input.on_a_core() - self.input.waiting()) * cost.path,
            _ => busy * here as f64 / shape.size as f64 / network.cores.min(here) as f64,
        };
        let total = self.input.waiting() * cost.path + work;
        let Cost { path, messages, .. } = cost;
        if total.is_nan() { unpriced } else { PricedAlgorithm { total, path, messages, work, ..unpriced } }
    }
}
