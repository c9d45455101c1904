//! A completion queue: calls of any contexts, of which those that have ended are reported to any threads.
//!
//! A thread waits in one of two ways. If all calls in progress are of one context, it waits there, and does their work:
//! who notes an end wakes it as it wakes all threads of that context. Otherwise it sleeps, and the queue wakes one
//! sleeping thread for each end. A thread that has nothing else to do looks at the queue before it sleeps, or has its
//! context's lock while it does, so no end is missed.
//!
//! The lock of the queue is taken after that of an engine, never before.

mod looks;
mod pool;
mod state;
mod waiting;

pub use looks::Looks;
pub use pool::{Pool, Work};

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crate::engine::Engine;
use crate::engine::ready::Ends;
use crate::engine::sync::{Mutex, MutexGuard, Waker};
use crate::transport::Clock;
use state::{Call, Stage, State};

/// A context.
pub trait HasEngine: Send + Sync {
    /// Its engine.
    fn engine(&self) -> &Engine;
}

/// The calls of a queue: `T` is one, `C` its context.
pub struct CompletionQueue<T, C> {
    state: Mutex<State<T, C>>,
    /// That of all contexts.
    clock: Arc<dyn Clock>,
}

/// What a thread that waits has to know.
pub struct View<C> {
    /// To compare with the next one.
    pub changes: u64,
    /// The contexts with calls in progress.
    pub contexts: Vec<Arc<C>>,
    /// When to look at calls.
    pub next_look: Option<Instant>,
    /// Number of calls in progress.
    pub calls: usize,
    /// Nobody waits any more.
    pub is_closed: bool,
}

/// What is left to be done after a change of the queue, without locks.
#[must_use]
pub struct After<C> {
    /// Contexts of which the waiting threads must be woken.
    wake: Vec<Arc<C>>,
    /// When a context must remind the queue, since no thread may wait.
    pub remind_at: Option<Instant>,
}

impl<T: Clone, C: HasEngine> CompletionQueue<T, C> {
    /// An empty queue. Its threads, and those of all contexts, wait by `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::of_state(State::new(false), clock)
    }

    fn of_state(state: State<T, C>, clock: Arc<dyn Clock>) -> Self {
        Self { state: Mutex::new(state), clock }
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Adds a call, and returns its number. If it `runs`, the caller holds it until [`CompletionQueue::started`].
    /// `None` if the queue is closed.
    pub fn insert(&self, call: T, context: &Arc<C>, user: u64, runs: bool) -> Option<u32> {
        let number = self.add_call(call, context, user, false)?;
        if runs {
            self.state().begin(number);
        }
        Some(number)
    }

    /// Adds what has several ends in no order, and returns its number. `None` if the queue is closed.
    pub fn insert_several(&self, call: T, context: &Arc<C>, user: u64) -> Option<u32> {
        self.add_call(call, context, user, true)
    }

    fn add_call(&self, call: T, context: &Arc<C>, user: u64, has_several: bool) -> Option<u32> {
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        let number = state.calls.insert(Call {
            call,
            context: context.clone(),
            user,
            stage: Stage::Inactive,
            is_noted: false,
            is_first: false,
            is_detached: false,
            running: 0,
            has_several,
            looks: None,
        });
        Some(number)
    }

    /// The caller starts the call, and holds it until [`CompletionQueue::started`] or [`CompletionQueue::end`]. Returns
    /// false if the queue is closed.
    pub fn begin(&self, number: u32) -> bool {
        let mut state = self.state();
        let is_known = !state.is_closed && state.calls.get(number).is_some();
        if is_known {
            state.begin(number);
        }
        is_known
    }

    /// The call is in progress, and to be looked at then; or has ended.
    pub fn started(&self, number: u32, looks: Option<Looks>) -> After<C> {
        let mut state = self.state();
        let call = &mut state.calls[number];
        let is_first = std::mem::take(&mut call.is_first);
        let has_ended = looks.is_none() || call.is_noted;
        let earlier = match looks {
            Some(looks) if !has_ended => state.resume(number, looks),
            _ => {
                state.note(number);
                false
            }
        };
        state.after(is_first || earlier, is_first || earlier || has_ended)
    }

    /// The call that the caller holds has not ended.
    pub fn put_back(&self, number: u32) -> After<C> {
        let (mut state, now) = (self.state(), self.now());
        let call = &state.calls[number];
        if call.is_noted {
            state.note(number);
            return After { wake: Vec::new(), remind_at: None };
        }
        let looks = call.looks.map(|looks| looks.after(now));
        let earlier = looks.is_some_and(|looks| state.resume(number, looks));
        state.after(earlier, earlier)
    }

    /// `ends` more of what has several are to come.
    pub fn begin_another(&self, number: u32, ends: usize) -> After<C> {
        let mut state = self.state();
        let Some(call) = state.calls.get_mut(number).filter(|_| ends > 0) else { return state.after(false, false) };
        let begins = call.running == 0;
        call.running += ends;
        if begins {
            if call.stage == Stage::Inactive {
                call.stage = Stage::Active;
            }
            state.enter_context(number);
        }
        let is_first = state.calls.get_mut(number).is_some_and(|call| std::mem::take(&mut call.is_first));
        state.after(is_first, is_first)
    }

    /// The caller has taken completions of an attached buffer, which can complete several times. `any` is false if
    /// there was none to take; `more` says whether others are left.
    pub fn taken(&self, number: u32, any: bool, more: bool) {
        let mut state = self.state();
        let Some(call) = state.calls.get_mut(number) else { return };
        let before = call.running;
        call.running = before.saturating_sub(usize::from(any));
        let (is_over, is_noted, is_detached) = (call.running == 0, call.is_noted, call.is_detached);
        call.stage = if is_over { Stage::Inactive } else { Stage::Active };
        if before > 0 && is_over {
            drop(state.leave_context(number));
        }
        if is_detached {
            let gone = state.forget(number);
            drop(state);
            drop(gone);
        } else if more || is_noted {
            state.note(number);
        }
    }

    /// What has several ends leaves the queue; its entries are not taken any more.
    pub fn remove(&self, number: u32) {
        let mut state = self.state();
        let gone = match state.calls.get_mut(number) {
            Some(call) if call.stage == Stage::Busy => {
                call.is_detached = true;
                None
            }
            _ => state.forget(number),
        };
        drop(state);
        drop(gone);
    }

    /// The call that the caller holds has ended, or has not been started. Returns whether it is still in the queue.
    pub fn end(&self, number: u32) -> bool {
        let mut state = self.state();
        let call = &mut state.calls[number];
        call.stage = Stage::Inactive;
        call.running = 0;
        let is_detached = call.is_detached;
        let context = state.leave_context(number);
        let gone = if is_detached { state.calls.remove(number) } else { None };
        drop(state);
        // Its own locks may be taken here.
        drop(context);
        gone.is_none()
    }

    /// The call leaves the queue, at its end if it is in progress.
    pub fn detach(&self, number: u32) {
        let mut state = self.state();
        let gone = match state.calls.get_mut(number) {
            Some(call) if call.stage != Stage::Inactive => {
                call.is_detached = true;
                None
            }
            _ => state.calls.remove(number),
        };
        drop(state);
        drop(gone);
    }

    /// A call that is to be looked at, with its number and the caller's number. The caller holds it.
    pub fn take(&self) -> Option<(u32, T, u64)> {
        let mut state = self.state();
        let number = state.noted.pop_front()?;
        if state.noted.is_empty() {
            state.bell.iter().for_each(|bell| bell.clear());
        }
        let call = &mut state.calls[number];
        (call.stage, call.is_noted) = (Stage::Busy, false);
        Some((number, call.call.clone(), call.user))
    }

    /// Has threads look at the calls for which it is time.
    pub fn look(&self, now: Instant) -> After<C> {
        let mut state = self.state();
        let numbers = state.calls.iter().filter(|(_, call)| call.stage == Stage::Active).map(|(number, _)| number);
        let (mut next, mut due) = (None::<Instant>, Vec::new());
        for number in numbers {
            let Some(looks) = &state.calls[number].looks else { continue };
            match looks.next() {
                at if at <= now => due.push(number),
                at => next = Some(next.map_or(at, |next| next.min(at))),
            }
        }
        state.next_look = next;
        let is_any = !due.is_empty();
        due.into_iter().for_each(|number| state.note(number));
        After { remind_at: state.remind_at(), ..state.after(false, is_any) }
    }

    /// What a thread that waits has to know.
    pub fn view(&self) -> View<C> {
        let state = self.state();
        View {
            changes: state.changes,
            contexts: state.contexts.iter().map(|(context, _)| context.clone()).collect(),
            next_look: state.next_look,
            calls: state.contexts.iter().map(|(_, calls)| calls).sum(),
            is_closed: state.is_closed,
        }
    }

    /// What `with` makes of the waker that is readable while a call is to be looked at, and what is left to be done if
    /// it is new.
    pub fn bell<R>(&self, with: impl FnOnce(&Waker) -> R) -> io::Result<(R, After<C>)> {
        let mut state = self.state();
        if state.bell.is_none() {
            let bell = Waker::new()?;
            if !state.noted.is_empty() {
                bell.wake();
            }
            state.bell = Some(bell);
        }
        let result = state.bell.as_ref().map(with).expect("made above");
        Ok((result, After { remind_at: state.next_look, wake: Vec::new() }))
    }

    /// Closes the queue, unless a call is in progress: then returns how many are. Returns the calls that were in it.
    /// Calls `before` before it closes the bell.
    pub fn close(&self, before: impl FnOnce()) -> Result<(Vec<T>, After<C>), usize> {
        let mut state = self.state();
        let is_active = |call: &Call<T, C>| call.stage != Stage::Inactive && !call.has_several;
        let calls = state.calls.iter().filter(|(_, call)| is_active(call)).count();
        if calls > 0 {
            return Err(calls);
        }
        state.noted.clear();
        let contexts = std::mem::take(&mut state.contexts);
        state.is_closed = true;
        state.changes += 1;
        before();
        state.bell = None;
        let all = std::mem::take(&mut state.calls);
        let after = state.after(true, true);
        drop(state);
        drop(contexts);
        Ok((all.iter().map(|(_, call)| call.call.clone()).collect(), after))
    }

    fn state(&self) -> MutexGuard<'_, State<T, C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: HasEngine> After<C> {
    /// Wakes them.
    pub fn wake(&self) {
        self.wake.iter().for_each(|context| context.engine().wake());
    }
}

impl<T: Send + Sync + Clone, C: HasEngine> Ends for CompletionQueue<T, C> {
    fn add(&self, number: usize) {
        let mut state = self.state();
        let number = number as u32;
        let Some(call) = state.calls.get_mut(number) else { return };
        match call.stage {
            Stage::Busy => call.is_noted = true,
            Stage::Active => state.note(number),
            // This one was begun while it was being attached.
            Stage::Inactive if call.has_several => state.note(number),
            Stage::Inactive | Stage::Noted => {}
        }
    }
}
