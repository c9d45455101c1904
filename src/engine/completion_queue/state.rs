//! What the lock of a completion queue guards: its calls, which of them are to be looked at, and the threads that wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::After;
use super::looks::Looks;
use crate::engine::sync::Waker;
use crate::slab::Slab;

/// The state of a queue.
pub(super) struct State<T, C> {
    pub calls: Slab<Call<T, C>>,
    /// Those that are to be looked at, because they have ended or may have, in the order of their ends.
    pub noted: VecDeque<u32>,
    /// The contexts with calls in progress, and how many each has.
    pub contexts: Vec<(Arc<C>, usize)>,
    /// Counts the changes of which threads that wait must learn: a context has come or gone, or the queue is closed.
    pub changes: u64,
    /// Wakers of threads that sleep.
    pub sleepers: Vec<Arc<Waker>>,
    /// Those of threads that have slept.
    pub spare: Vec<Arc<Waker>>,
    /// The contexts on which threads wait, once for each thread.
    pub awaited: Vec<Arc<C>>,
    /// Is readable while a call is noted.
    pub bell: Option<Waker>,
    /// When a call in progress is to be looked at though nobody has noted it.
    pub next_look: Option<Instant>,
    /// Contexts remind the queue of that time; its threads, which are those of a [`Pool`](super::Pool), sleep on.
    pub is_reminded: bool,
    pub is_closed: bool,
}

/// A call of a queue, and what the queue knows of it.
pub(super) struct Call<T, C> {
    pub call: T,
    pub context: Arc<C>,
    pub user: u64,
    pub stage: Stage,
    /// While a thread holds it: it was noted meanwhile.
    pub is_noted: bool,
    /// Its start has made its context one of the queue's.
    pub is_first: bool,
    /// It leaves the queue at its end.
    pub is_detached: bool,
    /// Ends that are to come or to be taken: more than 1 if it has [several](super::CompletionQueue::begin_another).
    pub running: usize,
    pub has_several: bool,
    pub looks: Option<Looks>,
}

/// A call that has left the queue, and its context, if it was the last one in progress there: to be dropped without the
/// lock.
pub(super) type Gone<T, C> = (Call<T, C>, Option<Arc<C>>);

/// What happens to a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not started.
    Inactive,
    /// One thread starts it, or looks whether it has ended.
    Busy,
    /// In progress.
    Active,
    /// In the list of those that are to be looked at.
    Noted,
}

impl<T, C> State<T, C> {
    /// That of an empty queue.
    pub fn new(is_reminded: bool) -> Self {
        Self {
            calls: Slab::default(),
            noted: VecDeque::new(),
            contexts: Vec::new(),
            changes: 0,
            sleepers: Vec::new(),
            spare: Vec::new(),
            awaited: Vec::new(),
            bell: None,
            next_look: None,
            is_reminded,
            is_closed: false,
        }
    }

    /// A thread starts the call, which it holds.
    pub fn begin(&mut self, number: u32) {
        let call = &mut self.calls[number];
        (call.stage, call.is_noted, call.running) = (Stage::Busy, false, 1);
        self.enter_context(number);
    }

    /// One more call of its context is in progress.
    pub fn enter_context(&mut self, number: u32) {
        let call = &mut self.calls[number];
        match self.contexts.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &call.context)) {
            Some((_, calls)) => *calls += 1,
            None => {
                self.contexts.push((call.context.clone(), 1));
                call.is_first = true;
                self.changes += 1;
            }
        }
    }

    /// Ends what [`State::enter_context`] has begun. Returns the context, to be dropped without the lock.
    pub fn leave_context(&mut self, number: u32) -> Option<Arc<C>> {
        let context = &self.calls[number].context;
        let at = self.contexts.iter().position(|(other, _)| Arc::ptr_eq(other, context))?;
        self.contexts[at].1 -= 1;
        if self.contexts[at].1 > 0 {
            return None;
        }
        self.changes += 1;
        Some(self.contexts.swap_remove(at).0)
    }

    /// Removes a call, whatever it does.
    pub fn forget(&mut self, number: u32) -> Option<Gone<T, C>> {
        self.noted.retain(|noted| *noted != number);
        if self.noted.is_empty() {
            self.bell.iter().for_each(|bell| bell.clear());
        }
        let runs = self.calls.get(number)?.running > 0;
        let context = if runs { self.leave_context(number) } else { None };
        Some((self.calls.remove(number)?, context))
    }

    /// The call is in progress. Returns whether it is to be looked at before others.
    pub fn resume(&mut self, number: u32, looks: Looks) -> bool {
        let call = &mut self.calls[number];
        (call.stage, call.looks) = (Stage::Active, Some(looks));
        let at = looks.next();
        let earlier = self.next_look.is_none_or(|next| at < next);
        if earlier {
            self.next_look = Some(at);
        }
        earlier
    }

    /// The call is to be looked at.
    pub fn note(&mut self, number: u32) {
        self.calls[number].stage = Stage::Noted;
        if self.noted.is_empty() {
            self.bell.iter().for_each(|bell| bell.wake());
        }
        self.noted.push_back(number);
        self.sleepers.pop().into_iter().for_each(|sleeper| sleeper.wake());
    }

    /// Whether there is something to look at, or to learn since `changes`.
    pub fn has_changed(&self, changes: u64) -> bool {
        !self.noted.is_empty() || self.changes != changes
    }

    /// Wakes all threads that sleep, if they are to look `anew` for what they wait; and says whose threads are to be
    /// woken, `if_any` are.
    pub fn after(&mut self, anew: bool, if_any: bool) -> After<C> {
        if anew && (self.is_closed || !self.is_reminded) {
            self.sleepers.drain(..).for_each(|sleeper| sleeper.wake());
        }
        let mut wake = Vec::<Arc<C>>::new();
        for context in self.awaited.iter().filter(|_| if_any) {
            if wake.iter().all(|other| !Arc::ptr_eq(other, context)) {
                wake.push(context.clone());
            }
        }
        After { wake, remind_at: if anew { self.remind_at() } else { None } }
    }

    /// When contexts remind the queue, if no thread may wait.
    pub fn remind_at(&self) -> Option<Instant> {
        self.next_look.filter(|_| self.is_reminded || self.bell.is_some())
    }
}
