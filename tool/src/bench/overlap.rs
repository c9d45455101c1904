//! How long a rank can compute while its calls run, as osu_iallreduce of the OSU Micro-Benchmarks measures it.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use gloo_rs::context::{Context, Request};
use gloo_rs::error::Result;

use super::measure::{Measured, Repetition, Runner, barrier, largest_of_all_ranks};
use super::report::Times;
use super::workload::Workload;

/// Tag of the barriers, which that of no request is.
const BARRIER: u64 = 1;
/// Number of measurements by which the computation is made as long as the calls, and of the computation alone.
const MEASUREMENTS: usize = 5;

/// Measures persistent requests, one for each of `works`, all of them started before any is waited for; alternately
/// alone and with a computation before the wait. The times of the latter are the result's `loops`.
pub fn measure(
    context: &Arc<Context>,
    works: &[Workload],
    repetition: Repetition<'_>,
    progress: &dyn Fn(),
) -> Result<Measured> {
    let of = |(thread, work)| Runner::new(context, work, Repetition { thread, ..repetition });
    let mut runners = works.iter().enumerate().map(of).collect::<Result<Vec<_>>>()?;
    runners.iter_mut().for_each(Runner::spoil);
    // Dropped before the buffers.
    let requests = runners.iter().map(Runner::request).collect::<Result<Vec<_>>>()?;
    let timed = |meanwhile: &dyn Fn()| -> Result<f64> {
        barrier(context, BARRIER)?;
        let start = Instant::now();
        requests.iter().try_for_each(Request::start)?;
        meanwhile();
        requests.iter().try_for_each(Request::wait)?;
        Ok(start.elapsed().as_nanos() as f64 / 1e3)
    };
    let verify = || {
        runners
            .iter()
            .enumerate()
            .find_map(|(index, runner)| runner.verify().err().map(|what| format!("request {index}, {what}")))
    };
    timed(&|| ())?;
    let mut wrong = verify();
    let first = (0..repetition.warmup.max(MEASUREMENTS)).map(|_| timed(&|| ())).collect::<Result<Vec<_>>>()?;
    // All ranks compute as long.
    let mut wanted = [Times::of(first).p50_us];
    largest_of_all_ranks(context, &mut wanted)?;
    let work = Computation::lasting(wanted[0]);
    let alone = Times::of((0..MEASUREMENTS).map(|_| work.timed()).collect()).p50_us;
    let (mut times, mut loops) = (Vec::new(), Vec::new());
    for _ in 0..repetition.iterations {
        times.push(timed(&|| ())?);
        loops.push(timed(&|| work.run())?);
        progress();
    }
    wrong = wrong.or_else(|| verify().map(|what| format!("after {} more calls, {what}", 2 * repetition.iterations)));
    Ok(Measured { times, loops, compute: Some(alone), requests: None, wrong })
}

/// Arithmetic that takes about the same time on each run of a processor that does nothing else.
struct Computation {
    rounds: u64,
}

impl Computation {
    fn lasting(us: f64) -> Self {
        let mut work = Self { rounds: 1 << 10 };
        let mut took = work.timed();
        // Long enough for the clock.
        while took < 50.0 {
            work.rounds *= 2;
            took = work.timed();
        }
        Self { rounds: (work.rounds as f64 * us / took).ceil() as u64 }
    }

    fn run(&self) {
        let mut value = 1.0;
        for _ in 0..self.rounds {
            value = black_box(value * 1.000_000_1 + 1e-9);
        }
    }

    /// In µs.
    fn timed(&self) -> f64 {
        let start = Instant::now();
        self.run();
        start.elapsed().as_nanos() as f64 / 1e3
    }
}
