//! The threads that take the entries of a queue and call the program's callbacks.
//!
//! One of them leads: it takes entries, one after the other, while the others wait. A callback may wait for what another
//! one does, so a leader that does not come back from one is replaced, if there is more to do, by a thread that was there
//! before the callback was called. So there is one thread more than there are callbacks that have not returned; those
//! beyond that end after a while. Callbacks that return at once are all called by one thread.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::state::State;
use super::{CompletionQueue, HasEngine};
use crate::engine::sync::{Mutex, MutexGuard, Waker};
use crate::sys::Pollable;
use crate::transport::Clock;

/// How long the leader may be at an entry before another thread leads, if there is more to do.
const MAX_ABSENCE: Duration = Duration::from_millis(1);
/// How long a thread waits that is not needed, before it ends.
const MAX_IDLENESS: Duration = Duration::from_secs(1);
/// How long the last thread sleeps, before it sleeps again.
const LONG_SLEEP: Duration = Duration::from_secs(3600);

/// What the threads of a pool do.
pub trait Work<T, C>: Send + Sync {
    /// Looks whether the call with this number, which the thread has taken, has ended; if so, calls its callback. Returns
    /// false if the thread must end.
    fn look(&self, queue: &Arc<CompletionQueue<T, C>>, number: u32, call: T) -> bool;

    /// Calls the reduction functions that are wanted, after the pool's bell was rung.
    fn call_functions(&self);

    /// Starts a thread, which is to call [`Pool::run`].
    fn start_thread(&self, pool: &Arc<Pool<T, C>>) -> io::Result<()>;
}

/// The threads of a queue. All its entries are theirs.
pub struct Pool<T, C> {
    queue: Arc<CompletionQueue<T, C>>,
    work: Box<dyn Work<T, C>>,
    threads: Mutex<Threads>,
    /// Is rung when a reduction function may be wanted.
    bell: Arc<Waker>,
}

struct Threads {
    /// The number of the leader. Each lead has its own.
    leader: u64,
    /// When the leader took its present entry; `None` if no thread leads.
    since: Option<Instant>,
    /// Those that are not at an entry.
    free: usize,
    /// Those that are.
    busy: usize,
    are_ending: bool,
}

impl<T: Clone + Send + Sync, C: HasEngine> Pool<T, C> {
    /// A pool with its first thread.
    pub fn start(clock: Arc<dyn Clock>, work: Box<dyn Work<T, C>>) -> io::Result<Arc<Self>> {
        let threads = Mutex::new(Threads { leader: 0, since: None, free: 1, busy: 0, are_ending: false });
        let queue = Arc::new(CompletionQueue::of_state(State::new(true), clock));
        let pool = Arc::new(Self { queue, work, threads, bell: Arc::new(Waker::new()?) });
        pool.work.start_thread(&pool)?;
        Ok(pool)
    }

    /// The queue.
    pub fn queue(&self) -> &Arc<CompletionQueue<T, C>> {
        &self.queue
    }

    /// Has a thread call [`Work::call_functions`] whenever it is woken.
    pub fn bell(&self) -> &Arc<Waker> {
        &self.bell
    }

    /// Ends the threads, of which those that are in a callback or a function go on until they come back. Returns whether
    /// none is. The queue, in which no call is in progress, is not used any more.
    pub fn end(&self) -> bool {
        let mut threads = self.threads();
        threads.are_ending = true;
        let is_idle = threads.busy == 0;
        drop(threads);
        if let Ok((_, after)) = self.queue.close(|| ()) {
            after.wake();
        }
        is_idle
    }

    /// What each thread does until it is not needed any more.
    pub fn run(self: &Arc<Self>) {
        let (mut idle_since, mut was_rung) = (None, false);
        loop {
            let changes = self.queue.changes();
            match self.begin_to_lead() {
                Ok(leader) => match self.lead(leader, std::mem::take(&mut was_rung)) {
                    Some(true) => idle_since = None,
                    Some(false) => {}
                    None => return,
                },
                Err(until) if was_rung || self.queue.has_entries() => {
                    self.queue.pause(until);
                    continue;
                }
                Err(_) => {}
            }
            let now = self.queue.now();
            let Some(until) = self.idle_until(*idle_since.get_or_insert(now), now) else { return };
            match self.queue.sleep_until_noted(changes, &self.bell, until) {
                Ok(rung) => was_rung |= rung,
                // Without a descriptor a thread can only look now and then.
                Err(_) => self.queue.pause(now + MAX_ABSENCE),
            }
        }
    }

    /// Makes this thread the leader, and returns its number. If another one leads, returns how long that may.
    fn begin_to_lead(&self) -> Result<u64, Instant> {
        let mut threads = self.threads();
        let now = self.queue.now();
        match threads.since {
            Some(since) if now < since + MAX_ABSENCE => Err(since + MAX_ABSENCE),
            _ => {
                threads.leader += 1;
                threads.since = Some(now);
                Ok(threads.leader)
            }
        }
    }

    /// Does what there is to do, while this thread leads. Returns whether there was any; `None` if the thread must end.
    fn lead(self: &Arc<Self>, leader: u64, was_rung: bool) -> Option<bool> {
        let (mut any, mut leads) = (false, true);
        if was_rung {
            self.bell.clear();
            self.leave(leader);
            self.work.call_functions();
            leads = self.come_back(leader);
        }
        while leads && let Some((number, call, _)) = self.queue.take() {
            any = true;
            self.leave(leader);
            if !self.work.look(&self.queue, number, call) {
                return None;
            }
            leads = self.come_back(leader);
        }
        let mut threads = self.threads();
        if threads.leader == leader {
            threads.since = None;
        }
        Some(any)
    }

    /// This thread is about to call what may not return for long.
    fn leave(self: &Arc<Self>, leader: u64) {
        let now = self.queue.now();
        let mut threads = self.threads();
        threads.busy += 1;
        if threads.leader == leader {
            threads.since = Some(now);
        }
        if threads.free > 1 || threads.are_ending {
            threads.free -= 1;
            return;
        }
        // In place of this one there is another.
        drop(threads);
        if self.work.start_thread(self).is_err() {
            // There is none to be had, so the next entries wait for this one.
            self.threads().free -= 1;
        }
    }

    /// Ends what [`Pool::leave`] has begun. Returns whether this thread leads still.
    fn come_back(&self, leader: u64) -> bool {
        let mut threads = self.threads();
        (threads.free, threads.busy) = (threads.free + 1, threads.busy - 1);
        threads.leader == leader
    }

    /// How long a thread sleeps that has had nothing to do since then. `None` if it ends, because all do, or since it is
    /// not needed.
    fn idle_until(&self, since: Instant, now: Instant) -> Option<Instant> {
        let mut threads = self.threads();
        let (is_last, until) = (threads.free == 1, since + MAX_IDLENESS);
        if threads.are_ending || !is_last && now >= until {
            threads.free -= 1;
            return None;
        }
        Some(if is_last { now + LONG_SLEEP } else { until })
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone, C: HasEngine> CompletionQueue<T, C> {
    fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Whether a call is to be looked at.
    fn has_entries(&self) -> bool {
        !self.state().noted.is_empty()
    }

    fn pause(&self, until: Instant) {
        self.clock.sleep(&[], until);
    }

    /// Sleeps until a call is to be looked at, the queue is not as it was after `changes`, the bell is rung, or until
    /// `until`. Returns whether the bell was rung. Unlike the sleep of other threads, it keeps no context alive.
    fn sleep_until_noted(&self, changes: u64, bell: &Waker, until: Instant) -> io::Result<bool> {
        let waker = self.spare_waker()?;
        let rung = self.sleep_by(
            &waker,
            changes,
            |until| self.clock.sleep(&[Pollable::from(bell), Pollable::from(&*waker)], until),
            until,
        );
        self.state().spare.push(waker);
        Ok(rung.unwrap_or(false))
    }
}
