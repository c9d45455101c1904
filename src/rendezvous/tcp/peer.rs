//! The server's end of one connection: buffers and non-blocking I/O.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::protocol::Chunk;
use crate::sys;

/// The connection is of no more use: it ended, broke, or its other end does not keep to the protocol.
pub(super) struct Gone;

/// A request that cannot be answered yet.
pub(super) struct Waiting {
    pub(super) keys: Vec<String>,
    /// Place of the key that the client is registered for; it had no value when last seen.
    pub(super) at: usize,
    /// Whether the answer is the values, or only that they are there.
    pub(super) values: bool,
    pub(super) until: Option<Instant>,
}

/// That the peer sends no more; epoll adds errors by itself.
const HANGUP: u32 = libc::EPOLLRDHUP as u32;
/// What epoll watches for where the client is to say something.
pub(super) const READ: u32 = sys::READ | HANGUP;
/// What epoll tells of a connection whose peer sends no more, or that broke.
pub(super) const GONE: u32 = HANGUP | (libc::EPOLLERR | libc::EPOLLHUP) as u32;

pub(super) struct Peer {
    pub(super) stream: TcpStream,
    /// What came and is not used up. Grows only with what has really come, to one frame and one read at most.
    pub(super) input: Vec<u8>,
    output: VecDeque<Chunk>,
    /// How much of the first chunk has left.
    sent: usize,
    pub(super) waiting: Option<Waiting>,
    /// When the wait is over or, without a wait, when the connection is dropped for being too slow.
    pub(super) deadline: Option<Instant>,
    /// What epoll watches for.
    pub(super) interest: u32,
}

impl Peer {
    /// `stream` is non-blocking.
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            input: Vec::new(),
            output: VecDeque::new(),
            sent: 0,
            waiting: None,
            deadline: None,
            interest: READ,
        }
    }

    /// Whether it is this client's turn to say something: one request at a time, so what a client can make the server
    /// hold is bounded.
    pub(super) fn may_ask(&self) -> bool {
        self.waiting.is_none() && self.output.is_empty()
    }

    /// What epoll is to watch for.
    pub(super) fn wanted(&self) -> u32 {
        let bit = |wanted: bool, bit: u32| if wanted { bit } else { 0 };
        HANGUP | bit(self.may_ask(), sys::READ) | bit(!self.output.is_empty(), sys::WRITE)
    }

    /// Whether the client owes the rest of a request, or has not taken its answer.
    pub(super) fn is_in_the_middle(&self) -> bool {
        !self.input.is_empty() || !self.output.is_empty()
    }

    /// Reads once, so that nobody keeps the server from the others.
    pub(super) fn fill(&mut self, scratch: &mut [u8]) -> Result<(), Gone> {
        match self.stream.read(scratch) {
            Ok(0) => Err(Gone),
            Ok(count) => {
                self.input.extend_from_slice(&scratch[..count]);
                Ok(())
            }
            Err(error) => pass_or_gone(&error),
        }
    }

    /// Writes as much as the socket takes. The standard library sends with MSG_NOSIGNAL.
    pub(super) fn flush(&mut self) -> Result<(), Gone> {
        while let Some(chunk) = self.output.front() {
            match self.stream.write(&chunk.bytes()[self.sent..]) {
                Ok(0) => return Err(Gone),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return pass_or_gone(&error),
            }
            if self.sent == chunk.bytes().len() {
                self.output.pop_front();
                self.sent = 0;
            }
        }
        self.output = VecDeque::new();
        Ok(())
    }

    /// Lines up an answer; no chunk is empty.
    pub(super) fn answer(&mut self, chunks: impl IntoIterator<Item = Chunk>) {
        self.output.extend(chunks);
    }
}

fn pass_or_gone(error: &io::Error) -> Result<(), Gone> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
        _ => Err(Gone),
    }
}
