//! How a thread waits for a call of a queue.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::{CompletionQueue, HasEngine, View};
use crate::engine::{Idle, Waker};
use crate::sys::Pollable;

impl<T: Clone, C: HasEngine> CompletionQueue<T, C> {
    /// Waits until there may be something to look at, or until `until`: on the context with calls in progress, whose
    /// work this thread then does; if there are several, or none, asleep. Calls the functions of the calls. `idle`: the
    /// turns of this wait before.
    pub fn rest(&self, view: &View<C>, idle: &mut Idle, until: Instant) -> io::Result<()> {
        match &view.contexts[..] {
            [context] => {
                self.wait_on(context, view.changes, idle, until);
                Ok(())
            }
            _ => self.sleep(view, until),
        }
    }

    fn wait_on(&self, context: &Arc<C>, changes: u64, idle: &mut Idle, until: Instant) {
        let mut state = self.state();
        if state.has_changed(changes) {
            return;
        }
        state.awaited.push(context.clone());
        drop(state);
        let engine = context.engine();
        let stay = engine.stay();
        let (mut guard, function) = engine.wait_for(engine.lock(), None, idle, until, |core| {
            // With the context's lock: who wakes the threads of this context does so after this, or before it.
            if self.state().has_changed(changes) { Some(None) } else { core.next_function().map(Some) }
        });
        let mut state = self.state();
        let at = state.awaited.iter().position(|other| Arc::ptr_eq(other, context)).expect("pushed above");
        state.awaited.swap_remove(at);
        drop(state);
        if let Some(function) = function.flatten() {
            guard = engine.call_function(guard, function);
            *idle = Idle::default();
        }
        engine.hand_over(guard);
        drop(stay);
    }

    fn sleep(&self, view: &View<C>, until: Instant) -> io::Result<()> {
        let waker = self.spare_waker()?;
        view.contexts.iter().for_each(|context| context.engine().listen(&waker));
        view.contexts.iter().for_each(|context| context.engine().call_functions());
        self.sleep_by(&waker, view.changes, |until| self.clock.sleep(&[Pollable::from(&*waker)], until), until);
        view.contexts.iter().for_each(|context| context.engine().ignore(&waker));
        self.state().spare.push(waker);
        Ok(())
    }

    /// A waker for a thread that is about to sleep.
    pub(super) fn spare_waker(&self) -> io::Result<Arc<Waker>> {
        let spare = self.state().spare.pop();
        let waker = spare.map_or_else(|| Waker::new().map(Arc::new), Ok)?;
        waker.clear();
        Ok(waker)
    }

    /// Has `sleep` wait for `waker` until the queue is not as it was after `changes`, a call is to be looked at, or until
    /// `until`. Returns what it does; `None` if there is nothing to wait for.
    pub(super) fn sleep_by<R>(
        &self,
        waker: &Arc<Waker>,
        changes: u64,
        sleep: impl FnOnce(Instant) -> R,
        until: Instant,
    ) -> Option<R> {
        let mut state = self.state();
        if state.has_changed(changes) {
            return None;
        }
        // A call may have been started since this thread last looked.
        let until = state.next_look.filter(|_| !state.is_reminded).map_or(until, |at| at.min(until));
        state.sleepers.push(waker.clone());
        drop(state);
        let slept = sleep(until);
        self.state().sleepers.retain(|other| !Arc::ptr_eq(other, waker));
        Some(slept)
    }
}
