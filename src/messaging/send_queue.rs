//! What waits to be sent to one peer: messages in their order, and headers without payload, which may overtake them.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use crate::error::Result;
use crate::messaging::matching::EAGER_BYTES;
use crate::messaging::operation::{Send, Token};
use crate::reserve::{try_copy, try_with_capacity};
use crate::transport::Link;
use crate::types::Rank;
use crate::wire::Envelope;
use crate::wire::header::{self, HEADER_BYTES};
use crate::wire::message::Message;

/// Messages, grants, and offers that are being read, for which a peer with a link has memory. How many wait at once
/// depends on how full the link is and on how many messages arrive together, and the steady state must not allocate.
pub const RESERVED_ENTRIES: usize = 64;

/// The longest rest of a partly sent message that is still sent when its connection is closed.
const MAX_REST_BYTES: usize = 4 << 20;

/// The largest number of parts in one vectored send.
const MAX_PARTS: usize = 16;

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
    /// The index of its request, if it is a put.
    put: Option<u32>,
    /// The ticket of the message that is placed, if it is the header of one.
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
            // SAFETY: the poster keeps `from` valid for `bytes` until the event, or it points to `owned`, and `past` is
            // at most `bytes`.
            unsafe { std::slice::from_raw_parts(self.from.add(past), self.bytes - past) }
        };
        [&self.header[self.sent.min(HEADER_BYTES)..], payload]
    }

    /// Copies the payload, so that the poster's memory is not accessed any more. If it fails, the message must not be
    /// sent.
    fn detach(&mut self) -> Result<()> {
        self.token = None;
        if self.owned.is_none() && self.bytes > 0 {
            // SAFETY: the poster keeps `from` valid for `bytes` until its operation is cancelled, during which this is
            // called.
            let payload = unsafe { std::slice::from_raw_parts(self.from, self.bytes) };
            let copy = try_copy(payload, "a copy of a message whose buffer is destroyed")?;
            self.from = copy.as_ptr();
            self.owned = Some(copy);
        }
        Ok(())
    }
}

/// What [`SendQueue::flush`] has sent.
#[derive(Debug)]
pub enum Sent {
    /// A message: token and payload bytes.
    Message(Token, usize),
    /// The header of the message that is placed with this ticket.
    Placed(u32),
}

impl Sent {
    fn message(&self) -> Option<(Token, usize)> {
        if let Self::Message(token, bytes) = self { Some((*token, *bytes)) } else { None }
    }
}

/// What waits to be sent to one peer.
#[derive(Default)]
pub struct SendQueue {
    /// The connection number for the headers on the link.
    pub connection: u32,
    /// Headers without payload, which may overtake messages.
    control: VecDeque<[u8; HEADER_BYTES]>,
    control_sent: usize,
    data: VecDeque<Outgoing>,
    /// What has been sent and is not reported, because a placed message before it has not finished.
    pub unreported: VecDeque<Sent>,
}

impl SendQueue {
    pub fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty()
    }

    /// The number of messages that are not completely sent.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// The token, payload bytes sent, and payload length of each message in the memory of an operation that is not
    /// reported.
    pub fn sending(&self) -> impl Iterator<Item = (Token, usize, usize)> {
        let queued = self.data.iter();
        let queued = queued.filter_map(|out| Some((out.token?, out.sent.saturating_sub(HEADER_BYTES), out.bytes)));
        self.unreported.iter().filter_map(Sent::message).map(|(token, bytes)| (token, bytes, bytes)).chain(queued)
    }

    /// The link is established: writes its connection number into the headers that were queued before. With `clears`,
    /// headers without payload are dropped.
    pub fn establish(&mut self, connection: u32, clears: bool) {
        if clears {
            self.control.clear();
        }
        self.control.reserve(RESERVED_ENTRIES);
        self.data.reserve(RESERVED_ENTRIES);
        self.connection = connection;
        let headers = self.control.iter_mut().chain(self.data.iter_mut().map(|out| &mut out.header));
        headers.for_each(|header| header::set_connection(header, connection));
    }

    /// The tokens to report if the peer is disconnected.
    pub fn tokens(&self) -> Vec<Token> {
        let queued = self.data.iter().filter(|out| out.report).filter_map(|out| out.token);
        queued.chain(self.unreported.iter().filter_map(Sent::message).map(|(token, _)| token)).collect()
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

    /// The message of `ticket` is cancelled; its header is sent all the same.
    pub fn forget_ticket(&mut self, ticket: u32) {
        self.data.iter_mut().filter(|out| out.ticket == Some(ticket)).for_each(|out| out.ticket = None);
        self.unreported.retain(|sent| !matches!(sent, Sent::Placed(other) if *other == ticket));
    }

    /// Takes back the collectives' messages longer than `above` to `to`, this peer, and those behind them, of which
    /// none has been sent; in their order.
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

    /// Returns what remains of a header or message that is partly sent; `None` if it is longer than [`MAX_REST_BYTES`],
    /// or there is no memory for it.
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

    /// Sends on `link` until the queue is empty or the link is full, appends to `sent`, and adds to `bytes` what the
    /// link has taken. Returns whether anything was sent.
    pub fn flush(&mut self, link: &mut dyn Link, sent: &mut Vec<Sent>, bytes: &mut u64) -> io::Result<bool> {
        let mut moved = false;
        while !self.is_empty() {
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
            *bytes += out as u64;
            self.advance(out, begun, sent);
            if out < total {
                return Ok(true);
            }
        }
        Ok(moved)
    }

    /// The next parts to send, and their number: first the message that has `begun`, then control headers, then other
    /// messages.
    fn parts(&self, begun: bool) -> ([IoSlice<'_>; MAX_PARTS], usize) {
        let begun = usize::from(begun);
        let first = self.data.iter().take(begun).flat_map(Outgoing::rest);
        let control =
            self.control.iter().enumerate().map(|(i, header)| &header[if i == 0 { self.control_sent } else { 0 }..]);
        let others = self.data.iter().skip(begun).flat_map(Outgoing::rest);
        let mut parts = [IoSlice::new(&[]); MAX_PARTS];
        let mut n = 0;
        for bytes in first.chain(control).chain(others).filter(|bytes| !bytes.is_empty()).take(MAX_PARTS) {
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

    /// Cancels the messages of `owner`. Messages that have not begun are removed. Copied instead are those that are
    /// partly sent, those that the receiver has granted, since a receive may wait for them, and those that the peer
    /// will answer. Returns the number of removed messages. If it fails, nothing may be sent to this peer any more.
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
}
