//! How connections begin and end.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use socket2::{Domain, Protocol, Socket, Type};

use super::Held;
use super::{Endpoint, FIRST_RETRY, LAST_RETRY, LOCAL_SEND_BUFFER, PATIENCE};
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use crate::transport::frame::{Header, Kind, MAX_ABORT_BYTES};
use crate::transport::matching::Key;
use crate::transport::tcp::address::{Hello, Identity, Reply};
use crate::transport::tcp::connection::{Peer, State};
use crate::transport::{Outcome, Token, Transport};
use crate::types::Rank;

impl Endpoint {
    pub(super) fn begin_connect(&mut self, rank: Rank) {
        let Some(address) = self.addresses[rank].clone() else { return };
        if !matches!(self.peer(rank).state, State::Idle | State::Retry(_)) {
            return;
        }
        let attempt = (|| {
            let domain = Domain::for_address(address.socket);
            let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
            socket.set_tcp_nodelay(true)?;
            // Leave from the address that we are known by, where the peer's is of the same family.
            if self.local.socket.is_ipv4() == address.socket.is_ipv4() {
                let mut from = self.local.socket;
                from.set_port(0);
                socket.bind(&from.into())?;
            }
            match socket.connect(&address.socket.into()) {
                Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
                _ => {}
            }
            self.epoll.add(socket.as_raw_fd(), sys::READ | sys::WRITE, rank as u64)?;
            Ok(OwnedFd::from(socket))
        })();
        match attempt {
            Ok(socket) => {
                let peer = self.peer(rank);
                peer.socket = Some(socket);
                peer.state = State::Connecting;
                if !self.connecting.contains(&rank) {
                    self.connecting.push(rank);
                }
            }
            Err(e) => self.retry_later(rank, Error::io(format_args!("cannot connect to {}", self.name(rank)), &e)),
        }
    }

    pub(super) fn retry_later(&mut self, rank: Rank, error: Error) {
        let peer = self.peer(rank);
        // It listened before anyone was told its address: where its host answers and it does not, it is gone.
        if error.kind() == ErrorKind::ConnectionLost {
            let since = *peer.refused_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= PATIENCE {
                let text = format!("{} is gone: {error} ({} attempts)", self.name(rank), self.peer(rank).attempts + 1);
                return self.lose(rank, Error::new(ErrorKind::ConnectionLost, text));
            }
        } else {
            peer.refused_since = None;
        }
        let wait = FIRST_RETRY.saturating_mul(1 << peer.attempts.min(10)).min(LAST_RETRY);
        peer.attempts += 1;
        peer.last_error = Some(error);
        peer.socket = None;
        peer.state = State::Retry(Instant::now() + wait);
        if !self.connecting.contains(&rank) {
            self.connecting.push(rank);
        }
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
