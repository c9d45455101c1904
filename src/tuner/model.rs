//! What a call would cost, algorithm by algorithm.

use crate::collective::{Algorithm, Calls, Case, Collective, Constants, Shape, Uses};
use crate::schedule::cost::{Cost, Network};
use crate::schedule::simulate::{Options, simulate};
use crate::tuner::file::Tuning;

/// Group sizes of `bcube` that are priced.
const BASES: [usize; 4] = [2, 3, 4, 8];

/// How the ranks of a context lie on hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The host of each rank, as a number that is 0 for rank 0's.
    pub hosts: Vec<u32>,
    /// Cores that the ranks of a host share; where hosts differ, the fewest.
    pub cores: usize,
}

impl Topology {
    /// Every rank on a host of its own, as long as nothing is known.
    pub fn one_rank_per_host(size: usize) -> Self {
        Self { hosts: (0..size as u32).collect(), cores: 1 }
    }

    /// All ranks on one host.
    pub fn one_host(size: usize, cores: usize) -> Self {
        Self { hosts: vec![0; size], cores }
    }

    /// The network between them.
    pub fn network(&self, tuning: &Tuning) -> Network {
        let constants = tuning.constants();
        let mut counts = std::collections::HashMap::new();
        self.hosts.iter().for_each(|host| *counts.entry(*host).or_insert(0) += 1);
        // Each host begins once, if its ranks stand together.
        let begins = self.hosts.windows(2).filter(|pair| pair[0] != pair[1]).count() + 1;
        Network {
            local: constants.local,
            remote: constants.remote,
            overhead: (constants.overhead_us * 1e-6).min(constants.remote.latency / 2.0),
            gap: constants.gap_us * 1e-6,
            gamma: constants.gamma,
            per_host: counts.values().copied().max().unwrap_or(1),
            consecutive: begins <= counts.len(),
            cores: self.cores.max(1),
        }
    }
}

/// An algorithm with its best segment size.
#[derive(Clone, Copy)]
pub struct PricedAlgorithm {
    /// Which.
    pub algorithm: &'static Algorithm,
    /// Largest piece, in bytes, that it sends as one message.
    pub segment_bytes: usize,
    /// Group size, of `bcube`.
    pub base: Option<usize>,
    /// Seconds that decide: the next two together, and what a rank on the path waits for a core that it shares. Infinite where the
    /// algorithm has no price.
    pub total: f64,
    /// Seconds from the first message to the last result, were every rank to have a core of its own.
    pub path: f64,
    /// Messages sent by all ranks together, segments counted.
    pub messages: f64,
    /// Seconds for which the cores are busy that a host's ranks have: with one for each rank a part of the path, which costs
    /// no more than to be counted twice.
    pub work: f64,
}

/// A call as all ranks know it: of so many bytes, as [`bytes`] counts them.
#[derive(Clone, Copy, Debug)]
pub struct PricingInput<'a> {
    /// Which collective.
    pub collective: Collective,
    /// Bytes.
    pub bytes: usize,
    /// Ranks.
    pub size: usize,
    /// What they are connected by.
    pub network: &'a Network,
    /// What prices go by besides.
    pub constants: &'a Constants,
    /// See [`Shape::groups`].
    pub groups: &'a [u32],
    /// See [`Shape::links`].
    pub links: &'a [u32],
    /// Largest segment.
    pub max_segment_bytes: usize,
}

/// Bytes of a call, as the benchmark counts them: of the buffer that every rank has, or, where the root or the result has the
/// blocks of all ranks, of these. 0 where no rank knows that of the others.
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

/// Whether `auto` may stand for it: it needs nothing that is not known.
pub fn can_run(collective: Collective, algorithm: &Algorithm, size: usize, links: &[u32]) -> bool {
    match algorithm.uses {
        Uses::Counts => false,
        Uses::Links => size > 1 && links.len() == size.saturating_mul(size),
        // Alone there is nothing else to be done.
        Uses::Sizes | Uses::Groups => (algorithm.name == "local") == (collective == Collective::Allreduce && size <= 1),
    }
}

impl PricingInput<'_> {
    /// Every algorithm that could run, in the order of the collective's list.
    pub fn candidates(&self) -> Vec<PricedAlgorithm> {
        let algorithms = self.collective.algorithms().iter();
        // A graph of links does not tell which of them share a host's network card.
        let one_host = self.groups.windows(2).all(|pair| pair[0] == pair[1]);
        let run = |algorithm: &&Algorithm| {
            can_run(self.collective, algorithm, self.size, self.links) && (one_host || algorithm.uses != Uses::Links)
        };
        let mut candidates: Vec<_> =
            self.counted(|question| algorithms.filter(run).map(|a| question.price(a)).collect());
        self.simulate(&mut candidates);
        candidates
    }

    /// Where ranks of several hosts share cards, replaces the formulas' paths by those that the simulator finds: which messages
    /// meet on a card depends on all others, and formulas are off by up to five times there. All candidates are simulated or
    /// none, so that like is compared with like, and none if they have too many messages. Both are the same on all ranks.
    fn simulate(&self, candidates: &mut [PricedAlgorithm]) {
        let network = self.network;
        let several = network.per_host > 1 && network.per_host < self.size;
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

    /// The price with the simulator's path; none if it cannot be simulated.
    fn simulated(&self, priced: PricedAlgorithm) -> Option<PricedAlgorithm> {
        let mut calls = Calls::new(self.collective, self.size, self.bytes, 0);
        calls.groups = self.groups.to_vec();
        calls.base = priced.base.unwrap_or(2);
        let segment_bytes = super::segment_bytes(&calls.shape(0), 1, priced.segment_bytes);
        let (network, memory) = (*self.network, self.constants.simulated_memory_bytes as usize);
        let options = Options { hosts: self.groups, element_bytes: 1, segment_bytes, memory, ..Options::new(network) };
        let generate = |rank| (priced.algorithm.generate)(&calls.shape(rank));
        let path = simulate(self.size, &generate, &options).ok()?.seconds;
        Some(PricedAlgorithm { path, total: self.waiting() * path + priced.work, ..priced })
    }

    /// How often longer than with a core for each rank a path takes: who could go on waits for others that share its core.
    fn waiting(&self) -> f64 {
        let here = self.network.per_host.min(self.size).max(1);
        let on_a_core = (here as f64 / self.network.cores as f64).max(1.0);
        1.0 + (on_a_core - 1.0) * self.constants.core_waiting
    }

    /// One algorithm.
    pub fn candidate(&self, algorithm: &'static Algorithm) -> PricedAlgorithm {
        self.counted(|question| question.price(algorithm))
    }

    fn counted<T>(&self, ask: impl FnOnce(&Counted<'_>) -> T) -> T {
        use Collective::*;
        let (size, bytes) = (self.size.max(1), self.bytes);
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
            groups: self.groups,
            links: self.links,
            destinations,
            ..Shape::new(self.collective, 0, size, count)
        };
        ask(&Counted { question: self, shape })
    }
}

/// A question in the terms that prices are written in: elements of one byte, blocks of equal length, root 0.
struct Counted<'a> {
    question: &'a PricingInput<'a>,
    shape: Shape<'a>,
}

impl Counted<'_> {
    /// The best of the segment sizes, the largest among equals.
    fn price(&self, algorithm: &'static Algorithm) -> PricedAlgorithm {
        let max = self.question.max_segment_bytes;
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
                // An algorithm that reads more than there is here cannot be priced; one size is as good as another.
                if ((limit / 2) as f64) < self.question.constants.least_segment_bytes || algorithm.uses == Uses::Counts
                {
                    break;
                }
                limit /= 2;
            }
        }
        best.expect("a segment size was priced")
    }

    fn price_segments(&self, algorithm: &'static Algorithm, shape: &Shape<'_>, limit: usize) -> PricedAlgorithm {
        let PricingInput { network, constants, .. } = *self.question;
        let unpriced = PricedAlgorithm {
            algorithm,
            segment_bytes: limit,
            base: None,
            total: f64::INFINITY,
            path: f64::INFINITY,
            messages: 0.0,
            work: 0.0,
        };
        if algorithm.uses == Uses::Counts {
            return unpriced;
        }
        let segment_bytes = super::segment_bytes(shape, 1, limit);
        let cost = (algorithm.cost)(&Case { shape, element_bytes: 1, segment_bytes, network, constants });
        let here = network.per_host.min(shape.size).max(1);
        let (message, byte) = (constants.message_cpu_us * 1e-6, constants.byte_cpu_ns * 1e-9);
        let busy = cost.messages * message + cost.sent * byte + cost.reduced * network.gamma;
        let work = busy * here as f64 / shape.size as f64 / network.cores.min(here) as f64;
        let total = self.question.waiting() * cost.path + work;
        let Cost { path, messages, .. } = cost;
        if total.is_nan() { unpriced } else { PricedAlgorithm { total, path, messages, work, ..unpriced } }
    }
}
