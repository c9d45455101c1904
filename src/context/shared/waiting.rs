//! How the thread that executes a call on shared memory waits for its peers: it looks for a moment, polls without the
//! context's lock, and then waits in the engine, where it may sleep.

use std::time::{Duration, Instant};

use super::SharedCall;
use crate::context::run::Run;
use crate::engine::errors::too_slow;
use crate::engine::shared::{Call, Progress, Shared, Wait, Work};
use crate::engine::{Engine, Idle};
use crate::error::Result;
use crate::messaging::Token;

/// How often a thread looks for a publication before it waits with the context's lock, if each rank has its own core:
/// some tens of microseconds.
const LOOKS: u32 = 2000;
/// How often it looks before that, where it needs the publication: it goes on at once.
const FIRST_LOOKS: u32 = 100;
/// How often it looks and gives up its core, if ranks share cores.
const SHARED_LOOKS: u32 = 50;
/// Looks of a thread that polls for longer before it gives up its core for a moment, and how often it does that before
/// it progresses the context: some microseconds, and some tens of them.
const LOOKS_PER_YIELD: u32 = 100;
const YIELDS_PER_TURN: u32 = 20;
/// After so many looks it wakes peers that sleep, and looks at all entries of the peer; if ranks share cores, after so
/// many each time.
const LOOKS_AROUND: u32 = 100;
const SHARED_LOOKS_AROUND: u32 = 8;

/// How long a thread waits for one of two members before it waits for the other.
const TURN: Duration = Duration::from_millis(10);

impl SharedCall {
    /// Executes the call until it is over, its deadline has passed, or `until`; for a thread that does not wait, which
    /// has no such time, only as far as possible without waiting. Returns whether it is over, and has an outcome, or
    /// its deadline has passed.
    pub fn advance(&mut self, run: &Run<'_>, work: &Work<'_>, until: Option<Instant>) -> Result<bool> {
        run.context.check_process()?;
        let engine = run.context.engine();
        let (has_time, waits) = (!run.timeout.is_zero(), until.is_some());
        let until = until.map_or(run.deadline, |until| until.min(run.deadline));
        // What it has waited for in turns, and how long it has found nothing.
        let (mut waited, mut idle) = (None, Idle::default());
        while self.outcome.is_none() {
            self.call.looks = if waits && has_time { first_looks(work.shared) } else { 0 };
            let wait = match self.call.advance(work) {
                Ok(Some(wait)) => wait,
                ended => {
                    self.outcome = Some(ended.map(drop));
                    break;
                }
            };
            self.call.note_wait(work.shared, wait);
            if waits && has_time && wait != Wait::Clock && look(engine, &mut self.call, work, wait) {
                continue;
            }
            let now = engine.now();
            let is_late = now >= run.deadline;
            let is_ready = match wait {
                _ if is_late && !waits => return Ok(true),
                Wait::Clock if waits => {
                    self.outcome = (has_time && is_late).then(|| Err(too_slow()));
                    true
                }
                Wait::Clock => {
                    work.shared.pass_on(Progress::More);
                    false
                }
                _ if waits => {
                    if waited.replace(wait) != Some(wait) {
                        idle = Idle::default();
                    }
                    self.wait_in_turns(run, work, wait, &mut idle, until)?
                }
                // Progresses the context, so that the call fails when its peer has.
                _ => self.wait(run, work, wait, &mut idle, now)?,
            };
            if !waits {
                if !is_ready {
                    return Ok(false);
                }
            } else if (!is_ready || until < run.deadline) && self.outcome.is_none() {
                let now = engine.now();
                if now >= until {
                    return Ok(now >= run.deadline);
                }
            }
        }
        Ok(true)
    }

    /// [`SharedCall::wait`], and if there is another member without which the call does not end, for that in turns,
    /// so that the end of either is noticed.
    #[cold]
    fn wait_in_turns(
        &mut self,
        run: &Run<'_>,
        work: &Work<'_>,
        wait: Wait,
        idle: &mut Idle,
        until: Instant,
    ) -> Result<bool> {
        if self.poll_alone(run, work, wait, idle, until)? {
            return Ok(true);
        }
        let engine = run.context.engine();
        let turn = |is_last| if is_last { until } else { until.min(engine.now() + TURN) };
        let slow_reader = self.call.slow_reader(work, wait);
        if self.wait(run, work, wait, idle, turn(slow_reader.is_none()))? {
            return Ok(true);
        }
        match self.call.slow_reader(work, wait) {
            Some(slow_reader) if engine.now() < until => self.wait(run, work, slow_reader, idle, turn(false)),
            _ => Ok(false),
        }
    }

    /// Polls for what the call waits for without the context's lock, as long as the thread may poll and nothing else is
    /// waited for on the context; now and then it progresses the context, and notices the end of a peer. Returns
    /// whether the wait may be over. Where each rank has its own core, what has come is found by the next look, and the
    /// call goes on at once: the last of two ranks was 100 µs late, and an allreduce of 8 bytes ended 0.4 µs after its
    /// arrival in place of 1.2; 1.2 in place of 2.1 if it was 1 ms late.
    fn poll_alone(
        &mut self,
        run: &Run<'_>,
        work: &Work<'_>,
        wait: Wait,
        idle: &mut Idle,
        until: Instant,
    ) -> Result<bool> {
        if work.shared.shares_cores() || run.timeout.is_zero() {
            return Ok(false);
        }
        let engine = run.context.engine();
        let rank = wait.member().map(|member| work.shared.rank(member));
        loop {
            let Some(alone) = engine.poll_alone(&run.context.lock()?, rank) else { return Ok(false) };
            for _ in 0..YIELDS_PER_TURN {
                for _ in 0..LOOKS_PER_YIELD {
                    if self.call.is_ready(work, wait) {
                        return Ok(true);
                    }
                    std::hint::spin_loop();
                }
                let now = engine.now();
                if now >= until || !engine.polls_on(idle, alone.spin, now) {
                    return Ok(false);
                }
                engine.yield_in_wait();
            }
            drop(alone);
            let others = [Some(wait), self.call.slow_reader(work, wait)];
            for wait in others.into_iter().flatten() {
                if self.wait(run, work, wait, idle, engine.now())? {
                    return Ok(true);
                }
            }
        }
    }

    /// Waits with the context's lock, and progresses the context meanwhile, until `until`. Returns whether the wait may
    /// be over, or the call has failed, which then is its outcome.
    #[cold]
    fn wait(&mut self, run: &Run<'_>, work: &Work<'_>, wait: Wait, idle: &mut Idle, until: Instant) -> Result<bool> {
        let engine = run.context.engine();
        self.call.look_around(work, wait);
        let mut guard = run.context.lock()?;
        let rank = wait.member().map(|member| work.shared.rank(member));
        let recorded = self.call.run();
        let index = match self.register(run, &mut guard, recorded) {
            Ok(index) => index,
            Err(error) => {
                // Whoever has ended the context did not know yet what the call waits for.
                let waited = rank.filter(|_| error.kind().is_intended()).map(|rank| guard.messenger.peer_name(rank));
                let error = waited.map(|peer| error.and(format_args!("; it waited for {peer}"))).unwrap_or(error);
                self.outcome = Some(Err(error));
                return Ok(true);
            }
        };
        let earlier = self.awaited.replace(wait);
        if earlier != Some(wait) {
            if earlier.is_some() {
                guard.messenger.cancel(index);
            }
            let bytes = run.binding.call.count * run.binding.call.element;
            let token = Token { owner: index, detail: 0 };
            rank.into_iter().for_each(|rank| guard.messenger.wait_for_publication(rank, bytes, token));
        }
        guard.wait_in_memory(index, self.call.awaited(work, wait));
        let is_late = guard.now >= run.deadline;
        let (mut guard, ready) = engine.wait_for(guard, rank, idle, until, |core| {
            self.call.look_around(work, wait);
            if self.call.is_ready(work, wait) {
                return Some(Ok(None));
            }
            if let Some(error) = core.failure(index) {
                return Some(Err(error.clone()));
            }
            if is_late { None } else { core.next_function().map(|function| Ok(Some(function))) }
        });
        let is_ready = ready.is_some();
        match ready {
            Some(Ok(None)) => {
                guard.messenger.cancel(index);
                self.awaited = None;
                *idle = Idle::default();
            }
            Some(Ok(Some(function))) => guard = engine.call_function(guard, function),
            Some(Err(error)) => self.outcome = Some(Err(error)),
            None => {}
        }
        engine.hand_over(guard);
        Ok(is_ready)
    }
}

/// How often a call looks for a publication where it needs that.
pub(super) fn first_looks(shared: &Shared) -> u32 {
    if shared.shares_cores() { 0 } else { FIRST_LOOKS }
}

/// Looks for what the call waits for, for some microseconds. Returns whether it has come.
#[inline]
pub(super) fn look(engine: &Engine, call: &mut Call, work: &Work<'_>, wait: Wait) -> bool {
    let shares = work.shared.shares_cores();
    for turn in 0..if shares { SHARED_LOOKS } else { LOOKS } {
        if call.is_ready(work, wait) {
            return true;
        }
        if shares {
            call.announce(work);
            if turn % SHARED_LOOKS_AROUND == SHARED_LOOKS_AROUND - 1 {
                call.look_around(work, wait);
            }
            engine.yield_now();
        } else {
            if turn == LOOKS_AROUND {
                call.look_around(work, wait);
            }
            std::hint::spin_loop();
        }
    }
    false
}
