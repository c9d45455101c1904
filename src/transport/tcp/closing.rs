//! What a link of TCP connections leaves behind when it ends.

use std::io::{self, IoSlice, IoSliceMut};

use super::streams::{Connection, Streams};
use crate::sys::{self, AsRaw};
use crate::transport::DrainingLink;

/// The maximum number of reads of a connection that is being closed before it is another one's turn.
pub(super) const CLOSING_READS: usize = 64;

/// A link that is being closed, and the rest of the close notice.
pub(super) struct ClosingLink {
    streams: Streams,
    notice: Vec<u8>,
    closed: bool,
}

impl ClosingLink {
    pub(super) fn new(streams: Streams, notice: Vec<u8>) -> Self {
        Self { streams, notice, closed: false }
    }

    /// Sends as much of the notice as possible without blocking, and after it shuts down the sending direction. Returns
    /// whether that is done.
    pub(super) fn send_notice(&mut self) -> bool {
        while !self.notice.is_empty() {
            match self.streams.send(&[IoSlice::new(&self.notice)]) {
                Ok(n) => drop(self.notice.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => self.notice.clear(),
            }
        }
        if !std::mem::replace(&mut self.closed, true) {
            self.streams.close();
        }
        if let Ok(false) = self.streams.flush() {
            return false;
        }
        for stream in self.streams.all().iter().filter_map(Connection::own) {
            let _ = socket2::SockRef::from(stream.socket()).shutdown(std::net::Shutdown::Write);
        }
        true
    }
}

impl DrainingLink for ClosingLink {
    /// Until the peer's kernel has acknowledged everything. Closing a socket with unread bytes discards what the peer
    /// has not acknowledged; acknowledged data remains readable there.
    fn linger(&mut self) -> bool {
        let sent = self.send_notice();
        let mut staging = [0; 4096];
        let mut acknowledged = true;
        for stream in self.streams.all().iter().filter_map(Connection::own) {
            let fd = stream.raw();
            for _ in 0..CLOSING_READS {
                match sys::receive(fd, &mut [IoSliceMut::new(&mut staging)]) {
                    // The peer has ended the link, too, or the connection broke.
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => return false,
                }
            }
            acknowledged &= !sys::unacknowledged(fd).is_ok_and(|bytes| bytes > 0);
        }
        !sent || !acknowledged
    }
}
