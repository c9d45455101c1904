//! A TCP connection as a [`Link`].

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use super::device::Shared;
use super::held::{Held, Holding, Holds};
use crate::net::stream::Stream;
use crate::sys::{self, AsRaw, Poller, Registration};
use crate::transport::{Interest, Lingering, Link};
use crate::types::Rank;

/// A connection to one peer. The connector's poller watches its socket, with the peer's rank as number.
pub struct TcpLink {
    /// `None` while the poller watches for nothing.
    registration: Option<Registration>,
    stream: Stream,
    rank: Rank,
    poller: Poller,
    watched: Interest,
    /// What the poller watches for.
    bits: u32,
    shared: Arc<Shared>,
    holding: Holding,
}

impl TcpLink {
    /// A link over a stream, whose socket `poller` watches already, by `registration`, or starts to.
    pub(super) fn new(
        registration: Option<Registration>,
        stream: Stream,
        rank: Rank,
        poller: Poller,
        shared: Arc<Shared>,
        held: Option<Arc<Held>>,
    ) -> io::Result<Self> {
        let registration = match registration {
            Some(registration) => registration.set(sys::READ, rank as u64).map(|()| registration),
            None => poller.add(&stream, sys::READ, rank as u64),
        }?;
        let watched = Interest { readable: true, writable: false };
        let holding = Holding::new(held, rank);
        let registration = Some(registration);
        let mut link = Self { registration, stream, rank, poller, watched, bits: sys::READ, shared, holding };
        link.note();
        Ok(link)
    }

    /// Says what the link holds, if that has changed.
    #[inline]
    fn note(&mut self) {
        if self.holding.may_hold() {
            let received = self.watched.readable && self.stream.has_received();
            if self.holding.set(Holds { received, unsent: self.stream.has_unsent() }) {
                // If this fails, so does what is sent or received next.
                let _ = self.arm();
            }
        }
    }

    /// Lets the poller watch for what is wanted now.
    fn arm(&mut self) -> io::Result<()> {
        let bit = |wanted: bool, bit: u32| if wanted { bit } else { 0 };
        let writable = self.watched.writable || self.holding.holds().unsent;
        let bits = bit(self.watched.readable, sys::READ) | bit(writable, sys::WRITE);
        if std::mem::replace(&mut self.bits, bits) == bits {
            return Ok(());
        }
        let number = self.rank as u64;
        match &self.registration {
            // Without a registration: with empty interest, epoll would still report a broken connection, and wake its user repeatedly.
            _ if bits == 0 => {
                self.registration.take().into_iter().for_each(Registration::end);
                Ok(())
            }
            Some(registration) => registration.set(bits, number),
            None => self.poller.add(&self.stream, bits, number).map(|new| self.registration = Some(new)),
        }
    }
}

impl Link for TcpLink {
    #[inline]
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let sent = self.stream.send(parts);
        self.note();
        sent
    }

    #[inline]
    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let received = self.stream.receive(parts);
        self.note();
        received
    }

    fn flush(&mut self) {
        // An error is found again by what is sent or received next.
        let _ = self.stream.flush();
        self.note();
    }

    fn watch(&mut self, interest: Interest) -> io::Result<()> {
        self.watched = interest;
        self.note();
        self.arm()
    }

    fn end(self: Box<Self>, mut rest: Vec<u8>, close_notice: Vec<u8>) {
        let Self { registration, stream, shared, .. } = *self;
        registration.into_iter().for_each(Registration::end);
        rest.extend(close_notice);
        shared.linger(ClosingSocket::new(stream, rest));
    }
}

/// A socket that is being closed, and the rest of the close notice.
pub(super) struct ClosingSocket {
    stream: Stream,
    notice: Vec<u8>,
    closed: bool,
}

impl ClosingSocket {
    pub(super) fn new(stream: Stream, notice: Vec<u8>) -> Self {
        Self { stream, notice, closed: false }
    }

    /// Sends as much of the notice as possible without blocking, and after it shuts down the sending direction. Returns
    /// whether that is done.
    pub(super) fn send_notice(&mut self) -> bool {
        while !self.notice.is_empty() {
            match self.stream.send(&[IoSlice::new(&self.notice)]) {
                Ok(n) => drop(self.notice.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => self.notice.clear(),
            }
        }
        if !std::mem::replace(&mut self.closed, true) {
            self.stream.close();
        }
        if let Ok(false) = self.stream.flush() {
            return false;
        }
        let _ = socket2::SockRef::from(self.stream.socket()).shutdown(std::net::Shutdown::Write);
        true
    }
}

impl Lingering for ClosingSocket {
    /// Until the peer's kernel has acknowledged everything. Closing a socket with unread bytes discards what the peer has not acknowledged; acknowledged data
    /// remains readable there.
    fn linger(&mut self) -> bool {
        let sent = self.send_notice();
        let fd = self.stream.raw();
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
        !sent || sys::unacknowledged(fd).is_ok_and(|bytes| bytes > 0)
    }
}
