//! A TCP connection as a [`Link`].

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::device::Shared;
use crate::sys::{self, Epoll};
use crate::transport::{Interest, Link};
use crate::types::Rank;

/// A connection to one peer. The connector's epoll instance watches its socket, with the peer's rank as data.
pub struct TcpLink {
    socket: OwnedFd,
    rank: Rank,
    epoll: Epoll,
    watched: Interest,
    shared: Arc<Shared>,
}

impl TcpLink {
    /// A link for a non-blocking socket. `epoll` watches it already, or starts to.
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
            // Remove the socket: with empty interest, epoll would still report a broken connection, and wake the poller
            // repeatedly.
            (_, Interest { readable: false, writable: false }) => self.epoll.remove(fd),
            (Interest { readable: false, writable: false }, _) => self.epoll.add(fd, bits, number),
            _ => self.epoll.modify(fd, bits, number),
        }
    }

    fn end(self: Box<Self>, close_notice: Vec<u8>) {
        let _ = self.epoll.remove(self.socket.as_raw_fd());
        self.shared.linger(ClosingSocket { socket: self.socket, notice: close_notice });
    }
}

/// A socket that is being closed, and the rest of the close notice.
#[derive(Debug)]
pub(super) struct ClosingSocket {
    pub(super) socket: OwnedFd,
    pub(super) notice: Vec<u8>,
}

impl ClosingSocket {
    /// Sends as much of the notice as possible without blocking, and after it shuts down the sending direction. Returns
    /// whether that is done.
    pub(super) fn send_notice(&mut self) -> bool {
        while !self.notice.is_empty() {
            match sys::send(self.socket.as_raw_fd(), &[IoSlice::new(&self.notice)]) {
                Ok(n) => drop(self.notice.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => self.notice.clear(),
            }
        }
        let _ = socket2::SockRef::from(&self.socket).shutdown(std::net::Shutdown::Write);
        true
    }

    /// Continues; returns whether the socket must stay open: until the peer's kernel has acknowledged everything, or
    /// until `until`. Closing a socket with unread bytes discards what the peer has not acknowledged; acknowledged data
    /// remains readable there.
    pub(super) fn linger(&mut self, until: Instant) -> bool {
        let sent = self.send_notice();
        let fd = self.socket.as_raw_fd();
        let mut staging = [0; 4096];
        loop {
            match sys::receive(fd, &mut [IoSliceMut::new(&mut staging)]) {
                // The peer has ended the stream, too, or the connection broke.
                Ok(0) => return false,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        Instant::now() < until && (!sent || sys::unacknowledged(fd).is_ok_and(|bytes| bytes > 0))
    }
}
