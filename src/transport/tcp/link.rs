//! A connection as a [`Link`].

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::device::Shared;
use crate::sys::{self, Epoll};
use crate::transport::{Interest, Link, RemoteMemory};
use crate::types::Rank;

/// A connection to one peer. Its socket is watched by the connector's epoll instance, under the peer's rank.
pub struct TcpLink {
    socket: OwnedFd,
    rank: Rank,
    epoll: Epoll,
    watched: Interest,
    shared: Arc<Shared>,
}

impl TcpLink {
    /// Around a socket that is non-blocking, and not watched by `epoll` or about to be watched anew.
    pub(super) fn new(socket: OwnedFd, rank: Rank, epoll: Epoll, shared: Arc<Shared>) -> io::Result<Self> {
        let fd = socket.as_raw_fd();
        epoll.modify(fd, sys::READ, rank as u64).or_else(|_| epoll.add(fd, sys::READ, rank as u64))?;
        Ok(Self { socket, rank, epoll, watched: Interest { readable: true, writable: false }, shared })
    }
}

impl Link for TcpLink {
    #[inline]
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        sys::send(self.socket.as_raw_fd(), parts)
    }

    #[inline]
    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        sys::receive(self.socket.as_raw_fd(), parts)
    }

    fn watch(&mut self, interest: Interest) -> io::Result<()> {
        let (fd, number) = (self.socket.as_raw_fd(), self.rank as u64);
        let bit = |wanted: bool, bit: u32| if wanted { bit } else { 0 };
        let bits = bit(interest.readable, sys::READ) | bit(interest.writable, sys::WRITE);
        match (std::mem::replace(&mut self.watched, interest), interest) {
            (before, now) if before == now => Ok(()),
            // Not only without interest in it: a connection that breaks would wake whoever polls, again and again.
            (_, Interest { readable: false, writable: false }) => self.epoll.remove(fd),
            (Interest { readable: false, writable: false }, _) => self.epoll.add(fd, bits, number),
            _ => self.epoll.modify(fd, bits, number),
        }
    }

    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        None
    }

    fn end(self: Box<Self>, last_words: Vec<u8>) {
        let _ = self.epoll.remove(self.socket.as_raw_fd());
        self.shared.linger(Parting { socket: self.socket, words: last_words });
    }
}

/// A connection that has ended here, and what is still to be said on it.
#[derive(Debug)]
pub(super) struct Parting {
    pub(super) socket: OwnedFd,
    pub(super) words: Vec<u8>,
}

impl Parting {
    /// Says what the socket takes without waiting; then that nothing follows. Whether all is said.
    pub(super) fn speak(&mut self) -> bool {
        while !self.words.is_empty() {
            match sys::send(self.socket.as_raw_fd(), &[IoSlice::new(&self.words)]) {
                Ok(n) => drop(self.words.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => self.words.clear(),
            }
        }
        let _ = socket2::SockRef::from(&self.socket).shutdown(std::net::Shutdown::Write);
        true
    }

    /// Goes on; whether the connection is still to be kept: until the peer has everything, or `until`. Closing a socket that has
    /// unread bytes cuts off what the peer has not acknowledged; what it has acknowledged, it can read even then.
    pub(super) fn linger(&mut self, until: Instant) -> bool {
        let said = self.speak();
        let fd = self.socket.as_raw_fd();
        let mut staging = [0; 4096];
        loop {
            match sys::receive(fd, &mut [IoSliceMut::new(&mut staging)]) {
                // The peer has ended it too, or it broke.
                Ok(0) => return false,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        Instant::now() < until && (!said || sys::unacknowledged(fd).is_ok_and(|bytes| bytes > 0))
    }
}
