//! What a context leaves to the watch of its device while no thread waits on it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError, Weak};
use std::time::{Duration, Instant};

use crate::engine::progress::{Engine, Guard};
use crate::engine::ready::OnTime;
use crate::engine::sync::AtomicUsize;
use crate::transport::Watch;

/// See [`Engine::stay`].
pub struct Stay<'a>(&'a AtomicUsize);

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    /// Gives the lock back after a wait: another waiting thread polls from now on, or the watch takes over.
    pub fn hand_over(&self, mut guard: Guard<'_>) {
        self.notify(&mut guard);
        if guard.waiters.polling {
            return;
        }
        if guard.waiters.any_sleeps() {
            self.ended.notify_all();
        } else if let Some(watch) = self.watch.get() {
            // Where messages come and go, the next wait is likely to follow soon. To arm and to disarm the watch takes
            // two system calls, as much as a tenth of a short call over TCP; and the watch would wake up for every
            // message that comes between two waits, and take it from the thread that waits for it. So it arms itself
            // after one or two ticks without a wait.
            let urgent = !guard.is_lazy || guard.messenger.outgoing() > 0 || guard.has_runs();
            if urgent {
                self.visit();
            }
            self.arm_watch(&mut guard, watch.as_ref(), urgent);
        }
    }

    /// After something has begun without the lock, among ranks that share memory, that the watch must progress if no
    /// thread waits.
    #[inline]
    pub fn arm(&self) {
        self.visit();
        if self.watch.get().is_some_and(|watch| !watch.is_armed()) {
            self.hand_over(self.lock());
        }
    }

    /// Progresses the context. The armed watch calls it when a descriptor is readable.
    pub fn serve(&self) {
        let guard = match self.core.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // It gives way between two turns.
            Err(TryLockError::WouldBlock) if self.polls.load(Ordering::Relaxed) > 0 => self.lock_contended(),
            // A thread of the program is here. It may have lost its core to the watch, which must not try again at
            // once.
            Err(TryLockError::WouldBlock) => return self.visit(),
        };
        if guard.waiters.polling {
            // That thread sees the same, and arms the watch at last. A descriptor that stays readable must not keep the
            // watch busy meanwhile.
            self.disarm();
        } else {
            self.serve_and_arm(guard);
        }
    }

    /// The watch calls this periodically while it is not armed: progresses the context if nothing has progressed it
    /// since the last time, and then arms the watch.
    pub fn tick(&self) {
        if self.watch.get().is_none_or(|watch| watch.is_armed()) {
            return;
        }
        let mut guard = match self.core.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if guard.waiters.polling {
            return;
        }
        if guard.turns == guard.seen_turns {
            return self.serve_and_arm(guard);
        }
        guard.seen_turns = guard.turns;
        guard.is_lazy = std::mem::take(&mut guard.moved) || !guard.messenger.connections().is_quiet();
    }

    /// Has the watch call [`BackgroundProgress::reminded`](crate::transport::BackgroundProgress::reminded) soon. Safe
    /// in a signal handler.
    pub fn remind(&self) {
        if let Some(watch) = self.watch.get() {
            watch.remind(Duration::ZERO);
        }
    }

    /// The watch calls this after [`Watch::remind`]: gives back scratch memory that was not needed meanwhile, and
    /// reminds others.
    pub fn reminded(&self) {
        if self.kept.is_due() {
            self.kept.reminded(|| self.lock().release_scratch());
        }
        let others = self.lock().reminded.clone();
        let next = others.iter().filter_map(Weak::upgrade).filter_map(|other| other.reminded(self.now())).min();
        next.into_iter().for_each(|at| self.remind_at(at));
    }

    /// Has the context remind `who` of times from now on, as long as that exists.
    pub fn will_remind(&self, who: &Arc<dyn OnTime>) {
        let (mut guard, who) = (self.lock(), Arc::downgrade(who));
        guard.reminded.retain(|other| other.strong_count() > 0);
        if guard.reminded.iter().all(|other| !other.ptr_eq(&who)) {
            guard.reminded.push(who);
        }
    }

    /// Has the watch remind all at this time, or earlier.
    pub fn remind_at(&self, at: Instant) {
        if let Some(watch) = self.watch.get() {
            watch.remind(at.saturating_duration_since(self.now()));
        }
    }

    fn serve_and_arm(&self, mut guard: Guard<'_>) {
        let Some(watch) = self.watch.get() else { return };
        self.seen_visits.store(self.visits.load(Ordering::Relaxed), Ordering::Relaxed);
        guard.now = self.now();
        guard.is_lazy = false;
        guard.messenger.connections_mut().wake(true);
        guard.serve();
        self.notify(&mut guard);
        self.arm_watch(&mut guard, watch.as_ref(), true);
        (guard.seen_turns, guard.moved) = (guard.turns, false);
    }

    /// Arms the watch if `urgent`, else disarms it. While there is a timer, which an armed watch would not see, disarms
    /// it: then it checks the context at every tick.
    fn arm_watch(&self, guard: &mut Guard<'_>, watch: &dyn Watch, urgent: bool) {
        // A thread without the lock may have started a call meanwhile, and have seen the watch armed.
        let urgent = urgent || self.disarm() && guard.has_runs();
        if guard.messenger.connections().next_timer().is_some() {
            self.disarm();
        } else if urgent {
            loop {
                let publications = guard.waits_in_memory();
                let again = guard.sleep(publications);
                guard.detect_other_calls();
                if again {
                    guard.serve();
                    self.notify(guard);
                }
                // What came in that turn may have led to a wait for a publication, of which peers do not know yet.
                if publications || !guard.waits_in_memory() {
                    break;
                }
            }
            watch.arm();
        }
    }

    /// Returns whether the watch was armed.
    pub(super) fn disarm(&self) -> bool {
        let watch = self.watch.get().filter(|watch| watch.is_armed());
        watch.inspect(|watch| watch.disarm()).is_some()
    }

    /// A thread of the program is here, and does what the watch would otherwise do.
    #[inline]
    pub(super) fn visit(&self) {
        self.visits.fetch_add(1, Ordering::Relaxed);
    }

    /// The threads that were here do not come again soon: the watch need not wait for them.
    pub fn leave_to_watch(&self) {
        self.seen_visits.store(self.visits.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A thread of the program waits for a request as long as the result exists, and meanwhile does what the watch
    /// would otherwise do.
    #[inline]
    pub fn stay(&self) -> Stay<'_> {
        self.visit();
        self.staying.fetch_add(1, Ordering::Relaxed);
        Stay(&self.staying)
    }

    /// How often threads of the program have been here since the watch last asked, or last progressed the context;
    /// `usize::MAX` if one stays.
    pub fn take_visits(&self) -> usize {
        let visits = self.visits.load(Ordering::Relaxed);
        let visits = visits.wrapping_sub(self.seen_visits.swap(visits, Ordering::Relaxed));
        if self.staying.load(Ordering::Relaxed) > 0 { usize::MAX } else { visits }
    }

    /// Whether the watch progresses the context, and does so when something comes.
    #[cfg(test)]
    pub fn is_watched(&self) -> bool {
        self.watch.get().is_some_and(|watch| watch.is_armed())
    }
}
