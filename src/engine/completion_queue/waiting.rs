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
        if state.has_news(changes) {
            return;
        }
        state.awaited.push(context.clone());
        drop(state);
        let engine = context.engine();
        let stay = engine.stay();
        let (mut guard, function) = engine.wait_for(engine.lock(), None, idle, until, |core| {
            // With the context's lock: who wakes the threads of this context does so after this, or before it.
            if self.state().has_news(changes) { Some(None) } else { core.next_function().map(Some) }
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
        let spare = self.state().spare.pop();
        let waker = spare.map_or_else(|| Waker::new().map(Arc::new), Ok)?;
        waker.clear();
        view.contexts.iter().for_each(|context| context.engine().listen(&waker));
        view.contexts.iter().for_each(|context| context.engine().call_functions());
        let mut state = self.state();
        if !state.has_news(view.changes) {
            state.sleepers.push(waker.clone());
            drop(state);
            self.clock.sleep(&[Pollable::from(&*waker)], until);
            state = self.state();
            state.sleepers.retain(|other| !Arc::ptr_eq(other, &waker));
        }
        drop(state);
        view.contexts.iter().for_each(|context| context.engine().ignore(&waker));
        self.state().spare.push(waker);
        Ok(())
    }
}
