//! The device's thread: accepts connections, and makes progress for contexts on which no thread waits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::{Entry, LINGER, Shared, TICK, WAKER};
use crate::net::gate::{self, Gate, Handshake, Refused};
use crate::net::handshake::{Accepting, Acceptor, Fault, Handle, Proven};
use crate::net::stream::Stream;
use crate::sys;
use crate::sys::poller::Event;
use crate::transport::BackgroundProgress;

/// How long a thread of the program that was just in a call may take to come again, before the device's thread does the work. To
/// wake this thread and to take the work from that one costs more than what there is to do for a short call: a start and a wait of 16
/// requests would take five times as long.
const GRACE: Duration = Duration::from_micros(300);

/// Timeout for the whole handshake of an incoming connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The handshake of an incoming connection for one of the device's contexts.
pub(super) struct IncomingConnection {
    acceptor: Acceptor,
    binding: Vec<u8>,
    shared: Arc<Shared>,
}

impl Handshake for IncomingConnection {
    type Proven = Proven;

    fn wanted(&self) -> usize {
        self.acceptor.wanted()
    }

    fn bind(&mut self, binding: &[u8]) {
        self.binding = binding.to_vec();
    }

    fn claims(&self) -> Option<u32> {
        self.acceptor.claims()
    }

    fn take(&mut self, bytes: &[u8]) -> Result<Accepting<Proven>, Refused> {
        let find =
            |handle: &Handle| self.shared.contexts().by_handle.get(handle).map(|entry| entry.key.bound(&self.binding));
        let refused = |fault: Fault| Refused(fault, fault.reply());
        self.acceptor.take(bytes, find).map_err(refused)
    }
}

pub(super) struct Thread {
    shared: Arc<Shared>,
    gate: Gate<Stream, IncomingConnection>,
    serving: Vec<Weak<dyn BackgroundProgress>>,
}

impl Thread {
    pub fn new(shared: Arc<Shared>) -> Self {
        let known = shared.clone();
        let begin = move |socket| {
            let (stream, acceptor) = (known.security.accept(socket)?, Acceptor::new(sys::random()?));
            Ok((stream, IncomingConnection { acceptor, binding: Vec::new(), shared: known.clone() }))
        };
        let gate = Gate::new("device", shared.log.clone(), &shared.listeners, TIMEOUT, begin);
        Self { shared, gate, serving: Vec::new() }
    }

    pub fn run(&mut self) {
        sys::block_signals();
        let mut ready = [Event::default(); 64];
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
            let idle = !lingering && self.gate.next_tick().is_none();
            self.shared.asleep.store(idle, Ordering::SeqCst);
            let sleep = idle && self.shared.unarmed.load(Ordering::SeqCst) == 0;
            let n = self.shared.poller.wait(&mut ready, (!sleep).then_some(TICK)).unwrap_or(0);
            self.shared.asleep.store(false, Ordering::SeqCst);
            let found = ready;
            let contexts = |number: u64| number != WAKER && !gate::owns(number);
            for event in &found[..n] {
                match event.number {
                    WAKER => self.shared.waker.clear(),
                    number if gate::owns(number) => self.accept_connections(number),
                    _ => {}
                }
            }
            let of_contexts = || found[..n].iter().map(|event| event.number).filter(|number| contexts(*number));
            let mut are_visited = false;
            for number in of_contexts() {
                self.serve(|entry| entry.number == number, |context| are_visited |= context.is_visited());
            }
            if are_visited {
                std::thread::sleep(GRACE);
            }
            for number in of_contexts() {
                self.serve(|entry| entry.number == number, |context| context.drive());
            }
            if !sleep && last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                self.tick();
            }
        }
    }

    /// Calls `progress` for the contexts that `which` selects. The lock on the list is not held meanwhile, because a
    /// context may change the list.
    fn serve(&mut self, which: impl Fn(&Entry) -> bool, mut progress: impl FnMut(&dyn BackgroundProgress)) {
        let contexts = self.shared.contexts();
        self.serving.extend(contexts.by_handle.values().filter(|e| which(e)).filter_map(|e| e.context.clone()));
        drop(contexts);
        self.serving.drain(..).filter_map(|context| context.upgrade()).for_each(|context| progress(&*context));
    }

    fn tick(&mut self) {
        self.serve(|_| true, |context| context.tick());
        self.gate.tick(Instant::now());
        self.shared.contexts().lingering.retain_mut(|(closing, until)| closing.linger() && Instant::now() < *until);
    }

    /// Passes authenticated connections to their contexts.
    fn accept_connections(&mut self, number: u64) {
        for (stream, peer) in self.gate.ready(number) {
            let contexts = self.shared.contexts();
            let Some(entry) = contexts.by_handle.get(&peer.to) else { continue };
            let (arrivals, context, notice) = (entry.arrivals.clone(), entry.context.clone(), entry.notice.clone());
            drop(contexts);
            if let Some(notice) = notice {
                self.shared.notify(stream, peer.frames, &notice);
                continue;
            }
            arrivals.lock().unwrap_or_else(PoisonError::into_inner).push((stream, peer));
            if let Some(context) = context.and_then(|context| context.upgrade()) {
                context.arrived();
            }
        }
    }
}
