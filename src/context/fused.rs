//! Fusing: allreduces that follow each other in a group are executed as one, on a copy of their elements.
//!
//! They may be if all of their elements, and those of the one call, are computed by one expression: then the bits are
//! the same. Whether calls join depends only on what all ranks know of them. The call has a digest of its own, so ranks
//! that join other calls, or none, detect this.

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::collective::{Collective, Order, Shape};
use crate::context::Context;
use crate::context::outcome::Outcome;
use crate::context::run::Run;
use crate::engine::plan::OwnedShape;
use crate::engine::ready::OnEnd;
use crate::engine::scratch::Scratch;
use crate::engine::{Binding, Combine, Core, Prepared};
use crate::error::{Error, Result};
use crate::hash::QuickHasher;
use crate::reserve::exhausted;
use crate::wire::fingerprint::{Digest, Purpose};

/// One of the calls that may be joined, and its request.
pub(super) struct Part {
    pub call: Arc<Prepared>,
    /// The buffer of the elements that it contributes: its only input, or in place its only output.
    pub input: *const u8,
    pub tag: u64,
    pub timeout: Option<Duration>,
    /// Told of the end.
    pub on_end: Arc<dyn OnEnd>,
}

/// The call that several requests of a group share.
pub(super) struct Fused {
    context: Arc<Context>,
    call: Arc<Prepared>,
    /// The elements of all calls, one after the other.
    elements: [*mut u8; 1],
    memory: Mutex<Vec<Scratch>>,
    tag: u64,
    timeout: Option<Duration>,
    told: Vec<Arc<dyn OnEnd>>,
    begun: OnceLock<Begun>,
    /// Whether the engine's run has ended, or one of the threads that wait is ending it: its index is for that thread.
    is_over: AtomicBool,
    /// How it has ended, once a thread has waited for it.
    ended: Mutex<Option<Result<()>>>,
}

/// What is known of the engine's run.
struct Begun {
    index: u32,
    /// When it has started, when it fails, and how long after its start that is.
    times: (Instant, Instant, Duration),
}

// SAFETY: the elements are in the memory beside them, which the engine's run uses until it ends, and after that each
// request reads its own.
unsafe impl Send for Fused {}
// SAFETY: as above.
unsafe impl Sync for Fused {}

/// The numbers of consecutive calls that are executed as one, or of one alone. All are of one context, and in the order
/// that all ranks have; no joined call has more than `max_bytes`.
pub(super) fn together(context: &Context, parts: &[Part], max_bytes: usize) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (at, part) in parts.iter().enumerate() {
        let joins = at > 0
            && may_join(context, part)
            && may_join(context, &parts[at - 1])
            && are_alike(&parts[at - 1], part)
            && part.call.bytes <= max_bytes.saturating_sub(bytes);
        match all.last_mut().filter(|_| joins) {
            Some(last) => (last.end, bytes) = (at + 1, bytes + part.call.bytes),
            None => {
                all.push(at..at + 1);
                bytes = part.call.bytes;
            }
        }
    }
    all
}

/// Whether all elements of the call are computed by one expression, of messages: on memory that all ranks share, a small
/// call takes less time than the start and the wait of its request, which each one needs all the same.
fn may_join(context: &Context, part: &Part) -> bool {
    let call = &*part.call;
    let is_uniform = call.collective().is_uniform(call.algorithm) || call.shape.get().order == Order::Ranks;
    let is_shared = call.plan.program.is_some() && context.shared_memory.get().is_some();
    call.collective() == Collective::Allreduce
        && call.shape.get().size > 1
        && is_uniform
        && !is_shared
        && matches!(call.combine, Combine::Kernel(..) | Combine::Mean(_))
}

/// Whether the calls differ in their numbers of elements and in their buffers alone.
fn are_alike(one: &Part, other: &Part) -> bool {
    let [shape, others] = [one, other].map(|part| of_count(part.call.shape.get(), 0));
    let known =
        |part: &Part| (part.tag, part.call.dtype, part.call.operation, part.call.algorithm.name, part.call.segment);
    shape == others && known(one) == known(other)
}

fn of_count(shape: Shape<'_>, count: usize) -> Shape<'_> {
    Shape { count, inputs: 0, outputs: 1, ..shape }
}

impl Fused {
    /// One call in place of `parts`, at least one, with a copy of their elements.
    ///
    /// # Safety
    /// The inputs are valid for the elements of their calls.
    pub unsafe fn new(context: &Arc<Context>, parts: &[Part]) -> Result<Arc<Self>> {
        let call = context.prepare_fused(parts)?;
        let mut memory = Vec::new();
        let elements = context.engine().lock().take_scratch(call.bytes, &mut memory);
        let fused = Self {
            context: context.clone(),
            elements: [elements.unwrap_or(std::ptr::null_mut())],
            memory: Mutex::new(memory),
            tag: parts[0].tag,
            timeout: parts.iter().map(|part| part.timeout).min_by_key(|timeout| context.deadline(*timeout).1).flatten(),
            told: parts.iter().map(|part| part.on_end.clone()).collect(),
            begun: OnceLock::new(),
            is_over: AtomicBool::new(false),
            ended: Mutex::new(None),
            call,
        };
        let bytes = fused.call.bytes;
        let mut into = elements.ok_or_else(|| exhausted(bytes, "the elements of allreduces that are fused"))?;
        for part in parts.iter().filter(|part| part.call.bytes > 0) {
            // SAFETY: the input is valid, by the contract, and the memory has room for the elements of all parts.
            unsafe { part.input.copy_to_nonoverlapping(into, part.call.bytes) };
            into = into.wrapping_add(part.call.bytes);
        }
        Ok(Arc::new(fused))
    }

    /// The run that starts at `now`.
    pub fn run_from(&self, now: Instant) -> Run<'_> {
        let Self { call, elements, tag, .. } = self;
        let binding = Binding { call, inputs: &[], outputs: elements, function: None, tag: *tag, in_order: true };
        self.context.run_of(binding, self.timeout, now)
    }

    /// Begins `run` with the lock on the context.
    pub fn begin(&self, core: &mut Core, run: &Run<'_>) -> Result<()> {
        // A call without any time may do what needs no waiting.
        let deadline = (!run.timeout.is_zero()).then_some(run.deadline);
        let index = core.start(self.call.clone(), &run.binding, deadline)?;
        let _ = self.begun.set(Begun { index, times: (run.started, run.deadline, run.timeout) });
        Ok(())
    }

    /// From now on the requests are told of the end of the run, which has begun.
    pub fn tell(self: &Arc<Self>, core: &mut Core) {
        self.begun.get().into_iter().for_each(|begun| core.tell(begun.index, Arc::clone(self) as _));
    }

    /// Does the context's work until the run is over, its deadline has passed, or `until`; without that, as far as
    /// possible without waiting. Returns whether it is over, or its deadline has passed.
    pub fn advance(&self, until: Option<Instant>) -> Result<bool> {
        let Some(begun) = self.begun.get() else { return Ok(true) };
        let (engine, guard) = (self.context.engine(), self.context.lock()?);
        let deadline = begun.times.1;
        let until = until.map_or(guard.now, |until| until.min(deadline));
        let guard = engine.finish_other(guard, until, || self.is_over());
        engine.hand_over(guard);
        Ok(self.is_over() || engine.now() >= deadline)
    }

    /// Waits until the run is over, and ends it. A failure breaks the context.
    pub fn complete(&self) -> Result<()> {
        let Some(Begun { index, times: (started, deadline, timeout) }) = self.begun.get() else { return Ok(()) };
        self.advance(Some(*deadline))?;
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.is_none() {
            let guard = self.context.lock()?;
            let was_over = self.is_over.swap(true, Ordering::AcqRel);
            let run = Run { deadline: *deadline, timeout: *timeout, ..self.run_from(*started) };
            let result = Outcome { run: &run, guard, index: *index, is_over: was_over }.conclude();
            if result.is_err() && !was_over {
                // Other threads wait for the other requests, of which nobody has told them.
                self.told.iter().for_each(|told| told.ended(self.context.engine().now()));
                self.context.engine().wake();
            }
            *ended = Some(result);
        }
        let joins = || format!("{} allreduces of a group that are fused", self.told.len());
        ended.clone().unwrap_or(Ok(())).map_err(|error: Error| error.context(joins()))
    }

    /// Copies the elements that begin at byte `at` to `output`.
    ///
    /// # Safety
    /// The run has ended well. `output` is valid for `bytes`, which one of the calls has from `at` on.
    pub unsafe fn copy_out(&self, at: usize, output: *mut u8, bytes: usize) {
        if bytes > 0 {
            // SAFETY: by the contract; the elements are in memory of the library.
            unsafe { self.elements[0].add(at).copy_to_nonoverlapping(output, bytes) };
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl OnEnd for Fused {
    fn ended(&self, at: Instant) {
        self.is_over.store(true, Ordering::Release);
        self.told.iter().for_each(|told| told.ended(at));
    }
}

impl Drop for Fused {
    /// Not while the thread has the lock on the context.
    fn drop(&mut self) {
        let has_ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner).is_some();
        // In a forked child, the call is the parent's.
        let Ok(mut guard) = self.context.lock() else { return };
        // None of the requests was waited for: they have broken the context.
        self.begun.get().filter(|_| !has_ended).into_iter().for_each(|begun| drop(guard.end(begun.index)));
        guard.return_scratch(std::mem::take(self.memory.get_mut().unwrap_or_else(PoisonError::into_inner)));
    }
}

impl Context {
    /// The call that has the elements of all `parts`.
    fn prepare_fused(&self, parts: &[Part]) -> Result<Arc<Prepared>> {
        let first = &*parts[0].call;
        let count = parts.iter().map(|part| part.call.count).sum();
        let shape = of_count(first.shape.get(), count);
        let mut hasher = QuickHasher::default();
        parts.iter().for_each(|part| part.call.digest.hash(&mut hasher));
        let digest = Digest { rest: hasher.finish() as u32, ..Digest::decode(first.digest) }.encode();
        let plan = self.plan(&shape, first.algorithm, false)?;
        let fused = Prepared {
            shape: OwnedShape::new(&shape)?,
            digest: Purpose::Fused.of(digest),
            count,
            bytes: count * first.element,
            ..first.with_plan(plan.clone(), first.counter.clone())?
        };
        Ok(Arc::new(Prepared { counter: self.counter(&fused, &plan), ..fused }))
    }
}
