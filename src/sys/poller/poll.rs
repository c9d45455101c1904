//! poll: the poller of systems without epoll, and the list of what a loop of libuv watches.
//!
//! Each wait passes all sockets to the system anew. So a thread that sleeps must be woken when another one changes what
//! is watched: a [`Waker`] is among the sockets of every sleep, and is readable from a change until all that slept then
//! have woken up.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::entries::{self, Entry};
use super::{Event, Pollable, Sleep};
use crate::sys::{AsRaw, ForkMark, Waker};

/// A list of what is watched; clones share it.
#[derive(Clone, Debug)]
pub struct Poll(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    waker: Waker,
    mark: ForkMark,
}

#[derive(Debug, Default)]
struct State {
    watched: Vec<Watched>,
    /// Number of the next entry.
    next: u64,
    /// Threads in a [`Sleep`] with this list.
    sleepers: usize,
}

#[derive(Debug)]
struct Watched {
    entry: u64,
    what: Pollable,
    interest: u32,
    number: u64,
}

impl Poll {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Shared { state: Mutex::default(), waker: Waker::new()?, mark: ForkMark::new()? })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        if state.sleepers > 0 {
            self.0.waker.wake();
        }
    }

    pub(super) fn add(&self, what: Pollable, interest: u32, number: u64) -> u64 {
        let mut added = 0;
        self.change(|state| {
            added = state.next;
            state.next += 1;
            state.watched.push(Watched { entry: added, what, interest, number });
        });
        added
    }

    pub(super) fn set(&self, entry: u64, interest: u32, number: u64) {
        self.change(|state| {
            if let Some(watched) = state.watched.iter_mut().find(|watched| watched.entry == entry) {
                (watched.interest, watched.number) = (interest, number);
            }
        });
    }

    /// Does nothing in a child by fork, where the lock may be held by a thread that does not exist.
    pub(super) fn remove(&self, entry: u64) {
        if !self.is_inherited() {
            self.change(|state| state.watched.retain(|watched| watched.entry != entry));
        }
    }

    /// Whether a parent process created the list before a fork.
    pub(super) fn is_inherited(&self) -> bool {
        self.0.mark.is_child()
    }

    /// Adds what is watched to a sleep, which [`Poll::wake_up`] must follow.
    pub(super) fn fall_asleep(&self, sleep: &mut Sleep) {
        let mut state = self.state();
        state.sleepers += 1;
        sleep.entries.push(entries::entry(self.0.waker.raw(), super::READ));
        for watched in state.watched.iter().filter(|watched| watched.interest != 0) {
            match &watched.what {
                Pollable::Socket(socket) => sleep.entries.push(entries::entry(*socket, watched.interest)),
                what => drop(sleep.add(what)),
            }
        }
    }

    /// Ends a thread's sleep.
    pub(super) fn wake_up(&self) {
        let mut state = self.state();
        state.sleepers -= 1;
        if state.sleepers == 0 {
            self.0.waker.clear();
        }
    }

    /// Sleeps until something is ready or has changed.
    pub(super) fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut sleep = Sleep::default();
        let all = sleep.add(&Pollable::Poller(super::Poller::Poll(self.clone())));
        sleep.wait(timeout, all).map(drop)
    }

    pub(super) fn wait(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        if timeout != Some(Duration::ZERO) {
            self.sleep(timeout)?;
        }
        let mut entries: Vec<Entry> = Vec::new();
        // The number to which each entry belongs. A poller has no entry: it is asked by itself.
        let mut numbers = Vec::new();
        let mut found = 0;
        for watched in self.state().watched.iter().filter(|watched| watched.interest != 0) {
            match &watched.what {
                Pollable::Socket(socket) => {
                    entries.push(entries::entry(*socket, watched.interest));
                    numbers.push(watched.number);
                }
                what if found < events.len() && super::super::poll(std::slice::from_ref(what), Duration::ZERO) => {
                    events[found] = Event { number: watched.number, ready: super::READ };
                    found += 1;
                }
                _ => {}
            }
        }
        if entries::poll_entries(&mut entries, Some(Duration::ZERO))? > 0 {
            for (entry, number) in entries.iter().zip(numbers) {
                let ready = entries::ready(entry);
                if ready != 0 && found < events.len() {
                    events[found] = Event { number, ready };
                    found += 1;
                }
            }
        }
        Ok(found)
    }
}
