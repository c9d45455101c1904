//! Calls that were started, and for which no thread waits: who goes on with them, and when peers must wake this rank's
//! device for them.
//!
//! Whoever progresses the context goes on with these calls. While a thread of the program is present, it does so, at
//! the latest when it leaves; else a peer that publishes something wakes the device. So the rank [waits](Waiting) for
//! [`STARTED`] as long as there are such calls and no thread is present. A thread that is present and sleeps does so
//! until any peer publishes something, since these calls may wait for any.

use std::sync::{Arc, PoisonError, TryLockError};

use crate::engine::sync::{Mutex, MutexGuard};
use crate::publications::Members;
use crate::sync::{AtomicU32, Ordering, fence};
use crate::transport::local::{STARTED, Waiting};

/// A call for which no thread waits. Peers may wait for its next steps.
pub trait BackgroundOperation: Send + Sync {
    /// Goes on without waiting, and without calling a function of the caller.
    fn progress(&self) -> Progress;

    /// Whether it can go on only if a function of the caller is called.
    fn wants_function(&self) -> bool;

    /// Goes on without waiting, and calls the function. For a thread that waits, without locks.
    fn call_function(&self);
}

/// What came of an attempt to go on with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// Nothing was done.
    None,
    /// Something was done.
    Some,
    /// It has ended, or failed.
    Ended,
    /// Much was done, and more can be done at once: the thread should look at the clock and at other work first.
    More,
}

type Calls = Vec<Arc<dyn BackgroundOperation>>;

/// Every member.
const ALL: Members = Members::MAX;

/// The calls of a context. Every method is passed what this rank waits for.
#[derive(Default)]
pub struct StartedCalls {
    /// Locked while a thread goes on with them, which may take long.
    calls: Mutex<Calls>,
    state: Mutex<State>,
    /// Whether one may want a function of the caller: 0 or 1.
    wants_function: AtomicU32,
    /// Whether one has ended or begun to want a function, and threads that wait were not told: 0 or 1.
    notice: AtomicU32,
}

#[derive(Default)]
struct State {
    /// Calls that are not in the list yet.
    fresh: Calls,
    /// Number of all of them, those in the list included.
    calls: usize,
    /// Number of threads that are present.
    present: usize,
}

impl StartedCalls {
    /// Adds a call, which stays until it has ended, or until [`StartedCalls::remove`]. What a peer has published before
    /// this returns may have been noticed by nobody, so the caller then goes on with it once.
    pub fn add(&self, waiting: &Waiting, call: Arc<dyn BackgroundOperation>) {
        let mut state = self.state();
        state.fresh.push(call);
        state.calls += 1;
        if state.present == 0 {
            waiting.begin(STARTED);
        } else {
            waiting.wait_also_for(ALL);
        }
    }

    /// Called before a thread of the program sleeps that waits for publications of `members`.
    pub fn sleep(&self, waiting: &Waiting, members: Members) {
        let state = self.state();
        waiting.wait_only_for(if state.calls == 0 { members } else { ALL });
    }

    /// Removes a call, if it is there. No thread is going on with it afterwards, nor will.
    pub fn remove(&self, waiting: &Waiting, call: *const ()) {
        self.retain(waiting, |own| Arc::as_ptr(own).cast() != call);
    }

    /// Goes on with all of them, in the order of their starts, but with none after one with which there is more to do.
    /// Returns what was done.
    pub fn progress(&self, waiting: &Waiting) -> Progress {
        let mut all = Progress::None;
        if self.is_empty() {
            return all;
        }
        self.retain(waiting, |call| {
            let progress = if all == Progress::More { Progress::None } else { call.progress() };
            all = all.max(progress);
            progress != Progress::Ended
        });
        all
    }

    /// A thread of the program is present: peers need not wake the device, until [`StartedCalls::exit`]. Returns false
    /// if they need not anyway; then there is nothing to exit.
    #[inline]
    pub fn enter(&self, waiting: &Waiting) -> bool {
        let waits = waiting.waits_for(STARTED);
        if waits {
            self.enter_and_end(waiting);
        }
        waits
    }

    #[cold]
    fn enter_and_end(&self, waiting: &Waiting) {
        let mut state = self.state();
        state.present += 1;
        // Another thread may sleep.
        waiting.wait_also_for(ALL);
        waiting.end(STARTED);
    }

    /// Ends what [`StartedCalls::enter`] has begun. Returns what was done.
    #[cold]
    pub fn exit(&self, waiting: &Waiting) -> Progress {
        let mut state = self.state();
        state.present -= 1;
        if state.present > 0 || state.calls == 0 {
            return Progress::None;
        }
        waiting.begin(STARTED);
        drop(state);
        self.progress(waiting)
    }

    /// A call has begun to want its function.
    pub fn want_function(&self) {
        self.wants_function.store(1, Ordering::Release);
        self.give_notice();
    }

    /// Threads that wait are to look at the calls: whoever takes the notice tells them.
    pub fn give_notice(&self) {
        self.notice.store(1, Ordering::Release);
    }

    /// Whether there is a notice.
    #[inline]
    pub fn take_notice(&self) -> bool {
        self.notice.load(Ordering::Acquire) != 0 && self.notice.swap(0, Ordering::AcqRel) != 0
    }

    /// A call that wants its function.
    #[inline]
    pub fn next_function(&self) -> Option<Arc<dyn BackgroundOperation>> {
        if self.wants_function.load(Ordering::Acquire) == 0 { None } else { self.find_function() }
    }

    #[cold]
    fn find_function(&self) -> Option<Arc<dyn BackgroundOperation>> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.append(&mut self.state().fresh);
        // Before the look: a call that begins to want its function after it says so again.
        self.wants_function.swap(0, Ordering::AcqRel);
        let found = calls.iter().find(|call| call.wants_function()).cloned();
        if found.is_some() {
            // There may be more.
            self.wants_function.store(1, Ordering::Release);
        }
        found
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.state().calls == 0
    }

    fn retain(&self, waiting: &Waiting, keep: impl FnMut(&Arc<dyn BackgroundOperation>) -> bool) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.append(&mut self.state().fresh);
        let before = calls.len();
        calls.retain(keep);
        let mut state = self.state();
        state.calls -= before - calls.len();
        if state.calls == 0 {
            waiting.end(STARTED);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that several threads go on with. One that finds it locked leaves its attempt to the thread that has locked
/// it.
#[derive(Default)]
pub struct Attempted<T> {
    value: Mutex<T>,
    /// Whether a thread has left its attempt to another one: 0 or 1.
    wanted: AtomicU32,
}

impl<T> Attempted<T> {
    /// Locks it for anything else than an attempt. If it is to go on afterwards, call [`Attempted::attempt_if_wanted`]
    /// after the unlocking.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks it as [`Attempted::lock`] does, unless another thread has.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Calls `advance` at least once, or lets the thread do it that has locked the value.
    pub fn attempt(&self, mut advance: impl FnMut(&mut T) -> Progress) -> Progress {
        let mut all = Progress::None;
        loop {
            self.wanted.store(1, Ordering::Release);
            // Between this thread's store of the flag and its attempt to lock; the thread that has locked the value has
            // the counterpart between its release of the lock and its load of the flag. So at least one of the two sees
            // what the other has done.
            fence(Ordering::SeqCst);
            let Some(mut value) = self.try_lock() else { return all };
            // This attempt is for all threads that have set the flag: it sees what they have seen, and what was
            // published before.
            self.wanted.swap(0, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            let progress = advance(&mut value);
            drop(value);
            all = if progress == Progress::None { all } else { progress };
            if progress == Progress::Ended || !self.is_wanted() {
                return all;
            }
        }
    }

    /// What [`Attempted::attempt`] does, if another thread has wanted it while this one had locked the value.
    pub fn attempt_if_wanted(&self, advance: impl FnMut(&mut T) -> Progress) -> Progress {
        if self.is_wanted() { self.attempt(advance) } else { Progress::None }
    }

    fn is_wanted(&self) -> bool {
        // See `attempt`.
        fence(Ordering::SeqCst);
        self.wanted.load(Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, loom))]
mod model {
    //! A peer publishes what a started call waits for, while threads of this rank come and go. `scripts/loom.sh` runs
    //! it.

    use loom::thread::{JoinHandle, spawn};

    use super::*;
    use crate::sync::AtomicU64;
    use crate::transport::local::PUBLICATIONS;

    /// How often a thread may lose its core where it does not wait.
    const PREEMPTIONS: usize = 3;

    struct Call {
        /// How often the peer has published something, and how often it will.
        published: AtomicU32,
        all: u32,
        seen: Attempted<bool>,
    }

    impl BackgroundOperation for Call {
        fn progress(&self) -> Progress {
            self.seen.attempt(|seen| self.look(seen))
        }

        fn wants_function(&self) -> bool {
            false
        }

        fn call_function(&self) {}
    }

    impl Call {
        fn look(&self, seen: &mut bool) -> Progress {
            *seen = self.published.load(Ordering::Relaxed) == self.all;
            if *seen { Progress::Ended } else { Progress::None }
        }
    }

    struct Rank {
        waiting: Waiting,
        started: StartedCalls,
        call: Arc<Call>,
        /// Whether the doorbell is readable, and when the peer has rung it last.
        rung: AtomicU32,
        rung_at: AtomicU64,
    }

    impl Rank {
        /// With a call that ends once the peer has published so often.
        fn new(publications: u32) -> Arc<Self> {
            let call = Call { published: AtomicU32::new(0), all: publications, seen: Attempted::default() };
            Arc::new(Self {
                waiting: Waiting::new(),
                started: StartedCalls::default(),
                call: Arc::new(call),
                rung: AtomicU32::new(0),
                rung_at: AtomicU64::new(0),
            })
        }

        fn start(&self) {
            self.started.add(&self.waiting, self.call.clone());
            self.call.progress();
        }

        /// Sleeps, and needs no publication itself. What wakes it does what the device does.
        fn sleeps(&self) {
            self.started.sleep(&self.waiting, 0);
            self.waiting.begin(PUBLICATIONS);
            self.started.progress(&self.waiting);
        }

        fn comes_and_goes(&self) {
            if self.started.enter(&self.waiting) {
                self.started.exit(&self.waiting);
            }
        }

        /// What the device does if the doorbell is readable.
        fn wakes_up(&self) {
            if self.rung.swap(0, Ordering::AcqRel) != 0 {
                self.waiting.answer();
                self.started.progress(&self.waiting);
            }
        }

        /// What the peer does.
        fn is_served(&self) {
            for number in 1..=self.call.all {
                self.call.published.store(number, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                if self.waiting.must_be_rung(PUBLICATIONS | STARTED, 1, &self.rung_at) {
                    // The kernel orders what comes before the ring and after it was taken.
                    self.rung.swap(1, Ordering::AcqRel);
                }
            }
        }

        fn on_a_thread(self: &Arc<Self>, work: fn(&Self)) -> JoinHandle<()> {
            let rank = self.clone();
            spawn(move || work(&rank))
        }
    }

    fn in_every_order(model: impl Fn() + Send + Sync + 'static) {
        let mut loom = loom::model::Builder::new();
        loom.preemption_bound = Some(PREEMPTIONS);
        loom.check(model);
    }

    /// Runs `threads` of a rank while a peer publishes. The device wakes up last if it was woken; somebody must have
    /// seen it.
    fn model(threads: [fn(&Rank); 2]) {
        in_every_order(move || {
            let rank = Rank::new(1);
            let (peer, other) = (rank.on_a_thread(Rank::is_served), rank.on_a_thread(threads[1]));
            threads[0](&rank);
            peer.join().unwrap();
            other.join().unwrap();
            rank.wakes_up();
            assert!(*rank.call.seen.lock(), "nobody would go on with the call");
        });
    }

    /// A peer need not ring again before the device has answered.
    fn model_of_answers(thread: fn(&Rank)) {
        in_every_order(move || {
            let rank = Rank::new(2);
            rank.start();
            let (peer, device) = (rank.on_a_thread(Rank::is_served), rank.on_a_thread(Rank::wakes_up));
            thread(&rank);
            peer.join().unwrap();
            device.join().unwrap();
            rank.wakes_up();
            assert!(*rank.call.seen.lock(), "nobody would go on with the call");
        });
    }

    #[test]
    fn a_call_goes_on_after_its_start() {
        model([Rank::start, |_| ()]);
    }

    #[test]
    fn a_call_goes_on_when_a_thread_leaves() {
        model([
            |rank| {
                rank.start();
                rank.comes_and_goes();
            },
            Rank::comes_and_goes,
        ]);
    }

    #[test]
    fn a_call_goes_on_though_a_thread_sleeps_that_needs_nothing() {
        model([Rank::start, Rank::sleeps]);
        // The thread came when there was another call.
        model([Rank::start, |rank| {
            rank.started.enter_and_end(&rank.waiting);
            rank.sleeps();
        }]);
    }

    #[test]
    fn a_call_goes_on_though_a_thread_comes_while_one_sleeps_that_needs_nothing() {
        model([
            |rank| {
                rank.sleeps();
                rank.start();
            },
            |rank| {
                rank.started.enter(&rank.waiting);
            },
        ]);
    }

    #[test]
    fn a_call_goes_on_after_the_device_has_answered() {
        model_of_answers(|_| ());
    }

    #[test]
    fn a_call_goes_on_though_a_thread_comes_and_goes_while_the_device_answers() {
        model_of_answers(Rank::comes_and_goes);
    }

    #[test]
    fn a_call_goes_on_though_another_thread_goes_on_with_it() {
        model([
            |rank| {
                rank.start();
                rank.comes_and_goes();
            },
            |rank| {
                rank.started.progress(&rank.waiting);
            },
        ]);
    }

    #[test]
    fn a_call_goes_on_after_it_was_tested() {
        model([
            |rank| {
                rank.start();
                let mut seen = rank.call.seen.lock();
                rank.call.look(&mut seen);
                drop(seen);
                rank.call.seen.attempt_if_wanted(|seen| rank.call.look(seen));
            },
            |rank| {
                rank.started.progress(&rank.waiting);
            },
        ]);
    }
}
