//! Who polls, who sleeps, and who is woken.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::engine::numbers::Numbers;
use crate::engine::requests::Requests;
use crate::engine::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Waker, yield_now};
use crate::engine::{Core, Next};
use crate::error::{Error, Result};
use crate::hash::QuickMap;
use crate::messaging::{EVENTS, Messenger};
use crate::slab::Slab;
use crate::transport::{Clock, Watch};
use crate::types::Rank;

/// How long a waiting thread polls before it lets the system put it to sleep; ordered by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spin {
    /// For so long after the last thing that happened.
    For(Duration),
    /// Until what it waits for has happened.
    Forever,
}

/// How often a polling thread that finds something every time looks at the clock and at who wants the lock.
const BUSY_TURNS: u32 = 64;

/// The lock on a context's state.
pub type Guard<'a> = MutexGuard<'a, Core>;

/// A context's state, and the threads around it.
pub struct Engine {
    /// First, so that it is dropped before the descriptor that it watches.
    watch: OnceLock<Box<dyn Watch>>,
    core: Mutex<Core>,
    /// Threads that want the lock while a polling thread has it.
    contenders: AtomicUsize,
    /// Woken when something has ended for a thread that does not poll.
    ended: Condvar,
    /// Wakes a polling thread that sleeps.
    waker: Waker,
    /// What a sleeping thread is woken by: the waker's and the links'.
    descriptors: Vec<RawFd>,
    clock: Arc<dyn Clock>,
}

impl Engine {
    /// Around `messenger`; threads wait by `clock`. `explain` says what a peer's digest means.
    pub fn new(messenger: Messenger, clock: Arc<dyn Clock>, explain: fn(u64) -> String, spin: Spin) -> Result<Self> {
        let waker = Waker::new().map_err(|e| Error::io("cannot create a context", &e))?;
        let mut descriptors = vec![waker.as_raw_fd()];
        messenger.descriptors(&mut descriptors);
        Ok(Self {
            contenders: AtomicUsize::new(0),
            ended: Condvar::new(),
            waker,
            descriptors,
            watch: OnceLock::new(),
            core: Mutex::new(Core {
                messenger,
                now: clock.now(),
                executions: Slab::default(),
                spare: Vec::new(),
                requests: Requests::default(),
                events: Vec::with_capacity(EVENTS),
                broken: None,
                explain,
                begun: 0,
                numbers: Numbers::default(),
                polling: false,
                sleeping: None,
                waiting: Vec::new(),
                waking: 0,
                ended: false,
                connecting: 0,
                turns: 0,
                seen_turns: 0,
                spin,
                pair_spins: QuickMap::default(),
            }),
            clock,
        })
    }

    /// Says who drives the transport while nobody waits. Once; it begins armed.
    pub fn set_watch(&self, watch: Box<dyn Watch>) {
        let _ = self.watch.set(watch);
    }

    /// Takes the lock, and looks at the clock.
    pub fn lock(&self) -> Guard<'_> {
        let mut guard = match self.core.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.lock_contended(),
        };
        guard.now = self.now();
        guard
    }

    fn lock_contended(&self) -> Guard<'_> {
        self.contenders.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.contenders.fetch_sub(1, Ordering::SeqCst);
        guard.now = self.now();
        guard
    }

    /// For whoever changed something that waiting threads must see.
    pub fn wake(&self) {
        let mut guard = self.lock();
        guard.waking = guard.waiting.len();
        drop(guard);
        self.ended.notify_all();
        self.waker.wake();
    }

    /// Moves on what was just posted, and leaves the rest to whoever polls, or to the watch.
    pub fn leave(&self, mut guard: Guard<'_>) {
        guard.serve();
        self.hand_over(guard);
    }

    /// Drives the context until the run `index` is over, which this thread has started, or until `deadline`; whether it is. Returns
    /// with the lock.
    ///
    /// The caller's reduction function runs without the lock: others may use the context meanwhile, and so may the function itself. How
    /// late it is shows when it has returned. A deadline that has passed from the beginning lets it run as often as it can without
    /// waiting.
    pub fn finish<'a>(&'a self, mut guard: Guard<'a>, index: u32, deadline: Instant) -> (Guard<'a>, bool) {
        let waits = guard.now < deadline;
        loop {
            let (mut core, next) = self.wait(guard, deadline, |core| core.next(index));
            let Some(Next::Reduce(reduction)) = next else { return (core, next.is_some()) };
            // What was posted leaves first. The watch comes by itself if the function takes long.
            core.dispatch();
            self.tell(&mut core);
            if !core.waiting.is_empty() && !core.polling {
                self.ended.notify_all();
            }
            drop(core);
            let status = reduction.call();
            guard = self.lock();
            guard.reduced(index, &reduction, status);
            if waits && guard.now >= deadline && !guard.is_over(index) {
                return (guard, false);
            }
        }
    }

    /// Drives the context until `ready` gives a result, or until `deadline`. Returns with the lock.
    pub fn wait<'a, R>(
        &'a self,
        guard: Guard<'a>,
        deadline: Instant,
        ready: impl FnMut(&mut Core) -> Option<R>,
    ) -> (Guard<'a>, Option<R>) {
        self.wait_for(guard, None, deadline, ready)
    }

    /// The same, for what only concerns the pair with `peer`, if there is one: so it spins as was set for that.
    pub fn wait_for<'a, R>(
        &'a self,
        mut guard: Guard<'a>,
        peer: Option<Rank>,
        deadline: Instant,
        mut ready: impl FnMut(&mut Core) -> Option<R>,
    ) -> (Guard<'a>, Option<R>) {
        let mut polling = false;
        let mut busy_turns = 0;
        let mut idle_since: Option<Instant> = None;
        let result = loop {
            if let Some(result) = ready(&mut guard) {
                break Some(result);
            }
            if !polling && guard.polling {
                // What this thread has posted must not wait for the one that polls, which may be asleep; and whoever does not
                // wait at all gets what can be had at once.
                let mut turns = 1..BUSY_TURNS;
                while guard.progress() && self.now() >= deadline && turns.next().is_some() {}
                self.tell(&mut guard);
                if let Some(result) = ready(&mut guard) {
                    break Some(result);
                }
                let left = deadline.saturating_duration_since(self.now());
                if left.is_zero() {
                    break None;
                }
                guard = self.wait_to_be_told(guard, peer, left);
                continue;
            }
            if !polling {
                polling = true;
                guard.polling = true;
                if let Some(watch) = self.watch.get().filter(|w| w.is_armed()) {
                    watch.disarm();
                }
            }
            let moved = guard.progress();
            self.tell(&mut guard);
            if moved {
                idle_since = None;
                busy_turns += 1;
                // What moves may be for others: it must not take this thread past its deadline, nor keep the lock from them.
                if busy_turns == BUSY_TURNS {
                    busy_turns = 0;
                    guard.now = self.now();
                    if guard.now >= deadline {
                        break ready(&mut guard);
                    }
                    if self.is_wanted(&guard) {
                        guard = self.give_way(guard);
                    }
                }
                continue;
            }
            guard.now = self.now();
            if guard.now >= deadline {
                break None;
            }
            guard = self.rest(guard, peer, &mut idle_since, deadline);
        };
        if polling {
            guard.polling = false;
        }
        (guard, result)
    }

    /// For a thread that does not poll: waits until the one that does has something to tell, or so long.
    fn wait_to_be_told<'a>(&'a self, mut guard: Guard<'a>, peer: Option<Rank>, time: Duration) -> Guard<'a> {
        // The one that polls spins as long as any that waits would.
        if guard.sleeping.is_some_and(|spin| spin < guard.spin(peer)) {
            self.waker.wake();
        }
        guard.waiting.push(peer);
        guard = self.ended.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0;
        guard.now = self.now();
        let own = guard.waiting.iter().position(|other| *other == peer).expect("pushed above");
        guard.waiting.swap_remove(own);
        guard.waking = guard.waking.saturating_sub(1);
        guard
    }

    /// For the thread that polls and has found nothing: offers its core and the lock to others, or sleeps, if it has found nothing
    /// for long enough.
    #[inline]
    fn rest<'a>(
        &'a self,
        mut guard: Guard<'a>,
        peer: Option<Rank>,
        idle_since: &mut Option<Instant>,
        deadline: Instant,
    ) -> Guard<'a> {
        let since = *idle_since.get_or_insert(guard.now);
        let spin = guard.longest_spin(peer);
        let spinning = match spin {
            Spin::For(time) => guard.now.duration_since(since) < time,
            Spin::Forever => true,
        };
        if spinning {
            if self.is_wanted(&guard) {
                return self.give_way(guard);
            }
            // Another rank may be waiting for this very core. Where none is, this costs no more than the poll did:
            // two ranks that share a core exchange 4 bytes in 12 µs so, and in 22 µs if each keeps it for 5 µs.
            yield_now();
            return guard;
        }
        let until = guard.messenger.next_timer().map_or(deadline, |timer| timer.min(deadline));
        guard.sleeping = Some(spin);
        drop(guard);
        if self.clock.sleep(&self.descriptors, until) {
            self.waker.clear();
        }
        guard = self.lock_contended();
        guard.sleeping = None;
        if guard.longest_spin(peer) > spin {
            *idle_since = None;
        }
        guard
    }

    /// Whether other threads wait for the lock.
    fn is_wanted(&self, guard: &Guard<'_>) -> bool {
        guard.waking > 0 || self.contenders.load(Ordering::Relaxed) > 0
    }

    /// Lets another thread have the lock for a moment.
    fn give_way<'a>(&'a self, guard: Guard<'a>) -> Guard<'a> {
        drop(guard);
        yield_now();
        self.lock_contended()
    }

    /// Tells other threads that something has ended which they may wait for.
    fn tell(&self, guard: &mut Guard<'_>) {
        let ended = std::mem::take(&mut guard.ended);
        if ended && !guard.waiting.is_empty() {
            guard.waking = guard.waiting.len();
            self.ended.notify_all();
        }
        // A thread that sleeps may not know of the timer.
        if guard.sleeping.is_some() && (ended || guard.messenger.next_timer().is_some()) {
            self.waker.wake();
        }
    }

    /// Gives the lock back after a wait: another waiting thread polls on, or the watch takes over what is left.
    pub fn hand_over(&self, mut guard: Guard<'_>) {
        self.tell(&mut guard);
        if guard.polling {
            return;
        }
        if !guard.waiting.is_empty() {
            self.ended.notify_all();
        } else if let Some(watch) = self.watch.get() {
            self.entrust(&guard, watch.as_ref(), guard.messenger.outgoing() > 0);
        }
    }

    /// Lets the watch take over at once if `urgent`. A timer it would not see: then it comes by the tick.
    fn entrust(&self, guard: &Guard<'_>, watch: &dyn Watch, urgent: bool) {
        if guard.messenger.next_timer().is_some() {
            watch.disarm();
        } else if urgent {
            watch.arm();
        }
    }

    /// What time it is.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// For the watch: serves the context if nobody else does.
    pub fn serve(&self) {
        let mut guard = match self.core.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if guard.polling {
            return;
        }
        let Some(watch) = self.watch.get() else { return };
        // Unarmed, it takes over when nobody has been here for a whole tick.
        if watch.is_armed() || guard.turns == guard.seen_turns {
            guard.now = self.now();
            guard.serve();
            self.tell(&mut guard);
            self.entrust(&guard, watch.as_ref(), true);
        }
        guard.seen_turns = guard.turns;
    }
}
