//! Measures collectives over sizes: every algorithm, and `auto`, alternately. All ranks take the same decisions,
//! because these depend only on numbers that the ranks have combined.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use gloo_rs::collective::{Algorithm, Collective, Shape, Uses};
use gloo_rs::error::Error;
use gloo_rs::tuner::file::AUTO;
use gloo_rs::tuner::model::{self, Topology};
use gloo_rs::types::{DataType, ReduceOp};

use super::crossover::Sample;
use crate::bench::measure::{Repetition, Runner, largest_of_all_ranks};
use crate::bench::workload::{Request, Subject, Workload};
use crate::ranks::{Member, says};

/// Minimum and maximum number of measured calls of each algorithm.
const ROUNDS: std::ops::RangeInclusive<usize> = 3..=400;
/// Number of calls before the measurement: one to verify, one to estimate the time.
const FIRST_CALLS: usize = 2;
/// An algorithm is slow if it takes this many times as long as the best.
const SLOW_FACTOR: f64 = 4.0;
/// An algorithm whose time has grown by this factor since the smallest size is slow because of its bytes, not of its
/// steps; from this many bytes on, since ranks that share cores may take twice as long by chance.
const GROWTH_FACTOR: f64 = 2.0;
const LONG_BYTES: usize = 64 << 10;

const DTYPE: DataType = DataType::Float32;
const OP: ReduceOp = ReduceOp::Sum;

/// Lower bound for an algorithm's seconds per byte, while nothing is known.
const MIN_BYTE_SECONDS: f64 = 1e-9;

/// One call of each of several algorithms.
struct Calls {
    bytes: usize,
    algorithms: usize,
    seconds: f64,
}

/// The result for one collective at one size.
pub struct Point {
    pub collective: Collective,
    /// The size of the call in bytes, as `gloo-rs bench` defines it.
    pub bytes: usize,
    /// The size of the call in bytes, as tuning files define it.
    pub call_bytes: usize,
    /// The samples by algorithm, without those that were left out.
    pub times: Vec<Time>,
    /// The time of `auto`, and the algorithm that it selected.
    pub auto: (Sample, &'static str),
    /// What was wrong with this rank's results, if anything.
    pub wrong: Option<String>,
    /// Whether the results of all ranks were right.
    pub verified: bool,
}

/// The time of an algorithm.
pub struct Time {
    pub name: &'static str,
    pub sample: Sample,
    /// Whether `auto` may select it: not if it needs data that a call does not contain.
    pub free: bool,
}

/// The state of the measurements.
pub struct Grid<'a> {
    member: &'a Member,
    started: Instant,
    budget: Duration,
    /// Number of points that have been neither measured nor left out.
    open: usize,
    /// Sum of the times of one call of each algorithm, at the sizes so far.
    calls: BTreeMap<Collective, Vec<Calls>>,
    /// Times in µs at the first size.
    smallest: BTreeMap<(Collective, &'static str), f64>,
    left_out: BTreeSet<(Collective, &'static str)>,
}

impl<'a> Grid<'a> {
    /// Makes a grid of `points` points, to be measured within about `budget`.
    pub fn new(member: &'a Member, budget: Duration, points: usize) -> Self {
        let (calls, smallest, left_out) = Default::default();
        Self { member, started: Instant::now(), budget, open: points, calls, smallest, left_out }
    }

    /// Counts a point that is left out.
    pub fn give_up(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// Returns this rank's part of a point of about `bytes` bytes; `None` if they are rounded to a size that has been
    /// measured, as small ones of blocks for each rank are. Then the point is left out.
    pub fn workload(&mut self, collective: Collective, bytes: usize) -> Result<Option<Workload>, String> {
        let context = &self.member.context;
        let work = request(collective, context.size()).workload(context.rank(), bytes, 0)?;
        if self.calls.get(&collective).is_some_and(|known| known.iter().any(|calls| calls.bytes == work.bytes)) {
            self.give_up();
            return Ok(None);
        }
        Ok(Some(work))
    }

    /// Measures one point, all algorithms alternately. `None` if the budget does not suffice for it; nor will it for a
    /// larger one.
    pub fn measure(&mut self, collective: Collective, work: &Workload) -> Result<Option<Point>, String> {
        let context = &self.member.context;
        let says = |error: Error| says(context.rank(), &error);
        let mut now = [self.started.elapsed().as_secs_f64()];
        largest_of_all_ranks(context, &mut now).map_err(says)?;
        let left = self.budget.as_secs_f64() - now[0];
        let open = self.open.max(1);
        self.give_up();
        let known = self.calls.entry(collective).or_default();
        if (FIRST_CALLS + ROUNDS.start()) as f64 * expected(known, work.bytes) > left.max(0.0) {
            return Ok(None);
        }

        let names = names(collective, work, context.topology(), &self.left_out);
        let repetition = Repetition {
            algorithm: AUTO,
            op: OP,
            warmup: 0,
            iterations: 0,
            limit: None,
            alloc: false,
            loops: false,
            thread: 0,
            slot: 0,
            name: "tune",
        };
        let mut runner = Runner::new(context, work, repetition).map_err(says)?;
        let mut wrong = None;
        // The time of one call of each algorithm, and its time with the barrier before it.
        let (mut first, mut whole) = (Vec::new(), Vec::new());
        for &name in &names {
            runner.select(name);
            runner.spoil();
            runner.run().map_err(says)?;
            if let Err(what) = runner.verify() {
                wrong.get_or_insert(format!("{} {name}: {what}", collective.name()));
            }
            let start = Instant::now();
            first.push(runner.timed().map_err(says)?);
            whole.push(start.elapsed().as_nanos() as f64 / 1e3);
        }
        first.push(f64::from(u8::from(wrong.is_some())));
        largest_of_all_ranks(context, &mut first).map_err(says)?;
        let verified = first.pop() == Some(0.0);

        largest_of_all_ranks(context, &mut whole).map_err(says)?;
        known.push(Calls { bytes: work.bytes, algorithms: names.len(), seconds: whole.iter().sum::<f64>() / 1e6 });
        let rounds = rounds(&first, &whole, left / open as f64 * 1e6);
        let mut times = vec![Vec::new(); names.len()];
        for round in 0..rounds.iter().copied().max().unwrap_or(0) {
            for index in order(names.len(), round) {
                if round < rounds[index] {
                    runner.select(names[index]);
                    times[index].push(runner.timed().map_err(says)?);
                }
            }
        }
        let mut all = times.concat();
        largest_of_all_ranks(context, &mut all).map_err(says)?;
        let mut rest = &all[..];
        let mut samples = Vec::new();
        for count in rounds {
            let (own, others) = rest.split_at(count);
            samples.push(Sample::of(own.to_vec()));
            rest = others;
        }
        let auto = samples.pop().unwrap_or_else(|| Sample::of(vec![0.0]));
        let links = context.tuning().links.as_slice();
        let free = |name| {
            let algorithm = collective.algorithms().iter().find(|algorithm| algorithm.name == name);
            algorithm.is_some_and(|algorithm| context.topology().can_run(collective, algorithm, links))
        };
        let times = names.into_iter().zip(samples).map(|(name, sample)| Time { name, sample, free: free(name) });
        let times: Vec<_> = times.collect();
        self.learn(collective, work.bytes, &times, auto);
        let shape = work.shape().ok_or("a collective without a shape")?;
        Ok(Some(Point {
            collective,
            bytes: work.bytes,
            call_bytes: model::bytes(&shape, DTYPE.size()),
            times,
            auto: (auto, context.choose(&shape, DTYPE)),
            wrong,
            verified,
        }))
    }

    fn learn(&mut self, collective: Collective, bytes: usize, times: &[Time], auto: Sample) {
        let best = times.iter().map(|time| time.sample.us).fold(auto.us, f64::min);
        for &Time { name, sample: Sample { us, .. }, .. } in times {
            let smallest = *self.smallest.entry((collective, name)).or_insert(us);
            // A ring has many steps, and is slow until the bytes dominate; an algorithm that is slow then stays slow.
            if bytes >= LONG_BYTES && us > SLOW_FACTOR * best && us > GROWTH_FACTOR * smallest {
                self.left_out.insert((collective, name));
            }
        }
    }
}

/// The algorithms to measure, `auto` last.
fn names(
    collective: Collective,
    work: &Workload,
    topology: &Topology,
    left_out: &BTreeSet<(Collective, &'static str)>,
) -> Vec<&'static str> {
    let measured = |name: &&str| !left_out.contains(&(collective, *name));
    algorithms(collective, work, topology).filter(measured).chain([AUTO]).collect()
}

/// Estimated seconds of one call of each algorithm together: by the line through the last two sizes, or steeper.
fn expected(known: &[Calls], bytes: usize) -> f64 {
    let Some((last, before)) = known.split_last() else { return 0.0 };
    let slope = before.last().map(|before| (last.seconds - before.seconds, last.bytes - before.bytes));
    // Sizes that are closer together show mostly noise.
    let slope = slope.filter(|(_, bytes)| *bytes >= 4 << 10).map_or(0.0, |(seconds, bytes)| seconds / bytes as f64);
    last.seconds + slope.max(MIN_BYTE_SECONDS * last.algorithms as f64) * bytes.saturating_sub(last.bytes) as f64
}

/// Number of measurements of each algorithm within `share` µs, if one call took `first` µs of each, and `whole` µs with
/// the barrier and everything else. Slow ones are measured as few times as possible.
fn rounds(first: &[f64], whole: &[f64], share: f64) -> Vec<usize> {
    let (min, max) = (*ROUNDS.start(), *ROUNDS.end());
    let best = first.iter().copied().fold(f64::INFINITY, f64::min);
    let is_slow = |us: &f64| *us > SLOW_FACTOR * best;
    let all: f64 = whole.iter().sum();
    let fast: f64 = first.iter().zip(whole).filter(|(us, _)| !is_slow(us)).map(|(_, whole)| whole).sum();
    let more = (share - (FIRST_CALLS + min) as f64 * all) / fast.max(1.0);
    // The conversion from a float saturates at 0 and at the maximum.
    let rounds = (more as usize).saturating_add(min).min(max);
    first.iter().map(|us| if is_slow(us) { min } else { rounds }).collect()
}

/// The order of the algorithms in a round: different in each round, and the same on all ranks. The state that a call
/// finds, such as ranks that are asleep, depends on the call before.
fn order(count: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_cached_key(|index| {
        // A fixed seed: the same on all ranks.
        let mut hasher = DefaultHasher::new();
        (round, index).hash(&mut hasher);
        hasher.finish()
    });
    order
}

/// The algorithms that support this.
fn algorithms(collective: Collective, work: &Workload, topology: &Topology) -> impl Iterator<Item = &'static str> {
    let shape = work.shape().map(|shape| Shape { shared: topology.shares_memory(), ..shape });
    // Counts of other ranks are exchanged when it runs.
    let runs = move |a: &Algorithm| shape.as_ref().is_some_and(|shape| (a.generate)(shape).is_ok());
    // Where there is one cache, they do what others do.
    let has_caches = !topology.domains.is_empty();
    let can = move |algorithm: &&Algorithm| match algorithm.uses {
        Uses::Counts => true,
        Uses::Domains => has_caches && runs(algorithm),
        _ => runs(algorithm),
    };
    collective.algorithms().iter().filter(can).map(|algorithm| algorithm.name)
}

/// Fails if the collective does not support this number of ranks.
pub fn check(collective: Collective, ranks: usize) -> Result<(), String> {
    request(collective, ranks).check()
}

/// Number of algorithms from which `auto` can select if no links were measured.
pub fn choice(collective: Collective, topology: &Topology) -> usize {
    let can = |algorithm: &&Algorithm| topology.can_run(collective, algorithm, &[]);
    if check(collective, topology.hosts.len()).is_ok() { collective.algorithms().iter().filter(can).count() } else { 0 }
}

fn request(collective: Collective, ranks: usize) -> Request {
    let subject = Subject::Collective(collective);
    Request { subject, dtype: DTYPE, op: OP, ranks, root: 0, buffers: 1, in_place: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_a_point_is_spent_on_the_fastest_candidates() {
        let rounds = |first: &[f64], share| rounds(first, first, share);
        assert_eq!(rounds(&[10.0, 10.0], 1e9), [400, 400], "enough is enough");
        assert_eq!(rounds(&[10.0, 20.0, 30.0], 60.0), [3, 3, 3], "at least so many");
        assert_eq!(rounds(&[10.0, 20.0, 30.0], -1.0), [3, 3, 3], "also when nothing is left");
        assert_eq!(rounds(&[10.0, 20.0, 30.0], 60.0 * 25.0), [23, 23, 23], "with the first calls, 25");
        // Five calls of the slow one take 500, which leaves 2,000 for 20 calls of the others.
        assert_eq!(rounds(&[10.0, 10.0, 100.0], 5.0 * 120.0 + 2000.0), [103, 103, 3]);
        assert_eq!(rounds(&[0.0, 0.0], 1e9), [400, 400]);
        assert_eq!(super::rounds(&[10.0, 10.0], &[20.0, 40.0], 60.0 * 25.0), [23, 23], "barriers count");
    }

    #[test]
    fn every_algorithm_follows_every_other() {
        let mut follows = [[0; 5]; 5];
        for round in 0..200 {
            let order = order(5, round);
            order.windows(2).for_each(|pair| follows[pair[0]][pair[1]] += 1);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        for (a, b) in (0..5).flat_map(|a| (0..5).map(move |b| (a, b))) {
            // 40 on average.
            assert!((a == b) == (follows[a][b] == 0) && follows[a][b] < 80, "{follows:?}");
        }
    }

    #[test]
    fn the_time_of_a_size_is_estimated_from_the_last_two() {
        let calls = |bytes, seconds| Calls { bytes, algorithms: 4, seconds };
        let about = |known: &[Calls], bytes, seconds: f64| {
            let found = expected(known, bytes);
            assert!((found / seconds - 1.0).abs() < 1e-9, "{found} for {seconds}");
        };
        assert_eq!(expected(&[], 1 << 30), 0.0, "the first is measured in any case");
        about(&[calls(4, 1e-3)], 1_000_004, 1e-3 + 4.0 * 1e-3);
        about(&[calls(4, 1e-3), calls(16, 9e-3)], 1_000_016, 9e-3 + 4.0 * 1e-3);
        about(&[calls(0, 1e-3), calls(1_000_000, 21e-3)], 5_000_000, 101e-3);
        about(&[calls(0, 9e-3), calls(1_000_000, 8e-3)], 2_000_000, 12e-3);
    }

    #[test]
    fn only_algorithms_that_can_run_are_measured() {
        let work = request(Collective::Allreduce, 4).workload(0, 1024, 0).unwrap();
        let unshared = Topology::one_host(4, 4);
        let together = Topology { shared: true, ..unshared.clone() };
        let caches = Topology { domains: vec![0, 0, 1, 1], ..together.clone() };
        for (topology, shared) in [(&unshared, false), (&together, true), (&caches, true)] {
            let names: Vec<_> = algorithms(Collective::Allreduce, &work, topology).collect();
            assert!(names.contains(&"ring_segmented") && !names.contains(&"local"), "{names:?}");
            assert_eq!(names.contains(&"shared_slices"), shared, "{names:?}");
            assert_eq!(names.contains(&"shared_hierarchical_flat"), !topology.domains.is_empty(), "{names:?}");
            assert!(choice(Collective::Allreduce, topology) > 5);
            assert_eq!(choice(Collective::Scan, topology), 1 + usize::from(shared));
        }
        assert_eq!(choice(Collective::PairwiseExchange, &Topology::one_host(3, 3)), 0);
        assert!(check(Collective::PairwiseExchange, 3).unwrap_err().contains("power of two"));
    }
}
