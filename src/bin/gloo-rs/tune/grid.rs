//! Measures collectives over sizes: every algorithm, and `auto`, in turn. All ranks do the same, since all that they decide by
//! are numbers that they have compared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gloo_rs::collective::{Algorithm, Collective};
use gloo_rs::error::Error;
use gloo_rs::tuner::file::AUTO;
use gloo_rs::types::{DataType, ReduceOp};

use super::crossover::Sample;
use crate::bench::measure::{Repetition, Runner, largest_of_all_ranks};
use crate::bench::workload::{Request, Subject, Workload};
use crate::ranks::Member;

/// Calls that are measured of each algorithm: at least, even of a slow one, and at most.
const ROUNDS: std::ops::RangeInclusive<usize> = 3..=400;
/// Calls before those: one to verify, one to know what the others will take.
const FIRST_CALLS: usize = 2;
/// So many times slower than the best is slow.
const SLOW: f64 = 4.0;
/// An algorithm whose time has grown by so much since the smallest size is slow for its bytes, not for its steps.
const GROWN: f64 = 2.0;

const DTYPE: DataType = DataType::Float32;
const OP: ReduceOp = ReduceOp::Sum;

/// What was found of one collective at one size.
pub struct Point {
    pub collective: Collective,
    /// As `gloo-rs bench` counts them.
    pub bytes: usize,
    /// As a tuning file counts them.
    pub call_bytes: usize,
    /// By algorithm; those that were left out are not there.
    pub times: Vec<(&'static str, Sample)>,
    /// The time of `auto`, and what it chose.
    pub auto: (Sample, &'static str),
    /// What was wrong with this rank's results, if anything was.
    pub wrong: Option<String>,
    /// Whether every rank's results were right.
    pub verified: bool,
}

/// What is left to be measured, and what is known that saves time.
pub struct Grid<'a> {
    member: &'a Member,
    started: Instant,
    budget: Duration,
    /// Points that nobody has measured or given up yet.
    open: usize,
    /// What one call of each algorithm took in µs at the last size, with its bytes.
    last: BTreeMap<Collective, (f64, usize)>,
    /// Times in µs at the first size.
    smallest: BTreeMap<(Collective, &'static str), f64>,
    left_out: BTreeSet<(Collective, &'static str)>,
}

impl<'a> Grid<'a> {
    /// For `points` points within about `budget`.
    pub fn new(member: &'a Member, budget: Duration, points: usize) -> Self {
        let (last, smallest, left_out) = Default::default();
        Self { member, started: Instant::now(), budget, open: points, last, smallest, left_out }
    }

    /// One point less to be measured.
    pub fn give_up(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// Measures one point, all algorithms in turn. `None` if the budget does not reach for it, nor for a larger one then.
    pub fn measure(&mut self, collective: Collective, bytes: usize) -> Result<Option<Point>, String> {
        let context = &self.member.context;
        let says = |error: Error| format!("rank {}: {error}", context.rank());
        let mut now = [self.started.elapsed().as_secs_f64()];
        largest_of_all_ranks(context, &mut now).map_err(says)?;
        let left = self.budget.as_secs_f64() - now[0];
        let open = self.open.max(1);
        self.give_up();
        if let Some((us, last_bytes)) = self.last.get(&collective) {
            let calls = (FIRST_CALLS + ROUNDS.start()) as f64;
            if us / 1e6 * calls * (bytes as f64 / *last_bytes as f64).max(1.0) > left {
                return Ok(None);
            }
        }

        let work = request(collective, context.size()).workload(context.rank(), bytes, 0)?;
        let names = self.names(collective, &work);
        let repetition =
            Repetition { algorithm: AUTO, op: OP, warmup: 0, iterations: 0, thread: 0, slot: 0, name: "tune" };
        let mut runner = Runner::new(context, &work, repetition).map_err(says)?;
        let mut wrong = None;
        // Of one call of each: its time, and what it took with the barrier before it.
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
        self.last.insert(collective, (whole.iter().sum(), bytes.max(1)));
        let rounds = rounds(&first, &whole, left / open as f64 * 1e6);
        let mut times = vec![Vec::new(); names.len()];
        for round in 0..rounds.iter().copied().max().unwrap_or(0) {
            for turn in 0..names.len() {
                let index = (round + turn) % names.len();
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
        let times: Vec<_> = names.into_iter().zip(samples).collect();
        self.learn(collective, &times, auto);
        let shape = work.shape().ok_or("a collective without a shape")?;
        Ok(Some(Point {
            collective,
            bytes: work.bytes,
            call_bytes: work.bytes,
            times,
            auto: (auto, context.choose(&shape, DTYPE)),
            wrong,
            verified,
        }))
    }

    /// What takes part, `auto` last.
    fn names(&self, collective: Collective, work: &Workload) -> Vec<&'static str> {
        let algorithms = algorithms(collective, work).filter(|name| !self.left_out.contains(&(collective, *name)));
        algorithms.chain([AUTO]).collect()
    }

    fn learn(&mut self, collective: Collective, times: &[(&'static str, Sample)], auto: Sample) {
        let best = times.iter().map(|(_, sample)| sample.us).fold(auto.us, f64::min);
        for &(name, Sample { us, .. }) in times {
            let smallest = *self.smallest.entry((collective, name)).or_insert(us);
            // A ring has many steps, and is slow until bytes count; whoever is slow then stays so.
            if us > SLOW * best && us > GROWN * smallest {
                self.left_out.insert((collective, name));
            }
        }
    }
}

/// How often each algorithm is measured within `share` µs, where one call took `first` µs of each, and `whole` µs with all
/// that belongs to it. Slow ones are measured no more than need be.
fn rounds(first: &[f64], whole: &[f64], share: f64) -> Vec<usize> {
    let (least, most) = (*ROUNDS.start(), *ROUNDS.end());
    let best = first.iter().copied().fold(f64::INFINITY, f64::min);
    let is_slow = |us: &f64| *us > SLOW * best;
    let all: f64 = whole.iter().sum();
    let fast: f64 = first.iter().zip(whole).filter(|(us, _)| !is_slow(us)).map(|(_, whole)| whole).sum();
    let more = (share - (FIRST_CALLS + least) as f64 * all) / fast.max(1.0);
    // From a float, it is cut off at 0 and at the largest.
    let rounds = (more as usize).saturating_add(least).min(most);
    first.iter().map(|us| if is_slow(us) { least } else { rounds }).collect()
}

/// The algorithms that can do this.
fn algorithms(collective: Collective, work: &Workload) -> impl Iterator<Item = &'static str> {
    let shape = work.shape();
    let can = move |a: &&Algorithm| shape.as_ref().is_some_and(|shape| (a.generate)(shape).is_ok());
    collective.algorithms().iter().filter(can).map(|algorithm| algorithm.name)
}

/// The algorithms of `collective` that `ranks` ranks have.
pub fn choice(collective: Collective, ranks: usize) -> Result<Vec<&'static str>, String> {
    let request = request(collective, ranks);
    request.check()?;
    let work = request.workload(0, 1 << 10, 0)?;
    Ok(algorithms(collective, &work).collect())
}

fn request(collective: Collective, ranks: usize) -> Request {
    let subject = Subject::Collective(collective);
    Request { subject, dtype: DTYPE, op: OP, ranks, root: 0, buffers: 1, in_place: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_a_point_is_spent_on_what_may_win() {
        let rounds = |first: &[f64], share| rounds(first, first, share);
        assert_eq!(rounds(&[10.0, 10.0], 1e9), [400, 400], "enough is enough");
        assert_eq!(rounds(&[10.0, 20.0, 30.0], 60.0), [3, 3, 3], "at least so many");
        assert_eq!(rounds(&[10.0, 20.0, 30.0], -1.0), [3, 3, 3], "also when nothing is left");
        assert_eq!(rounds(&[10.0, 20.0, 30.0], 60.0 * 25.0), [23, 23, 23], "with the first calls, 25");
        // Five calls of the slow one take 500, which leaves 2,000 for the others' 20.
        assert_eq!(rounds(&[10.0, 10.0, 100.0], 5.0 * 120.0 + 2000.0), [103, 103, 3]);
        assert_eq!(rounds(&[0.0, 0.0], 1e9), [400, 400]);
        assert_eq!(super::rounds(&[10.0, 10.0], &[20.0, 40.0], 60.0 * 25.0), [23, 23], "barriers count");
    }

    #[test]
    fn only_what_can_run_is_measured() {
        let names = choice(Collective::Allreduce, 4).unwrap();
        assert!(names.contains(&"ring_segmented") && !names.contains(&"local"), "{names:?}");
        assert!(choice(Collective::PairwiseExchange, 3).unwrap_err().contains("power of two"));
    }
}
