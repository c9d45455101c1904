//! What a context keeps for one peer: its link, the queue of what is to be sent, and how far the message that is coming in has
//! come.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Instant;

use crate::error::Error;
use crate::messaging::inbox::Incoming;
use crate::messaging::matching::EAGER_BYTES;
use crate::messaging::offers::Reading;
use crate::messaging::operation::Token;
use crate::transport::{Link, RemoteMemory};
use crate::wire::message::{self, HEADER_BYTES, Message};

/// A header and its payload, on their way out.
#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER_BYTES],
    /// The payload; its memory is the poster's, or `owned`.
    from: *const u8,
    bytes: usize,
    /// Header and payload bytes that are out.
    sent: usize,
    /// Whose memory it is, unless it is `owned`.
    token: Option<Token>,
    /// Whether the owner hears that it is out.
    report: bool,
    /// The receiver may count on it, because it granted it.
    granted: bool,
    /// Which request of ours it is, if it is a put.
    put: Option<u32>,
    owned: Option<Vec<u8>>,
}

impl Outgoing {
    fn total(&self) -> usize {
        HEADER_BYTES + self.bytes
    }

    /// What has not left of header and payload.
    fn rest(&self) -> [&[u8]; 2] {
        let past = self.sent.saturating_sub(HEADER_BYTES);
        let payload = if past == self.bytes {
            &[][..]
        } else {
            // SAFETY: the poster keeps `from` valid for `bytes` until the event, and `past` is at most `bytes`.
            unsafe { std::slice::from_raw_parts(self.from.add(past), self.bytes - past) }
        };
        [&self.header[self.sent.min(HEADER_BYTES)..], payload]
    }

    /// Makes the rest of a payload our own, so that the poster's memory is free.
    fn detach(&mut self) {
        self.token = None;
        if self.owned.is_none() && self.bytes > 0 {
            // SAFETY: until now the memory is the poster's and valid for `bytes`.
            let copy = unsafe { std::slice::from_raw_parts(self.from, self.bytes) }.to_vec();
            self.from = copy.as_ptr();
            self.owned = Some(copy);
        }
    }
}

/// A message that is half out when its connection ends is finished up to this length.
const MAX_REST_BYTES: usize = 4 << 20;

/// Pieces of memory that are sent at once.
const PARTS: usize = 16;

/// What a call to [`Peer::flush`] finished: token, payload bytes.
pub type Sent = (Token, usize);

/// A question to a peer.
#[derive(Debug)]
pub struct Query {
    /// When it was asked.
    pub since: Instant,
    /// What the peer has replied, and whether a collective there waits for other ranks itself.
    pub reply: Option<(String, bool)>,
}

/// What a context keeps for one peer.
#[derive(Default)]
pub struct Peer {
    /// The way there, while it stands.
    pub link: Option<Box<dyn Link>>,
    /// The link reads memory: messages of more bytes are offered.
    reads_above: Option<usize>,
    /// In the headers on this link.
    pub connection: u32,
    /// Why there is no way any more.
    pub over: Option<Error>,
    /// The peer has said that it is done.
    pub goodbye: bool,
    /// Sending has failed, for this reason: the system tells it only once, and reading might find a mere end.
    pub broke: Option<Error>,
    /// What it was asked.
    pub query: Option<Query>,
    /// The link is watched for room to send.
    pub awaits_room: bool,
    /// Listed for a flush.
    pub dirty: bool,
    partial: PartialHeader,
    /// The message that is coming in.
    pub incoming: Option<Incoming>,
    /// Offered messages that are read.
    pub readings: VecDeque<Reading>,
    /// Headers without payload that may overtake messages.
    control: VecDeque<[u8; HEADER_BYTES]>,
    control_sent: usize,
    data: VecDeque<Outgoing>,
}

/// A header of which not all bytes have come.
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

    /// Whether what is sent to it now can leave at once.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.link.is_some() && !self.has_output()
    }

    /// Longest message that is sent without asking.
    #[inline]
    pub fn eager_bytes(&self) -> usize {
        self.reads_above.unwrap_or(EAGER_BYTES)
    }

    /// Whether longer ones are offered.
    pub fn reads(&self) -> bool {
        self.reads_above.is_some()
    }

    /// The way into the peer's memory.
    pub fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        self.link.as_deref_mut()?.remote_memory()
    }

    /// Messages that have not left as a whole.
    pub fn outgoing(&self) -> usize {
        self.data.len()
    }

    /// Payload bytes sent, and payload bytes, of the messages whose tokens are `its` that have not left as a whole.
    pub fn sending(&self, its: impl Fn(Token) -> bool) -> impl Iterator<Item = (usize, usize)> {
        let its = self.data.iter().filter(move |out| out.token.is_some_and(&its));
        its.map(|out| (out.sent.saturating_sub(HEADER_BYTES), out.bytes))
    }

    /// Messages whose payload is coming in, or is read.
    pub fn arriving(&self) -> impl Iterator<Item = &Incoming> {
        self.incoming.iter().chain(self.readings.iter().map(|reading| &reading.incoming))
    }

    /// Queues a message without payload that may overtake others.
    pub fn push_control(&mut self, message: &Message) {
        self.control.push_back(message.encode(self.connection));
    }

    /// Queues a message. With `report`, the owner of `token` hears when it is out.
    #[inline]
    pub fn push(&mut self, message: &Message, from: *const u8, token: Option<Token>, report: bool) {
        let (granted, put) = match message {
            // The messages of a collective vanish with the whole context.
            Message::Data { envelope, .. } => (envelope.space.is_user() && envelope.bytes > EAGER_BYTES as u64, None),
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
            owned: None,
        });
    }

    /// Queues a message whose payload is our own, and whose end nobody hears of.
    pub fn push_owned(&mut self, message: &Message, owned: Vec<u8>) {
        self.push(message, owned.as_ptr(), None, false);
        if let Some(out) = self.data.back_mut() {
            out.owned = Some(owned);
        }
    }

    /// Whether the put that is this request has not left as a whole, so that nobody can have it.
    pub fn is_putting(&self, request: u32) -> bool {
        self.data.iter().any(|out| out.put == Some(request))
    }

    /// What is missing of a header or message that is half out; `None` if that is too long to be kept.
    pub fn rest_of_begun(&self) -> Option<Vec<u8>> {
        if self.control_sent > 0 {
            return Some(self.control[0][self.control_sent..].to_vec());
        }
        let Some(out) = self.data.front().filter(|out| out.sent > 0) else { return Some(Vec::new()) };
        let rest = out.rest();
        (rest[1].len() <= MAX_REST_BYTES).then(|| rest.concat())
    }

    /// The way to the peer stands: what was queued before did not know the number of the connection.
    pub fn establish(&mut self, mut link: Box<dyn Link>, connection: u32) {
        self.reads_above = link.remote_memory().map(|memory| memory.eager_bytes());
        if self.reads() {
            // Nothing else was queued there: grants, which nobody waits for now.
            self.control.clear();
        }
        self.link = Some(link);
        self.connection = connection;
        let headers = self.control.iter_mut().chain(self.data.iter_mut().map(|out| &mut out.header));
        headers.for_each(|header| message::set_connection(header, connection));
    }

    /// Takes header bytes from the front of `bytes`; the header, once whole.
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

    /// Sends until nothing is left or the link is full; pushes what is out. Whether anything moved.
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

    /// What leaves next, and how many parts that is: a message that has `begun` to leave goes on; then control headers; then
    /// the other messages.
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

    /// Accounts for `out` bytes that left in the order of `flush`.
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
                    sent.extend(done.token.filter(|_| done.report).map(|t| (t, done.bytes)));
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

    /// Frees the memory of `owner`: its messages that have not begun vanish; those that are half out, those that a receive
    /// may count on because it granted them, and those that the peer will answer, are copied. How many vanished.
    pub fn cancel(&mut self, owner: u32) -> usize {
        let before = self.data.len();
        self.data.retain_mut(|out| {
            if out.token.is_none_or(|t| t.owner != owner) {
                return true;
            }
            let stays = out.sent > 0 || out.granted || !out.report;
            if stays {
                out.detach();
            }
            stays
        });
        before - self.data.len()
    }

    /// There is no way any more, for this reason. Returns how many messages that leaves unsent, and whom that concerns.
    pub fn end(&mut self, error: Error) -> (usize, Vec<Token>) {
        let data = std::mem::take(&mut self.data);
        let tokens = data.iter().filter(|out| out.report).filter_map(|out| out.token).collect();
        *self = Self { over: Some(error), goodbye: self.goodbye, ..Self::default() };
        (data.len(), tokens)
    }
}
