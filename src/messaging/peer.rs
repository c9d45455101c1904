//! The state of one peer: its link, its send queue, and the progress of the message that is being received.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use crate::error::Error;
use crate::messaging::inbox::{Incoming, Reading};
use crate::messaging::matching::EAGER_BYTES;
use crate::messaging::operation::Token;
use crate::messaging::send_queue::{RESERVED_ENTRIES, SendQueue, Sent};
use crate::transport::{Link, OneSided, Placement, RemoteMemory};
use crate::wire::header::HEADER_BYTES;

/// A query to a peer.
#[derive(Debug)]
pub struct Query {
    /// When it was sent.
    pub since: Instant,
    /// The peer's reply.
    pub reply: Option<Reply>,
}

/// See [`Message::Reply`](crate::wire::Message::Reply).
#[derive(Debug)]
pub struct Reply {
    /// What the peer does.
    pub text: String,
    /// Whether a collective there waits for other ranks.
    pub waiting: bool,
    /// The fingerprint of its call in place of the one that was asked for; 0 if there is none.
    pub instead: u64,
}

/// How the bytes of a large message reach the receiver, which depends on the link.
#[derive(Clone, Copy, Default)]
pub enum Way {
    /// The receiver grants the message, and the sender sends it.
    #[default]
    Send,
    /// The receiver reads messages longer than this out of the sender's memory.
    Read(usize),
    /// The sender's link places messages longer than this in memory that the receiver has exposed.
    Place(usize),
}

/// Bytes that were exchanged with one peer: all of the links' streams, and what links read, or place, apart from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that links have taken from this rank.
    pub sent: u64,
    /// Bytes that have arrived here.
    pub received: u64,
}

impl Traffic {
    /// Adds bytes that links read or place, `to_here` or from here. A peer may claim any number.
    pub fn add(&mut self, to_here: bool, bytes: u64) {
        let direction = if to_here { &mut self.received } else { &mut self.sent };
        *direction = direction.wrapping_add(bytes);
    }
}

/// The state of one peer.
#[derive(Default)]
pub struct Peer {
    /// The link, while established.
    pub link: Option<Box<dyn Link>>,
    way: Way,
    /// What waits to be sent.
    pub queue: SendQueue,
    /// What was exchanged over all links to the peer.
    pub traffic: Traffic,
    /// Messages whose memory the link accesses under a ticket.
    pub accesses: usize,
    /// The error, if it is disconnected.
    pub disconnected: Option<Error>,
    /// The peer has sent a goodbye.
    pub goodbye: bool,
    /// The error of a failed send. The system reports it only once; a read might find only the end of the stream.
    pub send_error: Option<Error>,
    /// The last query to it.
    pub query: Option<Query>,
    /// Whether the link is watched for writability.
    pub awaits_room: bool,
    /// In the list of ranks to flush.
    pub dirty: bool,
    partial: PartialHeader,
    /// The message that is being received.
    pub incoming: Option<Incoming>,
    /// Offered messages that are being read.
    pub readings: VecDeque<Reading>,
}

/// A partly received header.
struct PartialHeader {
    bytes: [u8; HEADER_BYTES],
    have: usize,
}

impl Default for PartialHeader {
    fn default() -> Self {
        Self { bytes: [0; HEADER_BYTES], have: 0 }
    }
}

impl Peer {
    pub fn is_established(&self) -> bool {
        self.link.is_some()
    }

    pub fn has_output(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether a message can be sent at once.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.link.is_some() && !self.has_output()
    }

    /// Length of the longest message that is sent without a grant or offer.
    #[inline]
    pub fn eager_bytes(&self) -> usize {
        match self.way {
            Way::Send => EAGER_BYTES,
            Way::Read(above) | Way::Place(above) => above,
        }
    }

    /// Whether longer messages are placed in the receiver's memory.
    pub fn places(&self) -> bool {
        matches!(self.way, Way::Place(_))
    }

    /// Whether longer messages are offered.
    pub fn reads(&self) -> bool {
        matches!(self.way, Way::Read(_))
    }

    /// The link's ability to place messages, if it has it.
    pub fn placement(&mut self) -> Option<&mut dyn Placement> {
        self.link.as_deref_mut()?.placement()
    }

    /// The peer does not place a message in the memory exposed under `key` any more.
    pub fn withdraw(&mut self, key: u32) {
        if let Some(placement) = self.placement() {
            placement.withdraw(key, true);
        }
    }

    /// The link's access to the peer's memory, if it has it.
    pub fn one_sided(&mut self) -> Option<&mut dyn OneSided> {
        self.link.as_deref_mut()?.one_sided()
    }

    /// Takes the ticket of a message that has been placed.
    pub fn take_finished(&mut self) -> Option<u32> {
        let ticket = self.placement()?.finished()?;
        self.accesses = self.accesses.saturating_sub(1);
        Some(ticket)
    }

    /// The message of `ticket` is cancelled: its memory is not accessed any more, but its header is sent. `finished`:
    /// the link has returned the ticket.
    pub fn cancel_access(&mut self, ticket: u32, finished: bool) {
        self.queue.forget_ticket(ticket);
        if !finished && let Some(placement) = self.placement() {
            placement.cancel(ticket);
            self.accesses -= 1;
        }
    }

    /// Access to the peer's memory, if the link supports it.
    pub fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        self.link.as_deref_mut()?.remote_memory()
    }

    /// Messages whose payload is being received or read.
    pub fn arriving(&self) -> impl Iterator<Item = &Incoming> {
        self.incoming.iter().chain(self.readings.iter().map(|reading| &reading.incoming))
    }

    /// The link is established.
    pub fn establish(&mut self, mut link: Box<dyn Link>, connection: u32) {
        if let Some(memory) = link.remote_memory() {
            self.way = Way::Read(memory.eager_bytes());
            self.readings.reserve(RESERVED_ENTRIES);
        } else if let Some(placement) = link.placement() {
            self.way = Way::Place(placement.eager_bytes());
            self.queue.unreported.reserve(RESERVED_ENTRIES);
        }
        // The headers can only be grants: a link that reads memory needs none, and on one that places messages they are
        // given anew.
        self.queue.establish(connection, !matches!(self.way, Way::Send));
        self.link = Some(link);
    }

    /// Drops what has been received of an incomplete header or message.
    pub fn begin_anew(&mut self) {
        self.partial.have = 0;
        self.incoming = None;
    }

    /// Takes header bytes from the front of `bytes`; returns the header when it is complete.
    #[inline]
    pub fn take_header(&mut self, bytes: &mut &[u8]) -> Option<[u8; HEADER_BYTES]> {
        let partial = &mut self.partial;
        let n = bytes.len().min(HEADER_BYTES - partial.have);
        partial.bytes[partial.have..partial.have + n].copy_from_slice(&bytes[..n]);
        partial.have += n;
        *bytes = &bytes[n..];
        (partial.have == HEADER_BYTES).then(|| {
            partial.have = 0;
            partial.bytes
        })
    }

    /// Sends until the queue is empty or the link is full, and appends to `sent`. Returns whether anything was sent.
    pub fn flush(&mut self, sent: &mut Vec<Sent>) -> io::Result<bool> {
        let Some(link) = self.link.as_deref_mut() else { return Ok(false) };
        self.queue.flush(link, sent, &mut self.traffic.sent)
    }

    /// Disconnects the peer with `error`. Returns the number of unsent messages, and the tokens to report.
    pub fn end(&mut self, error: Error) -> (usize, Vec<Token>) {
        let (unsent, tokens) = (self.queue.len(), self.queue.tokens());
        let Self { goodbye, traffic, .. } = *self;
        *self = Self { disconnected: Some(error), goodbye, traffic, ..Self::default() };
        (unsent, tokens)
    }
}
