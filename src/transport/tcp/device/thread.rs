//! The device's thread: accepts connections, and serves the contexts that nobody waits on.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;

use super::{Entry, LINGER, LISTENER, Shared, TICK, WAKER};
use crate::error;
use crate::net::admission::{Admissions, FAIR_CHANCE};
use crate::net::greeting::{Dropped, Greetings};
use crate::net::handshake::Handle;
use crate::sys;
use crate::transport::Driven;

pub(super) struct Thread {
    shared: Arc<Shared>,
    greetings: Greetings,
    admissions: Admissions,
    /// Whether the listeners are watched: not while descriptors have run out.
    listening: bool,
    serving: Vec<Weak<dyn Driven>>,
}

impl Thread {
    pub fn new(shared: Arc<Shared>) -> Self {
        let admissions = Admissions::new("device", shared.log.clone(), shared.counters.clone());
        Self { shared, greetings: Greetings::default(), admissions, listening: true, serving: Vec::new() }
    }

    pub fn run(&mut self) {
        // Signals belong to the host program's threads.
        // SAFETY: the set is initialised by sigfillset before it is used.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
        }
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let mut last_tick = Instant::now();
        let mut stop_at = None;
        loop {
            let lingering = !self.shared.contexts().lingering.is_empty();
            if self.shared.stop.load(Ordering::SeqCst) {
                let until = *stop_at.get_or_insert_with(|| Instant::now() + LINGER);
                if !lingering || Instant::now() >= until {
                    return;
                }
            }
            let idle =
                self.greetings.is_empty() && self.listening && !lingering && self.admissions.next_tick().is_none();
            self.shared.asleep.store(idle, Ordering::SeqCst);
            let sleep = idle && self.shared.unarmed.load(Ordering::SeqCst) == 0;
            let n = self.shared.epoll.wait(&mut ready, (!sleep).then_some(TICK)).unwrap_or(0);
            self.shared.asleep.store(false, Ordering::SeqCst);
            let found = ready;
            for event in &found[..n] {
                let number = event.u64;
                match number {
                    WAKER => self.shared.waker.clear(),
                    number if number & LISTENER != 0 => self.accept((number & !LISTENER) as usize),
                    number if self.greetings.contains(number) => self.greet(number),
                    number => self.serve(|entry| entry.number == number),
                }
            }
            if !sleep && last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                self.tick();
            }
        }
    }

    /// Serves the contexts that `which` selects, without the lock on their list: what a context does may change it.
    fn serve(&mut self, which: impl Fn(&Entry) -> bool) {
        let contexts = self.shared.contexts();
        self.serving.extend(contexts.by_handle.values().filter(|e| which(e)).filter_map(|e| e.driven.clone()));
        drop(contexts);
        self.serving.drain(..).filter_map(|driven| driven.upgrade()).for_each(|driven| driven.drive());
    }

    fn tick(&mut self) {
        self.serve(|_| true);
        let now = Instant::now();
        while let Some(dropped) = self.greetings.expire(now) {
            self.report(&dropped);
        }
        self.admissions.tick(now);
        if !self.listening {
            self.listening = self.shared.watch_listeners(sys::READ);
        }
        self.shared.contexts().lingering.retain_mut(|(parting, until)| parting.linger(*until));
    }

    fn accept(&mut self, listener: usize) {
        // One that is not in the list yet is about to be, and its event comes back.
        let Some(listener) = self.shared.listeners().get(listener).cloned() else { return };
        // Level-triggered: what is left comes back at once.
        for _ in 0..64 {
            let (socket, from) = match listener.socket.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
                Ok(accepted) => {
                    self.shared.cannot_accept.store(0, Ordering::Relaxed);
                    accepted
                }
                Err(e) => {
                    if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)) {
                        // Strangers must not keep descriptors from ranks.
                        if let Some(dropped) = self.greetings.make_room(FAIR_CHANCE) {
                            self.report(&dropped);
                            continue;
                        }
                        self.shared.log(1, &format!("cannot accept connections for a while: {}", error::in_words(&e)));
                        self.shared.cannot_accept.store(e.raw_os_error().unwrap_or(0), Ordering::Relaxed);
                        self.shared.watch_listeners(0);
                        self.listening = false;
                    }
                    return;
                }
            };
            let _ = socket.set_tcp_nodelay(true);
            let socket = OwnedFd::from(socket);
            let number = self.shared.next_number.fetch_add(1, Ordering::Relaxed);
            if self.shared.epoll.add(socket.as_raw_fd(), sys::READ, number).is_err() {
                continue;
            }
            let Ok(nonce) = sys::random() else { continue };
            while let Some(dropped) = self.greetings.crowd_out() {
                self.report(&dropped);
            }
            self.greetings.insert(number, socket, from.as_socket(), nonce);
            self.greet(number);
        }
    }

    /// Goes on with a handshake; hands the connection to its context once it has proven itself.
    fn greet(&mut self, number: u64) {
        let find = |handle: &Handle| self.shared.contexts().by_handle.get(handle).map(|entry| entry.key.clone());
        match self.greetings.advance(number, find) {
            None => {}
            Some(Err(dropped)) => self.report(&dropped),
            Some(Ok((socket, peer))) => {
                let _ = self.shared.epoll.remove(socket.as_raw_fd());
                let contexts = self.shared.contexts();
                let Some(entry) = contexts.by_handle.get(&peer.to) else { return };
                let (arrivals, driven) = (entry.arrivals.clone(), entry.driven.clone());
                drop(contexts);
                arrivals.lock().unwrap_or_else(PoisonError::into_inner).push((socket, peer));
                self.admissions.accepted();
                if let Some(driven) = driven.and_then(|driven| driven.upgrade()) {
                    driven.arrived();
                }
            }
        }
    }

    fn report(&mut self, Dropped { from, claims, refusal }: &Dropped) {
        self.admissions.refused(from, *claims, *refusal);
    }
}
