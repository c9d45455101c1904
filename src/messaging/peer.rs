//! The state of one peer: its link, send queue, and the progress of the message that is being received.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::messaging::inbox::Incoming;
use crate::messaging::matching::EAGER_BYTES;
use crate::messaging::offers::Reading;
use crate::messaging::operation::{Send, Token};
use crate::reserve::{try_copy, try_with_capacity};
use crate::transport::{Link, OneSided, Placement, RemoteMemory};
use crate::types::Rank;
use crate::wire::Envelope;
use crate::wire::message::{self, HEADER_BYTES, Message};

/// A header and its payload in the send queue.
#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER_BYTES],
    /// The payload, in the poster's memory or in `owned`.
    from: *const u8,
    bytes: usize,
    /// Header and payload bytes sent.
    sent: usize,
    /// The operation that owns the payload's memory, unless it is `owned`.
    token: Option<Token>,
    /// Whether to report when it is sent.
    report: bool,
    /// The receiver has granted it, so a receive may wait for it.
    granted: bool,
    /// For a put: the index of its request.
    put: Option<u32>,
    /// For the header of a message that is placed: its ticket.
    ticket: Option<u32>,
    owned: Option<Vec<u8>>,
}

impl Outgoing {
    fn total(&self) -> usize {
        HEADER_BYTES + self.bytes
    }

    /// The parts of header and payload that are not sent.
    fn rest(&self) -> [&[u8]; 2] {
        let past = self.sent.saturating_sub(HEADER_BYTES);
        let payload = if past == self.bytes {
            &[][..]
        } else {
            // SAFETY: the poster keeps `from` valid for `bytes` until the event, or it points to `owned`, and `past` is at most
            // `bytes`.
            unsafe { std::slice::from_raw_parts(self.from.add(past), self.bytes - past) }
        };
        [&self.header[self.sent.min(HEADER_BYTES)..], payload]
    }

    /// Copies the payload, so that the poster's memory is not accessed any more. If it fails, the message must not be sent.
    fn detach(&mut self) -> Result<()> {
        self.token = None;
        if self.owned.is_none() && self.bytes > 0 {
            // SAFETY: the poster keeps `from` valid for `bytes` until its operation is cancelled, during which this is called.
            let payload = unsafe { std::slice::from_raw_parts(self.from, self.bytes) };
            let copy = try_copy(payload, "a copy of a message whose buffer is destroyed")?;
            self.from = copy.as_ptr();
            self.owned = Some(copy);
        }
        Ok(())
    }
}

/// Longest rest of a partly sent message that is still sent when its connection is closed.
const MAX_REST_BYTES: usize = 4 << 20;

/// Messages, grants, and offers that are being read, for which a peer with a link has room. How many wait at once depends on how full
/// the link is and on how many messages arrive together, and the steady state must not allocate.
const ROOM: usize = 64;

/// Most parts in one vectored send.
const PARTS: usize = 16;

/// What [`Peer::flush`] has sent.
#[derive(Debug)]
pub enum Sent {
    /// A message: token and payload bytes.
    Message(Token, usize),
    /// The header of the message that is placed with this ticket.
    Placed(u32),
}

/// A query to a peer.
#[derive(Debug)]
pub struct Query {
    /// When it was sent.
    pub since: Instant,
    /// The peer's reply.
    pub reply: Option<Reply>,
}

/// See [`Message::Reply`].
#[derive(Debug)]
pub struct Reply {
    /// What the peer does.
    pub text: String,
    /// Whether a collective there waits for other ranks.
    pub waiting: bool,
    /// The fingerprint of its call in place of the one that was asked for; 0 if there is none.
    pub instead: u64,
}

/// The state of one peer.
#[derive(Default)]
pub struct Peer {
    /// The link, while established.
    pub link: Option<Box<dyn Link>>,
    /// If the link reads memory: longer messages are offered.
    reads_above: Option<usize>,
    /// If the link places messages: longer messages are placed.
    places_above: Option<usize>,
    /// Messages whose memory the link reads to place them.
    pub placing: usize,
    /// What has been sent and is not reported, because a placed message before it has not finished.
    pub unreported: VecDeque<Sent>,
    /// Connection number for the headers on this link.
    pub connection: u32,
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
    /// Headers without payload, which may overtake messages.
    control: VecDeque<[u8; HEADER_BYTES]>,
    control_sent: usize,
    data: VecDeque<Outgoing>,
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
        !self.control.is_empty() || !self.data.is_empty()
    }

    /// Whether a message can be sent at once.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.link.is_some() && !self.has_output()
    }

    /// Longest message that is sent without a grant or offer.
    #[inline]
    pub fn eager_bytes(&self) -> usize {
        self.reads_above.or(self.places_above).unwrap_or(EAGER_BYTES)
    }

    /// Whether longer messages are placed in the receiver's memory.
    pub fn places(&self) -> bool {
        self.places_above.is_some()
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
        self.placing = self.placing.saturating_sub(1);
        Some(ticket)
    }

    /// The message of `ticket` is cancelled: its memory is not accessed any more, but its header is sent. `finished`: the link has
    /// returned the ticket.
    pub fn cancel_placement(&mut self, ticket: u32, finished: bool) {
        self.data.iter_mut().filter(|out| out.ticket == Some(ticket)).for_each(|out| out.ticket = None);
        self.unreported.retain(|sent| !matches!(sent, Sent::Placed(other) if *other == ticket));
        if !finished && let Some(placement) = self.placement() {
            placement.cancel(ticket);
            self.placing -= 1;
        }
    }

    /// Whether longer messages are offered.
    pub fn reads(&self) -> bool {
        self.reads_above.is_some()
    }

    /// Access to the peer's memory, if the link supports it.
    pub fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        self.link.as_deref_mut()?.remote_memory()
    }

    /// Messages not completely sent.
    pub fn outgoing(&self) -> usize {
        self.data.len()
    }

    /// Payload bytes sent, and payload length, of each message in the queue with a token for which `its` holds.
    pub fn sending(&self, its: impl Fn(Token) -> bool) -> impl Iterator<Item = (usize, usize)> {
        let unreported = self.unreported.iter().filter_map(|sent| match sent {
            Sent::Message(token, bytes) => Some((*token, *bytes, *bytes)),
            Sent::Placed(_) => None,
        });
        let queued = self.data.iter().filter_map(|out| Some((out.token?, out.sent, out.bytes)));
        let queued = queued.map(|(token, sent, bytes)| (token, sent.saturating_sub(HEADER_BYTES), bytes));
        let all = unreported.chain(queued).filter(move |(token, ..)| its(*token));
        all.map(|(_, done, bytes)| (done, bytes))
    }

    /// Messages whose payload is being received or read.
    pub fn arriving(&self) -> impl Iterator<Item = &Incoming> {
        self.incoming.iter().chain(self.readings.iter().map(|reading| &reading.incoming))
    }

    /// Queues a message without payload that may overtake others.
    pub fn push_control(&mut self, message: &Message) {
        self.control.push_back(message.encode(self.connection));
    }

    /// Queues a message. With `report`, an event for `token` follows when it is sent.
    #[inline]
    pub fn push(&mut self, message: &Message, from: *const u8, token: Option<Token>, report: bool) {
        let (granted, put) = match message {
            // Cancelling a collective closes the context, so no receive waits for its messages.
            Message::Data { envelope, announced, .. } => {
                (envelope.space.is_user() && (*announced || envelope.bytes > EAGER_BYTES as u64), None)
            }
            Message::Put { request, .. } => (false, Some(*request)),
            _ => (false, None),
        };
        self.data.push_back(Outgoing {
            header: message.encode(self.connection),
            from,
            bytes: message.payload(),
            sent: 0,
            token,
            report,
            granted,
            put,
            ticket: None,
            owned: None,
        });
    }

    /// Queues the header of a message that is placed with `ticket`.
    pub fn push_placed(&mut self, message: &Message, ticket: u32) {
        self.push(message, std::ptr::null(), None, false);
        if let Some(out) = self.data.back_mut() {
            out.ticket = Some(ticket);
        }
    }

    /// Takes back the collectives' messages longer than `above` to `to`, this peer, and those behind them, of which none has been
    /// sent; in their order.
    pub fn take_back(&mut self, to: Rank, above: usize) -> Vec<Send> {
        let mut taken: Vec<Send> = Vec::new();
        let connection = self.connection;
        self.data.retain(|out| {
            let (Some(token), Ok(Message::Data { envelope, .. })) =
                (out.token, Message::decode(&out.header, connection))
            else {
                return true;
            };
            let Envelope { space, slot, fingerprint, more, .. } = envelope;
            let send = Send { to, space, slot, fingerprint, from: out.from, bytes: out.bytes, more, token };
            let behind = || taken.iter().any(|other| other.key() == send.key());
            let stays = space.is_user() || out.bytes <= above && !behind();
            if !stays {
                taken.push(send);
            }
            stays
        });
        taken
    }

    /// Queues a message with a payload owned by the queue. No event follows.
    pub fn push_owned(&mut self, message: &Message, owned: Vec<u8>) {
        self.push(message, owned.as_ptr(), None, false);
        if let Some(out) = self.data.back_mut() {
            out.owned = Some(owned);
        }
    }

    /// Whether the put of this request is not completely sent, so that the peer cannot have it.
    pub fn is_putting(&self, request: u32) -> bool {
        self.data.iter().any(|out| out.put == Some(request))
    }

    /// The rest of a header or message that is partly sent; `None` if it is longer than [`MAX_REST_BYTES`], or there is no memory for it.
    pub fn rest_of_begun(&self) -> Option<Vec<u8>> {
        if self.control_sent > 0 {
            return Some(self.control[0][self.control_sent..].to_vec());
        }
        let Some(out) = self.data.front().filter(|out| out.sent > 0) else { return Some(Vec::new()) };
        let rest = out.rest();
        let bytes = rest[0].len() + rest[1].len();
        let mut copy = try_with_capacity(bytes, "").ok().filter(|_| rest[1].len() <= MAX_REST_BYTES)?;
        rest.iter().for_each(|part| copy.extend_from_slice(part));
        Some(copy)
    }

    /// The link is established. Writes its connection number into the headers that were queued before.
    pub fn establish(&mut self, mut link: Box<dyn Link>, connection: u32) {
        self.reads_above = link.remote_memory().map(|memory| memory.eager_bytes());
        self.places_above = link.placement().map(|placement| placement.eager_bytes());
        if self.reads() || self.places() {
            // This queue can contain only grants: on a link that reads memory none are needed, on one that places messages they are
            // given anew.
            self.control.clear();
        }
        if self.reads() {
            self.readings.reserve(ROOM);
        }
        if self.places() {
            self.unreported.reserve(ROOM);
        }
        self.control.reserve(ROOM);
        self.data.reserve(ROOM);
        self.link = Some(link);
        self.connection = connection;
        let headers = self.control.iter_mut().chain(self.data.iter_mut().map(|out| &mut out.header));
        headers.for_each(|header| message::set_connection(header, connection));
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
        let Some(mut link) = self.link.take() else { return Ok(false) };
        let result = self.flush_on(link.as_mut(), sent);
        self.link = Some(link);
        result
    }

    fn flush_on(&mut self, link: &mut dyn Link, sent: &mut Vec<Sent>) -> io::Result<bool> {
        let mut moved = false;
        while self.has_output() {
            let begun = self.control_sent == 0 && self.data.front().is_some_and(|out| out.sent > 0);
            let all;
            let lone;
            let parts = if self.control.is_empty() && self.data.len() == 1 {
                // Small calls send one message at a time.
                lone = self.data[0].rest().map(IoSlice::new);
                &lone[..]
            } else {
                all = self.parts(begun);
                &all.0[..all.1]
            };
            let total = parts.iter().map(|part| part.len()).sum();
            let out = match link.send(parts) {
                Ok(out) => out,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(moved),
                Err(e) => return Err(e),
            };
            moved = true;
            self.advance(out, begun, sent);
            if out < total {
                return Ok(true);
            }
        }
        Ok(moved)
    }

    /// The next parts to send, and their number: first the message that has `begun`, then control headers, then other messages.
    fn parts(&self, begun: bool) -> ([IoSlice<'_>; PARTS], usize) {
        let begun = usize::from(begun);
        let first = self.data.iter().take(begun).flat_map(Outgoing::rest);
        let control =
            self.control.iter().enumerate().map(|(i, header)| &header[if i == 0 { self.control_sent } else { 0 }..]);
        let others = self.data.iter().skip(begun).flat_map(Outgoing::rest);
        let mut parts = [IoSlice::new(&[]); PARTS];
        let mut n = 0;
        for bytes in first.chain(control).chain(others).filter(|bytes| !bytes.is_empty()).take(PARTS) {
            parts[n] = IoSlice::new(bytes);
            n += 1;
        }
        (parts, n)
    }

    /// Accounts for `out` bytes sent, in the order of `flush`.
    fn advance(&mut self, mut out: usize, begun: bool, sent: &mut Vec<Sent>) {
        let mut data_first = begun;
        while out > 0 {
            if data_first || self.control.is_empty() {
                let Some(front) = self.data.front_mut() else { return };
                let n = out.min(front.total() - front.sent);
                front.sent += n;
                out -= n;
                if front.sent == front.total() {
                    let done = self.data.pop_front().expect("front");
                    sent.extend(done.token.filter(|_| done.report).map(|token| Sent::Message(token, done.bytes)));
                    sent.extend(done.ticket.map(Sent::Placed));
                }
                data_first = false;
            } else {
                let n = out.min(HEADER_BYTES - self.control_sent);
                self.control_sent += n;
                out -= n;
                if self.control_sent == HEADER_BYTES {
                    self.control.pop_front();
                    self.control_sent = 0;
                }
            }
        }
    }

    /// Cancels the messages of `owner`. Messages that have not begun are removed. Copied instead are those that are partly sent,
    /// those that the receiver has granted, since a receive may wait for them, and those that the peer will answer. Returns the
    /// number of removed messages. If it fails, nothing may be sent to this peer any more.
    pub fn cancel(&mut self, owner: u32) -> (usize, Result<()>) {
        let mut copied = Ok(());
        let before = self.data.len();
        self.unreported.retain(|sent| !matches!(sent, Sent::Message(token, _) if token.owner == owner));
        self.data.retain_mut(|out| {
            if out.token.is_none_or(|t| t.owner != owner) {
                return true;
            }
            let stays = out.sent > 0 || out.granted || !out.report;
            if stays && let Err(error) = out.detach() {
                copied = Err(error);
            }
            stays
        });
        (before - self.data.len(), copied)
    }

    /// Disconnects the peer with `error`. Returns the number of unsent messages, and the tokens to report.
    pub fn end(&mut self, error: Error) -> (usize, Vec<Token>) {
        let data = std::mem::take(&mut self.data);
        let unreported = self.unreported.iter().filter_map(|sent| match sent {
            Sent::Message(token, _) => Some(*token),
            Sent::Placed(_) => None,
        });
        let tokens = data.iter().filter(|out| out.report).filter_map(|out| out.token).chain(unreported).collect();
        *self = Self { disconnected: Some(error), goodbye: self.goodbye, ..Self::default() };
        (data.len(), tokens)
    }
}
