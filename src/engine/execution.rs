//! One run of a plan: which steps are how far, and what may be done next.
//!
//! Steps are worked through in segments. A segment is posted as soon as everything that it depends on is far enough, so a
//! step streams behind the steps before it; how far a step is always means a prefix of its span.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::engine::plan::Plan;
use crate::error::{Error, ErrorKind, Result};
use crate::messaging::{Messenger, Recv, ReduceInto, Send, Source, Token};
use crate::reduce::{Divide, Kernel};
use crate::schedule::{Action, Buffer, Span};
use crate::types::Space;
use crate::wire::fingerprint::fingerprint;

/// Combines elements the caller's way: `into[i] = left[i] op right[i]`; returns 0, or anything else to fail the call.
/// `into` may equal `left` or `right`. Called only from the thread that made the collective call, without any lock.
pub type UserFunction = unsafe extern "C" fn(
    into: *mut c_void,
    left: *const c_void,
    right: *const c_void,
    count: usize,
    user: *mut c_void,
) -> i32;

/// How elements are combined.
#[derive(Clone, Copy, Default)]
pub enum Combine {
    /// Elements are only moved.
    #[default]
    Nothing,
    /// By a kernel of the library's, and for averages the division.
    Kernel(Kernel, Option<Divide>),
    /// By the caller's function.
    User(UserFunction, *mut c_void),
}

/// Segments of one receive step that are posted at once.
const WINDOW: usize = 8;

#[derive(Clone, Copy, Default)]
struct Progress {
    posted: usize,
    done: usize,
}

/// One run of a plan.
#[derive(Default)]
pub struct Execution {
    /// What is run; not here while it is moved on.
    plan: Option<Arc<Plan>>,
    progress: Vec<Progress>,
    unfinished: usize,
    /// Steps to look at, in this order.
    work: VecDeque<u32>,
    /// Steps whose next segment, posted and not done, the caller's function is to combine, in this order.
    reductions: VecDeque<u32>,
    /// The caller's function is at work.
    pub reducing: bool,
    inputs: Vec<*const u8>,
    outputs: Vec<*mut u8>,
    /// Only its capacity counts: nothing reads of it what was not written before.
    scratch: Vec<u128>,
    element: usize,
    segment: usize,
    combine: Combine,
    /// Compared between sender and receiver; see [`crate::wire::fingerprint`].
    pub fingerprint: u64,
    /// Its kind.
    pub kind: u8,
    /// The collective's tag.
    pub tag: u64,
    /// Elements that the call is about, for messages.
    pub count: usize,
    owner: u32,
    /// Why it cannot go on.
    pub failed: Option<Error>,
}

// SAFETY: the pointers are the caller's, who waits until the execution has ended; its function is called on its own thread
// only.
unsafe impl std::marker::Send for Execution {}

/// A segment for the caller's function to combine. The run it belongs to has not ended, since only the caller's thread ends it, and
/// leaves the memory alone until it is told of the result.
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
    /// Calls the function; what it returns. For the caller's thread, without the lock.
    pub fn call(&self) -> i32 {
        // SAFETY: the caller vouches for its function. The pointers are to the caller's buffers and the run's scratch memory, which
        // stay until the run has ended (see above); a verified schedule lets no other step write there meanwhile.
        unsafe { (self.function)(self.into, self.left, self.right, self.count, self.user) }
    }
}

/// What an execution works on.
#[derive(Clone, Copy)]
pub struct Binding<'a> {
    /// The caller's inputs.
    pub inputs: &'a [*const u8],
    /// The caller's outputs.
    pub outputs: &'a [*mut u8],
    /// Bytes of one element.
    pub element: usize,
    /// Elements of one segment; at least 1.
    pub segment: usize,
    /// How elements are combined.
    pub combine: Combine,
    /// Digest of what sender and receiver must agree on.
    pub digest: u64,
    /// The collective's tag.
    pub tag: u64,
    /// Whether the call has a number: whether all ranks run it, or else fail.
    pub counted: bool,
    /// Elements that the call is about, for messages.
    pub count: usize,
}

impl Execution {
    /// Prepares for a run of `plan`, which is of this kind and has this number. Allocates only where an earlier run needed less.
    pub fn reset(&mut self, plan: Arc<Plan>, binding: &Binding<'_>, kind: u8, number: u32) -> Result<()> {
        let n = plan.steps.len();
        self.make_room(&plan, binding.element)?;
        self.progress.clear();
        self.progress.resize(n, Progress::default());
        self.unfinished = n;
        self.work.clear();
        self.reductions.clear();
        self.reducing = false;
        self.inputs.clear();
        self.inputs.extend_from_slice(binding.inputs);
        self.outputs.clear();
        self.outputs.extend_from_slice(binding.outputs);
        self.element = binding.element;
        self.segment = binding.segment.max(1);
        self.combine = binding.combine;
        self.fingerprint = fingerprint(binding.digest, number);
        self.kind = kind;
        self.tag = binding.tag;
        self.count = binding.count;
        self.failed = None;
        self.plan = Some(plan);
        Ok(())
    }

    fn make_room(&mut self, plan: &Plan, element: usize) -> Result<()> {
        let words = plan.scratch.checked_mul(element).map(|bytes| bytes.div_ceil(size_of::<u128>()));
        let steps = plan.steps.len().saturating_sub(self.progress.len());
        let before = self.scratch.capacity();
        let mut room =
            |words| self.scratch.try_reserve_exact(words).and_then(|()| self.progress.try_reserve_exact(steps));
        if words.is_some_and(|words| room(words).is_ok()) {
            if self.scratch.capacity() > before {
                // A barrier's messages come from there, and must not tell peers what this process has freed.
                self.scratch.spare_capacity_mut().fill(MaybeUninit::zeroed());
            }
            return Ok(());
        }
        let text = format!("no memory for {} elements of {element} bytes that the algorithm keeps aside", plan.scratch);
        Err(Error::new(ErrorKind::ResourceExhausted, text))
    }

    /// Says under which number events for this execution come.
    pub fn set_owner(&mut self, owner: u32) {
        self.owner = owner;
    }

    /// Whether nothing is left to do, for better or worse.
    pub fn is_over(&self) -> bool {
        self.failed.is_some() || self.unfinished == 0
    }

    /// A posted segment of step `detail` has ended well: moves on what waited for it.
    pub fn segment_done(&mut self, detail: u32, bytes: usize, messenger: &mut Messenger) {
        if let Some(plan) = self.plan.take() {
            self.advance_done(&plan, detail, bytes / self.element);
            self.work_off(&plan, messenger, false);
            self.plan = Some(plan);
        }
    }

    /// Whether something waits for the caller's function.
    pub fn wants_function(&self) -> bool {
        !self.reductions.is_empty()
    }

    /// For the caller's thread: what its function is to do next. Tell [`Execution::reduced`] of the result.
    pub fn next_reduction(&mut self) -> Option<Reduction> {
        let Combine::User(function, user) = self.combine else { return None };
        let step = self.reductions.pop_front()?;
        let Progress { posted, done } = self.progress[step as usize];
        let action = self.plan.as_ref()?.steps[step as usize].action;
        let Action::Reduce { left, right, into } = action else { return None };
        let (into, left, right) = (self.pointer(&into, done), self.pointer(&left, done), self.pointer(&right, done));
        self.reducing = true;
        let (into, left, right) = (into.cast(), left.cast_const().cast(), right.cast_const().cast());
        Some(Reduction { step, function, user, into, left, right, count: posted - done })
    }

    /// The caller's function has returned `status`: moves on what waited for it, unless the run has failed meanwhile.
    pub fn reduced(&mut self, reduction: &Reduction, status: i32, messenger: &mut Messenger) {
        self.reducing = false;
        if status != 0 && self.failed.is_none() {
            let text = format!("the caller's reduction function returned {status}");
            self.failed = Some(Error::new(ErrorKind::Callback, text));
        }
        if self.failed.is_none() {
            self.segment_done(reduction.step, reduction.count * self.element, messenger);
        }
    }

    fn advance_done(&mut self, plan: &Plan, index: u32, elements: usize) {
        let step = &plan.steps[index as usize];
        let progress = &mut self.progress[index as usize];
        progress.done += elements;
        if progress.done == step.len {
            self.unfinished -= 1;
        } else {
            // A window has room again.
            self.work.push_back(index);
        }
        self.work.extend(plan.before(step));
    }

    fn pointer(&mut self, span: &Span, at: usize) -> *mut u8 {
        let base = match span.buffer {
            Buffer::Input(n) => self.inputs[n as usize].cast_mut(),
            Buffer::Output(n) => self.outputs[n as usize],
            Buffer::Scratch => self.scratch.as_mut_ptr().cast(),
        };
        // The base of an empty buffer may be null.
        base.wrapping_add((span.offset + at) * self.element)
    }

    /// Begins: does and posts everything that can be.
    pub fn begin(&mut self, messenger: &mut Messenger) {
        if let Some(plan) = self.plan.take() {
            self.work_off(&plan, messenger, true);
            self.plan = Some(plan);
        }
    }

    /// `begins`: looks at all steps first, in the order of the schedule, so that what that lists first leaves first.
    fn work_off(&mut self, plan: &Plan, messenger: &mut Messenger, begins: bool) {
        let mut all = 0..if begins { plan.steps.len() as u32 } else { 0 };
        while let Some(index) = all.next().or_else(|| self.work.pop_front()) {
            while self.failed.is_none() && self.step(plan, index, messenger) {}
        }
    }

    /// Posts or does the next segment of a step, if it may; whether the one after it may be next.
    fn step(&mut self, plan: &Plan, index: u32, messenger: &mut Messenger) -> bool {
        let step = &plan.steps[index as usize];
        let Progress { posted, done } = self.progress[index as usize];
        if posted == step.len {
            return false;
        }
        let end = step.len.min(posted + self.segment);
        for dependency in plan.after(step) {
            let other = dependency.step as usize;
            let need = (end as isize).saturating_add(dependency.shift).clamp(0, plan.steps[other].len as isize);
            if self.progress[other].done < need as usize {
                return false;
            }
        }
        let count = end - posted;
        let (bytes, more) = (count * self.element, end < step.len);
        let token = Token { owner: self.owner, detail: index };
        let (space, slot, fingerprint) = (Space::collective(self.kind, step.channel), self.tag, self.fingerprint);
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
                // SAFETY: spans lie in buffers that the caller vouches for until the execution has ended; it ends with a
                // cancellation unless every operation has.
                unsafe { messenger.send(Send { to, space, slot, fingerprint, from, bytes, more, token }) };
            }
            Action::Recv { .. } | Action::RecvReduce { .. } if posted - done >= WINDOW * self.segment => return false,
            Action::Recv { from, into } => {
                // SAFETY: as for sends.
                unsafe { messenger.recv(recv(from, self.pointer(&into, posted), None)) };
            }
            Action::RecvReduce { from, into, with, incoming } => {
                let Combine::Kernel(kernel, _) = self.combine else {
                    self.fail("a schedule reduces, but the call has no operation");
                    return false;
                };
                let with = self.pointer(&with, posted).cast_const();
                let reduce = Some(ReduceInto { kernel, with, incoming, element: self.element });
                // SAFETY: as for sends.
                unsafe { messenger.recv(recv(from, self.pointer(&into, posted), reduce)) };
            }
            Action::Reduce { .. } if matches!(self.combine, Combine::User(..)) => {
                // One segment after the other.
                if posted == done {
                    self.progress[index as usize].posted = end;
                    self.reductions.push_back(index);
                }
                return false;
            }
            local => {
                self.do_local(&local, posted, count);
                self.progress[index as usize].posted = end;
                self.advance_done(plan, index, count);
                return end < step.len;
            }
        }
        self.progress[index as usize].posted = end;
        end < step.len
    }

    fn do_local(&mut self, action: &Action, at: usize, count: usize) {
        match (*action, self.combine) {
            (Action::Copy { from, into }, _) => {
                let (from, into) = (self.pointer(&from, at), self.pointer(&into, at));
                // SAFETY: spans lie in buffers that the caller vouches for; a verified schedule's copies do not overlap,
                // and where the caller's buffers are the same memory the ranges are equal.
                unsafe { std::ptr::copy(from, into, count * self.element) };
            }
            (Action::Reduce { left, right, into }, Combine::Kernel(kernel, _)) => {
                let (into, left, right) = (self.pointer(&into, at), self.pointer(&left, at), self.pointer(&right, at));
                // SAFETY: as above; `into` is apart from the operands or equal to one.
                unsafe { kernel(into, left, right, count) };
            }
            (Action::Divide { span, by }, Combine::Kernel(_, Some(divide))) => {
                let data = self.pointer(&span, at);
                // SAFETY: as above.
                unsafe { divide(data, count, u64::from(by)) };
            }
            _ => self.fail("a schedule combines elements, but the call has no operation"),
        }
    }

    fn fail(&mut self, text: &str) {
        self.failed = Some(Error::new(ErrorKind::Internal, text));
    }
}
