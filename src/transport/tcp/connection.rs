//! One connection's byte stream: queues of what is to be sent, and how far the message that is coming in has come.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Instant;

use crate::error::Error;
use crate::reduce::Side;
use crate::sys;
use crate::transport::frame::{Header, Kind};
use crate::transport::matching::EAGER_BYTES;
use crate::transport::tcp::address::MAX_SOCKETS;
use crate::transport::tcp::handshake::{Connector, Handle};
use crate::transport::{ReduceInto, Space, Token};

/// How far a connection is.
#[derive(Debug)]
pub enum State {
    /// Nobody has needed it yet, or the address is not known yet.
    Idle,
    /// The last attempt failed; the next one is at this time.
    Retry(Instant),
    /// The system is connecting.
    Connecting,
    /// The hello is sent; both sides prove that they belong together.
    Greeting(Box<Connector>),
    /// The peer is connecting to us, and its connection is the one to keep. It is asked again at this time.
    Yielded(Instant),
    /// Messages flow.
    Established,
    /// Over.
    Closed(Error),
}

/// Where payload goes.
#[derive(Debug)]
pub enum Target {
    /// To memory.
    Memory(*mut u8),
    /// Combined with memory.
    Reduce(*mut u8, ReduceInto),
    /// To a message that is kept for a later receive.
    Early(u32),
    /// To this text.
    Text(Vec<u8>),
    /// Nowhere.
    Discard,
}

/// What happens when the payload is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// This receive is done.
    Recv(u32),
    /// The bound buffer of this token was written.
    Written(Token),
    /// The peer wants to hear that its put is done, or was refused.
    PutDone { refused: bool },
    /// This request of ours is answered.
    Answer { request: u32, refused: bool },
    /// The context gives up, for the reason in the text.
    Abort,
    /// The peer tells what it is doing.
    Tell,
    /// Nothing.
    Nothing,
}

/// A message whose payload is coming in.
#[derive(Debug)]
pub struct Incoming {
    pub header: Header,
    pub target: Target,
    pub finish: Finish,
    /// Bytes that have come.
    pub done: usize,
    /// The beginning of an element whose rest has not come; for `Target::Reduce`.
    carry: [u8; 16],
    carried: usize,
}

impl Incoming {
    pub fn new(header: Header, target: Target, finish: Finish) -> Self {
        Self { header, target, finish, done: 0, carry: [0; 16], carried: 0 }
    }

    pub fn remaining(&self) -> usize {
        self.header.payload() - self.done
    }

    /// Combines `bytes`, which follow what has come already, with the target.
    ///
    /// # Safety
    /// Target and operand are valid for the payload of the header, which is a whole number of elements.
    pub unsafe fn reduce(&mut self, into: *mut u8, reduce: ReduceInto, mut bytes: &[u8]) {
        let apply = |at: usize, data: &[u8]| {
            let count = data.len() / reduce.element;
            // SAFETY: `at` counts whole elements below the payload's length; the caller vouches for the memory.
            unsafe {
                let (into, with) = (into.add(at), reduce.with.add(at));
                match reduce.incoming {
                    Side::Left => (reduce.kernel)(into, data.as_ptr(), with, count),
                    Side::Right => (reduce.kernel)(into, with, data.as_ptr(), count),
                }
            }
        };
        let mut at = self.done - self.carried;
        self.done += bytes.len();
        if self.carried > 0 {
            let n = bytes.len().min(reduce.element - self.carried);
            self.carry[self.carried..self.carried + n].copy_from_slice(&bytes[..n]);
            self.carried += n;
            bytes = &bytes[n..];
            if self.carried < reduce.element {
                return;
            }
            apply(at, &self.carry[..reduce.element]);
            at += reduce.element;
            self.carried = 0;
        }
        let whole = bytes.len() - bytes.len() % reduce.element;
        if whole > 0 {
            apply(at, &bytes[..whole]);
        }
        self.carried = bytes.len() - whole;
        self.carry[..self.carried].copy_from_slice(&bytes[whole..]);
    }
}

/// A header and its payload, on their way out.
#[derive(Debug)]
pub struct Outgoing {
    pub header: [u8; Header::BYTES],
    /// The payload; its memory is the poster's, or `owned`.
    pub from: *const u8,
    pub bytes: usize,
    /// Header and payload bytes that are out.
    pub sent: usize,
    /// Whose memory it is, unless it is `owned`.
    pub token: Option<Token>,
    /// Whether the owner hears that it is out.
    pub report: bool,
    pub owned: Option<Vec<u8>>,
}

impl Outgoing {
    fn total(&self) -> usize {
        Header::BYTES + self.bytes
    }

    /// What has not left of header and payload.
    fn rest(&self) -> [&[u8]; 2] {
        let past = self.sent.saturating_sub(Header::BYTES);
        let payload = if past == self.bytes {
            &[][..]
        } else {
            // SAFETY: the poster keeps `from` valid for `bytes` until the event.
            unsafe { std::slice::from_raw_parts(self.from.add(past), self.bytes - past) }
        };
        [&self.header[self.sent.min(Header::BYTES)..], payload]
    }

    /// Makes the rest of a payload our own, so that the poster's memory is free.
    pub fn detach(&mut self) {
        self.token = None;
        if self.owned.is_none() && self.bytes > 0 {
            // SAFETY: until now the memory is the poster's and valid for `bytes`.
            let copy = unsafe { std::slice::from_raw_parts(self.from, self.bytes) }.to_vec();
            self.from = copy.as_ptr();
            self.owned = Some(copy);
        }
    }
}

/// A connection that has ended here, and what is still to be said on it.
#[derive(Debug)]
pub struct Parting {
    pub socket: OwnedFd,
    pub words: Vec<u8>,
}

/// A message that is half out when its connection ends is finished up to this length.
const MAX_REST_BYTES: usize = 4 << 20;

/// Pieces of memory that are sent at once.
const PARTS: usize = 16;

/// What a call to [`Peer::flush`] finished: token, payload bytes.
pub type Sent = (Token, usize);

/// A peer and the connection to it.
#[derive(Debug)]
pub struct Peer {
    pub state: State,
    pub socket: Option<OwnedFd>,
    /// In the headers of this connection.
    pub identity: u32,
    /// Who the peer says it is.
    pub theirs: Option<Handle>,
    /// Why the last attempt to connect failed, and how many have.
    pub attempts: u32,
    pub last_error: Option<Error>,
    /// Which of the addresses that it can be reached at is, or will be, tried.
    pub way: usize,
    /// When an attempt that is not answered ends, so that another address gets its turn.
    pub give_up: Option<Instant>,
    /// Since when the peer's host answers, and the peer does not, at each of those addresses.
    pub refused_since: [Option<Instant>; MAX_SOCKETS],
    /// The peer has said that it is done.
    pub goodbye: bool,
    /// Sending has failed, for this reason: the system tells it only once, and reading might find a mere end.
    pub broke: Option<Error>,
    /// When it was asked what it is doing; what it has told, and whether the same call waits there.
    pub asked: Option<Instant>,
    pub told: Option<(String, bool)>,
    /// `EPOLLOUT` is asked for.
    pub write_armed: bool,
    /// Listed for a flush.
    pub dirty: bool,
    header: [u8; Header::BYTES],
    header_have: usize,
    pub incoming: Option<Incoming>,
    /// Headers without payload that may overtake messages.
    control: VecDeque<[u8; Header::BYTES]>,
    control_sent: usize,
    pub data: VecDeque<Outgoing>,
}

impl Peer {
    pub fn new() -> Self {
        Self {
            state: State::Idle,
            socket: None,
            identity: 0,
            theirs: None,
            attempts: 0,
            last_error: None,
            way: 0,
            give_up: None,
            refused_since: [None; MAX_SOCKETS],
            goodbye: false,
            broke: None,
            asked: None,
            told: None,
            write_armed: false,
            dirty: false,
            header: [0; Header::BYTES],
            header_have: 0,
            incoming: None,
            control: VecDeque::new(),
            control_sent: 0,
            data: VecDeque::new(),
        }
    }

    pub fn is_established(&self) -> bool {
        matches!(self.state, State::Established)
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_ref().map_or(-1, |s| s.as_raw_fd())
    }

    pub fn has_output(&self) -> bool {
        !self.control.is_empty() || !self.data.is_empty()
    }

    /// Queues a header without payload that may overtake messages. The identity is filled in when it leaves.
    pub fn push_control(&mut self, header: &Header) {
        self.control.push_back(header.encode(self.identity));
    }

    /// Queues a message. With `report`, the owner of `token` hears when it is out.
    pub fn push_data(&mut self, header: &Header, from: *const u8, token: Option<Token>, report: bool) {
        self.data.push_back(Outgoing {
            header: header.encode(self.identity),
            from,
            bytes: header.payload(),
            sent: 0,
            token,
            report,
            owned: None,
        });
    }

    /// Whether the put that is request `slot` has not left as a whole, so that nobody can have it.
    pub fn is_putting(&self, slot: u64) -> bool {
        let slot = slot.to_le_bytes();
        self.data.iter().any(|out| out.header[0] == Kind::Put as u8 && out.header[16..24] == slot)
    }

    /// Queues a message whose payload is our own, and whose end nobody hears of.
    pub fn push_owned(&mut self, header: &Header, owned: Vec<u8>) {
        self.push_data(header, owned.as_ptr(), None, false);
        if let Some(out) = self.data.back_mut() {
            out.owned = Some(owned);
        }
    }

    /// What is missing of a header or message that is half out; `None` if that is too long to be kept.
    pub fn rest_of_begun(&self) -> Option<Vec<u8>> {
        if self.control_sent > 0 {
            return Some(self.control[0][self.control_sent..].to_vec());
        }
        let Some(out) = self.data.front().filter(|out| out.sent > 0) else { return Some(Vec::new()) };
        let past = out.sent.saturating_sub(Header::BYTES);
        if out.bytes - past > MAX_REST_BYTES {
            return None;
        }
        let mut rest = out.header[out.sent.min(Header::BYTES)..].to_vec();
        if past < out.bytes {
            // SAFETY: the poster keeps `from` valid for `bytes` until the event.
            rest.extend_from_slice(unsafe { std::slice::from_raw_parts(out.from.add(past), out.bytes - past) });
        }
        Some(rest)
    }

    /// The connection stands: what was queued before knew no identity.
    pub fn establish(&mut self, socket: OwnedFd, theirs: &Handle, frames: u32) {
        self.state = State::Established;
        self.socket = Some(socket);
        self.identity = frames;
        self.theirs = Some(*theirs);
        let bytes = self.identity.to_le_bytes();
        self.control.iter_mut().for_each(|h| h[4..8].copy_from_slice(&bytes));
        self.data.iter_mut().for_each(|o| o.header[4..8].copy_from_slice(&bytes));
    }

    /// Takes header bytes from the front of `bytes`; the header, once whole.
    pub fn take_header(&mut self, bytes: &mut &[u8]) -> Option<[u8; Header::BYTES]> {
        let n = bytes.len().min(Header::BYTES - self.header_have);
        self.header[self.header_have..self.header_have + n].copy_from_slice(&bytes[..n]);
        self.header_have += n;
        *bytes = &bytes[n..];
        (self.header_have == Header::BYTES).then(|| {
            self.header_have = 0;
            self.header
        })
    }

    /// Sends until nothing is left or the socket is full; pushes what is out. Whether anything moved.
    pub fn flush(&mut self, sent: &mut Vec<Sent>) -> io::Result<bool> {
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
            let out = match sys::send(self.fd(), parts) {
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
                let n = out.min(Header::BYTES - self.control_sent);
                self.control_sent += n;
                out -= n;
                if self.control_sent == Header::BYTES {
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
            // The messages of a collective vanish with the whole context.
            let granted = out.bytes > EAGER_BYTES && out.header[2] == Space::User as u8;
            let stays = out.sent > 0 || granted || !out.report;
            if stays {
                out.detach();
            }
            stays
        });
        before - self.data.len()
    }

    /// Forgets the connection; what was queued is returned.
    pub fn reset(&mut self) -> VecDeque<Outgoing> {
        self.socket = None;
        self.write_armed = false;
        self.header_have = 0;
        self.control.clear();
        self.control_sent = 0;
        self.incoming = None;
        std::mem::take(&mut self.data)
    }
}
