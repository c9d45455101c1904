//! The server: one thread that owns the table and replies to every client.
//!
//! A waiting request is stored here until its keys have values or its timeout has passed. So a waiting client needs no
//! polling and no thread, and setting a key wakes only the clients that wait for it. A client that violates the
//! protocol, or makes no progress in the middle of a request or a reply, is dropped. With a job token a client must
//! first prove that it has it; without one, every process that can reach the port can read and change every key.

#[cfg(any(test, fuzzing))]
#[path = "../../testing/fuzz/store_protocol.rs"]
pub(crate) mod fuzz;
#[cfg(all(test, target_os = "linux"))]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::super::table::Table;
use super::connection::prepare;
use super::frame::MAX_FRAME_BYTES;
use super::handshake::{Acceptor, WELCOME};
use super::peer::{GONE, Gone, Peer, READ, Waiting};
use super::protocol::{self, Chunk, Request};
use crate::error::{ErrorKind, Result};
use crate::log::LogCallback;
use crate::net::admission::ConnectionStatistics;
use crate::net::gate::{self, Gate, Listeners};
use crate::net::stream::{Security, Stream};
use crate::reserve::{try_collect, try_copy, try_reserve, try_reserve_entry, try_with_capacity};
use crate::secret::SecretKey;
use crate::sys::poller::Event;
use crate::sys::{self, ForkMark, Poller, PollerKind, Registration, Waker};

/// Time limits of the server.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The limit of a new client's handshake.
    pub(super) hello: Duration,
    /// The limit without progress in the middle of a request or a reply.
    pub(super) stall: Duration,
    /// How long the server waits for its clients to disconnect after the store was dropped.
    pub(super) linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { hello: Duration::from_secs(10), stall: Duration::from_secs(30), linger: Duration::from_secs(2) }
    }
}

const STOP: u64 = 0;
const FIRST_CLIENT: u64 = 1;

/// A running server. Dropping it waits for the clients to disconnect, at most for `linger`, then closes all and joins
/// the thread.
pub(super) struct Server {
    address: SocketAddr,
    listeners: Listeners,
    stop: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
    mark: ForkMark,
}

impl Server {
    pub(super) fn start(
        listener: TcpListener,
        limits: Limits,
        key: SecretKey,
        security: Security,
        log: Option<LogCallback>,
    ) -> io::Result<Self> {
        let poller = Poller::new(PollerKind::SYSTEM)?;
        let listeners = Listeners::new(&poller);
        let address = listeners.add(listener)?;
        let stop = Arc::new(Waker::new()?);
        let stopped = poller.add(&*stop, sys::READ, STOP)?;
        let server = Loop::new((poller, stopped), &listeners, stop.clone(), limits, (key, security), log);
        let mark = ForkMark::new()?;
        let thread = std::thread::Builder::new().name("gloo_rs-store".to_owned()).spawn(move || {
            sys::block_signals();
            server.run();
        })?;
        Ok(Self { address, listeners, stop, thread: Some(thread), mark })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn statistics(&self) -> ConnectionStatistics {
        self.listeners.statistics()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // In a child by fork the thread does not exist, and the socket belongs to the parent.
        if self.mark.is_child() {
            return std::mem::forget(self.thread.take());
        }
        self.stop.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The data that requests read and change.
#[derive(Default)]
struct State {
    table: Table,
    /// The clients with a waiting request that is registered for each key without a value; each client is registered
    /// for one key.
    waiters: HashMap<String, Vec<u64>>,
    /// Clients whose key has got a value.
    woken: Vec<u64>,
}

struct Loop {
    limits: Limits,
    poller: Poller,
    /// The registration of `stop` with the poller.
    _stopped: Registration,
    gate: Gate<Stream, Acceptor>,
    stop: Arc<Waker>,
    linger_until: Option<Instant>,
    clients: HashMap<u64, Peer>,
    next_token: u64,
    /// All deadlines of clients, each with the client's token.
    deadlines: BTreeSet<(Instant, u64)>,
    state: State,
    scratch: Vec<u8>,
}

impl Loop {
    fn new(
        (poller, stopped): (Poller, Registration),
        listeners: &Listeners,
        stop: Arc<Waker>,
        limits: Limits,
        (key, security): (SecretKey, Security),
        log: Option<LogCallback>,
    ) -> Self {
        let instance = RandomState::new().build_hasher().finish();
        let begin = move |socket| Ok((security.accept(socket)?, Acceptor::new(key.clone(), instance, sys::random()?)));
        Self {
            limits,
            poller,
            _stopped: stopped,
            gate: Gate::new("store", log, listeners, limits.hello, begin),
            stop,
            linger_until: None,
            clients: HashMap::new(),
            next_token: FIRST_CLIENT,
            deadlines: BTreeSet::new(),
            state: State::default(),
            scratch: vec![0; 64 << 10],
        }
    }

    /// Serves until it is stopped. If polling fails, as it does if the program closes the descriptor, it ends too, and
    /// the connections of all clients are closed.
    fn run(mut self) {
        let mut events = [Event::default(); 256];
        loop {
            let n = match self.poller.wait(&mut events, self.next_deadline()) {
                Ok(n) => n,
                Err(error) => return self.gate.warn(&format!("cannot wait for events, so it ends: {error}")),
            };
            for event in &events[..n] {
                match event.number {
                    STOP => {
                        self.stop.clear();
                        self.linger_until = Some(Instant::now() + self.limits.linger);
                    }
                    token => self.ready(token, event.ready),
                }
                self.resume_woken();
            }
            let now = Instant::now();
            self.expire(now);
            self.gate.tick(now);
            if let Some(end) = self.linger_until {
                self.gate.accept().into_iter().for_each(|(stream, ())| self.enter(stream));
                if self.clients.is_empty() && self.gate.is_empty() || end <= now {
                    return;
                }
            }
        }
    }

    /// Longest time to sleep; `None` for no limit.
    fn next_deadline(&self) -> Option<Duration> {
        let first = self.deadlines.first().map(|(at, _)| *at);
        let next = [first, self.linger_until, self.gate.next_tick()].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn ready(&mut self, token: u64, ready: u32) {
        if gate::owns(token) {
            self.gate.ready(token).into_iter().for_each(|(stream, ())| self.enter(stream));
        } else {
            self.with_client(token, |this, peer| this.take_in(peer, ready));
        }
    }

    /// Adds a client that has passed the handshake.
    fn enter(&mut self, stream: Stream) {
        // If the system refuses this option, its default applies.
        let _ = prepare(stream.socket());
        let token = self.next_token;
        self.next_token += 1;
        // Each client is woken by one key at most.
        let room = self.clients.try_reserve(1).and_then(|()| self.state.woken.try_reserve(self.clients.len() + 1));
        let registration = match room {
            Ok(()) => self.poller.add(&stream, READ, token),
            Err(_) => Err(io::ErrorKind::OutOfMemory.into()),
        };
        match registration {
            Ok(registration) => {
                let mut peer = Peer::new(registration, stream);
                peer.answer([Chunk::Own(vec![WELCOME])]);
                self.clients.insert(token, peer);
                self.with_client(token, |_, _| Ok(()));
            }
            Err(error) => {
                let from = socket2::SockRef::from(stream.socket()).peer_addr().ok().and_then(|from| from.as_socket());
                let from = from.map_or_else(|| "somewhere".to_owned(), |from| from.to_string());
                self.gate.warn(&format!("dropped a client from {from}: this process could not serve it: {error}"));
            }
        }
    }

    /// Does `work` with a client, then processes its requests and updates what the poller watches for; or removes the
    /// client.
    fn with_client(&mut self, token: u64, work: impl FnOnce(&mut Self, &mut Peer) -> Result<(), Gone>) {
        let Some(mut peer) = self.clients.remove(&token) else { return };
        let result = work(self, &mut peer)
            .and_then(|()| peer.flush())
            .and_then(|()| self.serve(token, &mut peer))
            .and_then(|()| self.serve_held(token, &mut peer))
            .and_then(|()| self.settle(token, &mut peer));
        match result {
            Ok(()) => drop(self.clients.insert(token, peer)),
            Err(Gone) => {
                self.set_deadline(token, &mut peer, None);
                self.state.unregister(token, &peer);
                if let Err(error) = self.state.take_back(&peer) {
                    self.gate.warn(&format!("cannot take back what a client that has ended has claimed: {error}"));
                }
            }
        }
    }

    fn take_in(&mut self, peer: &mut Peer, ready: u32) -> Result<(), Gone> {
        match ready & sys::READ != 0 && peer.may_ask() {
            true => peer.fill(&mut self.scratch),
            false if ready & GONE != 0 => Err(Gone),
            false => Ok(()),
        }
    }

    /// Processes what the stream has received, and the poller does not report.
    fn serve_held(&mut self, token: u64, peer: &mut Peer) -> Result<(), Gone> {
        while peer.may_ask() && peer.stream.has_received() {
            peer.fill(&mut self.scratch)?;
            self.serve(token, peer)?;
        }
        Ok(())
    }

    /// Processes the requests in the input, one after another.
    fn serve(&mut self, token: u64, peer: &mut Peer) -> Result<(), Gone> {
        let mut input = std::mem::take(&mut peer.input);
        let mut used = 0;
        while peer.may_ask() {
            let Some((head, rest)) = input[used..].split_at_checked(4) else { break };
            let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if length > MAX_FRAME_BYTES {
                return Err(Gone);
            }
            let Some(frame) = rest.get(..length) else { break };
            match Request::decode(frame) {
                Ok(request) => self.state.handle(token, peer, request),
                Err(error) if error.kind() == ErrorKind::ResourceExhausted => peer.refuse(&error),
                Err(_) => return Err(Gone),
            }
            peer.flush()?;
            used += 4 + length;
        }
        input.drain(..used);
        // Idle clients use no buffer memory.
        peer.input = if input.is_empty() { Vec::new() } else { input };
        Ok(())
    }

    /// Updates the events and the deadline of a client.
    fn settle(&mut self, token: u64, peer: &mut Peer) -> Result<(), Gone> {
        let wanted = peer.wanted();
        if wanted != peer.interest {
            peer.registration.set(wanted, token).map_err(|_| Gone)?;
            peer.interest = wanted;
        }
        let deadline = match &peer.waiting {
            Some(waiting) => waiting.until,
            None => peer.is_in_the_middle().then(|| Instant::now() + self.limits.stall),
        };
        self.set_deadline(token, peer, deadline);
        Ok(())
    }

    fn set_deadline(&mut self, token: u64, peer: &mut Peer, deadline: Option<Instant>) {
        if peer.deadline == deadline {
            return;
        }
        if let Some(old) = std::mem::replace(&mut peer.deadline, deadline) {
            self.deadlines.remove(&(old, token));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, token));
        }
    }

    fn resume_woken(&mut self) {
        while let Some(token) = self.state.woken.pop() {
            self.with_client(token, |this, peer| {
                this.state.resume(token, peer);
                Ok(())
            });
        }
    }

    /// Replies to waits whose timeout has passed, and drops clients without progress.
    fn expire(&mut self, now: Instant) {
        while let Some(&(deadline, token)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.remove(&(deadline, token));
            self.with_client(token, |this, peer| {
                peer.deadline = None;
                this.state.unregister(token, peer);
                let waiting = peer.waiting.take().ok_or(Gone)?;
                peer.answer([Chunk::Own(protocol::reply_missing(this.state.missing(&waiting.keys)))]);
                Ok(())
            });
            // The client's next request may already be in its input.
            self.resume_woken();
        }
    }
}

impl State {
    fn handle(&mut self, token: u64, peer: &mut Peer, request: Request<'_>) {
        if let Err(error) = self.execute(token, peer, request) {
            peer.refuse(&error);
        }
    }

    fn execute(&mut self, token: u64, peer: &mut Peer, request: Request<'_>) -> Result<()> {
        let answer = match request {
            Request::Set(pairs) => {
                for (key, value) in pairs {
                    self.table.set(key, value)?;
                    self.wake(key);
                }
                protocol::reply_done()
            }
            Request::Get { timeout, keys } => return self.await_keys(token, peer, &keys, timeout, true),
            Request::Wait { timeout, keys } => return self.await_keys(token, peer, &keys, timeout, false),
            Request::Add { key, amount } => {
                let sum = self.table.add(key, amount)?;
                self.wake(key);
                protocol::reply_sum(sum)
            }
            Request::Append { key, value } => {
                self.table.append(key, value)?;
                self.wake(key);
                protocol::reply_done()
            }
            Request::Delete { key } => protocol::reply_deleted(self.table.remove(key)),
            Request::Claim { key, value } => {
                let copy = try_copy(value, "a claim")?;
                try_reserve(&mut peer.claims, 1, "the claims of a client")?;
                self.table.append(key, value)?;
                self.wake(key);
                peer.claims.push((key.to_owned(), copy));
                protocol::reply_done()
            }
            Request::Keep => {
                peer.claims.clear();
                protocol::reply_done()
            }
        };
        peer.answer([Chunk::Own(answer)]);
        Ok(())
    }

    /// Replies if all `keys` have values or the timeout is zero; otherwise registers the client for a missing key.
    fn await_keys(
        &mut self,
        token: u64,
        peer: &mut Peer,
        keys: &[&str],
        timeout: Duration,
        values: bool,
    ) -> Result<()> {
        match self.next_missing(keys, 0) {
            None => self.answer_present(peer, keys, values),
            Some(_) if timeout.is_zero() => {
                peer.answer([Chunk::Own(protocol::reply_missing(self.missing(keys)))]);
                Ok(())
            }
            Some(at) => {
                let keys = try_collect(keys.iter().map(|key| Ok((*key).to_owned())), "the keys of a wait")?;
                let until = Instant::now().checked_add(timeout);
                self.register(token, peer, Waiting { keys, at, values, until })
            }
        }
    }

    /// Checks the wait of a client that was woken.
    fn resume(&mut self, token: u64, peer: &mut Peer) {
        let Some(mut waiting) = peer.waiting.take() else { return };
        let resumed = match self.next_missing(&waiting.keys, waiting.at) {
            None => self.answer_present(peer, &waiting.keys, waiting.values),
            Some(at) => {
                waiting.at = at;
                self.register(token, peer, waiting)
            }
        };
        if let Err(error) = resumed {
            peer.refuse(&error);
        }
    }

    fn register(&mut self, token: u64, peer: &mut Peer, waiting: Waiting) -> Result<()> {
        try_reserve_entry(&mut self.waiters, "the keys for which clients wait")?;
        let tokens = self.waiters.entry(waiting.keys[waiting.at].clone()).or_default();
        // The first ones of a key are few.
        try_reserve(tokens, 1, "the clients that wait for a key")?;
        tokens.push(token);
        peer.waiting = Some(waiting);
        Ok(())
    }

    fn unregister(&mut self, token: u64, peer: &Peer) {
        let Some(waiting) = &peer.waiting else { return };
        let key = &waiting.keys[waiting.at];
        if let Some(tokens) = self.waiters.get_mut(key) {
            tokens.retain(|&other| other != token);
            if tokens.is_empty() {
                self.waiters.remove(key);
            }
        }
    }

    /// Takes back the claims of a client that has ended, unless all ranks are there.
    fn take_back(&mut self, peer: &Peer) -> Result<()> {
        if self.table.contains(protocol::GATHERED) {
            return Ok(());
        }
        peer.claims.iter().try_for_each(|(key, value)| self.table.take_back(key, value))
    }

    fn wake(&mut self, key: &str) {
        if let Some(tokens) = self.waiters.remove(key) {
            self.woken.extend(tokens);
        }
    }

    /// The first key without a value, from `at` on and wrapping around, so that keys that were found are not checked
    /// again.
    fn next_missing<K: AsRef<str>>(&self, keys: &[K], at: usize) -> Option<usize> {
        (at..keys.len()).chain(0..at).find(|&i| !self.table.contains(keys[i].as_ref()))
    }

    fn missing<K: AsRef<str>>(&self, keys: &[K]) -> impl Iterator<Item = usize> {
        (0..keys.len()).filter(|&i| !self.table.contains(keys[i].as_ref()))
    }

    fn answer_present<K: AsRef<str>>(&self, peer: &mut Peer, keys: &[K], values: bool) -> Result<()> {
        if values {
            let mut found = try_with_capacity(keys.len(), "the values of a reply")?;
            found.extend(keys.iter().filter_map(|key| self.table.get(key.as_ref()).map(Arc::clone)));
            peer.answer(protocol::reply_values(&found)?);
        } else {
            peer.answer([Chunk::Own(protocol::reply_done())]);
        }
        Ok(())
    }
}
