//! The server's end of one connection: buffers and non-blocking I/O.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::time::Instant;

use super::frame::MAX_FRAME_BYTES;
use super::protocol::{self, Chunk};
use crate::error::{Error, ErrorKind};
use crate::net::stream::Stream;
use crate::sys::poller::{BROKEN, HANGUP, PEER_ENDED};
use crate::sys::{self, Registration};

/// The connection has ended, is broken, or its peer violates the protocol.
pub(super) struct Gone;

/// A request that cannot be answered yet.
pub(super) struct Waiting {
    pub(super) keys: Vec<String>,
    /// Position of the key for which the client is registered; it had no value when last checked.
    pub(super) at: usize,
    /// Whether the reply contains the values.
    pub(super) values: bool,
    pub(super) until: Option<Instant>,
}

/// Events to watch for while the client may send. Errors are reported in any case.
pub(super) const READ: u32 = sys::READ | PEER_ENDED;
/// Events that report that the peer sends no more, or that the connection broke.
pub(super) const GONE: u32 = PEER_ENDED | BROKEN | HANGUP;

pub(super) struct Peer {
    pub(super) registration: Registration,
    pub(super) stream: Stream,
    /// Received bytes that have not been processed. Grows only with the bytes received, to one frame and one read at
    /// most.
    pub(super) input: Vec<u8>,
    /// Bytes to come of a request for which there is no memory.
    discards: usize,
    output: VecDeque<Chunk>,
    /// Number of bytes of the first chunk that have been sent.
    sent: usize,
    pub(super) waiting: Option<Waiting>,
    /// Keys and values that are taken back if the connection ends while ranks gather.
    pub(super) claims: Vec<(String, Vec<u8>)>,
    /// When the wait ends or, without a wait, when the connection is dropped because it makes no progress.
    pub(super) deadline: Option<Instant>,
    /// Events that the poller watches for.
    pub(super) interest: u32,
}

impl Peer {
    /// `stream` must be non-blocking, and watched for [`READ`].
    pub(super) fn new(registration: Registration, stream: Stream) -> Self {
        Self {
            registration,
            stream,
            input: Vec::new(),
            discards: 0,
            output: VecDeque::new(),
            sent: 0,
            waiting: None,
            claims: Vec::new(),
            deadline: None,
            interest: READ,
        }
    }

    /// Whether the client may send. The server processes one request at a time, which bounds the memory that a client
    /// can make it use.
    pub(super) fn may_ask(&self) -> bool {
        self.waiting.is_none() && self.output.is_empty()
    }

    /// The events that the poller should watch for.
    pub(super) fn wanted(&mut self) -> u32 {
        let bit = |wanted: bool, bit: u32| if wanted { bit } else { 0 };
        PEER_ENDED
            | bit(self.may_ask(), sys::READ)
            | bit(!self.output.is_empty() || self.stream.has_unsent(), sys::WRITE)
    }

    /// Whether the client has sent only a part of a request, or has not read all of a reply.
    pub(super) fn is_in_the_middle(&self) -> bool {
        !self.input.is_empty() || self.discards > 0 || !self.output.is_empty()
    }

    /// Reads once per call, so that one client does not block the others.
    pub(super) fn fill(&mut self, scratch: &mut [u8]) -> Result<(), Gone> {
        match self.stream.receive(&mut [IoSliceMut::new(scratch)]) {
            Ok(0) => Err(Gone),
            Ok(count) => self.take_in(&scratch[..count]),
            Err(error) => pass_or_gone(&error),
        }
    }

    /// Stores received bytes. A request for which there is no memory is read to its end and refused, so that its client
    /// hears why.
    fn take_in(&mut self, mut bytes: &[u8]) -> Result<(), Gone> {
        if self.discards == 0 && self.input.try_reserve(bytes.len()).is_err() {
            let mut head = [0; 4];
            let received = self.input.iter().chain(bytes);
            head.iter_mut().zip(received).for_each(|(into, byte)| *into = *byte);
            let frame = 4 + u32::from_le_bytes(head) as usize;
            let rest = frame.checked_sub(self.input.len()).filter(|_| frame <= 4 + MAX_FRAME_BYTES);
            self.discards = rest.ok_or(Gone)?;
            self.input = Vec::new();
        }
        if self.discards > 0 {
            let (discarded, rest) = bytes.split_at(bytes.len().min(self.discards));
            (self.discards, bytes) = (self.discards - discarded.len(), rest);
            if self.discards == 0 {
                self.refuse(&Error::new(ErrorKind::ResourceExhausted, "no memory for this request"));
            }
        }
        self.input.try_reserve(bytes.len()).map_err(|_| Gone)?;
        self.input.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes as much as the socket accepts.
    pub(super) fn flush(&mut self) -> Result<(), Gone> {
        while let Some(chunk) = self.output.front() {
            match self.stream.send(&[IoSlice::new(&chunk.bytes()[self.sent..])]) {
                Ok(0) => return Err(Gone),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return pass_or_gone(&error),
            }
            if self.sent == chunk.bytes().len() {
                self.output.pop_front();
                self.sent = 0;
            }
        }
        self.output = VecDeque::new();
        self.stream.flush().map(drop).or_else(|error| pass_or_gone(&error))
    }

    /// Queues the reply to a request that failed.
    pub(super) fn refuse(&mut self, error: &Error) {
        let error = if error.kind() == ErrorKind::ResourceExhausted { &error.context("the server") } else { error };
        self.answer([Chunk::Own(protocol::reply_refused(error))]);
    }

    /// Queues a reply; no chunk may be empty. Takes no more memory for a long list if none is queued, as after each
    /// request.
    pub(super) fn answer(&mut self, chunks: impl Into<VecDeque<Chunk>>) {
        let chunks = chunks.into();
        if self.output.is_empty() {
            self.output = chunks;
        } else {
            self.output.extend(chunks);
        }
    }
}

impl Drop for Peer {
    /// Whatever the reason, the server sends no more: with TLS, the client can tell that nobody else has cut the
    /// connection.
    fn drop(&mut self) {
        self.stream.close();
        let _ = self.stream.flush();
    }
}

fn pass_or_gone(error: &io::Error) -> Result<(), Gone> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(Gone),
    }
}
