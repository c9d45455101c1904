//! A thread that encrypts and decrypts for connections of many links.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::super::{LINGER, TICK};
use super::connection::Relay;
use super::queues::again;
use crate::sys::poller::Event;
use crate::sys::{self, ForkMark, Poller, PollerKind, READ, Registration, Waker};

/// Number of the waker's event; those of connections are their own.
const WAKER: u64 = u64::MAX;

/// A thread that encrypts.
pub(super) struct Thread {
    pub inbox: Arc<Inbox>,
    pub handle: JoinHandle<()>,
}

/// What a thread is told.
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    waker: Waker,
    ended: AtomicBool,
    pub mark: ForkMark,
}

#[derive(Default)]
struct InboxState {
    connections: Vec<(u64, Relay)>,
    /// Connections that can go on.
    due: Vec<u64>,
    /// The number of the next connection.
    next: u64,
    /// The thread sleeps, or is about to.
    asleep: bool,
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over a connection. Returns its number.
    pub fn add(&self, relay: Relay) -> u64 {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.connections.push((number, relay));
        self.wake(state);
        number
    }

    /// The thread ends once its connections need not be kept.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// The connection of this number can go on.
    pub fn tell(&self, number: u64) {
        let mut state = self.state();
        state.due.push(number);
        self.wake(state);
    }

    fn wake(&self, mut state: MutexGuard<'_, InboxState>) {
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.waker.wake();
        }
    }
}

impl Thread {
    /// Starts one.
    pub fn start() -> io::Result<Self> {
        let poller = Poller::new(PollerKind::SYSTEM)?;
        let waker = Waker::new()?;
        let woken = poller.add(&waker, READ, WAKER)?;
        let (state, ended, mark) = (Mutex::default(), AtomicBool::new(false), ForkMark::new()?);
        let inbox = Arc::new(Inbox { state, waker, ended, mark });
        let work = {
            let inbox = inbox.clone();
            move || run(&inbox, &poller, &woken)
        };
        let handle = std::thread::Builder::new().name("gloo_rs_tls".into()).spawn(work)?;
        Ok(Self { inbox, handle })
    }
}

/// The work of a thread.
fn run(inbox: &Inbox, poller: &Poller, _woken: &Registration) {
    sys::block_signals();
    let mut relays: HashMap<u64, Relay> = HashMap::new();
    let mut events = [Event::default(); 64];
    let mut end_at = None;
    // Connections that can go on, and those whose links have ended.
    let (mut due, mut closing) = (Vec::new(), Vec::new());
    loop {
        let ended = inbox.ended.load(Ordering::SeqCst);
        let mut state = inbox.state();
        relays.extend(state.connections.drain(..).inspect(|(number, _)| due.push(*number)));
        due.append(&mut state.due);
        state.asleep = due.is_empty();
        drop(state);
        if ended {
            let end_at = *end_at.get_or_insert_with(|| Instant::now() + LINGER);
            if relays.is_empty() || Instant::now() >= end_at {
                return;
            }
        }
        let timeout = match due.is_empty() {
            true => (ended || !closing.is_empty()).then_some(TICK),
            false => Some(Duration::ZERO),
        };
        let count = poller.wait(&mut events, timeout).unwrap_or_else(|error| {
            // Nothing would come any more: the links hear why.
            relays.drain().for_each(|(_, relay)| relay.end(Some(again(&error))));
            std::thread::sleep(TICK);
            0
        });
        due.append(&mut closing);
        for event in &events[..count] {
            match event.number {
                WAKER => inbox.waker.clear(),
                number => due.push(number),
            }
        }
        due.sort_unstable();
        due.dedup();
        due.retain(|number| {
            let Some(relay) = relays.get_mut(number) else { return false };
            let more = relay.work();
            let failed = relay.watch(poller, *number).err();
            if relay.is_over() || failed.is_some() {
                relay.end(failed);
                relays.remove(number);
                return false;
            }
            if relay.closing.is_some() {
                closing.push(*number);
            }
            more
        });
    }
}
