//! How connections begin and end.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::send::Held;
use super::{Endpoint, FIRST_RETRY, LAST_RETRY, LOCAL_SEND_BUFFER, PATIENCE};
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use crate::transport::queues::Key;
use crate::transport::tcp::address::Address;
use crate::transport::tcp::connection::{Peer, State};
use crate::transport::tcp::handshake::{
    self, ANSWER_BYTES, Answer, CHALLENGE_BYTES, Connecting, Connector, Handle, Hello, Identity, NO_PROOF, Proven,
    Reason,
};
use crate::transport::{Outcome, Token, Transport};
use crate::types::Rank;

/// How long one of several addresses may leave an attempt to connect unanswered.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// How long a peer that is connecting to us may take for that.
const YIELD_TIME: Duration = Duration::from_millis(500);
/// An idle connection whose peer's host does not answer breaks after a minute. Processes that are busy or stopped do not
/// matter: it is the system that answers.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10)).with_retries(3);

impl Endpoint {
    /// Begins to connect to `rank`, if its address is known and that has not begun.
    #[inline]
    pub(super) fn begin_connect(&mut self, rank: Rank) {
        let idle = |peer: &Peer| matches!(peer.state, State::Idle | State::Retry(_));
        if self.peers.get(rank).is_none_or(idle) && self.addresses.get(rank).is_some() {
            self.attempt(rank);
        }
    }

    #[cold]
    fn attempt(&mut self, rank: Rank) {
        let Some(to) = self.target(rank) else {
            let theirs = self.addresses.get(rank).map(|a| &a.sockets[..]).unwrap_or_default();
            let text = format!(
                "there is no way to rank {rank}: it listens at {theirs:?}, this rank at {:?}; they need a family in \
                 common, and loopback leads to no other host",
                self.local.sockets
            );
            return self.lose(rank, Error::new(ErrorKind::Io, text));
        };
        let attempt = (|| {
            let domain = Domain::for_address(to);
            let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
            socket.set_tcp_nodelay(true)?;
            // Leave from the address that we are known by.
            if let Some(mut from) = self.local.sockets.iter().find(|s| s.is_ipv4() == to.is_ipv4()).copied() {
                from.set_port(0);
                socket.bind(&from.into())?;
            }
            match socket.connect(&to.into()) {
                Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
                _ => {}
            }
            self.epoll.add(socket.as_raw_fd(), sys::READ | sys::WRITE, rank as u64)?;
            Ok(OwnedFd::from(socket))
        })();
        match attempt {
            Ok(socket) => {
                // Where there is another way, a network that swallows packets is not waited for.
                let give_up = (self.ways(rank).len() > 1).then(|| Instant::now() + ANSWER_TIME);
                let peer = self.peer(rank);
                peer.give_up = give_up;
                peer.socket = Some(socket);
                peer.state = State::Connecting;
                if !self.connecting.contains(&rank) {
                    self.connecting.push(rank);
                }
            }
            Err(e) => self.retry_later(rank, Error::io(format_args!("cannot connect to {}", self.name(rank)), &e)),
        }
    }

    /// The addresses of `rank` that can be tried, the preferred first.
    fn ways(&self, rank: Rank) -> Vec<SocketAddr> {
        self.addresses.get(rank).map(|a| a.ways_from(&self.local)).unwrap_or_default()
    }

    /// The address of `rank` that is connected to, is being tried, or comes next.
    pub(super) fn target(&self, rank: Rank) -> Option<SocketAddr> {
        let ways = self.ways(rank);
        let way = self.peers.get(rank).map_or(0, |p| p.way);
        let mut target = ways.get(way).or(ways.first()).copied();
        // A link-local address is of the link that we are known on; the peer's number of it means nothing here.
        if let Some(SocketAddr::V6(v6)) = &mut target
            && v6.ip().is_unicast_link_local()
            && let Some(SocketAddr::V6(own)) = self.local.sockets.iter().find(|s| s.is_ipv6())
        {
            v6.set_scope_id(own.scope_id());
        }
        target
    }

    /// The attempt with the present address has failed: tries the next, after a while if that is the first again.
    pub(super) fn retry_later(&mut self, rank: Rank, error: Error) {
        let (now, ways) = (Instant::now(), self.ways(rank).len().max(1));
        let peer = self.peer(rank);
        // It listened before anyone was told its address: where its host answers and it does not, it is gone.
        let refused = error.kind() == ErrorKind::ConnectionLost;
        peer.refused_since[peer.way] = if refused { peer.refused_since[peer.way].or(Some(now)) } else { None };
        if peer.refused_since[..ways].iter().all(|since| since.is_some_and(|since| now - since >= PATIENCE)) {
            let text = format!("{} is gone: {error} ({} attempts)", self.name(rank), self.peer(rank).attempts + 1);
            return self.lose(rank, Error::new(ErrorKind::ConnectionLost, text));
        }
        peer.way = (peer.way + 1) % ways;
        let round = peer.attempts / ways as u32;
        let wait = FIRST_RETRY.saturating_mul(1 << round.min(10)).min(LAST_RETRY);
        let wait = if peer.way == 0 { wait } else { Duration::ZERO };
        peer.attempts += 1;
        peer.last_error = Some(error);
        peer.socket = None;
        peer.state = State::Retry(now + wait);
        if !self.connecting.contains(&rank) {
            self.connecting.push(rank);
        }
    }

    /// Tries again what has waited long enough for that, and gives up what has waited too long for an answer. Whether there
    /// was any.
    pub(super) fn retry_due(&mut self) -> bool {
        let now = Instant::now();
        let mut moved = false;
        for rank in self.connecting.clone() {
            let peer = self.peer(rank);
            match peer.state {
                State::Retry(at) if at <= now => self.begin_connect(rank),
                State::Yielded(at) if at <= now => {
                    peer.state = State::Idle;
                    self.begin_connect(rank);
                }
                State::Connecting if peer.give_up.is_some_and(|at| at <= now) => {
                    let text = format!("cannot connect to {}: no answer in {ANSWER_TIME:?}", self.name(rank));
                    self.retry_later(rank, Error::new(ErrorKind::Timeout, text));
                }
                _ => continue,
            }
            moved = true;
        }
        moved
    }

    /// When [`Self::retry_due`] has something to do.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        let due = |rank: &Rank| match self.peers.get(*rank)? {
            Peer { state: State::Retry(at) | State::Yielded(at), .. } => Some(*at),
            Peer { state: State::Connecting, give_up, .. } => *give_up,
            _ => None,
        };
        self.connecting.iter().filter_map(due).min()
    }

    /// Moves a connection that is being made.
    pub(super) fn advance_connect(&mut self, rank: Rank) {
        let Some(to) = self.addresses.get(rank).map(|a| a.identity) else { return };
        match self.greet(rank, &to) {
            Ok(None) => {}
            Ok(Some((Answer::Accepted, frames))) => {
                let socket = self.peer(rank).socket.take();
                if let Some(socket) = socket {
                    self.established(rank, socket, &handshake::handle(&to), frames);
                }
            }
            Ok(Some((Answer::Yield, _))) => {
                let peer = self.peer(rank);
                peer.socket = None;
                // It may give up its connection, or end, before that reaches us.
                peer.state = State::Yielded(Instant::now() + YIELD_TIME);
            }
            // Another process has its port now, or it is about to end.
            Ok(Some((Answer::Refused(Reason::NoContext), _))) => {
                let text = format!("{} has closed its context", self.name(rank));
                self.retry_later(rank, Error::new(ErrorKind::ConnectionLost, text));
            }
            Ok(Some((Answer::Refused(reason), _))) => {
                let why = match reason {
                    Reason::Version => "it speaks another version of the protocol",
                    Reason::Proof => "it does not believe that this rank belongs to its job",
                    Reason::Stranger => "it knows this rank by another address",
                    Reason::Over => "its context is closed, or has lost this rank already",
                    Reason::Connected => "it has a connection to this rank already",
                    Reason::NoContext | Reason::OneToken => "it does not know this context",
                };
                let text = format!("{} refused the connection: {why}", self.name(rank));
                self.lose(rank, Error::new(ErrorKind::ConnectionLost, text));
            }
            Err(error) if error.kind() == ErrorKind::Mismatch => self.lose(rank, error),
            Err(error) => self.retry_later(rank, error),
        }
    }

    /// Goes on with the handshake to `rank`, whose context is `to`: the answer and the number for frames, once it is over.
    fn greet(&mut self, rank: Rank, to: &Identity) -> Result<Option<(Answer, u32)>> {
        let name = self.name(rank);
        let failed = |e: &io::Error| Error::io(format_args!("cannot connect to {name}"), e);
        if matches!(self.peer(rank).state, State::Connecting) && !self.say_hello(rank, to).map_err(|e| failed(&e))? {
            return Ok(None);
        }
        let peer = self.peer(rank);
        let (State::Greeting(connector), Some(socket)) = (&mut peer.state, &peer.socket) else { return Ok(None) };
        let fd = socket.as_raw_fd();
        loop {
            let mut bytes = [0; CHALLENGE_BYTES];
            let wanted = connector.wanted();
            let n = match sys::receive(fd, &mut [IoSliceMut::new(&mut bytes[..wanted])]) {
                // Not a refusal: whoever is short of descriptors, or ends, does the same.
                Ok(0) => return Err(Error::new(ErrorKind::Io, format!("{name} closed the connection unanswered"))),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(failed(&e)),
            };
            match connector.take(&bytes[..n]) {
                Ok(Connecting::Waiting) => {}
                Ok(Connecting::Send(proof)) => {
                    sys::send(fd, &[IoSlice::new(&proof)]).map_err(|e| failed(&e))?;
                }
                Ok(Connecting::Done(answer, frames)) => return Ok(Some((answer, frames))),
                Err(fault) => {
                    let _ = sys::send(fd, &[IoSlice::new(&NO_PROOF)]);
                    return Err(Error::new(ErrorKind::Mismatch, format!("cannot connect to {name}: {fault}")));
                }
            }
        }
    }

    /// Sends the hello once the system has connected. Whether it is out.
    fn say_hello(&mut self, rank: Rank, to: &Identity) -> io::Result<bool> {
        let (own, own_rank, key) = (self.handle(), self.rank as u32, handshake::key(&self.token, to));
        let epoll = self.epoll.clone();
        let peer = self.peer(rank);
        let Some(socket) = &peer.socket else { return Ok(false) };
        let fd = socket.as_raw_fd();
        if let Some(e) = socket2::SockRef::from(socket).take_error()? {
            return Err(e);
        }
        let nonce = sys::random()?;
        let hello = Hello { has_token: key.has_token(), rank: own_rank, to: handshake::handle(to), from: own, nonce };
        let connector = Connector::new(key, &hello);
        match sys::send(fd, &[IoSlice::new(connector.hello())]) {
            Ok(n) if n == connector.hello().len() => {}
            Ok(_) => return Err(io::Error::other("the system did not take the hello")),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOTCONN)) => return Ok(false),
            Err(e) => return Err(e),
        }
        let _ = epoll.modify(fd, sys::READ, rank as u64);
        peer.state = State::Greeting(Box::new(connector));
        Ok(true)
    }

    pub(super) fn established(&mut self, rank: Rank, socket: OwnedFd, theirs: &Handle, frames: u32) {
        let fd = socket.as_raw_fd();
        // A host that is lost without a word is noticed even by who waits longer than that, and firewalls do not forget us.
        let _ = socket2::SockRef::from(&socket).set_tcp_keepalive(&KEEPALIVE);
        self.connecting.retain(|r| *r != rank);
        if self.epoll.modify(fd, sys::READ, rank as u64).is_err()
            && let Err(e) = self.epoll.add(fd, sys::READ, rank as u64)
        {
            let error = Error::io(format_args!("cannot watch the connection to {}", self.name(rank)), &e);
            self.lose(rank, error);
            return;
        }
        if self.shares_host(rank) == Some(true) {
            // If the system refuses, its own choice stays.
            let _ = socket2::SockRef::from(&socket).set_send_buffer_size(LOCAL_SEND_BUFFER);
        }
        let peer = self.peer(rank);
        peer.establish(socket, theirs, frames);
        self.links.push(rank);
        self.mark_dirty(rank);
        self.log(3, &format!("rank {}: connected to {}", self.rank, self.name(rank)));
    }

    /// A peer has connected to the device, asked for this context, and proven that it belongs to it.
    pub fn accept(&mut self, socket: OwnedFd, proven: &Proven) {
        if sys::has_ended(socket.as_raw_fd()) {
            // It waited in the system's queue until the peer gave it up: not the end of a connection.
            return;
        }
        let rank = proven.rank as usize;
        let stranger = |a: &Address| handshake::handle(&a.identity) != proven.from;
        let answer = if rank >= self.size || rank == self.rank {
            Answer::Refused(Reason::Stranger)
        } else if self.closed.is_some() {
            Answer::Refused(Reason::Over)
        } else if self.addresses.get(rank).is_some_and(stranger) {
            self.log(1, &format!("rank {}: refused a stranger that says it is rank {rank}", self.rank));
            Answer::Refused(Reason::Stranger)
        } else {
            let ours_is_kept = self.rank < rank;
            match self.peer(rank).state {
                State::Connecting | State::Greeting(_) if ours_is_kept => Answer::Yield,
                State::Established => Answer::Refused(Reason::Connected),
                State::Closed(_) => Answer::Refused(Reason::Over),
                _ => Answer::Accepted,
            }
        };
        if let Some(notice) = self.notice.clone().filter(|_| rank < self.size) {
            return self.tell_latecomer(socket, proven, &notice);
        }
        // It fits into the buffer of a socket whose peer has just read all that was sent.
        let sent = sys::send(socket.as_raw_fd(), &[IoSlice::new(&answer.encode())]);
        if answer == Answer::Accepted && matches!(sent, Ok(ANSWER_BYTES)) {
            self.peer(rank).socket = None;
            self.established(rank, socket, &proven.from, proven.frames);
        }
    }

    /// The connection to `rank` is over: everything that depends on it fails with `error`.
    pub(super) fn lose(&mut self, rank: Rank, error: Error) {
        if matches!(self.peer(rank).state, State::Closed(_)) {
            return;
        }
        self.log(2, &format!("rank {}: {error}", self.rank));
        self.links.retain(|r| *r != rank);
        self.connecting.retain(|r| *r != rank);
        self.paused.retain(|r| *r != rank);
        let peer = self.peer(rank);
        peer.state = State::Closed(error.clone());
        let dropped = peer.reset();
        self.outgoing -= dropped.len();
        let mut tokens: Vec<Token> = dropped.into_iter().filter(|out| out.report).filter_map(|out| out.token).collect();
        let peers = &self.peers;
        let closed = |r: Rank| matches!(peers.get(r), Some(Peer { state: State::Closed(_), .. }));
        tokens.extend(self.receives.lose(rank, closed));
        let held: Vec<u32> = self.held_sends.iter().filter(|(_, h)| h.send.to == rank).map(|(i, _)| i).collect();
        for index in held {
            if let Some(Held { send, .. }) = self.held_sends.remove(index) {
                self.held.remove(Key::new(rank, send.space, send.slot), index);
                self.outgoing -= 1;
                tokens.push(send.token);
            }
        }
        let requests: Vec<u32> = self.requests.iter().filter(|(_, r)| r.rank == rank).map(|(i, _)| i).collect();
        for index in requests {
            tokens.extend(self.requests.remove(index).filter(|r| !r.cancelled).map(|r| r.token));
        }
        tokens.extend(self.bindings.iter().filter(|(key, _)| key.rank() == rank).map(|(_, b)| b.token));
        for token in tokens {
            self.event(token, Outcome::Failed(error.clone()));
        }
    }

    pub(super) fn broke_while(&self, rank: Rank, doing: &str, e: &io::Error) -> Error {
        let text = format!("the connection to {} broke while {doing}: {e}", self.name(rank));
        Error::new(ErrorKind::ConnectionLost, text)
    }
}
