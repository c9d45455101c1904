//! How connections begin and end.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::Held;
use super::{Endpoint, FIRST_RETRY, LAST_RETRY, PATIENCE};
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use crate::transport::frame::{Header, Kind, MAX_ABORT_BYTES};
use crate::transport::matching::Key;
use crate::transport::tcp::address::{Hello, Identity, Reply};
use crate::transport::tcp::connection::{Peer, State};
use crate::transport::{Outcome, Token};
use crate::types::Rank;

/// How long one of several addresses may leave an attempt to connect unanswered.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// An idle connection whose peer's host does not answer breaks after a minute. Processes that are busy or stopped do not
/// matter: it is the system that answers.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10)).with_retries(3);

impl Endpoint {
    pub(super) fn begin_connect(&mut self, rank: Rank) {
        if self.addresses[rank].is_none() || !matches!(self.peer(rank).state, State::Idle | State::Retry(_)) {
            return;
        }
        let Some(to) = self.target(rank) else {
            let theirs = self.addresses[rank].as_ref().map(|a| &a.sockets[..]).unwrap_or_default();
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
        self.addresses[rank].as_ref().map(|a| a.ways_from(&self.local)).unwrap_or_default()
    }

    /// The address of `rank` that is connected to, is being tried, or comes next.
    pub(super) fn target(&self, rank: Rank) -> Option<SocketAddr> {
        let ways = self.ways(rank);
        let way = self.peers[rank].as_deref().map_or(0, |p| p.way);
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
        let due = |rank: &Rank| match self.peers[*rank].as_deref()? {
            Peer { state: State::Retry(at), .. } => Some(*at),
            Peer { state: State::Connecting, give_up, .. } => *give_up,
            _ => None,
        };
        self.connecting.iter().filter_map(due).min()
    }

    /// Moves a connection that is being made.
    pub(super) fn advance_connect(&mut self, rank: Rank) {
        let name = self.name(rank);
        let hello = Hello { to: [0; 16], from: self.local.identity, rank: self.rank as u32 };
        let Some(to) = self.addresses[rank].as_ref().map(|a| a.identity) else { return };
        let epoll = self.epoll.clone();
        let peer = self.peer(rank);
        let outcome = (|| -> Result<Option<Reply>> {
            let Some(socket) = &peer.socket else { return Ok(None) };
            let fd = socket.as_raw_fd();
            let failed = |e: &io::Error| Error::io(format_args!("cannot connect to {name}"), e);
            if matches!(peer.state, State::Connecting) {
                let socket = socket2::SockRef::from(socket);
                if let Some(e) = socket.take_error().map_err(|e| failed(&e))? {
                    return Err(failed(&e));
                }
                match sys::send(fd, &[io::IoSlice::new(&Hello { to, ..hello }.encode())]) {
                    Ok(Hello::BYTES) => {}
                    Ok(_) => return Err(Error::new(ErrorKind::Io, format!("cannot send a hello to {name}"))),
                    Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOTCONN)) => return Ok(None),
                    Err(e) => return Err(failed(&e)),
                }
                let _ = epoll.modify(fd, sys::READ, rank as u64);
                peer.state = State::Greeting { reply: Vec::with_capacity(Reply::BYTES) };
            }
            let State::Greeting { reply } = &mut peer.state else { return Ok(None) };
            let mut bytes = [0; Reply::BYTES];
            let rest = &mut bytes[reply.len()..];
            match sys::receive(fd, &mut [IoSliceMut::new(rest)]) {
                Ok(0) => Err(Error::new(ErrorKind::ConnectionLost, format!("{name} closed the connection unanswered"))),
                Ok(n) => {
                    let at = reply.len();
                    reply.extend_from_slice(&bytes[at..at + n]);
                    let Ok(whole) = reply.as_slice().try_into() else { return Ok(None) };
                    Reply::decode(whole).map(Some).map_err(|e| e.context(&name))
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(e) => Err(failed(&e)),
            }
        })();
        match outcome {
            Ok(None) => {}
            Ok(Some(Reply::Accepted)) => {
                let socket = self.peer(rank).socket.take();
                if let Some(socket) = socket {
                    self.established(rank, socket, &to);
                }
            }
            Ok(Some(Reply::Yield)) => {
                let peer = self.peer(rank);
                peer.socket = None;
                peer.state = State::Yielded;
                self.connecting.retain(|r| *r != rank);
            }
            Ok(Some(Reply::Refused)) => {
                let error = Error::new(ErrorKind::ConnectionLost, format!("{name} refused the connection"));
                self.lose(rank, error);
            }
            Err(error) if error.kind() == ErrorKind::Mismatch => self.lose(rank, error),
            Err(error) => self.retry_later(rank, error),
        }
    }

    pub(super) fn established(&mut self, rank: Rank, socket: OwnedFd, theirs: &Identity) {
        let ours = self.local.identity;
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
        let peer = self.peer(rank);
        peer.establish(socket, &ours, theirs);
        self.links.push(rank);
        self.mark_dirty(rank);
        self.log(3, &format!("rank {}: connected to {}", self.rank, self.name(rank)));
    }

    /// A peer has connected to the device and asked for this context.
    pub fn accept(&mut self, socket: OwnedFd, hello: &Hello) {
        let rank = hello.rank as usize;
        let answer = if rank >= self.addresses.len() || rank == self.rank || self.closed.is_some() {
            Reply::Refused
        } else if self.addresses[rank].as_ref().is_some_and(|a| a.identity != hello.from) {
            self.log(1, &format!("rank {}: refused a stranger that says it is rank {rank}", self.rank));
            Reply::Refused
        } else {
            let ours_is_kept = self.rank < rank;
            match self.peer(rank).state {
                State::Connecting | State::Greeting { .. } if ours_is_kept => Reply::Yield,
                State::Established | State::Closed(_) => Reply::Refused,
                _ => Reply::Accepted,
            }
        };
        // Nine bytes fit into the buffer of a socket that nothing was sent on.
        let sent = sys::send(socket.as_raw_fd(), &[io::IoSlice::new(&answer.encode())]);
        if answer == Reply::Accepted && matches!(sent, Ok(Reply::BYTES)) {
            self.peer(rank).socket = None;
            self.established(rank, socket, &hello.from);
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
        let peer = self.peer(rank);
        peer.state = State::Closed(error.clone());
        let dropped = peer.reset();
        self.outgoing -= dropped.len();
        let mut tokens: Vec<Token> = dropped.into_iter().filter(|out| out.report).filter_map(|out| out.token).collect();
        let peers = &self.peers;
        let closed = |r: Rank| matches!(peers[r].as_deref(), Some(Peer { state: State::Closed(_), .. }));
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

    pub(super) fn io_lost(&mut self, rank: Rank, doing: &str, e: &io::Error) {
        let error = Error::new(
            ErrorKind::ConnectionLost,
            format!("the connection to {} broke while {doing}: {e}", self.name(rank)),
        );
        self.lose(rank, error);
    }

    /// Tells a peer that this is the end, as far as its socket takes it without waiting, and shuts the sending side.
    pub(super) fn say_goodbye(&mut self, rank: Rank, notice: Option<&str>) {
        self.flush_to(rank);
        let Some(peer) = self.peers[rank].as_deref_mut().filter(|p| p.is_established()) else { return };
        match notice {
            // In the middle of a message nothing else can be said. What went before must arrive all the same.
            _ if peer.has_output() => {}
            Some(reason) => {
                let mut end = reason.len().min(MAX_ABORT_BYTES);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                self.outgoing += 1;
                peer.push_data(&Header::new(Kind::Abort, 0, end as u64), reason.as_ptr(), None, false);
            }
            None => peer.push_control(&Header::new(Kind::Goodbye, 0, 0)),
        }
        self.flush_to(rank);
        let epoll = self.epoll.clone();
        let Some(peer) = self.peers[rank].as_deref_mut().filter(|p| p.is_established()) else { return };
        if let Some(socket) = peer.socket.take() {
            let _ = socket2::SockRef::from(&socket).shutdown(std::net::Shutdown::Write);
            let _ = epoll.remove(socket.as_raw_fd());
            self.retired.push(socket);
        }
    }

    /// Connections that were ended in good order: for [`super::Device::linger`].
    pub fn take_retired(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.retired)
    }
}
