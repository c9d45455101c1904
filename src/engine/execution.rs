//! Executes the steps of a run in the engine: the progress of each step, and which segments can start.
//!
//! Steps are processed in segments from the front of their spans. A segment is posted when the prefixes that it depends
//! on are done, so dependent steps are pipelined.

mod memory;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

use crate::engine::errors::{no_room, too_slow};
use crate::engine::plan::Plan;
use crate::engine::prepared::{Binding, Combine, Function, Identity, Prepared, UserFunction};
use crate::engine::scratch::{Kept, Scratch};
use crate::engine::shared::Shared;
use crate::engine::shared::part::Part;
use crate::engine::spin::LOOK_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::messaging::{Messenger, Recv, ReduceInto, Send, Source, Token};
use crate::reduce::Pairwise;
use crate::reserve::try_reserve;
use crate::schedule::{Action, Buffer, Span};
use crate::transport::Clock;
use crate::types::Space;

pub use memory::MEMORY;

/// Most segments of one receive step that are posted at the same time.
const WINDOW: usize = 8;

#[derive(Clone, Copy, Default)]
struct Progress {
    posted: usize,
    done: usize,
}

/// Executes the steps of a call. Every method that needs it is passed the [`Run`].
#[derive(Default)]
pub struct Execution {
    progress: Vec<Progress>,
    unfinished: usize,
    /// Steps that may have a segment to post, in this order.
    work: VecDeque<u32>,
    /// Steps with a posted segment that the caller's function is to reduce, in this order.
    reductions: VecDeque<u32>,
    /// Whether the caller's function is running.
    pub reducing: bool,
    inputs: Vec<*const u8>,
    outputs: Vec<*mut u8>,
    /// No step reads a part that was not written before.
    scratch: Scratch,
    element: usize,
    segment: usize,
    function: Option<Function>,
    /// When it fails, even if it waits for nobody.
    deadline: Option<Instant>,
    /// The context's clock.
    clock: Option<Arc<dyn Clock>>,
    /// Where the operands of a reduction are that combines all at once.
    operands: Vec<*const u8>,
    /// Bytes of results in memory since the last look at the clock.
    touched: usize,
    /// The steps on shared memory, if there are any, whose scratch memory all steps use then.
    part: Option<Part>,
    /// The memory that they use.
    shared: Option<Arc<Shared>>,
}

/// A call, and the identity of its run.
pub type Run<'a> = (&'a Prepared, &'a Identity);

// SAFETY: the caller keeps its memory valid until the execution has ended, on whichever thread that is progressed;
// `user` is passed to the function only on the thread that made the call, or, if that was started, on one that waits.
unsafe impl std::marker::Send for Execution {}

/// A segment that the caller's function is to reduce. The run does not end before `Operation::reduced` is called.
pub struct Reduction {
    step: u32,
    function: UserFunction,
    user: *mut c_void,
    into: *mut c_void,
    left: *const c_void,
    right: *const c_void,
    count: usize,
}

impl Reduction {
    /// Calls the function and returns its status. For a thread without the lock.
    pub fn call(&self) -> i32 {
        // SAFETY: the caller guarantees that the function may be called. The pointers are to the caller's buffers and
        // the run's scratch memory, which are valid until the run has ended (see above); in a verified schedule no
        // other step writes there at the same time.
        unsafe { (self.function)(self.into, self.left, self.right, self.count, self.user) }
    }
}

impl Execution {
    /// Prepares for the run `id` of the call of `binding`; `shared` is the memory that ranks of this host share.
    /// Allocates only if no earlier run needed as much memory.
    pub fn reset(
        &mut self,
        binding: &Binding<'_>,
        id: &Identity,
        shared: Option<&Arc<Shared>>,
        kept: &Arc<Kept>,
    ) -> Result<()> {
        let call = binding.call;
        let (plan, n) = (&*call.plan, call.plan.steps.len());
        let scratch = if plan.shared_steps.is_some() { 0 } else { plan.scratch };
        self.make_room(plan, scratch, binding, kept)?;
        self.enter_memory(binding, id, shared)?;
        self.progress.clear();
        self.progress.resize(n, Progress::default());
        self.unfinished = n;
        self.work.clear();
        self.reductions.clear();
        self.reducing = false;
        self.inputs.extend_from_slice(binding.inputs);
        self.outputs.extend_from_slice(binding.outputs);
        self.element = call.element;
        self.segment = call.segment.max(1);
        self.function = binding.function;
        Ok(())
    }

    /// Sets when it fails, even if it waits for nobody, by `clock`. For one that has not begun.
    pub fn set_deadline(&mut self, deadline: Option<Instant>, clock: &Arc<dyn Clock>) {
        self.clock.get_or_insert_with(|| clock.clone());
        (self.deadline, self.touched) = (deadline, 0);
    }

    /// Whether its deadline has passed.
    fn is_late(&self) -> bool {
        is_past(self.deadline, self.clock.as_ref())
    }

    fn make_room(&mut self, plan: &Plan, scratch: usize, binding: &Binding<'_>, kept: &Arc<Kept>) -> Result<()> {
        let element = binding.call.element;
        self.inputs.clear();
        self.outputs.clear();
        try_reserve(&mut self.inputs, binding.inputs.len(), "the list of inputs")?;
        try_reserve(&mut self.outputs, binding.outputs.len(), "the list of outputs")?;
        let steps = plan.steps.len().saturating_sub(self.progress.len());
        let made = self.scratch.reserve(kept, scratch, element) && self.progress.try_reserve_exact(steps).is_ok();
        if made { Ok(()) } else { Err(no_room(scratch, element)) }
    }

    /// Gives scratch memory back that no run has needed since the last time. For one that no run uses.
    pub fn release_scratch(&mut self, released: &mut Vec<Scratch>) {
        self.scratch.release(released);
    }

    /// Whether all steps are done.
    pub fn is_done(&self) -> bool {
        self.unfinished == 0
    }

    /// A posted segment of step `detail` is done. Posts segments that depended on it.
    pub fn segment_done(&mut self, run: Run<'_>, detail: u32, bytes: usize, messenger: &mut Messenger) -> Result<()> {
        self.advance_done(&run.0.plan, detail, bytes / self.element);
        self.post(run, messenger, false)
    }

    /// Whether a segment is to be reduced by the caller's function, which is not running.
    pub fn wants_function(&self) -> bool {
        !self.reducing && !self.reductions.is_empty()
    }

    /// The segment that the caller's function is to reduce next. Pass the result to `Operation::reduced`.
    pub fn next_reduction(&mut self, call: &Prepared) -> Option<Reduction> {
        let (function, user) = self.function?;
        let step = self.reductions.pop_front()?;
        let Progress { posted, done } = self.progress[step as usize];
        let action = call.plan.steps[step as usize].action;
        let Action::Reduce { left, right, into } = action else { return None };
        let (into, left, right) = (self.pointer(&into, done), self.pointer(&left, done), self.pointer(&right, done));
        self.reducing = true;
        let (into, left, right) = (into.cast(), left.cast_const().cast(), right.cast_const().cast());
        Some(Reduction { step, function, user, into, left, right, count: posted - done })
    }

    /// The caller's function has reduced a segment. Posts segments that depended on it.
    pub fn reduced(&mut self, run: Run<'_>, reduction: &Reduction, messenger: &mut Messenger) -> Result<()> {
        self.segment_done(run, reduction.step, reduction.count * self.element, messenger)
    }

    fn advance_done(&mut self, plan: &Plan, index: u32, elements: usize) {
        let step = &plan.steps[index as usize];
        let progress = &mut self.progress[index as usize];
        progress.done += elements;
        if progress.done == step.len {
            self.unfinished -= 1;
        } else {
            // The step may post another segment, since its window is not full any more.
            self.work.push_back(index);
        }
        self.work.extend(plan.before(step));
    }

    fn pointer(&mut self, span: &Span, at: usize) -> *mut u8 {
        let base = match span.buffer {
            Buffer::Input(n) => self.inputs[n as usize].cast_mut(),
            Buffer::Output(n) => self.outputs[n as usize],
            Buffer::Scratch => match &mut self.part {
                Some(part) => part.scratch(),
                None => self.scratch.pointer(),
            },
        };
        // The base of an empty buffer may be null.
        base.wrapping_add((span.offset + at) * self.element)
    }

    /// Posts all segments that can be posted. `begins`: checks all steps first, in the order of the schedule, because
    /// that is the order in which messages should be sent.
    pub fn post(&mut self, run: Run<'_>, messenger: &mut Messenger, begins: bool) -> Result<()> {
        let mut all = 0..if begins { run.0.plan.steps.len() as u32 } else { 0 };
        while let Some(index) = all.next().or_else(|| self.work.pop_front()) {
            while self.step(run, index, messenger)? {}
        }
        self.settle_memory(run, messenger);
        Ok(())
    }

    /// Posts or executes the next segment of a step if its dependencies are met. Returns whether the following segment
    /// may be next.
    fn step(&mut self, (call, id): Run<'_>, index: u32, messenger: &mut Messenger) -> Result<bool> {
        let plan = &*call.plan;
        let step = &plan.steps[index as usize];
        let Progress { posted, done } = self.progress[index as usize];
        if posted == step.len {
            return Ok(false);
        }
        let end = if step.action.is_shared() { step.len } else { step.len.min(posted + self.segment) };
        for dependency in plan.after(step) {
            let other = dependency.step as usize;
            let need = (end as isize).saturating_add(dependency.shift).clamp(0, plan.steps[other].len as isize);
            if self.progress[other].done < need as usize {
                return Ok(false);
            }
        }
        let count = end - posted;
        let (bytes, more) = (count * self.element, end < step.len);
        let token = Token { owner: id.index, detail: index };
        let (space, slot, fingerprint) = (Space::collective(id.kind, step.channel), id.tag, id.fingerprint);
        let recv = |from: u32, into: *mut u8, reduce| Recv {
            from: Source::Rank(from as usize),
            space,
            slot,
            fingerprint,
            into,
            bytes,
            exact: true,
            more,
            reduce,
            token,
        };
        match step.action {
            Action::Send { to, from } => {
                let (to, from) = (to as usize, self.pointer(&from, posted).cast_const());
                // SAFETY: the caller keeps its buffers valid until the execution has ended, and the scratch memory
                // lives as long. When the execution ends, its remaining operations are cancelled.
                unsafe { messenger.send(Send { to, space, slot, fingerprint, from, bytes, more, token }) };
            }
            Action::Recv { .. } | Action::RecvReduce { .. } if posted - done >= WINDOW * self.segment => {
                return Ok(false);
            }
            Action::Recv { from, into } => {
                // SAFETY: as for sends; in a verified schedule no other step accesses `into` meanwhile.
                unsafe { messenger.recv(recv(from, self.pointer(&into, posted), None)) };
            }
            Action::RecvReduce { from, into, with, incoming } => {
                let Some(kernel) = pairwise(call, index) else {
                    return Err(internal("a schedule reduces, but the call has no operation"));
                };
                let with = self.pointer(&with, posted).cast_const();
                let reduce = Some(ReduceInto { kernel, with, incoming, element: self.element });
                // SAFETY: as for sends; in a verified schedule no other step accesses `into`, or writes to `with`,
                // meanwhile.
                unsafe { messenger.recv(recv(from, self.pointer(&into, posted), reduce)) };
            }
            Action::Reduce { .. } if matches!(call.combine, Combine::User) => {
                // The function is called for one segment at a time.
                if posted == done {
                    self.progress[index as usize].posted = end;
                    self.reductions.push_back(index);
                }
                return Ok(false);
            }
            Action::Reduce { into, .. } if matches!(call.combine, Combine::Exact(..)) => {
                self.fold(call, (index, into), posted, count)?;
                self.progress[index as usize].posted = end;
                self.advance_done(plan, index, count);
                return Ok(end < step.len);
            }
            Action::Publish { .. } | Action::Fetch { .. } | Action::FetchReduce { .. } | Action::AwaitReaders => {
                self.step_in_memory((call, id), index)?;
                return Ok(false);
            }
            local => {
                self.touched = self.touched.saturating_add(bytes);
                let kernel = pairwise(call, index);
                match self.touched > LOOK_BYTES {
                    true => self.do_long(call, (&local, kernel), posted, count)?,
                    false => self.do_local(call, (&local, kernel), posted, count)?,
                }
                self.progress[index as usize].posted = end;
                self.advance_done(plan, index, count);
                return Ok(end < step.len);
            }
        }
        self.progress[index as usize].posted = end;
        Ok(end < step.len)
    }

    /// Combines all operands of the chain that ends with step `index` at once, in pieces, with a look at the clock
    /// after each. Does nothing in the steps before, whose operands are known to be there.
    #[cold]
    fn fold(&mut self, call: &Prepared, (index, into): (u32, Span), at: usize, count: usize) -> Result<()> {
        let Combine::Exact(exact, _) = call.combine else { return Err(internal("a call is not exact")) };
        let folds = &call.plan.folds;
        let Some(spans) = folds.operands(index) else {
            return if folds.is_empty() { Err(internal("a schedule is not one of exact sums")) } else { Ok(()) };
        };
        let piece = (LOOK_BYTES / spans.len() / self.element).max(1);
        for done in (0..count).step_by(piece) {
            let elements = piece.min(count - done);
            let mut operands = std::mem::take(&mut self.operands);
            operands.clear();
            try_reserve(&mut operands, spans.len(), "the list of operands")?;
            operands.extend(spans.iter().map(|span| self.pointer(span, at + done).cast_const()));
            // SAFETY: the spans lie in the caller's buffers or in scratch memory, both valid until the execution has
            // ended; `into` equals an operand or overlaps none.
            unsafe { exact(self.pointer(&into, at + done), &operands, elements) };
            self.operands = operands;
            self.touched = self.touched.saturating_add(elements * self.element * spans.len());
            if self.touched > LOOK_BYTES {
                self.touched = 0;
                if self.is_late() {
                    return Err(too_slow());
                }
            }
        }
        Ok(())
    }

    /// [`Execution::do_local`] in pieces, with a look at the clock after each.
    #[cold]
    fn do_long(&mut self, call: &Prepared, local: Local<'_>, at: usize, count: usize) -> Result<()> {
        let piece = (LOOK_BYTES / self.element).max(1);
        for done in (0..count).step_by(piece) {
            self.do_local(call, local, at + done, piece.min(count - done))?;
            if self.is_late() {
                return Err(too_slow());
            }
        }
        self.touched = 0;
        Ok(())
    }

    #[inline(always)] // Into the steps of small calls.
    fn do_local(&mut self, call: &Prepared, (action, kernel): Local<'_>, at: usize, count: usize) -> Result<()> {
        match (*action, kernel) {
            (Action::Copy { from, into }, _) => {
                let (from, into) = (self.pointer(&from, at), self.pointer(&into, at));
                // SAFETY: the spans lie in the caller's buffers or in scratch memory, both valid until the execution
                // has ended. `copy` permits overlap, which occurs if the caller's buffers are the same memory.
                unsafe { std::ptr::copy(from, into, count * self.element) };
            }
            (Action::Reduce { left, right, into }, Some(kernel)) => {
                let (into, left, right) = (self.pointer(&into, at), self.pointer(&left, at), self.pointer(&right, at));
                // SAFETY: the spans are valid as for the copy above; in a verified schedule `into` does not overlap an
                // operand, or equals it.
                unsafe { kernel.run(into, left, right, count) };
            }
            (Action::Divide { span, by }, _) => {
                let Some(divide) = call.combine.divide() else {
                    return Err(internal("a schedule divides, but the call is no average"));
                };
                let data = self.pointer(&span, at);
                // SAFETY: the span is valid as for the copy above, and no other step accesses it meanwhile.
                unsafe { divide(data, count, u64::from(by)) };
            }
            _ => return Err(internal("a schedule combines elements, but the call has no operation")),
        }
        Ok(())
    }
}

/// A step in this rank's memory, and how it combines, unless by the caller's function.
type Local<'a> = (&'a Action, Option<Pairwise>);

/// How step `index` of `call` combines, unless by the caller's function.
#[inline(always)] // Into the steps of small calls.
fn pairwise(call: &Prepared, index: u32) -> Option<Pairwise> {
    match call.combine {
        Combine::Kernel(kernel, ..) => Some(Pairwise::Kernel(kernel)),
        Combine::Mean(mean) => call.plan.weights.get(index as usize).map(|weights| Pairwise::Mean(mean, *weights)),
        Combine::Nothing | Combine::Exact(..) | Combine::User => None,
    }
}

fn is_past(deadline: Option<Instant>, clock: Option<&Arc<dyn Clock>>) -> bool {
    deadline.zip(clock).is_some_and(|(deadline, clock)| clock.now() >= deadline)
}

fn internal(text: &str) -> Error {
    Error::new(ErrorKind::Internal, text)
}
