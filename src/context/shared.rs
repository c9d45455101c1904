//! Executes calls whose ranks share memory, on the calling thread.

mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::collective::{Algorithm, Collective, Shape};
use crate::context::Context;
use crate::context::call::Run;
use crate::context::digest::explain;
use crate::context::prepared::Prepared;
use crate::context::rounds::may_share_counts;
use crate::engine::execution::{no_room, too_slow};
use crate::engine::plan::Plan;
use crate::engine::shared::{Call, Claim, First, Key, Known, Pair, Progress, Refused, Room, Shared, Start, Wait, Work};
use crate::engine::{Binding, Idle, already_running, uncounted};
use crate::error::{Error, ErrorKind, Result};
use crate::transport::board::MAX_MEMBERS;
use crate::transport::shm::Sharing;
use crate::types::DataType;
use crate::wire::fingerprint::kind;
use waiting::first_looks;

/// A call on shared memory.
pub(super) struct SharedCall {
    call: Call,
    /// Its index in the engine, if it had to wait there.
    attended: Option<u32>,
    /// What it waits for in the engine.
    awaited: Option<Wait>,
    /// How it has ended while no thread waited for it: then the call is not used any more, unless it has failed.
    outcome: Option<Result<()>>,
}

/// A call that was started.
pub(super) enum Begun {
    Runs(SharedCall),
    Ended,
}

impl SharedCall {
    fn new(call: Call) -> Self {
        Self { call, attended: None, awaited: None, outcome: None }
    }

    /// It excludes others of its kind on its tag until [`Claim::release`].
    pub(super) fn make_claim(&mut self) {
        self.call.claims = true;
    }

    /// Sets the claim of the call, which has ended well.
    pub(super) fn keep(&self, claim: &Claim) {
        claim.set(&self.call);
    }

    /// Ends a call, if it can be done in few steps. Returns whether it has ended.
    ///
    /// # Safety
    /// If it was started by [`Context::begin_known`], then with these arguments.
    pub(super) unsafe fn finish(&mut self, shared: &Shared, known: &Known, output: *mut u8) -> bool {
        // SAFETY: by the contract.
        self.attended.is_none() && self.outcome.is_none() && unsafe { self.call.finish_pair(shared, known, output) }
    }

    /// Goes on without waiting, for a thread that does not wait for the call. The call fails if `is_late` while there is more to do.
    pub(super) fn go_on(&mut self, work: &Work<'_>, is_late: impl Fn() -> bool) -> Progress {
        if self.outcome.is_some() {
            return Progress::Ended;
        }
        self.outcome = match self.call.go_on(work) {
            Ok(Progress::Ended) => Some(Ok(())),
            Ok(Progress::More) if is_late() => Some(Err(too_slow())),
            Ok(progress) => return progress,
            Err(error) => Some(Err(error)),
        };
        Progress::Ended
    }
}

impl Context {
    /// Uses the memory that ranks share for collectives from now on, if those of each host do; `found`: what each rank can share with
    /// those of its host. Returns what the ranks of each host share, which all ranks find alike.
    pub(super) fn share_memory(&self, found: &[Sharing]) -> Result<Sharing> {
        let sharing = what_all_share(self.hosts(), found);
        if sharing == Sharing::Nothing {
            return Ok(sharing);
        }
        let mut guard = self.lock()?;
        // A rank may be alone on its host.
        if let (None, Some(group)) = (&guard.shared, guard.messenger.host_group().cloned()) {
            let all_here = group.ranks().len() == self.size;
            let shared = Arc::new(Shared::new(group, guard.kept.clone()));
            if guard.broken.is_some() {
                shared.close();
            }
            if all_here {
                let _ = self.shared_memory.set(shared.clone());
            }
            guard.shared = Some(shared);
        }
        Ok(sharing)
    }

    /// What to execute for `plan`, if its ranks share memory.
    #[inline]
    pub(super) fn shared_work<'a>(&'a self, plan: &'a Plan, binding: &'a Binding<'a>) -> Option<Work<'a>> {
        match (&plan.program, self.shared_memory.get()) {
            (Some(program), Some(shared)) => Some(Work { shared, plan, program, binding }),
            _ => None,
        }
    }

    /// Starts a call without waiting.
    #[inline]
    pub(super) fn begin_shared(&self, run: &Run<'_>, work: &Work<'_>) -> Result<SharedCall> {
        self.check_process()?;
        let call = Call::start(work).map_err(|refused| self.refused(run, work, &refused))?;
        Ok(SharedCall::new(call))
    }

    /// Waits until `call` is complete, and ends it. A failure breaks the context.
    pub(super) fn complete_shared(&self, run: &Run<'_>, work: &Work<'_>, call: &mut SharedCall) -> Result<()> {
        self.check_process()?;
        if let Some(result) = self.conclude_shared(run, work, call) {
            return result;
        }
        // What it has waited for in turns, and how long it has found nothing.
        let (mut waited, mut idle) = (None, Idle::default());
        loop {
            call.call.looks = if run.timeout.is_zero() { 0 } else { first_looks(work.shared) };
            let wait = match call.call.advance(work) {
                Ok(None) => return self.end_shared(call),
                Ok(Some(Wait::Clock)) if run.timeout.is_zero() || self.engine().now() < run.deadline => continue,
                Ok(Some(Wait::Clock)) => return self.fail_shared(run, work, call, too_slow()),
                Ok(Some(wait)) => wait,
                Err(error) => return self.fail_shared(run, work, call, error),
            };
            if run.timeout.is_zero() || !self.look(&mut call.call, work, wait) {
                if waited.replace(wait) != Some(wait) {
                    idle = Idle::default();
                }
                self.wait_in_turns(run, work, call, wait, &mut idle)?;
            }
        }
    }

    /// Starts a call of a request without waiting, in few steps, and ends it if it can; then sets its `claim`. `None`: it must be started by
    /// [`Context::begin_shared`]. `shared` is the memory that all ranks share, and is not inherited.
    ///
    /// # Safety
    /// `known` is of a call with these buffers; all are valid until the call has ended.
    #[inline(always)] // On the path of small collectives.
    pub(super) unsafe fn begin_known(
        &self,
        shared: &Shared,
        known: &Known,
        (input, output): (*const u8, *mut u8),
        claim: &Claim,
    ) -> Option<Begun> {
        // SAFETY: by the contract.
        let mut call = unsafe { Call::start_known(shared, known, input, output) }?;
        call.claims = true;
        // SAFETY: `known` and the buffers are the same.
        let has_ended = unsafe { call.finish_pair(shared, known, output) };
        if has_ended {
            claim.set(&call);
            return Some(Begun::Ended);
        }
        Some(Begun::Runs(SharedCall::new(call)))
    }

    /// Executes a call that has just started as far as possible without waiting, and without calling the caller's function. Returns
    /// whether it has ended.
    pub(super) fn advance_shared(&self, run: &Run<'_>, work: &Work<'_>, call: &mut SharedCall) -> Result<bool> {
        match call.call.go_on(work) {
            Ok(progress) => Ok(progress == Progress::Ended),
            Err(error) => self.fail_shared(run, work, call, error).map(|()| true),
        }
    }

    /// The end of a call that has ended while no thread waited for it.
    fn conclude_shared(&self, run: &Run<'_>, work: &Work<'_>, call: &mut SharedCall) -> Option<Result<()>> {
        Some(match call.outcome.take()? {
            Ok(()) => self.end_shared(call),
            Err(error) => self.fail_shared(run, work, call, error),
        })
    }

    /// Executes `call` as far as possible without waiting. Returns whether it has ended.
    pub(super) fn test_shared(&self, run: &Run<'_>, work: &Work<'_>, call: &mut SharedCall) -> Result<bool> {
        self.check_process()?;
        if let Some(result) = self.conclude_shared(run, work, call) {
            return result.map(|()| true);
        }
        loop {
            let wait = match call.call.advance(work) {
                Ok(None) => return self.end_shared(call).map(|()| true),
                Ok(Some(wait)) => wait,
                Err(error) => return self.fail_shared(run, work, call, error).map(|()| true),
            };
            let now = self.engine().now();
            if now >= run.deadline {
                return self.complete_shared(run, work, call).map(|()| true);
            }
            if wait == Wait::Clock {
                work.shared.pass_on(Progress::More);
                return Ok(false);
            }
            // Progresses the context, so that the call fails when its peer has.
            if !self.wait_shared(run, work, call, wait, &mut Idle::default(), now)? {
                return Ok(false);
            }
        }
    }

    #[inline]
    fn end_shared(&self, call: &SharedCall) -> Result<()> {
        if let Some(index) = call.attended {
            self.lock()?.end(index);
        }
        Ok(())
    }

    /// Ends a call with `error`, which breaks the context.
    #[cold]
    fn fail_shared(&self, run: &Run<'_>, work: &Work<'_>, call: &mut SharedCall, error: Error) -> Result<()> {
        // Readers find out that the publications are withdrawn.
        call.call.withdraw(work.shared);
        let mut guard = self.lock()?;
        let index = self.attend(run, &mut guard, call)?;
        guard.fail(index, error);
        self.conclude(run, guard, index, true)
    }

    /// Drops a call that was started, and has not ended.
    pub(super) fn drop_shared(&self, call: &mut SharedCall) {
        if let Some(shared) = self.shared_memory.get()
            && !matches!(call.outcome, Some(Ok(())))
        {
            call.call.withdraw(shared);
        }
        let _ = self.end_shared(call);
    }

    /// Runs a plain call, if an equal one was remembered: its steps from here to the first publication are few. `None` if it must be
    /// prepared and checked.
    ///
    /// # Safety
    /// As for [`Context::run`], if the arguments are those of the call that was remembered.
    #[inline]
    pub unsafe fn run_quick(&self, key: &Key, input: *const u8, output: *mut u8) -> Option<Result<()>> {
        let shared = self.shared_memory.get().filter(|shared| !shared.is_inherited())?;
        // SAFETY: by the contract, the buffers are valid until this returns.
        let (mut call, known) = unsafe { Call::start_quick(shared, key, input, output) }?;
        // SAFETY: valid until the call has ended, and not used afterwards.
        let known = unsafe { known.as_ref() };
        // SAFETY: `known` and the buffers are the same.
        if unsafe { call.finish_pair(shared, known, output) } {
            return Some(Ok(()));
        }
        // SAFETY: the same.
        unsafe { self.run_on(shared, (key, known), call, (input, output)) }
    }

    /// The rest of a quick call that is not a pair's, or must wait.
    ///
    /// # Safety
    /// `known` and the buffers are those of the call.
    #[inline(never)]
    unsafe fn run_on(
        &self,
        shared: &Shared,
        (key, known): (&Key, &Known),
        mut call: Call,
        (input, output): (*const u8, *mut u8),
    ) -> Option<Result<()>> {
        let waits = self.timeout.load(Ordering::Relaxed) > 0;
        let looks = if waits { first_looks(shared) } else { 0 };
        for _ in 0..if call.is_pair(known) { looks } else { 0 } {
            std::hint::spin_loop();
            // SAFETY: by the contract.
            if unsafe { call.finish_pair(shared, known, output) } {
                return Some(Ok(()));
            }
        }
        let program = known.plan.program.as_ref()?;
        let (inputs, outputs) = ([input], [output]);
        let binding = Binding {
            inputs: &inputs[..usize::from(known.input.is_some())],
            outputs: &outputs[..usize::from(known.output.is_some())],
            element: known.element,
            segment: usize::MAX,
            combine: known.combine,
            digest: known.start.digest,
            tag: 0,
            counted: true,
            count: known.count,
        };
        let work = Work { shared, plan: &known.plan, program, binding: &binding };
        loop {
            call.looks = looks;
            match call.advance(&work) {
                Ok(None) => return Some(Ok(())),
                Ok(Some(wait)) if waits && wait != Wait::Clock && self.look(&mut call, &work, wait) => {}
                Ok(Some(_)) | Err(_) => return Some(self.finish_quick(key, known, &work, call)),
            }
        }
    }

    /// The rest of a quick call that must wait, or has failed.
    #[cold]
    fn finish_quick(&self, key: &Key, known: &Known, work: &Work<'_>, call: Call) -> Result<()> {
        let collective = Collective::ALL[usize::from(key.collective())];
        let shape = Shape {
            root: usize::try_from(key.root()).unwrap_or_default(),
            ..Shape::new(collective, self.rank, self.size, key.count())
        };
        let dtype = DataType::try_from(u32::from(key.dtype()).wrapping_sub(1)).unwrap_or(DataType::Uint8);
        let described = super::Call::new(shape, dtype);
        let algorithm = collective.algorithm(known.algorithm)?;
        let started = self.engine().now();
        let (deadline, timeout) = self.deadline_after(started, None);
        let run =
            Run { call: &described, algorithm, binding: *work.binding, started, deadline, timeout, is_round: false };
        self.complete_shared(&run, work, &mut SharedCall::new(call))
    }

    /// Remembers a plain call that was prepared and checked, for [`Context::run_quick`].
    pub(crate) fn remember(&self, key: Key, call: &super::Call<'_>, prepared: &Prepared) {
        let Prepared { algorithm, check, ref plan, .. } = *prepared;
        if let (Some(shared), Some(known)) = (self.shared_memory.get(), self.known(call, algorithm, check, plan)) {
            shared.remember(key, known);
        }
    }

    /// What `call` needs to start in few steps; `None` if it must be started as others are.
    pub(super) fn known(
        &self,
        call: &super::Call<'_>,
        algorithm: &'static Algorithm,
        check: u64,
        plan: &Arc<Plan>,
    ) -> Option<Known> {
        let (Some(shared), Some(program)) = (self.shared_memory.get(), &plan.program) else { return None };
        let (shape, element) = (&call.shape, call.element());
        let combine = call.combine().ok()?;
        // A call that an operation of several rounds may exclude must be admitted first.
        let may_be_excluded = self.check_calls || may_share_counts(shape.collective);
        if may_be_excluded || shape.inputs > 1 || shape.outputs > 1 || shape.has_lone_result() {
            return None;
        }
        let room = |len: usize| Room::new(len * element, call.dtype.align());
        let first = First::of(plan, program, element);
        Some(Known {
            plan: plan.clone(),
            algorithm: algorithm.name,
            combine,
            start: Start {
                line: (kind(check), call.tag),
                digest: check,
                counted: true,
                from_table: false,
                memory: program.memory(element, shared.reads()),
                readers: program.readers,
            },
            element,
            count: call.count(self.rank),
            input: (shape.inputs > 0).then(|| room(shape.input_len(0))),
            output: (shape.outputs > 0).then(|| room(shape.output_len(0))),
            pair: first.and_then(|first| Pair::of(program, &first, element, combine)),
            first,
        })
    }

    /// The error for a call that does not start.
    #[cold]
    fn refused(&self, run: &Run<'_>, work: &Work<'_>, refused: &Refused) -> Error {
        let broken = match self.lock() {
            Ok(guard) => guard.broken.clone(),
            Err(error) => return error,
        };
        let error = match (refused, broken) {
            (Refused::Unusable, Some(error)) => error.context("the context is broken"),
            (Refused::Unusable, None) => Error::new(ErrorKind::Closed, "the context is closed"),
            (Refused::NoMemory | Refused::Uncounted, _) => {
                let error = match refused {
                    Refused::Uncounted => uncounted(run.binding.tag),
                    _ => no_room(work.plan.scratch, run.binding.element),
                };
                let error = self.described(run, &error);
                // The other ranks wait for this one, so they are sent the reason.
                if let Ok(mut guard) = self.lock() {
                    guard.break_with(&error, Some(&error));
                    self.finish_closing(guard);
                }
                return error;
            }
            (Refused::Running(other), _) => already_running(*other, run.binding.tag, kind(run.binding.digest), explain),
        };
        self.described(run, &error)
    }
}

/// The least that a rank shares with the others of its host; nothing if no host has several ranks, or one has too many. `hosts`: the host of
/// each rank.
fn what_all_share(hosts: &[u32], found: &[Sharing]) -> Sharing {
    let mut ranks = HashMap::new();
    hosts.iter().for_each(|host| *ranks.entry(host).or_insert(0) += 1);
    let most = ranks.values().copied().max().unwrap_or(0);
    if !(2..=MAX_MEMBERS).contains(&most) || hosts.len() != found.len() {
        return Sharing::Nothing;
    }
    let of_several = hosts.iter().zip(found).filter(|(host, _)| ranks[host] > 1);
    of_several.map(|(_, sharing)| *sharing).min().unwrap_or(Sharing::Nothing)
}
