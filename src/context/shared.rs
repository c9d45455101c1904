//! Executes calls whose ranks share memory, on the calling thread.

mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::context::Context;
use crate::context::digest::explain;
use crate::context::outcome::Outcome;
use crate::context::run::Run;
use crate::engine::cache::{CallKey, Key};
use crate::engine::errors::{already_running, no_room, too_slow, uncounted};
use crate::engine::recorder;
use crate::engine::shared::quick_start::QuickStart;
use crate::engine::shared::{Call, Claim, Progress, Refused, Shared, Wait, Work};
use crate::engine::{Binding, Core, Guard, Prepared};
use crate::error::{Error, ErrorKind, Result};
use crate::publications::MAX_MEMBERS;
use crate::transport::Sharing;
use waiting::{first_looks, look};

/// A call on shared memory.
pub(super) struct SharedCall {
    call: Call,
    /// Its index in the engine, if it had to wait there.
    pub(super) index: Option<u32>,
    /// What it waits for in the engine.
    awaited: Option<Wait>,
    /// What it waited for when a thread last tried to call its function.
    function_waits: Option<Wait>,
    /// How it has ended: then the call is not used any more, unless it has failed.
    outcome: Option<Result<()>>,
}

/// A call that was started.
pub(super) enum Begun {
    Runs(SharedCall),
    Ended,
}

impl SharedCall {
    pub(super) fn new(call: Call) -> Self {
        Self { call, index: None, awaited: None, function_waits: None, outcome: None }
    }

    /// Starts the call of `run` without waiting.
    #[inline]
    pub fn begin(run: &Run<'_>, work: &Work<'_>) -> Result<Self> {
        run.context.check_process()?;
        Call::start(work).map(Self::new).map_err(|refused| run.refused_in_memory(&refused))
    }

    /// Starts a call of a request without waiting, in few steps, and ends it if it can; then sets its `claim`. `None`:
    /// it must be started by [`SharedCall::begin`]. `shared` is the memory that all ranks share, and is not inherited.
    ///
    /// # Safety
    /// `call` has `quick`, and allows these buffers; all are valid until the call has ended.
    #[inline(always)] // On the path of small collectives.
    pub unsafe fn begin_quick(
        shared: &Shared,
        (call, quick): (&Prepared, &QuickStart),
        tag: u64,
        (input, output): (*const u8, *mut u8),
        claim: &Claim,
    ) -> Option<Begun> {
        // SAFETY: by the contract.
        let mut started = unsafe { Call::start_prepared(shared, (call, quick), tag, input, output) }?;
        started.claims = true;
        // SAFETY: the call and the buffers are the same.
        let has_ended = unsafe { started.finish_pair(shared, quick, output) };
        if has_ended {
            claim.set(&started);
            return Some(Begun::Ended);
        }
        Some(Begun::Runs(SharedCall::new(started)))
    }

    /// Whether it excludes others of its kind on its tag until [`Claim::release`].
    pub(super) fn make_claim(&mut self, claims: bool) {
        self.call.claims = claims;
    }

    /// Sets the claim of the call, which has ended well.
    pub(super) fn keep(&self, claim: &Claim) {
        if self.call.claims {
            claim.set(&self.call);
        }
    }

    /// Ends a call, if it can be done in few steps. Returns whether it has ended.
    ///
    /// # Safety
    /// If it was started by [`SharedCall::begin_quick`], then with these arguments.
    pub(super) unsafe fn finish(&mut self, shared: &Shared, quick: &QuickStart, output: *mut u8) -> bool {
        // SAFETY: by the contract.
        self.index.is_none() && self.outcome.is_none() && unsafe { self.call.finish_pair(shared, quick, output) }
    }

    /// Goes on without waiting, for a thread that does not wait for the call. The call fails if `is_late` while there
    /// is more to do.
    pub(super) fn progress(&mut self, work: &Work<'_>, is_late: impl Fn() -> bool) -> Progress {
        if self.outcome.is_some() {
            return Progress::Ended;
        }
        self.outcome = match self.call.progress(work) {
            Ok(Progress::Ended) => Some(Ok(())),
            Ok(Progress::More) if is_late() => Some(Err(too_slow())),
            Ok(progress) => return progress,
            Err(error) => Some(Err(error)),
        };
        Progress::Ended
    }

    /// Whether it can go on only by [`SharedCall::call_function`].
    pub(super) fn wants_function(&mut self, work: &Work<'_>) -> bool {
        if self.outcome.is_some() || !self.call.is_at_function(work) {
            return false;
        }
        match self.function_waits {
            // It has waited for an entry since, and not for what its function needs.
            None | Some(Wait::Earlier { .. }) => true,
            Some(wait) => {
                self.call.look_around(work, wait);
                self.call.is_ready(work, wait)
            }
        }
    }

    /// Goes on without waiting, and calls the caller's function. Returns whether it has ended.
    pub(super) fn call_function(&mut self, work: &Work<'_>) -> bool {
        if self.outcome.is_none() {
            match self.call.advance(work) {
                Ok(Some(wait)) => {
                    self.call.look_around(work, wait);
                    self.function_waits = Some(wait);
                }
                ended => self.outcome = Some(ended.map(drop)),
            }
        }
        self.outcome.is_some()
    }

    /// Executes the call until it is over, and ends it. A failure breaks the context.
    pub fn complete(&mut self, run: &Run<'_>, work: &Work<'_>) -> Result<()> {
        self.advance(run, work, Some(run.deadline))?;
        let is_over = self.outcome.is_some();
        let failed = match self.outcome.take() {
            Some(Ok(())) => {
                // What it still waits for is forgotten at once.
                let waits = self.awaited.is_some();
                return match self.index.filter(|index| waits || !work.shared.end_registration_later(*index)) {
                    Some(index) => run.context.lock().map(|mut guard| drop(guard.end(index))),
                    None => Ok(()),
                };
            }
            failed => failed.and_then(Result::err),
        };
        // Once it is withdrawn, its entry may be another call's.
        let recorded = self.call.run();
        // Readers find out that the publications are withdrawn.
        self.call.withdraw(work.shared);
        let mut guard = run.context.lock()?;
        let index = match self.register(run, &mut guard, recorded) {
            Ok(index) => index,
            Err(error) => {
                let error = failed.unwrap_or(error);
                work.shared.recorder().failed(&recorded, &error);
                return Err(error);
            }
        };
        failed.into_iter().for_each(|error| guard.fail(index, error));
        Outcome { run, guard, index, is_over }.conclude()
    }

    /// Has the engine know of the call, which the recorder has as `recorded`. Returns its index there. Fails if the
    /// context is broken.
    fn register(&mut self, run: &Run<'_>, guard: &mut Guard<'_>, recorded: recorder::Run) -> Result<u32> {
        if let Some(index) = self.index {
            return Ok(index);
        }
        let index = guard.register(&run.binding, recorded).map_err(|error| run.described(&error))?;
        Ok(*self.index.insert(index))
    }

    /// Ends its use of shared memory, unless it has ended.
    pub(super) fn withdraw(&mut self, shared: &Shared, why: &Error) {
        if !matches!(self.outcome, Some(Ok(()))) {
            shared.recorder().failed(&self.call.run(), why);
            self.call.withdraw(shared);
        }
    }
}

impl Context {
    /// Uses the memory that ranks share for collectives from now on, if those of each host do; `found`: what each rank
    /// can share with those of its host. Returns what the ranks of each host share, which all ranks find alike.
    pub(super) fn share_memory(&self, found: &[Sharing]) -> Result<Sharing> {
        let sharing = what_all_share(self.hosts(), found);
        if sharing == Sharing::Nothing {
            return Ok(sharing);
        }
        let mut guard = self.lock()?;
        // A rank may be alone on its host.
        if let (None, Some(group)) = (&guard.shared, guard.messenger.connections().local_ranks().cloned()) {
            let all_here = group.ranks().len() == self.size;
            let begun = guard.begun();
            let shared = Arc::new(Shared::new(group, guard.kept.clone(), guard.recorder.clone(), begun));
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

    /// What to execute in memory that all ranks share, if the plan is for that.
    #[inline]
    pub(super) fn shared_work<'a>(&'a self, binding: &'a Binding<'a>) -> Option<Work<'a>> {
        match (&binding.call.plan.program, self.shared_memory.get()) {
            (Some(program), Some(shared)) => Some(Work { shared, program, binding }),
            _ => None,
        }
    }

    /// Runs a call of at most one input and one output, tag 0 and the context's timeout that the cache has by these
    /// numbers. In memory that all ranks share, its steps from here to the first publication are few. `None` if it must
    /// be checked and prepared.
    ///
    /// # Safety
    /// See [`Context::run`], for the call that is in the cache.
    #[inline]
    pub unsafe fn run_cached(&self, key: &Key, input: *const u8, output: *mut u8) -> Option<Result<()>> {
        if let Some(shared) = self.shared_memory.get().filter(|shared| !shared.is_inherited())
            // SAFETY: by the contract, the buffers are valid until this returns.
            && let Some((mut started, call)) = unsafe { Call::start_cached(shared, key, input, output) }
        {
            // SAFETY: valid until the call has ended, and not used afterwards.
            let call = unsafe { call.as_ref() };
            let quick = call.quick_start.as_ref()?;
            // SAFETY: the call and the buffers are the same.
            if unsafe { started.finish_pair(shared, quick, output) } {
                return Some(Ok(()));
            }
            let (inputs, outputs) = ([input], [output]);
            let (inputs, outputs) = call.used(&inputs, &outputs);
            let binding = Binding { call, inputs, outputs, function: None, tag: 0, in_order: false };
            // SAFETY: the same.
            return unsafe { self.run_on(shared, quick, started, &binding, None) };
        }
        // SAFETY: by the contract.
        unsafe { self.run_cached_any(key, input, output) }
    }

    /// [`Context::run_cached`] for a call that starts as others do.
    ///
    /// # Safety
    /// The buffers are valid as [`Context::run_cached`] demands.
    #[inline(never)]
    unsafe fn run_cached_any(&self, key: &Key, input: *const u8, output: *mut u8) -> Option<Result<()>> {
        let call = self.cached(&CallKey::from(*key)).filter(|call| call.allows(input, output))?;
        let (inputs, outputs) = ([input], [output]);
        let (inputs, outputs) = call.used(&inputs, &outputs);
        let binding = Binding { call: &call, inputs, outputs, function: None, tag: 0, in_order: false };
        let ended = self.run_of(binding, None, self.engine().now()).execute(&call);
        // SAFETY: by the contract.
        Some(ended.inspect(|()| unsafe { call.settle(outputs) }))
    }

    /// Runs a call that needs few steps to start. `None` if it needs more, or does not start. `own_timeout` is the
    /// call's, if it has one.
    ///
    /// # Safety
    /// The buffers of `binding` are valid until this returns.
    pub(super) unsafe fn run_quick(&self, binding: &Binding<'_>, own_timeout: Option<Duration>) -> Option<Result<()>> {
        let shared = self.shared_memory.get().filter(|shared| !shared.is_inherited())?;
        let quick = binding.call.quick_start.as_ref()?;
        let (input, output) = binding.first();
        // SAFETY: by the contract.
        let mut started = unsafe { Call::start_prepared(shared, (binding.call, quick), binding.tag, input, output) }?;
        // SAFETY: the call and the buffers are the same.
        if unsafe { started.finish_pair(shared, quick, output) } {
            return Some(Ok(()));
        }
        // SAFETY: the same.
        unsafe { self.run_on(shared, quick, started, binding, own_timeout) }
    }

    /// The rest of a quick call that is not a pair's, or must wait.
    ///
    /// # Safety
    /// `quick` and the buffers are those of the call.
    #[inline(never)]
    unsafe fn run_on(
        &self,
        shared: &Shared,
        quick: &QuickStart,
        mut call: Call,
        binding: &Binding<'_>,
        own_timeout: Option<Duration>,
    ) -> Option<Result<()>> {
        let waits = match own_timeout {
            None => !self.timeout.is_zero(),
            Some(timeout) => !timeout.is_zero(),
        };
        let looks = if waits { first_looks(shared) } else { 0 };
        let (_, output) = binding.first();
        for _ in 0..if call.is_pair(quick) { looks } else { 0 } {
            std::hint::spin_loop();
            // SAFETY: by the contract.
            if unsafe { call.finish_pair(shared, quick, output) } {
                return Some(Ok(()));
            }
        }
        let work = Work { shared, program: binding.call.plan.program.as_ref()?, binding };
        loop {
            call.looks = looks;
            let advanced = call.advance(&work);
            advanced.iter().flatten().for_each(|wait| call.note_wait(shared, *wait));
            match advanced {
                Ok(None) => return Some(Ok(())),
                Ok(Some(wait)) if waits && wait != Wait::Clock && look(self.engine(), &mut call, &work, wait) => {}
                Ok(Some(_)) | Err(_) => {
                    let run = self.run_of(*binding, own_timeout, self.engine().now());
                    return Some(SharedCall::new(call).complete(&run, &work));
                }
            }
        }
    }
}

impl Run<'_> {
    #[cold]
    fn refused_in_memory(&self, refused: &Refused) -> Error {
        let guard = match self.context.lock() {
            Ok(guard) => guard,
            Err(error) => return error,
        };
        let error = self.why_refused(&guard, refused);
        self.refused(guard, &error)
    }

    /// Why a call does not start in shared memory.
    #[cold]
    pub fn why_refused(&self, core: &Core, refused: &Refused) -> Error {
        let Binding { call, tag, .. } = self.binding;
        match (refused, &core.broken) {
            (Refused::Unusable, Some(error)) => error.context("the context is broken"),
            (Refused::Unusable, None) => Error::new(ErrorKind::Closed, "the context is closed"),
            (Refused::NoMemory, _) => no_room(call.plan.scratch, call.element),
            (Refused::Uncounted, _) => uncounted(tag),
            (Refused::Running(other), _) => already_running(*other, tag, call.kind(), explain),
        }
    }
}

/// The least that a rank shares with the others of its host; nothing if no host has several ranks, or one has too many.
/// `hosts`: the host of each rank.
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
