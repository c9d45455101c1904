//! A messenger whose peer sends arbitrary bytes.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::{CONNECTION, MAX_STEPS, SIZES};
use crate::error::Error;
use crate::messaging::{
    Event, Messenger, Outcome, READS_PER_TURN, Recv, ReduceInto, Remote, STAGING_BYTES, Send, Source, Token,
};
use crate::reduce::{self, Pairwise};
use crate::testing::fuzz::Input;
use crate::testing::links::{Ended, PlacingLink, StreamLink, messenger, sockets};
use crate::transport::Link;
use crate::types::{DataType, ReduceOp, Space};
use crate::wire::header::HEADER_BYTES;
use crate::wire::message::Cause;
use crate::wire::{Envelope, Message};

/// Low limits on unexpected bytes, and how much one turn of reading may add.
const PAUSE_BYTES: usize = 100_000;
const MAX_BYTES: usize = 300_000;
const TURN_BYTES: usize = READS_PER_TURN * STAGING_BYTES;

/// The space of collectives' messages.
const COLLECTIVE: Space = Space::collective(1, 0);

/// The events that an operation may still have.
#[derive(Clone, Copy, PartialEq)]
enum Open {
    /// One, at its end.
    Once,
    /// Any number of writes.
    Bound,
}

type Memory = Vec<Box<[u8]>>;

/// A messenger with operations, and the peer's end of its link to rank 1. Rank 2 is never connected.
struct Attacked {
    messenger: Messenger,
    /// Whether the link places messages.
    places: bool,
    peer: UnixStream,
    ended: Ended,
    /// Bytes that the peer sends when the messenger reads.
    unsent: Vec<u8>,
    /// What the peer has received of an incomplete message, and the kind of the last message.
    received: Vec<u8>,
    last: Option<Message>,
    /// Operations that have not ended, and their memory. It is freed when they end, so that a sanitizer detects later
    /// accesses.
    open: BTreeMap<u32, (Open, Memory)>,
    /// Two memory regions for the peer, and the keys that they have or had.
    regions: [Option<Box<[u8]>>; 2],
    keys: [u32; 2],
    next: u32,
}

/// Whatever an authenticated peer sends, a messenger does not panic, accesses no memory but that of operations in
/// progress, queues no more than its limits, ends every operation once, and sends only complete messages.
pub fn frames(data: &[u8]) {
    let (ours, peer) = sockets();
    let (mut messenger, ended) = (messenger(0, 3), Ended::default());
    messenger.set_limits(PAUSE_BYTES, MAX_BYTES);
    let places = data.len() % 4 > 1;
    let link: Box<dyn Link> = match places {
        true => Box::new(PlacingLink::new(ours, ended.clone())),
        false => Box::new(StreamLink::new(ours, ended.clone())),
    };
    messenger.established(1, link, CONNECTION);
    let mut attacked = Attacked {
        messenger,
        places,
        peer,
        ended,
        unsent: Vec::new(),
        received: Vec::new(),
        last: None,
        open: BTreeMap::new(),
        regions: [None, None],
        keys: [u32::MAX; 2],
        next: 1,
    };
    let mut input = Input(data);
    for _ in 0..MAX_STEPS {
        if attacked.step(&mut input).is_none() {
            break;
        }
    }
    attacked.progress();
    let notice = Error::invalid("what peers are told");
    attacked.messenger.close(&Error::invalid("the end"), (data.len() % 2 == 1).then_some(&notice));
    attacked.progress();
    attacked.check_end();
    let left: Vec<u32> = attacked.open.iter().filter(|(_, (open, _))| *open == Open::Once).map(|(n, _)| *n).collect();
    assert!(left.is_empty(), "operations {left:?} never ended");
    assert_eq!(attacked.messenger.outgoing(), 0);
}

impl Attacked {
    fn begin(&mut self, open: Open, memory: Memory) -> Token {
        self.next += 1;
        self.open.insert(self.next, (open, memory));
        Token { owner: self.next, detail: 0 }
    }

    fn progress(&mut self) {
        let mut events = Vec::new();
        for _ in 0..1000 {
            let moved = self.messenger.progress(Instant::now(), &mut events);
            for Event { token, outcome } in events.drain(..) {
                if token == Token::CONTEXT {
                    if let Outcome::Queried { rank, fingerprint, .. } = outcome {
                        self.messenger.reply(rank, "it says that it is fuzzed", self.next % 2 == 1, fingerprint);
                    }
                    continue;
                }
                let (open, memory) =
                    self.open.remove(&token.owner).expect("an event for an operation that is not over");
                match (open, &outcome) {
                    (Open::Bound, Outcome::Written { offset, bytes }) => assert!(offset + bytes <= memory[0].len()),
                    (Open::Bound, Outcome::Failed(_)) => {}
                    (Open::Once, Outcome::Done { .. } | Outcome::Mismatch { .. } | Outcome::Failed(_)) => continue,
                    _ => panic!("{outcome:?}"),
                }
                // A bound buffer stays bound until it is cancelled.
                self.open.insert(token.owner, (open, memory));
            }
            let queued = self.messenger.queued_bytes(1);
            assert!(queued <= MAX_BYTES + TURN_BYTES, "{queued} bytes are queued");
            if !moved {
                return;
            }
        }
        panic!("no end of progress");
    }

    /// The peer sends these bytes, or as many as the messenger reads.
    fn send(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
        self.speak();
        while !self.unsent.is_empty() {
            let before = self.unsent.len();
            self.receive();
            self.progress();
            self.speak();
            if self.unsent.len() == before {
                return;
            }
        }
    }

    fn speak(&mut self) {
        while !self.unsent.is_empty() {
            match self.peer.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.unsent.clear(),
            }
        }
    }

    /// The peer receives, and checks that these are messages.
    fn receive(&mut self) {
        let mut part = [0; 16 << 10];
        while let Ok(n @ 1..) = self.peer.read(&mut part) {
            self.received.extend_from_slice(&part[..n]);
            let mut at = 0;
            while let Some(header) = self.received[at..].first_chunk::<HEADER_BYTES>() {
                let message = Message::decode(header, CONNECTION).expect("a message");
                let whole = at + HEADER_BYTES + message.payload();
                if whole > self.received.len() {
                    break;
                }
                (at, self.last) = (whole, Some(message));
            }
            self.received.drain(..at);
        }
    }

    /// A link that was ended by the messenger ends with complete messages, the last an abort or goodbye.
    fn check_end(&mut self) {
        let ended = std::mem::take(&mut *self.ended.lock().expect("nobody panics with it"));
        for (mut stream, mut words) in ended {
            while !words.is_empty() {
                match stream.write(&words) {
                    Ok(n) => drop(words.drain(..n)),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => self.receive(),
                    Err(_) => words.clear(),
                }
            }
            let _ = stream.shutdown(Shutdown::Write);
            self.receive();
            let is_last = matches!(self.last, Some(Message::Goodbye | Message::Abort { .. }));
            assert!(self.received.is_empty() && is_last, "{:?}", self.last);
        }
    }

    fn unregister(&mut self, which: usize) {
        self.messenger.unregister(self.keys[which]);
        self.regions[which] = None;
    }

    /// The header of a message of this kind; for an unknown kind, an invalid header.
    fn header(&self, kind: u8, shape: u8, number: u8, bytes: u64, offset: u64) -> [u8; HEADER_BYTES] {
        let space = if shape & 1 != 0 { COLLECTIVE } else { Space::USER };
        let first = shape >> 2 & 1;
        let (slot, fingerprint, refused) = (u64::from(number), u64::from(first), offset != 0);
        let envelope = Envelope { space, slot, fingerprint, bytes, more: false };
        let (request, region) = (u32::from(number), self.keys[usize::from(first)]);
        let message = match kind {
            1 => {
                let placed = if self.places && shape & 128 != 0 { u32::from(number) } else { offset as u32 };
                Message::Data { envelope, announced: shape & 2 != 0, placed }
            }
            2 => Message::Announce { envelope, number: offset as u32 | u32::from(self.places) },
            3 => {
                let announcement = if self.places && !space.is_user() { 0 } else { offset as u32 };
                let announcement = if self.places && space.is_user() { first.into() } else { announcement };
                Message::Grant { space, slot, announcement, key: (offset >> 32) as u32 | u32::from(self.places) }
            }
            4 => Message::Write { slot, offset, bytes },
            5 => Message::Put { request, region, offset, bytes },
            6 => Message::PutDone { request, refused },
            7 => Message::Get { request, region, offset, bytes },
            8 => Message::GetDone { request, refused, bytes },
            9 => {
                let cause = [Cause::Failure, Cause::Mismatch, Cause::Abort][usize::from(number % 3)];
                Message::Abort { cause, culprit: request, bytes }
            }
            11 => Message::Query { slot: offset, fingerprint: bytes },
            12 => Message::Reply { waiting: refused, instead: offset, bytes },
            _ => Message::Goodbye,
        };
        let mut header = message.encode(CONNECTION);
        header[0] = kind;
        header
    }

    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        let space = |flag: bool| if flag { COLLECTIVE } else { Space::USER };
        match input.below(18)? {
            0..=4 => {
                // Mostly valid, so that fuzzing gets past the first header.
                let kind = input.pick(&[1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12, 0, 255])?;
                let shape = input.byte()?;
                let number = input.pick(&[0, 0, 1, 2, 3])?;
                let bytes = match shape >> 3 & 7 {
                    0 => usize::from(input.byte()?),
                    1 => u64::from_le_bytes(input.array()?) as usize,
                    _ => input.pick(&SIZES)?,
                };
                let offset = if shape & 64 != 0 { u64::from_le_bytes(input.array()?) } else { 0 };
                let header = self.header(kind, shape, number, bytes as u64, offset);
                let bytes = if bytes <= 200_000 { bytes } else { 0 };
                let payload = match kind {
                    1 if Message::decode(&header, CONNECTION).is_ok_and(|message| message.payload() == 0) => Vec::new(),
                    1 | 4 | 5 | 8 => vec![number; bytes],
                    9 | 12 => "é€\n\0".bytes().cycle().take(bytes).collect(),
                    _ => Vec::new(),
                };
                if shape & 128 == 0 {
                    self.send(&[&header[..], &payload].concat());
                } else {
                    // Split into two parts.
                    let all = [&header[..], &payload].concat();
                    let cut = all.len() * input.below(256)? / 256;
                    self.send(&all[..cut]);
                    self.progress();
                    self.send(&all[cut..]);
                }
            }
            5 => {
                let n = input.below(64)?;
                let bytes = input.take(n)?;
                self.send(bytes);
            }
            6 | 7 => {
                let shape = input.byte()?;
                let bytes = input.pick(&SIZES)?;
                let from = match shape >> 1 & 3 {
                    0 | 1 => Source::Rank(1),
                    2 => Source::AnyOf([1, 2].into()),
                    _ => Source::Rank(2),
                };
                let mut memory = vec![vec![0; bytes].into_boxed_slice(), vec![0; bytes].into_boxed_slice()];
                let into = memory[0].as_mut_ptr();
                let kernel = reduce::kernel(DataType::Float32, ReduceOp::Sum).expect("a kernel");
                let reduce = (shape & 8 != 0 && bytes % 4 == 0).then(|| ReduceInto {
                    kernel: Pairwise::Kernel(kernel),
                    with: if shape & 16 != 0 { into } else { memory[1].as_ptr() },
                    incoming: reduce::Side::Left,
                    element: 4,
                });
                let (slot, exact) = (input.below(3)? as u64, reduce.is_some() || shape & 32 != 0);
                let (space, fingerprint) = (space(shape & 1 != 0), u64::from(shape >> 6 & 1));
                let token = self.begin(Open::Once, memory);
                // SAFETY: the memory lives until the end of the operation.
                unsafe {
                    self.messenger.recv(Recv {
                        from,
                        space,
                        slot,
                        fingerprint,
                        into,
                        bytes,
                        exact,
                        more: false,
                        reduce,
                        token,
                    })
                };
            }
            8 => {
                let (shape, bytes) = (input.byte()?, input.pick(&SIZES)?);
                let memory = vec![7; bytes].into_boxed_slice();
                let from = memory.as_ptr();
                let token = self.begin(Open::Once, vec![memory]);
                let (to, slot, space) = (1 + usize::from(shape >> 7), u64::from(shape >> 1 & 3), space(shape & 1 != 0));
                // SAFETY: as above.
                unsafe {
                    self.messenger.send(Send { to, space, slot, fingerprint: 0, from, bytes, more: false, token })
                };
            }
            9 => {
                let (shape, bytes) = (input.byte()?, input.pick(&SIZES)?);
                let mut memory = vec![7; bytes].into_boxed_slice();
                let pointer = memory.as_mut_ptr();
                let remote = Remote { rank: usize::from(shape >> 1 & 1) + 1, region: 0, offset: 0 };
                let token = self.begin(Open::Once, vec![memory]);
                // SAFETY: as above.
                unsafe {
                    match shape >> 2 & 3 {
                        0 => self.messenger.put(remote, pointer, bytes, token),
                        1 => self.messenger.get(remote, pointer, bytes, token),
                        _ => self.messenger.write(remote.rank, 1, 3, pointer, bytes, token),
                    }
                }
            }
            10 => {
                let (which, bytes) = (usize::from(input.byte()? & 1), input.pick(&SIZES)?);
                self.unregister(which);
                let mut memory = vec![0; bytes].into_boxed_slice();
                // SAFETY: the memory lives until the region is unregistered or the messenger is dropped.
                let key = unsafe { self.messenger.register(memory.as_mut_ptr(), bytes) };
                self.keys[which] = key.expect("a key");
                self.regions[which] = Some(memory);
            }
            11 => {
                let (slot, bytes) = (input.below(3)? as u64, input.pick(&SIZES)?);
                let mut memory = vec![0; bytes].into_boxed_slice();
                let pointer = memory.as_mut_ptr();
                let token = self.begin(Open::Bound, vec![memory]);
                // SAFETY: the memory lives until the operation is cancelled.
                if unsafe { self.messenger.bind(1, slot, pointer, bytes, token) }.is_err() {
                    self.open.remove(&token.owner);
                }
            }
            12 => {
                let n = input.below(32)?;
                let owner = self.open.keys().nth(n).copied();
                if let Some(owner) = owner {
                    self.messenger.cancel(owner);
                    self.open.remove(&owner);
                }
            }
            13 => {
                let which = usize::from(input.byte()? & 1);
                self.unregister(which);
            }
            14 => self.receive(),
            15 => {
                let n = input.below(32)?;
                if let Some(owner) = self.open.keys().nth(n).copied() {
                    let now = Instant::now();
                    self.messenger.query(owner, (0, 1), now);
                    let replies = self.messenger.diagnosis().replies(owner);
                    let unmet = [0, 1].map(|tag| self.messenger.diagnosis().unmatched(tag).count());
                    let _ = (replies, self.messenger.diagnosis().describe(owner, now), unmet);
                }
            }
            _ => {
                self.speak();
                self.progress();
            }
        }
        Some(())
    }
}

impl Drop for Attacked {
    fn drop(&mut self) {
        for owner in std::mem::take(&mut self.open).into_keys() {
            self.messenger.cancel(owner);
        }
    }
}
