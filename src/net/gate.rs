//! Incoming connections up to their authentication: accepting, admission, handshake.
//!
//! A device and a store's server have one [`Gate`] each, on their own thread and poller. The thread passes the gate's
//! events to the gate, which returns authenticated connections.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket};

use crate::error;
use crate::log::{Level, LogCallback};
use crate::net::admission::{
    Admissions, ConnectionStatistics, Counters, MIN_HANDSHAKE_TIME, Refusal, connection_to_drop, max_handshakes, origin,
};
use crate::net::handshake::{Accepting, Fault};
use crate::sys::{self, AsRaw, OwnedSocket, Poller, Registration};

/// Length of the listen queue: thousands of ranks may connect at the same time. The kernel reduces it to its own limit.
const BACKLOG: i32 = 4096;
/// Pause in accepting after descriptors have run out.
const PAUSE: Duration = Duration::from_millis(20);

/// Number of the listeners' events; those of connections follow. The owner's own numbers are smaller.
const LISTENER: u64 = 1 << 63;

/// Whether an event with this number belongs to the gate.
pub fn owns(number: u64) -> bool {
    number >= LISTENER
}

/// The byte stream of a connection, from the handshake on: a socket, or a wrapper around one, such as TLS. It is
/// watched for readability, so it must return all bytes that it has buffered before it returns
/// [`io::ErrorKind::WouldBlock`].
pub trait Stream: AsRaw {
    /// Reads without blocking. Returns 0 at the end of the stream.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize>;
    /// Sends as much as possible without blocking.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// What proofs must cover; empty if there is nothing below the handshake. Valid once bytes have been received.
    fn binding(&mut self) -> Vec<u8> {
        Vec::new()
    }
    /// What the other side is accused of, if `error`, of receiving or sending, says that.
    fn fault(_error: &io::Error) -> Option<Fault> {
        None
    }
}

impl Stream for OwnedSocket {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        sys::receive(self.raw(), &mut [IoSliceMut::new(into)])
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        sys::send(self.raw(), &[IoSlice::new(bytes)])
    }
}

/// The accepting side of a connection's handshake. Without I/O.
pub trait Handshake {
    /// The data of an authenticated connection.
    type Proven;
    /// Number of bytes that the current message still lacks: never more are read.
    fn wanted(&self) -> usize;
    /// Makes proofs hold only in the session with this binding. Called before [`Handshake::take`], if at all.
    fn bind(&mut self, binding: &[u8]) {
        let _ = binding;
    }
    /// The rank that the other side claims, once it has named a context that exists here.
    fn claims(&self) -> Option<u32>;
    /// Processes received bytes, at most [`Handshake::wanted`].
    fn take(&mut self, bytes: &[u8]) -> Result<Accepting<Self::Proven>, Refused>;
}

/// A failed handshake, and the reply to the other side, if it may understand one.
pub struct Refused(pub Fault, pub Option<Vec<u8>>);

/// Listens at `address`, which is for `both` families if it is an IPv6 one; non-blocking.
pub fn listen(address: SocketAddr, both: bool) -> io::Result<TcpListener> {
    let socket = sys::socket::stream(Domain::for_address(address))?;
    // A job that restarts can use its port while connections of the earlier one are in TIME_WAIT. On Windows it can
    // without the option, which there lets two processes listen at one port.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!both)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A gate's listeners, for all threads; clones share them.
#[derive(Clone)]
pub struct Listeners(Arc<Shared>);

struct Shared {
    poller: Poller,
    /// Entries are only added.
    sockets: Mutex<Vec<(Registration, Arc<OwnedSocket>)>>,
    counters: Counters,
    /// Error number of the last failure to accept; 0 after a success.
    accept_error: AtomicI32,
}

impl Listeners {
    /// Makes a gate without listeners; they and their connections will be watched by `poller`.
    pub fn new(poller: &Poller) -> Self {
        let (poller, sockets) = (poller.clone(), Mutex::default());
        Self(Arc::new(Shared { poller, sockets, counters: Counters::default(), accept_error: AtomicI32::new(0) }))
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<(Registration, Arc<OwnedSocket>)>> {
        self.0.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a listener that [`listen`] has made. Returns its address.
    pub fn add(&self, listener: TcpListener) -> io::Result<SocketAddr> {
        let address = listener.local_addr()?;
        let listener = OwnedSocket::from(Socket::from(listener));
        let registration = self.0.poller.add(&listener, sys::READ, LISTENER)?;
        self.sockets().push((registration, Arc::new(listener)));
        Ok(address)
    }

    /// Watches all listeners, or none; returns whether that worked.
    fn watch(&self, interest: u32) -> bool {
        self.sockets().iter().all(|(registration, _)| registration.set(interest, LISTENER).is_ok())
    }

    /// Counts of the connections by their result. Thread-safe.
    pub fn statistics(&self) -> ConnectionStatistics {
        self.0.counters.statistics()
    }

    /// The error of the last attempt to accept, if it failed.
    pub fn accept_error(&self) -> Option<io::Error> {
        let number = self.0.accept_error.load(Ordering::Relaxed);
        (number != 0).then(|| io::Error::from_raw_os_error(number))
    }
}

/// A connection in the handshake.
struct Pending<S, H> {
    registration: Registration,
    stream: S,
    from: String,
    origin: IpAddr,
    handshake: H,
    /// Whether bytes were received.
    begun: bool,
    since: Instant,
}

/// Starts the handshake of a connection; wraps its socket first if another protocol, such as TLS, lies below it.
type Begin<S, H> = Box<dyn Fn(OwnedSocket) -> io::Result<(S, H)> + Send>;

/// The state of the gate's thread: connections of type `S`, whose handshake is `H`.
pub struct Gate<S, H> {
    listeners: Listeners,
    begin: Begin<S, H>,
    /// Time limit for the whole handshake of a connection.
    timeout: Duration,
    /// The handshakes by number; the oldest has the smallest.
    handshakes: BTreeMap<u64, Pending<S, H>>,
    next_number: u64,
    admissions: Admissions,
    /// Set while accepting pauses.
    accept_again: Option<Instant>,
}

impl<S: Stream, H: Handshake> Gate<S, H> {
    /// `name` is the owner's name in the log.
    pub fn new(
        name: &'static str,
        log: Option<LogCallback>,
        listeners: &Listeners,
        timeout: Duration,
        begin: impl Fn(OwnedSocket) -> io::Result<(S, H)> + Send + 'static,
    ) -> Self {
        Self {
            listeners: listeners.clone(),
            begin: Box::new(begin),
            timeout,
            handshakes: BTreeMap::new(),
            next_number: LISTENER + 1,
            admissions: Admissions::new(name, log, listeners.0.counters.clone()),
            accept_again: None,
        }
    }

    /// Logs a warning in the owner's name.
    pub fn warn(&self, text: &str) {
        self.admissions.log(Level::Warning, text);
    }

    /// Whether no connection is in the handshake.
    pub fn is_empty(&self) -> bool {
        self.handshakes.is_empty()
    }

    /// Handles the event with this number. Returns authenticated connections, which are no longer watched.
    pub fn ready(&mut self, number: u64) -> Vec<(S, H::Proven)> {
        if number == LISTENER { self.accept() } else { self.advance(number).into_iter().collect() }
    }

    /// Accepts the connections that have arrived; returns as [`Gate::ready`].
    pub fn accept(&mut self) -> Vec<(S, H::Proven)> {
        let listeners: Vec<_> = self.listeners.sockets().iter().map(|(_, listener)| listener.clone()).collect();
        let mut proven = Vec::new();
        for listener in &listeners {
            // Pollers are level-triggered: the remaining ones are reported again at once.
            for _ in 0..64 {
                if self.accept_again.is_some() {
                    return proven;
                }
                match sys::socket::accept(listener) {
                    Ok((socket, from)) => {
                        self.listeners.0.accept_error.store(0, Ordering::Relaxed);
                        let _ = socket.set_tcp_nodelay(true);
                        let number = self.enter(socket.into(), from.as_socket());
                        proven.extend(number.and_then(|number| self.advance(number)));
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) => {
                        // Any other error belongs to a connection that broke before it was accepted.
                        if sys::socket::is_exhausted(&e)
                            // Unauthenticated connections must not use up the descriptors that ranks need.
                            && !self.drop_one(MIN_HANDSHAKE_TIME)
                        {
                            self.pause(&e);
                        }
                    }
                }
            }
        }
        proven
    }

    /// Stops accepting for a while.
    fn pause(&mut self, why: &io::Error) {
        if self.listeners.0.accept_error.swap(why.raw_os_error().unwrap_or(0), Ordering::Relaxed) == 0 {
            self.admissions
                .log(Level::Warning, &format!("cannot accept connections for a while: {}", error::in_words(why)));
        }
        self.listeners.watch(0);
        self.accept_again = Some(Instant::now() + PAUSE);
    }

    /// Starts the handshake of a non-blocking connection; returns its number.
    pub(crate) fn enter(&mut self, socket: OwnedSocket, from: Option<SocketAddr>) -> Option<u64> {
        let number = self.next_number;
        self.next_number += 1;
        let (origin, from) = (origin(from), from.map_or_else(|| "somewhere".into(), |a| a.to_string()));
        let begun = (self.begin)(socket).and_then(|(stream, handshake)| {
            let registration = self.listeners.0.poller.add(&stream, sys::READ, number)?;
            Ok((registration, stream, handshake))
        });
        let (registration, stream, handshake) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                self.admissions.refused(&from, None, Refusal::Unserved(error.raw_os_error().unwrap_or(0)));
                return None;
            }
        };
        while self.handshakes.len() >= max_handshakes() && self.drop_one(Duration::ZERO) {}
        self.handshakes.insert(
            number,
            Pending { registration, stream, from, origin, handshake, begun: false, since: Instant::now() },
        );
        Some(number)
    }

    /// Reads what a connection has sent and replies. Returns the connection once it is authenticated.
    fn advance(&mut self, number: u64) -> Option<(S, H::Proven)> {
        let Pending { stream, handshake, begun, .. } = self.handshakes.get_mut(&number)?;
        let mut bytes = [0; 128];
        let refusal = loop {
            let wanted = handshake.wanted().min(bytes.len());
            let taken = match stream.receive(&mut bytes[..wanted]) {
                Ok(0) => break Refusal::Incomplete,
                Ok(n) => {
                    if !std::mem::replace(begun, true) {
                        handshake.bind(&stream.binding());
                    }
                    handshake.take(&bytes[..n])
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Err(e) => break S::fault(&e).map_or(Refusal::Incomplete, Refusal::Fault),
            };
            match taken {
                Ok(Accepting::Waiting) => {}
                // The reply fits into the buffer of a socket on which little was sent.
                Ok(Accepting::Send(words)) if matches!(stream.send(&words), Ok(sent) if sent == words.len()) => {}
                Ok(Accepting::Send(_)) => break Refusal::Incomplete,
                Ok(Accepting::Proven(proven)) => {
                    let Pending { registration, stream, .. } = self.handshakes.remove(&number)?;
                    registration.end();
                    self.admissions.accepted();
                    return Some((stream, proven));
                }
                Err(Refused(fault, answer)) => {
                    if let Some(answer) = answer {
                        // Another version may have sent more: if the socket were closed with unread bytes, the reply
                        // would be lost.
                        let _ = stream.receive(&mut [0; 1024]);
                        let _ = stream.send(&answer);
                    }
                    break Refusal::Fault(fault);
                }
            }
        };
        self.refuse(number, refusal);
        None
    }

    fn refuse(&mut self, number: u64, refusal: Refusal) {
        if let Some(Pending { from, handshake, .. }) = self.handshakes.remove(&number) {
            self.admissions.refused(&from, handshake.claims(), refusal);
        }
    }

    /// Drops one connection that has been in the handshake for this time, if there is one; see [`connection_to_drop`].
    fn drop_one(&mut self, chance: Duration) -> bool {
        let now = Instant::now();
        let old = self.handshakes.iter().filter(|(_, pending)| now.duration_since(pending.since) >= chance);
        let victim = connection_to_drop(old.map(|(number, g)| (*number, g.origin, g.handshake.claims().is_some())));
        victim.inspect(|victim| self.refuse(*victim, Refusal::CrowdedOut)).is_some()
    }

    /// When [`Gate::tick`] must be called, if at all.
    pub fn next_tick(&self) -> Option<Instant> {
        let oldest = self.handshakes.first_key_value().map(|(_, pending)| pending.since + self.timeout);
        [oldest, self.accept_again, self.admissions.next_tick()].into_iter().flatten().min()
    }

    /// Drops connections whose time limit has passed, and ends a pause.
    pub fn tick(&mut self, now: Instant) {
        while let Some(oldest) = self.handshakes.first_entry().filter(|e| now >= e.get().since + self.timeout) {
            let number = *oldest.key();
            self.refuse(number, Refusal::TimedOut);
        }
        if self.accept_again.is_some_and(|again| again <= now) {
            self.accept_again = if self.listeners.watch(sys::READ) { None } else { Some(now + PAUSE) };
        }
        self.admissions.tick(now);
    }
}

#[cfg(all(test, unix))]
#[path = "gate_tests.rs"]
mod tests;
