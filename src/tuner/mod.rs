//! Selects algorithms and segment sizes. All ranks must make the same selection without communication. It is therefore
//! a pure function of what they agreed on when they connected and of what every rank knows of the call; it does not
//! depend on the rank, nor on counts or buffers that only the root has.
//!
//! [`model`] estimates the cost of the algorithms. The measurements in a tuning [`file`](mod@file) take precedence over
//! it, and [`overrides`] over both. Decisions are cached by size, with four sizes per power of two.

pub mod file;
pub mod model;
pub mod overrides;
pub mod source;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::collective::{Algorithm, Collective, Constants, Order, Shape};
use crate::error::{Error, Result};
use crate::reserve::try_collect;
use crate::schedule::cost::Network;
use crate::types::Rank;
use file::{AUTO, Choice, Tuning};
use model::{PricedAlgorithm, PricingInput, Topology};
use overrides::Overrides;

/// The parameters that the ranks of a context agreed on, and the decisions derived from them.
pub struct Tuner {
    tuning: Tuning,
    overrides: Overrides,
    topology: Topology,
    network: Network,
    constants: Constants,
    max_segment_bytes: usize,
    /// The rules of each collective, which take precedence over the model.
    rules: [Vec<Rule>; COLLECTIVES],
    /// The cached decisions of each collective, for `auto` and then for each algorithm, by size.
    tables: [OnceLock<Box<[AtomicU64]>>; COLLECTIVES],
}

/// How a call is executed.
#[derive(Clone, Copy)]
pub struct Decision {
    /// The algorithm.
    pub algorithm: &'static Algorithm,
    /// Maximum segment size in bytes; an argument of [`segment_bytes`].
    pub segment_bytes: usize,
    /// Group size of `bcube`, if `auto` selected it.
    pub base: Option<usize>,
}

/// The origin of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The cost model: it has the lowest estimated time.
    Model,
    /// A tuning file: it was the fastest when `gloo-rs tune` measured.
    File {
        /// The number of ranks in the measurement.
        ranks: usize,
    },
    /// The environment variable [`overrides::VARIABLE`].
    Override,
}

/// A selection and its reasons.
#[derive(Clone)]
pub struct Explanation {
    /// The selected algorithm.
    pub chosen: PricedAlgorithm,
    /// The origin of the selection.
    pub why: Why,
    /// All algorithms that can be used, in ascending order of cost.
    pub candidates: Vec<PricedAlgorithm>,
}

/// Selects the algorithm for calls of `from..=up_to` bytes.
#[derive(Clone, Debug)]
struct Rule {
    from: usize,
    up_to: usize,
    /// Index in the collective's list; `None`: the model decides.
    algorithm: Option<usize>,
    segment_bytes: Option<usize>,
    why: Why,
}

const COLLECTIVES: usize = Collective::ALL.len();

/// Number of size classes: one for 0 bytes, and four per power of two.
const SIZES: usize = 1 + 4 * usize::BITS as usize;

impl Tuner {
    /// A tuner for ranks with this topology; segments have at most `max_segment_bytes`.
    pub fn new(tuning: Tuning, overrides: Overrides, topology: Topology, max_segment_bytes: usize) -> Self {
        let (network, constants) = (topology.network(&tuning), tuning.constants());
        let rules = std::array::from_fn(|index| rules(Collective::ALL[index], &tuning, &overrides, &topology));
        let tables = std::array::from_fn(|_| OnceLock::new());
        Self { tuning, overrides, topology, network, constants, max_segment_bytes, rules, tables }
    }

    /// A tuner with built-in values, for ranks of which nothing is known.
    pub fn built_in(size: usize, max_segment_bytes: usize) -> Self {
        Self::new(Tuning::default(), Overrides::default(), Topology::one_rank_per_host(size), max_segment_bytes)
    }

    /// Returns a tuner with the same parameters and another maximum segment size.
    pub fn inherit(&self, max_segment_bytes: usize) -> Self {
        Self::new(self.tuning.clone(), self.overrides.clone(), self.topology.clone(), max_segment_bytes)
    }

    /// Returns a tuner with the same parameters for a context of the ranks `ranks`, which have this topology. Link
    /// constants are kept, bandwidths between ranks are those of these ranks, and choices of a tuning file are those
    /// for their number.
    pub fn of_ranks(&self, ranks: &[Rank], topology: Topology) -> Self {
        let (links, size) = (self.links(), self.topology.hosts.len());
        // Bandwidths measured with another number of ranks do not apply to these.
        let links = match links {
            [] => Vec::new(),
            _ => ranks.iter().flat_map(|from| ranks.iter().map(move |to| links[from * size + to])).collect(),
        };
        let tuning = Tuning { links, ..self.tuning.clone() };
        Self::new(tuning, self.overrides.clone(), topology, self.max_segment_bytes)
    }

    /// The network for which costs are estimated.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The other constants of the cost model.
    pub fn constants(&self) -> &Constants {
        &self.constants
    }

    /// The measurements and the contents of the tuning file.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// What takes precedence over the tuning.
    pub fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// The value for [`Shape::links`]; empty if no links were measured for this number of ranks.
    pub fn links(&self) -> &[u32] {
        let size = self.topology.hosts.len();
        if self.tuning.links.len() == size * size { &self.tuning.links } else { &[] }
    }

    /// Returns this tuner for ranks with these caches, which share memory if `shared` says so; see [`Shape::domains`].
    pub fn with_shared_memory(self, shared: bool, domains: Vec<u32>) -> Self {
        if self.topology.shared == shared && self.topology.domains == domains {
            return self;
        }
        let topology = Topology { shared, domains, ..self.topology };
        Self::new(self.tuning, self.overrides, topology, self.max_segment_bytes)
    }

    /// The distribution of the ranks over hosts.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether all ranks are on one host and share memory.
    pub fn shares_memory(&self) -> bool {
        self.topology.shares_memory()
    }

    /// How to execute a call: with the algorithm called `named`, or with the best one for `auto` and `None`. Fails if
    /// `named` is unknown.
    pub fn decide(&self, shape: &Shape<'_>, element_bytes: usize, named: Option<&str>) -> Result<Decision> {
        let bytes = model::bytes(shape, element_bytes);
        if shape.order != Order::Any {
            return self.decide_in_order(shape, bytes, named);
        }
        match named {
            None | Some(AUTO) => self.choose(shape.collective, bytes),
            Some(name) => {
                let algorithm = shape.collective.algorithm(name)?;
                let position = position(shape.collective, algorithm);
                let decision = self.look_up(shape.collective, Some(position), bytes)?;
                Ok(Decision { base: None, ..decision })
            }
        }
    }

    /// As [`Tuner::decide`], among the algorithms that combine in the order of the call. A rule that names another one
    /// does not count.
    #[cold]
    fn decide_in_order(&self, shape: &Shape<'_>, bytes: usize, named: Option<&str>) -> Result<Decision> {
        let Shape { collective, order, .. } = *shape;
        let folds = |algorithm: &&'static Algorithm| shape.folds(algorithm);
        let named = match named.filter(|name| *name != AUTO) {
            Some(name) => {
                let algorithm = collective.algorithm(name)?;
                if !folds(&algorithm) {
                    let all = collective.algorithms().iter().filter(folds).map(|algorithm| algorithm.name);
                    let (does_not, do_so) = match order {
                        Order::Reproducible if collective.folds(algorithm) => {
                            ("is not reproducible with several inputs on a rank", "are")
                        }
                        Order::Reproducible => ("is not reproducible", "are"),
                        _ => ("does not combine in the order of ranks, from the left", "do"),
                    };
                    return Err(Error::invalid(format!(
                        "{} {name} {does_not}; these {do_so}: {}",
                        collective.name(),
                        all.collect::<Vec<_>>().join(", ")
                    )));
                }
                Some(algorithm)
            }
            None => {
                let position = self.rule(collective, bytes).and_then(|rule| rule.algorithm);
                position.map(|position| &collective.algorithms()[position]).filter(folds)
            }
        };
        let input = PricingInput { order, ..self.input(collective, bytes) };
        let priced = match named {
            Some(algorithm) => input.candidate(algorithm),
            None => {
                let mut candidates = input.candidates();
                candidates.retain(|priced| shape.folds(priced.algorithm));
                input.best(&candidates)
            }
        };
        Ok(Decision { algorithm: priced.algorithm, segment_bytes: priced.segment_bytes, base: None })
    }

    fn choose(&self, collective: Collective, bytes: usize) -> Result<Decision> {
        match self.rule(collective, bytes) {
            None => self.look_up(collective, None, bytes),
            Some(rule) => {
                let decision = self.look_up(collective, rule.algorithm, bytes)?;
                let segment_bytes = self.segment_bytes_of(rule, decision.segment_bytes);
                Ok(Decision { segment_bytes, ..decision })
            }
        }
    }

    /// The rule's segment size, within the limit; or what the model selected.
    fn segment_bytes_of(&self, rule: &Rule, selected: usize) -> usize {
        rule.segment_bytes.map_or(selected, |bytes| bytes.min(self.max_segment_bytes))
    }

    fn rule(&self, collective: Collective, bytes: usize) -> Option<&Rule> {
        self.rules[collective as usize].iter().find(|rule| (rule.from..=rule.up_to).contains(&bytes))
    }

    /// The model's decision among all algorithms, or for one of them. Cached.
    fn look_up(&self, collective: Collective, position: Option<usize>, bytes: usize) -> Result<Decision> {
        let algorithms = collective.algorithms();
        let table = &self.tables[collective as usize];
        let table = match table.get() {
            Some(table) => table,
            None => {
                let cells = (0..SIZES * (algorithms.len() + 1)).map(|_| Ok(AtomicU64::new(0)));
                let cells = try_collect(cells, format_args!("the choices for {}", collective.name()))?;
                table.get_or_init(|| cells.into_boxed_slice())
            }
        };
        let size = bucket(bytes);
        let cell = &table[position.map_or(0, |position| position + 1) * SIZES + size];
        // A decision is a single word, and every thread computes the same, so relaxed ordering is sufficient.
        let known = cell.load(Ordering::Relaxed);
        if known != 0 {
            return Ok(unpack(known, algorithms));
        }
        let decision = self.price(collective, position, first_of(size));
        cell.store(pack(&decision, collective), Ordering::Relaxed);
        Ok(decision)
    }

    #[cold]
    fn price(&self, collective: Collective, position: Option<usize>, bytes: usize) -> Decision {
        let input = self.input(collective, bytes);
        let priced = match position {
            Some(position) => input.candidate(&collective.algorithms()[position]),
            None => input.best(&input.candidates()),
        };
        Decision { algorithm: priced.algorithm, segment_bytes: priced.segment_bytes, base: priced.base }
    }

    fn input(&self, collective: Collective, bytes: usize) -> PricingInput<'_> {
        PricingInput {
            collective,
            bytes,
            network: &self.network,
            constants: &self.constants,
            topology: &self.topology,
            links: self.links(),
            max_segment_bytes: self.max_segment_bytes,
            order: Order::Any,
        }
    }

    /// The selection of `auto` for a call of `bytes` (as counted by [`model::bytes`]), and its reasons.
    pub fn explain(&self, collective: Collective, bytes: usize) -> Explanation {
        let input = self.input(collective, first_of(bucket(bytes)));
        let mut candidates = input.complete(&input.candidates());
        candidates.sort_by(|a, b| a.total.total_cmp(&b.total));
        let rule = self.rule(collective, bytes);
        let (chosen, why) = match rule.and_then(|rule| Some((rule, rule.algorithm?))) {
            None => (candidates[0], Why::Model),
            Some((rule, position)) => {
                let algorithm = &collective.algorithms()[position];
                let same = |priced: &&PricedAlgorithm| std::ptr::eq(priced.algorithm, algorithm);
                let priced = candidates.iter().find(same).copied();
                let priced = priced.unwrap_or_else(|| input.complete(&[input.candidate(algorithm)])[0]);
                let segment_bytes = self.segment_bytes_of(rule, priced.segment_bytes);
                (PricedAlgorithm { segment_bytes, ..priced }, rule.why)
            }
        };
        Explanation { chosen, why, candidates }
    }
}

/// The rules for `collective`, in order of precedence.
fn rules(collective: Collective, tuning: &Tuning, overrides: &Overrides, topology: &Topology) -> Vec<Rule> {
    let size = topology.hosts.len();
    let mut rules: Vec<Rule> = overrides
        .iter()
        .filter(|part| part.collective == collective)
        .map(|part| Rule {
            from: part.from,
            up_to: part.up_to,
            algorithm: part.algorithm().map(|algorithm| position(collective, algorithm)),
            segment_bytes: None,
            why: Why::Override,
        })
        .collect();
    let hosts = topology.host_count();
    let times = tuning.constants().near_ranks;
    let near = |one: usize, other: usize| one.max(other) as f64 <= one.min(other) as f64 * times;
    // What is best on one host says nothing of several, nor the reverse.
    let alike = |of: usize| near(of, hosts) && (of == 1) == (hosts == 1);
    let of = |choice: &&Choice| {
        choice.collective == collective && near(choice.ranks, size) && choice.hosts.is_none_or(alike)
    };
    // The numbers with the smallest ratio to these; of two with the same ratio, the smaller. Any number of hosts is the
    // last resort.
    let ratio = |one: usize, other: usize| (one.max(other) * 1024 / one.min(other).max(1), one);
    let distance =
        |(ranks, of): &(usize, Option<usize>)| (ratio(*ranks, size), of.map_or((usize::MAX, 0), |of| ratio(of, hosts)));
    let places = tuning.choices.iter().filter(of).map(|choice| (choice.ranks, choice.hosts));
    let Some((ranks, on)) = places.min_by_key(distance) else { return rules };
    let there = |choice: &&Choice| (choice.ranks, choice.hosts) == (ranks, on);
    let mut choices: Vec<&Choice> = tuning.choices.iter().filter(of).filter(there).collect();
    choices.sort_by_key(|choice| choice.up_to);
    let mut from = 0;
    for choice in choices {
        let algorithm = collective.algorithms().iter().position(|algorithm| algorithm.name == choice.algorithm);
        // The algorithm may require data that was available where it was measured but is not here.
        let runs = algorithm.is_none_or(|at| topology.can_run(collective, &collective.algorithms()[at], &tuning.links));
        rules.push(Rule {
            from,
            up_to: choice.up_to,
            algorithm: algorithm.filter(|_| runs),
            segment_bytes: choice.segment_bytes.filter(|_| runs),
            why: Why::File { ranks },
        });
        from = choice.up_to.saturating_add(1);
    }
    rules
}

/// The index of `algorithm` in its collective's list.
pub fn position(collective: Collective, algorithm: &Algorithm) -> usize {
    collective.algorithms().iter().position(|a| std::ptr::eq(a, algorithm)).unwrap_or(0)
}

/// The size class of `bytes`.
fn bucket(bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    let power = bytes.ilog2();
    let quarter = if power < 2 { bytes << (2 - power) } else { bytes >> (power - 2) } & 3;
    1 + 4 * power as usize + quarter
}

/// The smallest number of bytes in a size class; powers of two are exact.
fn first_of(bucket: usize) -> usize {
    match bucket.checked_sub(1) {
        None => 0,
        Some(index) => ((4 + index % 4) as u128 * (1u128 << (index / 4)) / 4) as usize,
    }
}

/// Packs a decision into a word, which is never 0.
fn pack(decision: &Decision, collective: Collective) -> u64 {
    let segment = u32::try_from(decision.segment_bytes).unwrap_or(u32::MAX);
    let base = decision.base.unwrap_or(0) as u64;
    1 << 63 | base << 40 | (position(collective, decision.algorithm) as u64) << 32 | u64::from(segment)
}

fn unpack(word: u64, algorithms: &'static [Algorithm]) -> Decision {
    let base = (word >> 40 & 0xffff) as usize;
    Decision {
        algorithm: &algorithms[(word >> 32 & 0xff) as usize],
        segment_bytes: word as u32 as usize,
        base: (base > 0).then_some(base),
    }
}

/// The segment size in bytes: a multiple of `element_bytes`, and at most `limit` unless an element is larger.
///
/// Blocks longer than `limit` in a ring or a direct exchange are cut into equal segments. Where blocks differ in length
/// and only some ranks know the lengths, the result is `limit`.
pub fn segment_bytes(shape: &Shape<'_>, element_bytes: usize, limit: usize) -> usize {
    use Collective::*;
    let element_bytes = element_bytes.max(1);
    let max = (limit / element_bytes).max(1);
    let chunk = match shape.collective {
        Allreduce | Reduce | Broadcast | Scan | Exscan => shape.count.div_ceil(shape.size.max(1)),
        Allgather => shape.count.saturating_mul(shape.inputs.max(1)),
        Gather | Scatter | Alltoall | PairwiseExchange => shape.count,
        ReduceScatter | Allgatherv => shape.recv_counts.iter().copied().max().unwrap_or(0),
        Gatherv | Scatterv | Alltoallv | Barrier => 0,
    };
    let segment = if chunk <= max { max } else { chunk.div_ceil(chunk.div_ceil(max)) };
    segment * element_bytes
}
