//! The server: one thread that holds the table and answers every client.
//!
//! A wait is kept here until its keys have values or its time is up, so a client that waits costs neither polling nor a
//! thread, and a set costs only those that wait for its key. A client that breaks the protocol, or stops in the middle of a
//! request or an answer, is dropped. With a job token a client proves first that it has it, too; without one, who reaches the
//! port can read and change every key.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::super::table::Table;
use super::connection::prepare;
use super::epoll::{Epoll, Readiness};
use super::greeting::{self, CLIENT_BYTES, PROOF_BYTES, WELCOME};
use super::peer::{Gone, Peer, Stage, Waiting};
use super::protocol::{self, CLIENT_HELLO_BYTES, Chunk, MAX_FRAME_BYTES, Request};
use crate::net::admission::{self, Admissions, ConnectionStatistics, Counters, FAIR_CHANCE, Refusal};
use crate::net::handshake::Fault;
use crate::secret::SecretKey;
use crate::sys::{self, ForkMark};
use crate::transport::LogCallback;

/// How long a server is patient.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// With a new client's hello.
    pub(super) hello: Duration,
    /// In the middle of a request or an answer, without a byte moving.
    pub(super) stall: Duration,
    /// With the remaining clients after its store was dropped.
    pub(super) linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { hello: Duration::from_secs(10), stall: Duration::from_secs(30), linger: Duration::from_secs(2) }
    }
}

/// Pause in accepting when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_CLIENT: u64 = 2;

const READ: Readiness = Readiness { read: true, write: false, gone: false };
const NOTHING: Readiness = Readiness { read: false, write: false, gone: false };

/// A running server. Dropping it lets the clients finish, for `linger` at most, then closes all and joins the thread.
pub(super) struct Server {
    address: SocketAddr,
    counters: Counters,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
    mark: ForkMark,
}

impl Server {
    pub(super) fn start(
        listener: TcpListener,
        limits: Limits,
        key: SecretKey,
        log: Option<LogCallback>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = UnixStream::pair()?;
        let epoll = Epoll::new()?;
        epoll.add(listener.as_fd(), LISTENER, READ)?;
        epoll.add(stopped.as_fd(), STOP, READ)?;
        let counters = Counters::default();
        let server = Loop {
            limits,
            key,
            admissions: Admissions::new("store", log, counters.clone()),
            greeting: BTreeMap::new(),
            epoll,
            listener,
            accept_again: None,
            stopped: Some(stopped),
            linger_until: None,
            instance: RandomState::new().build_hasher().finish(),
            clients: HashMap::new(),
            next_token: FIRST_CLIENT,
            deadlines: BTreeSet::new(),
            state: State::default(),
            scratch: vec![0; 64 << 10],
        };
        let mark = ForkMark::new()?;
        let thread = std::thread::Builder::new().name("gloo_rs-store".to_owned()).spawn(move || {
            block_signals();
            server.run();
        })?;
        Ok(Self { address, counters, stop, thread: Some(thread), mark })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn statistics(&self) -> ConnectionStatistics {
        self.counters.statistics()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // In a child by fork the thread is not there, and the socket is the parent's.
        if self.mark.is_child() {
            return std::mem::forget(self.thread.take());
        }
        // Shut down rather than closed: a forked child may hold a copy.
        let _ = self.stop.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The program's signal handlers run on the program's threads.
fn block_signals() {
    // SAFETY: sigset_t is plain data that sigfillset fills before it is used; both calls touch only this thread's mask.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// What requests work on.
#[derive(Default)]
struct State {
    table: Table,
    /// For each key without a value: the clients whose waiting request is registered for it, each for one key at a time.
    waiters: HashMap<String, Vec<u64>>,
    /// Clients whose key has got a value.
    woken: Vec<u64>,
}

struct Loop {
    limits: Limits,
    key: SecretKey,
    admissions: Admissions,
    /// Clients that have not proven themselves, the oldest first: since when, and of which origin.
    greeting: BTreeMap<u64, (Instant, IpAddr)>,
    epoll: Epoll,
    listener: TcpListener,
    /// Set while accepting pauses.
    accept_again: Option<Instant>,
    /// Closed once it has brought its message.
    stopped: Option<UnixStream>,
    linger_until: Option<Instant>,
    instance: u64,
    clients: HashMap<u64, Peer>,
    next_token: u64,
    /// Every client's `deadline` that is set, with its token.
    deadlines: BTreeSet<(Instant, u64)>,
    state: State,
    scratch: Vec<u8>,
}

impl Loop {
    /// Serves until told to stop. An epoll that fails ends it too: every client then sees its connection close.
    fn run(mut self) {
        let mut ready = Vec::new();
        while self.epoll.wait(self.next_deadline(), &mut ready).is_ok() {
            for (token, readiness) in ready.drain(..) {
                match token {
                    LISTENER => self.accept(),
                    STOP => {
                        self.stopped = None;
                        self.linger_until = Some(Instant::now() + self.limits.linger);
                    }
                    client => self.with_client(client, |this, peer| this.take_in(peer, readiness)),
                }
                self.resume_woken();
            }
            let now = Instant::now();
            self.expire(now);
            self.admissions.tick(now);
            if self.accept_again.is_some_and(|again| again <= now) {
                self.accept_again = None;
                if self.epoll.modify(self.listener.as_fd(), LISTENER, READ).is_err() {
                    return;
                }
            }
            if let Some(end) = self.linger_until {
                self.accept();
                if self.clients.is_empty() || end <= now {
                    return;
                }
            }
        }
    }

    /// How long to sleep at most; `None` without end.
    fn next_deadline(&self) -> Option<Duration> {
        let first = self.deadlines.first().map(|(at, _)| *at);
        let deadlines = [first, self.accept_again, self.linger_until, self.admissions.next_tick()];
        let next = deadlines.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn accept(&mut self) {
        if self.accept_again.is_some() {
            return;
        }
        for _ in 0..128 {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        // Strangers must not keep descriptors from ranks.
                        if self.make_room(FAIR_CHANCE) {
                            continue;
                        }
                        // Level-triggered: without the pause this would spin until somebody disconnects.
                        if self.epoll.modify(self.listener.as_fd(), LISTENER, NOTHING).is_ok() {
                            self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                        }
                        return;
                    }
                    // The connection that would have been accepted is broken already.
                    _ => continue,
                },
            };
            let token = self.next_token;
            let ready = prepare(&stream)
                .and_then(|()| stream.set_nonblocking(true))
                .and_then(|()| self.epoll.add(stream.as_fd(), token, READ));
            if ready.is_ok() {
                self.next_token += 1;
                while self.greeting.len() >= admission::most_greetings() && self.make_room(Duration::ZERO) {}
                self.greeting.insert(token, (Instant::now(), admission::origin(Some(from))));
                let mut peer = Peer::new(stream, from.to_string(), READ);
                self.set_deadline(token, &mut peer, Some(Instant::now() + self.limits.hello));
                self.clients.insert(token, peer);
            }
        }
    }

    /// Drops one of the clients that have not proven themselves in this time, if there are any.
    fn make_room(&mut self, chance: Duration) -> bool {
        let now = Instant::now();
        let old = self.greeting.iter().filter(|(_, (since, _))| now.duration_since(*since) >= chance);
        let victim = admission::who_makes_room(old.map(|(token, (_, origin))| (*token, *origin, false)));
        let Some(victim) = victim else { return false };
        self.with_client(victim, |_, peer| Err(peer.refuse(Refusal::CrowdedOut)));
        true
    }

    /// Does `work` with a client, then goes on with its requests and sees to what it waits for next, or forgets it.
    fn with_client(&mut self, token: u64, work: impl FnOnce(&mut Self, &mut Peer) -> Result<(), Gone>) {
        let Some(mut peer) = self.clients.remove(&token) else { return };
        let result = work(self, &mut peer)
            .and_then(|()| peer.flush())
            .and_then(|()| self.serve(token, &mut peer))
            .and_then(|()| self.settle(token, &mut peer));
        match result {
            Ok(()) => drop(self.clients.insert(token, peer)),
            Err(Gone) => {
                if self.greeting.remove(&token).is_some() {
                    self.admissions.refused(&peer.from, None, peer.refusal);
                }
                self.set_deadline(token, &mut peer, None);
                self.state.unregister(token, &peer);
            }
        }
    }

    fn take_in(&mut self, peer: &mut Peer, ready: Readiness) -> Result<(), Gone> {
        match ready.read && peer.may_ask() {
            true => peer.fill(&mut self.scratch),
            false if ready.gone => Err(Gone),
            false => Ok(()),
        }
    }

    /// Answers the requests that are in the input, one after another.
    fn serve(&mut self, token: u64, peer: &mut Peer) -> Result<(), Gone> {
        let mut input = std::mem::take(&mut peer.input);
        let mut used = 0;
        while peer.may_ask() {
            let rest = &input[used..];
            if !peer.is_greeted() {
                match self.greet(token, peer, rest)? {
                    0 => break,
                    length => used += length,
                }
                continue;
            }
            let Some((head, rest)) = rest.split_at_checked(4) else { break };
            let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if length > MAX_FRAME_BYTES {
                return Err(Gone);
            }
            let Some(frame) = rest.get(..length) else { break };
            self.state.handle(token, peer, Request::decode(frame).ok_or(Gone)?);
            peer.flush()?;
            used += 4 + length;
        }
        input.drain(..used);
        // Idle clients hold no memory.
        peer.input = if input.is_empty() { Vec::new() } else { input };
        Ok(())
    }

    /// Goes on with a client that has not proven itself, given what it has said; how much of that was used up.
    fn greet(&mut self, token: u64, peer: &mut Peer, said: &[u8]) -> Result<usize, Gone> {
        if let Stage::Proof { client, server } = &peer.stage {
            let Some(proof) = said.first_chunk() else { return Ok(0) };
            greeting::verify(&self.key, client, server, proof).map_err(|fault| peer.refuse(Refusal::Fault(fault)))?;
            peer.stage = Stage::Greeted;
            self.greeting.remove(&token);
            self.admissions.accepted();
            peer.answer([Chunk::Own(vec![WELCOME])]);
            peer.flush()?;
            return Ok(PROOF_BYTES);
        }
        let magic = said.len().min(protocol::MAGIC.len());
        if said[..magic] != protocol::MAGIC[..magic] {
            return Err(peer.refuse(Refusal::Fault(Fault::Foreign)));
        }
        if let Some(hello) = said.first_chunk::<CLIENT_HELLO_BYTES>().filter(|h| **h != protocol::client_hello()) {
            // It is answered, so that it can tell its user which version this is.
            peer.answer([Chunk::Own(protocol::server_hello(self.instance).to_vec())]);
            peer.flush()?;
            return Err(peer.refuse(Refusal::Fault(Fault::Version(hello[8]))));
        }
        let Some(client) = said.first_chunk::<CLIENT_BYTES>() else { return Ok(0) };
        let nonce = sys::random().map_err(|_| Gone)?;
        let (server, verdict) = greeting::server(&self.key, client, self.instance, &nonce);
        peer.answer([Chunk::Own(server.to_vec())]);
        peer.flush()?;
        verdict.map_err(|fault| peer.refuse(Refusal::Fault(fault)))?;
        peer.stage = Stage::Proof { client: *client, server };
        Ok(CLIENT_BYTES)
    }

    /// Sets what is waited for next: readiness and time.
    fn settle(&mut self, token: u64, peer: &mut Peer) -> Result<(), Gone> {
        let wanted = peer.wanted();
        if wanted != peer.interest {
            self.epoll.modify(peer.stream.as_fd(), token, wanted).map_err(|_| Gone)?;
            peer.interest = wanted;
        }
        let deadline = match &peer.waiting {
            Some(waiting) => waiting.until,
            None if !peer.is_greeted() => peer.deadline,
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

    /// Answers the waits whose time is up, and drops who was too slow.
    fn expire(&mut self, now: Instant) {
        while let Some(&(deadline, token)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.remove(&(deadline, token));
            self.with_client(token, |this, peer| {
                peer.deadline = None;
                this.state.unregister(token, peer);
                let waiting = peer.waiting.take().ok_or_else(|| peer.refuse(Refusal::TimedOut))?;
                peer.answer([Chunk::Own(protocol::answer_missing(&this.state.missing(&waiting.keys)))]);
                Ok(())
            });
            // The client's next request may have been in its input already.
            self.resume_woken();
        }
    }
}

impl State {
    fn handle(&mut self, token: u64, peer: &mut Peer, request: Request<'_>) {
        let answer = match request {
            Request::Set(pairs) => {
                for (key, value) in pairs {
                    self.table.set(key, value);
                    self.wake(key);
                }
                Ok(protocol::answer_done())
            }
            Request::Get { timeout, keys } => return self.await_keys(token, peer, keys, timeout, true),
            Request::Wait { timeout, keys } => return self.await_keys(token, peer, keys, timeout, false),
            Request::Add { key, amount } => {
                let sum = self.table.add(key, amount);
                self.wake(key);
                sum.map(protocol::answer_sum)
            }
            Request::Append { key, value } => {
                let appended = self.table.append(key, value);
                self.wake(key);
                appended.map(|()| protocol::answer_done())
            }
            Request::Delete { key } => Ok(protocol::answer_deleted(self.table.remove(key))),
        };
        peer.answer([Chunk::Own(answer.unwrap_or_else(|error| protocol::answer_refused(&error)))]);
    }

    /// Answers if all `keys` have values or there is no time, and registers the client for one that is missing if not.
    fn await_keys(&mut self, token: u64, peer: &mut Peer, keys: Vec<&str>, timeout: Duration, values: bool) {
        match self.next_missing(&keys, 0) {
            None => self.answer_present(peer, &keys, values),
            Some(_) if timeout.is_zero() => {
                peer.answer([Chunk::Own(protocol::answer_missing(&self.missing(&keys)))]);
            }
            Some(at) => {
                let keys = keys.into_iter().map(str::to_owned).collect();
                let until = Instant::now().checked_add(timeout);
                self.register(token, peer, Waiting { keys, at, values, until });
            }
        }
    }

    /// Looks again at what a woken client waits for.
    fn resume(&mut self, token: u64, peer: &mut Peer) {
        let Some(mut waiting) = peer.waiting.take() else { return };
        match self.next_missing(&waiting.keys, waiting.at) {
            None => self.answer_present(peer, &waiting.keys, waiting.values),
            Some(at) => {
                waiting.at = at;
                self.register(token, peer, waiting);
            }
        }
    }

    fn register(&mut self, token: u64, peer: &mut Peer, waiting: Waiting) {
        self.waiters.entry(waiting.keys[waiting.at].clone()).or_default().push(token);
        peer.waiting = Some(waiting);
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

    fn wake(&mut self, key: &str) {
        if let Some(tokens) = self.waiters.remove(key) {
            self.woken.extend(tokens);
        }
    }

    /// The first key without a value from `at` onwards and around: keys that came since are passed over only once.
    fn next_missing<K: AsRef<str>>(&self, keys: &[K], at: usize) -> Option<usize> {
        (at..keys.len()).chain(0..at).find(|&i| !self.table.contains(keys[i].as_ref()))
    }

    fn missing<K: AsRef<str>>(&self, keys: &[K]) -> Vec<usize> {
        (0..keys.len()).filter(|&i| !self.table.contains(keys[i].as_ref())).collect()
    }

    fn answer_present<K: AsRef<str>>(&self, peer: &mut Peer, keys: &[K], values: bool) {
        if values {
            let values: Vec<_> = keys.iter().filter_map(|key| self.table.get(key.as_ref()).map(Arc::clone)).collect();
            peer.answer(protocol::answer_values(&values));
        } else {
            peer.answer([Chunk::Own(protocol::answer_done())]);
        }
    }
}
