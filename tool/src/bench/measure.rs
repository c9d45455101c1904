//! Runs one measurement on one thread of one rank: verifies, warms up, measures, verifies again.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, Reduction, Request, UnboundBuffer};
use gloo_rs::error::{Error, Result};
use gloo_rs::rendezvous::Store;
use gloo_rs::types::{DataType, ReduceOp, Slot};

use super::buffer::Buffer;
use super::report::Requests;
use super::workload::{Workload, fill, verify};

/// Tag of calls outside of measurements.
const CONTROL: u64 = 0;
/// Time for which the last rank lets the others wait when a barrier is verified.
const LATE: Duration = Duration::from_millis(10);
/// Number of ranks that are the last one in turn.
const LATE_RANKS: usize = 8;
/// Number of loops of back-to-back calls.
const LOOPS: usize = 10;
/// Number of calls that are measured at least where the time is limited.
const MIN_CALLS: usize = 5;
/// Calls for which work requests are counted.
const COUNTED: usize = 20;
/// A byte that no result contains.
const SPOILT: u8 = 0x5a;

/// The number of iterations, the algorithm, and tags that separate this measurement from others.
#[derive(Clone, Copy, Debug)]
pub struct Repetition<'a> {
    pub algorithm: &'a str,
    pub op: ReduceOp,
    pub warmup: usize,
    pub iterations: usize,
    /// Time for the iterations: if they would take longer, there are fewer.
    pub limit: Option<Duration>,
    /// Whether the context allocates the buffers.
    pub alloc: bool,
    /// Whether loops of calls are measured too.
    pub loops: bool,
    /// Number of this thread in its rank; each has tags of its own.
    pub thread: usize,
    /// Slot of this thread's messages.
    pub slot: Slot,
    /// Different from that of every other measurement with the same store.
    pub name: &'a str,
}

/// The result of one thread.
#[derive(Debug)]
pub struct Measured {
    /// Time of each iteration in µs.
    pub times: Vec<f64>,
    /// Time of a call in each loop of calls, in µs; empty if none were asked for.
    pub loops: Vec<f64>,
    /// Time of the computation beside requests, alone, in µs.
    pub compute: Option<f64>,
    /// What queue pairs did for a call, on average of several in a row; `None` with other transports.
    pub requests: Option<Requests>,
    /// What was wrong with the result, if anything.
    pub wrong: Option<String>,
}

/// Runs `work` on this thread; every rank calls it. `progress` is called after each measured iteration.
pub fn measure(
    context: &Arc<Context>,
    store: &dyn Store,
    work: &Workload,
    repetition: Repetition<'_>,
    progress: &dyn Fn(),
) -> Result<Measured> {
    let mut runner = Runner::new(context, work, repetition)?;
    let mut wrong = if work.shape().is_some_and(|shape| shape.collective == Collective::Barrier) {
        runner.verify_barrier(store)?
    } else {
        runner.run()?;
        runner.verify().err()
    };
    let (warmup, iterations) = match repetition.limit {
        None => (repetition.warmup, repetition.iterations),
        Some(limit) => {
            let iterations = runner.fitting(limit)?;
            (repetition.warmup.min(iterations / 5), iterations)
        }
    };
    let mut times = Vec::with_capacity(iterations);
    for iteration in 0..warmup + iterations {
        let time = runner.timed()?;
        if iteration >= warmup {
            times.push(time);
            progress();
        }
    }
    let mut loops = Vec::new();
    if repetition.loops {
        for _ in 0..LOOPS {
            loops.push(runner.timed_loop(iterations.div_ceil(LOOPS))?);
        }
    }
    // Counts of the context: those of several threads would be mixed.
    let requests = if repetition.thread == 0 { runner.count_requests()? } else { None };
    if wrong.is_none() {
        wrong = runner.verify().err().map(|what| format!("after {} more calls, {what}", warmup + iterations));
    }
    Ok(Measured { times, loops, compute: None, requests, wrong })
}

/// Replaces each number by the maximum over all ranks. Every rank calls it with the same number of elements.
pub fn largest_of_all_ranks(context: &Context, numbers: &mut [f64]) -> Result<()> {
    let shape = Shape { count: numbers.len(), outputs: 1, ..empty_shape(context, Collective::Allreduce) };
    let reduction = Reduction::Op(ReduceOp::Max);
    let (tag, outputs) = (CONTROL, &[numbers.as_mut_ptr().cast::<u8>()]);
    // SAFETY: the only buffer of the shape is `numbers`, which is borrowed until the call returns.
    unsafe { context.run(&call(shape, None, DataType::Float64, reduction, &[], outputs, tag)) }
}

/// Waits for all ranks; they pass the same tag.
pub fn barrier(context: &Context, tag: u64) -> Result<()> {
    let shape = empty_shape(context, Collective::Barrier);
    // SAFETY: a barrier has no buffers.
    unsafe { context.run(&call(shape, None, DataType::Uint8, Reduction::Op(ReduceOp::Sum), &[], &[], tag)) }
}

fn empty_shape(context: &Context, collective: Collective) -> Shape<'static> {
    Shape { inputs: 0, outputs: 0, ..Shape::new(collective, context.rank(), context.size(), 0) }
}

fn call<'a>(
    shape: Shape<'a>,
    algorithm: Option<&'a str>,
    dtype: DataType,
    reduction: Reduction,
    inputs: &'a [*const u8],
    outputs: &'a [*mut u8],
    tag: u64,
) -> Call<'a> {
    Call { algorithm, reduction, inputs, outputs, tag, ..Call::new(shape, dtype) }
}

/// The buffers of a measurement on one thread, and the call that uses them.
pub struct Runner<'a> {
    context: &'a Arc<Context>,
    work: &'a Workload,
    repetition: Repetition<'a>,
    /// Only for sendrecv: to send from and to receive into. They point into `inputs` and `outputs`, and must be
    /// dropped before those.
    unbound: Option<(UnboundBuffer, UnboundBuffer)>,
    /// Whether a call changes its input, because it works in place.
    overwrites: bool,
    input_pointers: Vec<*const u8>,
    output_pointers: Vec<*mut u8>,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
}

impl<'a> Runner<'a> {
    /// Allocates and fills the buffers.
    pub fn new(context: &'a Arc<Context>, work: &'a Workload, repetition: Repetition<'a>) -> Result<Self> {
        let size = work.dtype.size();
        let owner = repetition.alloc.then_some(context);
        let mut inputs = Vec::new();
        for (index, pieces) in work.inputs.iter().enumerate() {
            let mut buffer = Buffer::new(work.input_len(index) * size, owner)?;
            fill(buffer.bytes_mut(), pieces, size);
            inputs.push(buffer);
        }
        let mut outputs = Vec::new();
        for index in 0..work.before.len() {
            outputs.push(Buffer::new(work.output_len(index) * size, owner)?);
        }
        let unbound = match work.shape() {
            Some(_) => None,
            None => {
                let unbound = |buffer: &Buffer| {
                    // SAFETY: the runner drops the memory after the unbound buffer.
                    unsafe { context.unbound_buffer(buffer.as_ptr(), buffer.len()) }
                };
                Some((unbound(&inputs[0])?, unbound(&outputs[0])?))
            }
        };
        let input_pointers = inputs.iter().map(|buffer| buffer.as_ptr().cast_const()).collect();
        let output_pointers = outputs.iter().map(Buffer::as_ptr).collect();
        let overwrites = work
            .before
            .iter()
            .zip(&work.after)
            .any(|(before, after)| !before.iter().all(|piece| after.contains(piece)));
        let mut runner =
            Self { context, work, repetition, unbound, overwrites, input_pointers, output_pointers, inputs, outputs };
        runner.restore();
        Ok(runner)
    }

    /// Uses this algorithm from now on.
    pub fn select(&mut self, algorithm: &'a str) {
        self.repetition.algorithm = algorithm;
    }

    /// Overwrites earlier results, so that they cannot be taken for the next ones.
    pub fn spoil(&mut self) {
        self.outputs.iter_mut().for_each(|output| output.bytes_mut().fill(SPOILT));
        self.restore();
    }

    /// Time of the call in µs, on this rank, after a barrier.
    pub fn timed(&mut self) -> Result<f64> {
        if self.overwrites {
            self.restore();
        }
        self.timed_loop(1)
    }

    /// Time of a call in µs, on this rank, as the average of so many in a row after a barrier.
    fn timed_loop(&mut self, calls: usize) -> Result<f64> {
        barrier(self.context, self.repetition.thread as u64 * 2 + 1)?;
        let start = Instant::now();
        for _ in 0..calls {
            self.run()?;
        }
        Ok(start.elapsed().as_nanos() as f64 / 1e3 / calls as f64)
    }

    /// What queue pairs do for a call, in calls back to back, which no barrier separates.
    fn count_requests(&mut self) -> Result<Option<Requests>> {
        let Some(_) = self.context.counters()? else { return Ok(None) };
        barrier(self.context, CONTROL)?;
        let before = self.context.counters()?.unwrap_or_default();
        for _ in 0..COUNTED {
            self.run()?;
        }
        let after = self.context.counters()?.unwrap_or_default();
        Ok(Some(Requests::between(before, after, COUNTED)))
    }

    /// How many calls fit into the time, by the faster of two; the same number on all ranks.
    fn fitting(&mut self, limit: Duration) -> Result<usize> {
        let mut fastest = [self.timed()?.min(self.timed()?)];
        largest_of_all_ranks(self.context, &mut fastest)?;
        Ok(((limit.as_secs_f64() * 1e6 / fastest[0]) as usize).max(MIN_CALLS).min(self.repetition.iterations))
    }

    /// If the call works in place, writes its input to the outputs again.
    fn restore(&mut self) {
        for (buffer, pieces) in self.outputs.iter_mut().zip(&self.work.before) {
            fill(buffer.bytes_mut(), pieces, self.work.dtype.size());
        }
    }

    /// The measured call.
    pub fn run(&mut self) -> Result<()> {
        let Some(call) = self.call() else { return self.exchange(self.repetition.slot) };
        // SAFETY: there is one pointer for each of `self.inputs` and `self.outputs`, which have the lengths of the
        // shape; nothing else uses them until the call returns.
        unsafe { self.context.run(&call) }
    }

    /// The measured call as a persistent request, which must be dropped before this, and not be active while the
    /// buffers are verified. Not for sendrecv.
    pub fn request(&self) -> Result<Request> {
        let call = self.call().ok_or_else(|| Error::invalid("sendrecv has no persistent requests"))?;
        // SAFETY: as for `run`, while the request is active.
        unsafe { self.context.request(&call) }
    }

    /// `None` for sendrecv.
    fn call(&self) -> Option<Call<'_>> {
        let Repetition { algorithm, op, thread, .. } = self.repetition;
        let (inputs, outputs) = (&self.input_pointers, &self.output_pointers);
        let tag = thread as u64 * 2 + 2;
        let reduction = Reduction::Op(op);
        Some(call(self.work.shape()?, Some(algorithm), self.work.dtype, reduction, inputs, outputs, tag))
    }

    /// Sends to the next rank and receives from the one before.
    fn exchange(&self, slot: Slot) -> Result<()> {
        let Some((send, recv)) = &self.unbound else { return Ok(()) };
        let (rank, ranks) = (self.context.rank(), self.context.size());
        recv.recv(&[(rank + ranks - 1) % ranks], slot, 0, self.outputs[0].len())?;
        send.send((rank + 1) % ranks, slot, 0, self.inputs[0].len())?;
        send.wait_send(None)?;
        recv.wait_recv(None)?;
        Ok(())
    }

    /// Checks the contents of every buffer and its guards.
    pub fn verify(&self) -> Result<(), String> {
        let dtype = self.work.dtype;
        let inputs = self.inputs.iter().zip(&self.work.inputs).enumerate();
        let outputs = self.outputs.iter().zip(&self.work.after).enumerate();
        let all = inputs.map(|of| ("input", of)).chain(outputs.map(|of| ("output", of)));
        for (kind, (index, (buffer, pieces))) in all {
            verify(buffer.bytes(), pieces, dtype).map_err(|what| format!("{kind} {index}, {what}"))?;
            buffer.check_guards().map_err(|what| format!("{kind} {index}, {what}"))?;
        }
        Ok(())
    }

    /// Lets one rank after the other arrive late, and checks each time that none left before the last had arrived.
    fn verify_barrier(&mut self, store: &dyn Store) -> Result<Option<String>> {
        let (rank, ranks) = (self.context.rank(), self.context.size());
        let mut wrong = None;
        for late in 0..ranks.min(LATE_RANKS) {
            let key = format!("gloo-rs-bench/{}/{}/{late}", self.repetition.name, self.repetition.thread);
            if rank == late {
                thread::sleep(LATE);
            }
            store.add(&key, 1)?;
            self.run()?;
            let entered = store.add(&key, 0)?;
            if entered != ranks as i64 && wrong.is_none() {
                wrong = Some(format!("it ended when {entered} of {ranks} ranks had entered"));
            }
        }
        Ok(wrong)
    }
}
