//! How threads wait on a context: one polls, the others sleep, and who has something for them wakes them.

mod watch;

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::engine::lines::Lines;
use crate::engine::numbers::Numbers;
use crate::engine::operations::Operations;
use crate::engine::oversubscription::Oversubscription;
use crate::engine::recorder::Recorder;
use crate::engine::requests::Requests;
use crate::engine::scratch::Kept;
use crate::engine::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Waker};
use crate::engine::waiters::Waiters;
use crate::engine::{Core, Idle, Next, Spin};
use crate::error::{Error, Result};
use crate::messaging::{EVENTS, Messenger};
use crate::sys::Pollable;
use crate::transport::{Clock, Watch};
use crate::types::Rank;

/// A polling thread that makes progress each time reads the clock and checks for contenders once in so many turns.
const BUSY_TURNS: u32 = 64;

/// How often a thread that does not poll looks for publications in shared memory while another one polls, at first and
/// after a while.
const FIRST_NAP: Duration = Duration::from_micros(20);
const LAST_NAP: Duration = Duration::from_micros(200);

/// The lock on a context's state.
pub type Guard<'a> = MutexGuard<'a, Core>;

/// A context's state, and how threads wait on it.
pub struct Engine {
    /// The first field, so that it is dropped before what it watches.
    watch: OnceLock<Arc<dyn Watch>>,
    core: Mutex<Core>,
    kept: Arc<Kept>,
    recorder: Arc<Recorder>,
    /// Threads that wait for the lock.
    contenders: AtomicUsize,
    /// Whether a thread polls, as `polling` in the core says, for threads without the lock: 0 or 1.
    polls: AtomicUsize,
    /// Whether a thread polls in shared memory without the lock, see [`Engine::poll_alone`].
    pub(super) is_polled_alone: AtomicBool,
    /// How often a thread of the program has left something to the watch, has begun to wait without disarming the
    /// watch, or has had the lock when the watch came, and that number when the watch last looked, or progressed the
    /// context.
    visits: AtomicUsize,
    seen_visits: AtomicUsize,
    /// Number of threads that stay, see [`Engine::stay`].
    staying: AtomicUsize,
    /// Notified when an operation has completed for which a thread waits that does not poll.
    ended: Condvar,
    /// Wakes the polling thread if it sleeps.
    waker: Waker,
    /// What wakes a sleeping thread: the waker's and the links'.
    sources: Vec<Pollable>,
    clock: Arc<dyn Clock>,
    oversubscription: Oversubscription,
}

impl Engine {
    /// An engine for `messenger`; threads wait by `clock`. `explain` describes the call that a peer's digest stands
    /// for.
    pub fn new(messenger: Messenger, clock: Arc<dyn Clock>, explain: fn(u64) -> String, spin: Spin) -> Result<Self> {
        let waker = Waker::new().map_err(|e| Error::io("cannot create a context", &e))?;
        let mut sources = vec![Pollable::from(&waker)];
        messenger.connections().descriptors(&mut sources);
        let (kept, now) = (Arc::<Kept>::default(), clock.now());
        let recorder = Arc::new(Recorder::new(clock.clone(), now)?);
        Ok(Self {
            kept: kept.clone(),
            recorder: recorder.clone(),
            contenders: AtomicUsize::new(0),
            polls: AtomicUsize::new(0),
            is_polled_alone: AtomicBool::new(false),
            visits: AtomicUsize::new(0),
            seen_visits: AtomicUsize::new(0),
            staying: AtomicUsize::new(0),
            ended: Condvar::new(),
            waker,
            sources,
            watch: OnceLock::new(),
            core: Mutex::new(Core {
                messenger,
                now,
                operations: Operations::default(),
                spare_scratch: Vec::new(),
                kept,
                clock: clock.clone(),
                requests: Requests::default(),
                listeners: Vec::new(),
                reminded: Vec::new(),
                events: Vec::with_capacity(EVENTS),
                recorder,
                broken: None,
                ended_by: None,
                explain,
                begun: 0,
                numbers: Numbers::default(),
                last: (0, 0),
                waiters: Waiters::new(spin),
                ended: false,
                connecting: 0,
                turns: 0,
                seen_turns: 0,
                long_turn: false,
                moved: false,
                is_lazy: false,
                lines: Lines::default(),
                shared_functions: 0,
                shared: None,
                agreement: None,
            }),
            clock,
            oversubscription: Oversubscription::new(now),
        })
    }

    /// Sets who progresses the context while no thread waits. Called once; the watch starts armed.
    pub fn set_watch(&self, watch: Box<dyn Watch>) {
        let watch = Arc::from(watch);
        self.kept.set_watch(Arc::downgrade(&watch));
        let _ = self.watch.set(watch);
        let mut guard = self.lock();
        guard.sleep(false);
        guard.serve();
    }

    /// The last calls, and the number of all.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Takes the lock, and reads the clock.
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

    /// Wakes all waiting threads, after a change that they must see.
    pub fn wake(&self) {
        let mut guard = self.lock();
        guard.waiters.wake_all();
        guard.listeners.iter().for_each(|listener| listener.wake());
        drop(guard);
        self.ended.notify_all();
        self.waker.wake();
    }

    /// Progresses what was just posted, then gives the lock back; the polling thread or the watch does the rest.
    pub fn leave(&self, mut guard: Guard<'_>) {
        guard.serve();
        self.hand_over(guard);
    }

    /// Progresses the context until the run `index`, which this thread has started, has completed or failed, or until
    /// `deadline`. Returns the lock, and whether the run is over.
    ///
    /// The caller's reduction function runs without the lock: other threads may use the context meanwhile, and so may
    /// the function. Functions of other calls that were started run, too. The deadline is checked after the function
    /// has returned. If the deadline had passed before this call, functions are called as long as this needs no
    /// waiting.
    pub fn finish<'a>(&'a self, mut guard: Guard<'a>, index: u32, deadline: Instant) -> (Guard<'a>, bool) {
        let waits = guard.now < deadline;
        loop {
            let (core, next) = self.wait(guard, deadline, |core| core.next(index));
            let Some(Next::Call(function)) = next else { return (core, next.is_some()) };
            guard = self.call_function(core, function);
            if waits && guard.now >= deadline && !guard.is_over(index) {
                return (guard, false);
            }
        }
    }

    /// Progresses the context until `ready` returns a result, or until `deadline`. Returns with the lock.
    pub fn wait<'a, R>(
        &'a self,
        guard: Guard<'a>,
        deadline: Instant,
        ready: impl FnMut(&mut Core) -> Option<R>,
    ) -> (Guard<'a>, Option<R>) {
        self.wait_for(guard, None, &mut Idle::default(), deadline, ready)
    }

    /// See [`Engine::wait`]. If the wait involves only `peer`, it polls as long as was set for that pair. `idle`: the
    /// turns of this wait before an earlier deadline.
    pub fn wait_for<'a, R>(
        &'a self,
        mut guard: Guard<'a>,
        peer: Option<Rank>,
        idle: &mut Idle,
        deadline: Instant,
        mut ready: impl FnMut(&mut Core) -> Option<R>,
    ) -> (Guard<'a>, Option<R>) {
        let mut polling = false;
        let mut busy_turns = 0;
        // Whether peers know that this rank is about to sleep.
        let mut announced = false;
        let mut nap = FIRST_NAP;
        let mut attends = false;
        let result = loop {
            if let Some(result) = ready(&mut guard) {
                break Some(result);
            }
            if !polling && guard.waiters.polling {
                // The polling thread may be asleep, so this thread progresses what it has posted itself. With a
                // deadline in the past it takes all results that are available without waiting.
                let mut turns = 1..BUSY_TURNS;
                while guard.progress() && self.now() >= deadline && turns.next().is_some() {}
                self.notify(&mut guard);
                if let Some(result) = ready(&mut guard) {
                    break Some(result);
                }
                let mut left = deadline.saturating_duration_since(self.now());
                if left.is_zero() {
                    break None;
                }
                // The polling thread does not see what this one waits for in shared memory. If it sleeps, whatever a
                // peer publishes wakes it, and it notifies this thread; but not if this thread waits for no peer.
                if guard.messenger.waits_for_publication() && (guard.waiters.sleeping.is_none() || peer.is_none()) {
                    left = left.min(nap);
                    nap = (2 * nap).min(LAST_NAP);
                }
                guard = self.wait_for_notification(guard, peer, left);
                continue;
            }
            if !polling {
                polling = true;
                guard.waiters.polling = true;
                self.polls.store(1, Ordering::Relaxed);
                // It would see what this thread sees, and wake up for it.
                if guard.messenger.connections().is_quiet() {
                    self.visit();
                } else {
                    self.disarm();
                }
                guard.messenger.connections_mut().wake(false);
                attends = guard.shared.as_ref().is_some_and(|shared| shared.enter());
            }
            let moved = guard.progress();
            self.notify(&mut guard);
            if moved {
                *idle = Idle::default();
                if std::mem::take(&mut announced) {
                    guard.messenger.connections_mut().wake(false);
                }
                busy_turns = if guard.long_turn { BUSY_TURNS } else { busy_turns + 1 };
                // The progress may concern only other threads: this thread must still observe its deadline, and release
                // the lock to them.
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
            guard = self.rest(guard, peer, idle, &mut announced, deadline);
        };
        if polling {
            guard.waiters.polling = false;
            guard.is_lazy |= guard.moved || !guard.messenger.connections().is_quiet();
            self.polls.store(0, Ordering::Relaxed);
        }
        if announced {
            guard.messenger.connections_mut().wake(false);
        }
        if let Some(shared) = guard.shared.as_ref().filter(|_| attends) {
            shared.exit();
            guard.take_notice();
        }
        (guard, result)
    }

    /// Has a thread that does not poll wait until the polling thread notifies it, for at most `time`.
    fn wait_for_notification<'a>(&'a self, mut guard: Guard<'a>, peer: Option<Rank>, time: Duration) -> Guard<'a> {
        // The polling thread polls as long as the most patient waiting thread; wake it if that has just become longer.
        if guard.waiters.sleeping.is_some_and(|spin| spin < guard.waiters.spin(peer)) {
            self.waker.wake();
        }
        guard.waiters.add(peer);
        guard = self.ended.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0;
        guard.now = self.now();
        guard.waiters.remove(peer);
        guard
    }

    /// What the polling thread does after a turn without progress: it yields its core and the lock to others, or sleeps
    /// if it has polled long enough.
    #[inline]
    fn rest<'a>(
        &'a self,
        mut guard: Guard<'a>,
        peer: Option<Rank>,
        idle: &mut Idle,
        announced: &mut bool,
        deadline: Instant,
    ) -> Guard<'a> {
        let spin = guard.waiters.longest_spin(peer);
        if self.polls_on(idle, spin, guard.now) {
            if self.is_wanted(&guard) {
                return self.give_way(guard);
            }
            // Another rank may wait for this core. If none does, this costs no more than the poll: two ranks that share
            // a core exchange 4 bytes in 12 µs with it, and in 22 µs if each keeps the core for 5 µs.
            self.yield_in_wait();
            return guard;
        }
        // Without shared memory, the messages of a call say which it is.
        let detects = guard.shared.is_some();
        if detects && idle.detects(guard.now) {
            guard.detect_other_calls();
            return guard;
        }
        if !std::mem::replace(announced, true) && guard.sleep(true) {
            // One turn more: a rank that shares memory may have published something before it could see that this one
            // sleeps.
            return guard;
        }
        let connections = guard.messenger.connections();
        let detection = idle.next_detection().filter(|_| detects);
        let timers = [connections.next_timer(), connections.keep_alive(), detection];
        let until = timers.into_iter().flatten().fold(deadline, Ord::min);
        guard.waiters.sleeping = Some(spin);
        // Or else it would wake up together with this thread.
        self.disarm();
        drop(guard);
        if self.clock.sleep(&self.sources, until) {
            self.waker.clear();
        }
        guard = self.lock_contended();
        guard.waiters.sleeping = None;
        // A peer may have published what another thread waits for.
        guard.ended |= guard.messenger.waits_for_publication();
        guard.messenger.connections_mut().wake(true);
        *announced = false;
        if guard.waiters.longest_spin(peer) > spin {
            *idle = Idle::default();
        }
        guard
    }

    /// Whether other threads wait for the lock.
    fn is_wanted(&self, guard: &Guard<'_>) -> bool {
        guard.waiters.any_wakes() || self.contenders.load(Ordering::Relaxed) > 0
    }

    /// Releases the lock for a moment, so that another thread can take it.
    fn give_way<'a>(&'a self, guard: Guard<'a>) -> Guard<'a> {
        drop(guard);
        self.yield_in_wait();
        self.lock_contended()
    }

    /// Notifies other threads if an operation has completed for which they may wait.
    fn notify(&self, guard: &mut Guard<'_>) {
        let ended = std::mem::take(&mut guard.ended);
        if ended && guard.waiters.any_sleeps() {
            guard.waiters.wake_all();
            self.ended.notify_all();
        }
        if ended {
            guard.listeners.iter().for_each(|listener| listener.wake());
        }
        // A thread that is asleep may not know of the timer.
        if guard.waiters.sleeping.is_some() && (ended || guard.messenger.connections().next_timer().is_some()) {
            self.waker.wake();
        }
    }

    /// From now on, `listener` is woken whenever an operation has completed for which a thread may wait, or wants its
    /// function, until [`Engine::ignore`].
    pub fn listen(&self, listener: &Arc<Waker>) {
        self.lock().listeners.push(listener.clone());
    }

    /// Ends what [`Engine::listen`] has begun.
    pub fn ignore(&self, listener: &Arc<Waker>) {
        self.lock().listeners.retain(|other| !Arc::ptr_eq(other, listener));
    }

    /// Sleeps until `listener` is woken, or until `until`; may return earlier.
    pub fn sleep(&self, listener: &Waker, until: Instant) {
        if self.clock.sleep(&[Pollable::from(listener)], until) {
            listener.clear();
        }
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Lets another thread have this core.
    pub fn yield_now(&self) {
        self.clock.yield_now();
    }

    /// Lets another thread have this core, and remembers how long that one had it.
    pub fn yield_in_wait(&self) {
        let from = self.now();
        self.yield_now();
        self.oversubscription.yielded(from, self.now());
    }

    /// Whether a thread whose wait has found nothing at `now` polls on.
    pub fn polls_on(&self, idle: &mut Idle, spin: Spin, now: Instant) -> bool {
        idle.polls_on(spin, self.oversubscription.is_present(now), now)
    }

    /// Whether a thread polls, or sleeps in the system.
    #[cfg(any(test, fuzzing))]
    pub fn is_polled(&self) -> bool {
        self.polls.load(Ordering::Relaxed) > 0
    }
}
