//! Fuzz bodies: an endpoint whose peer says anything, and two endpoints that talk to each other.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use super::Endpoint;
use crate::error::Error;
use crate::fuzzing::Input;
use crate::reduce;
use crate::secret::JobToken;
use crate::transport::frame::Header;
use crate::transport::matching::EAGER_BYTES;
use crate::transport::tcp::handshake::Handle;
use crate::transport::{EVERYONE, Event, Outcome, Recv, ReduceInto, Remote, Send, Source, Space, Token, Transport};
use crate::types::{DataType, Rank, ReduceOp};

/// What a handshake would have agreed on: the peer's handle, and what frames carry.
const PEER: Handle = [2; 16];
const FRAMES: u32 = 0x0102_0304;

/// Around the lengths at which messages are treated differently.
const SIZES: [usize; 11] = [0, 1, 3, 8, 40, 64, 4095, 5000, EAGER_BYTES, EAGER_BYTES + 1, 70_001];

/// More would only be slow.
const MAX_STEPS: usize = 100;

fn endpoint(rank: Rank, size: usize) -> Endpoint {
    Endpoint::new(rank, size, &JobToken::none(), vec![([127, 0, 0, 1], 1).into()], None).expect("an endpoint")
}

fn sockets() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    ours.set_nonblocking(true).and_then(|()| theirs.set_nonblocking(true)).expect("non-blocking sockets");
    (ours, theirs)
}

/// What may still happen to an operation.
#[derive(Clone, Copy, PartialEq)]
enum Open {
    /// It ends with one event.
    Once,
    /// It is written again and again.
    Bound,
}

/// What an operation works on.
type Memory = Vec<Box<[u8]>>;

/// An endpoint with operations of its own, and the other end of its connection to rank 1. Rank 2 is never there.
struct Attacked {
    endpoint: Endpoint,
    peer: UnixStream,
    /// Operations without an end, and their memory, which is freed with it: a sanitizer sees who touches it afterwards.
    open: BTreeMap<u32, (Open, Memory)>,
    regions: BTreeMap<u32, Box<[u8]>>,
    next: u32,
}

/// An endpoint keeps its promises whatever an authenticated peer sends: it does not panic, touches no memory but that of
/// operations under way, and ends every operation once.
pub fn frames(data: &[u8]) {
    let (ours, peer) = sockets();
    let mut endpoint = endpoint(0, 3);
    endpoint.established(1, OwnedFd::from(ours), &PEER, FRAMES);
    let mut attacked = Attacked { endpoint, peer, open: BTreeMap::new(), regions: BTreeMap::new(), next: 1 };
    let mut input = Input(data);
    for _ in 0..MAX_STEPS {
        if attacked.step(&mut input).is_none() {
            break;
        }
    }
    attacked.progress();
    attacked.endpoint.close(&Error::invalid("the end"), None);
    attacked.progress();
    let left: Vec<u32> = attacked.open.iter().filter(|(_, (open, _))| *open == Open::Once).map(|(n, _)| *n).collect();
    assert!(left.is_empty(), "operations {left:?} never ended");
    assert_eq!(attacked.endpoint.outgoing(), 0);
}

impl Attacked {
    fn begin(&mut self, open: Open, memory: Vec<Box<[u8]>>) -> Token {
        self.next += 1;
        self.open.insert(self.next, (open, memory));
        Token { owner: self.next, detail: 0 }
    }

    fn progress(&mut self) {
        let mut events = Vec::new();
        for _ in 0..1000 {
            let moved = self.endpoint.progress(&mut events);
            for Event { token, outcome } in events.drain(..) {
                if token.owner == EVERYONE {
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
                // Bound memory stays bound until it is taken back.
                self.open.insert(token.owner, (open, memory));
            }
            if !moved {
                return;
            }
        }
        panic!("no end of progress");
    }

    /// The peer says this; what it can say no more is lost.
    fn say(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.peer.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let before = self.endpoint.links.len();
                    self.listen();
                    self.progress();
                    if before == 0 {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// The peer reads what came.
    fn listen(&mut self) {
        let mut heard = [0; 16 << 10];
        while self.peer.read(&mut heard).is_ok_and(|n| n > 0) {}
    }

    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        let space = |flag: bool| if flag { Space::Collective } else { Space::User };
        match input.below(16)? {
            0..=4 => {
                // Mostly sensible, so that fuzzing gets past the first header.
                let mut header = Header::new(crate::transport::frame::Kind::Data, 0, 0).encode(FRAMES);
                header[0] = input.pick(&[1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 0, 255])?;
                let shape = input.byte()?;
                header[2] = shape & 1;
                header[3] = shape >> 1 & 1;
                header[8] = shape >> 2 & 1;
                header[16] = input.pick(&[0, 0, 1, 2, 3])?;
                let bytes = match shape >> 3 & 7 {
                    0 => usize::from(input.byte()?),
                    1 => u64::from_le_bytes(input.array()?) as usize,
                    _ => input.pick(&SIZES)?,
                };
                header[24..32].copy_from_slice(&bytes.to_le_bytes());
                if shape & 64 != 0 {
                    header[32..40].copy_from_slice(&input.array::<8>()?);
                }
                let has_payload = matches!(header[0], 1 | 4 | 5 | 8 | 9);
                let payload = vec![header[16]; if has_payload && bytes <= 200_000 { bytes } else { 0 }];
                if shape & 128 == 0 {
                    self.say(&[&header[..], &payload].concat());
                } else {
                    // In two parts.
                    let all = [&header[..], &payload].concat();
                    let cut = all.len() * input.below(256)? / 256;
                    self.say(&all[..cut]);
                    self.progress();
                    self.say(&all[cut..]);
                }
            }
            5 => {
                let n = input.below(64)?;
                let bytes = input.take(n)?;
                self.say(bytes);
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
                    kernel,
                    with: if shape & 16 != 0 { into } else { memory[1].as_ptr() },
                    incoming: reduce::Side::Left,
                    element: 4,
                });
                let (slot, exact) = (input.below(3)? as u64, reduce.is_some() || shape & 32 != 0);
                let (space, check) = (space(shape & 1 != 0), u32::from(shape >> 6 & 1));
                let token = self.begin(Open::Once, memory);
                // SAFETY: the memory lives until the end of the operation.
                unsafe { self.endpoint.recv(Recv { from, space, slot, check, into, bytes, exact, reduce, token }) };
            }
            8 => {
                let (shape, bytes) = (input.byte()?, input.pick(&SIZES)?);
                let memory = vec![7; bytes].into_boxed_slice();
                let from = memory.as_ptr();
                let token = self.begin(Open::Once, vec![memory]);
                let (to, slot, space) = (1 + usize::from(shape >> 7), u64::from(shape >> 1 & 3), space(shape & 1 != 0));
                // SAFETY: as above.
                unsafe { self.endpoint.send(Send { to, space, slot, check: 0, from, bytes, token }) };
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
                        0 => self.endpoint.put(remote, pointer, bytes, token),
                        1 => self.endpoint.get(remote, pointer, bytes, token),
                        _ => self.endpoint.write(remote.rank, 1, 3, pointer, bytes, token),
                    }
                }
            }
            10 => {
                let (region, bytes) = (u32::from(input.byte()? & 1), input.pick(&SIZES)?);
                self.endpoint.unregister(region);
                let mut memory = vec![0; bytes].into_boxed_slice();
                // SAFETY: the memory lives until the region is unregistered, or the endpoint is gone.
                unsafe { self.endpoint.register(region, memory.as_mut_ptr(), bytes) };
                self.regions.insert(region, memory);
            }
            11 => {
                let (slot, bytes) = (input.below(3)? as u64, input.pick(&SIZES)?);
                let mut memory = vec![0; bytes].into_boxed_slice();
                let pointer = memory.as_mut_ptr();
                let token = self.begin(Open::Bound, vec![memory]);
                // SAFETY: the memory lives until the operation is taken back.
                if unsafe { self.endpoint.bind(1, slot, pointer, bytes, token) }.is_err() {
                    self.open.remove(&token.owner);
                }
            }
            12 => {
                let n = input.below(32)?;
                let owner = self.open.keys().nth(n).copied();
                if let Some(owner) = owner {
                    self.endpoint.cancel(owner);
                    self.open.remove(&owner);
                }
            }
            13 => {
                let region = u32::from(input.byte()? & 1);
                self.endpoint.unregister(region);
                self.regions.remove(&region);
            }
            14 => self.listen(),
            _ => self.progress(),
        }
        Some(())
    }
}

impl Drop for Attacked {
    fn drop(&mut self) {
        for owner in std::mem::take(&mut self.open).into_keys() {
            self.endpoint.cancel(owner);
        }
    }
}

/// A send or a receive of one of two endpoints.
struct Posted {
    /// Side and slot: receives' are those of the messages that they take.
    side: usize,
    space: Space,
    slot: u64,
    is_send: bool,
    memory: Box<[u8]>,
    end: Option<End>,
}

#[derive(PartialEq)]
enum End {
    Cancelled,
    /// For a receive: it got message so-and-so.
    Done(u32),
    Refused,
}

/// Two endpoints that talk to each other.
struct Pair {
    endpoints: [Endpoint; 2],
    /// By owner.
    posted: Vec<Posted>,
    cancelled_recvs: bool,
}

/// Two endpoints deliver messages whole, in order, once, and as soon as there is a receive for them, whatever is posted and
/// taken back in which order on both sides.
pub fn exchange(data: &[u8]) {
    let (left, right) = sockets();
    let mut endpoints = [endpoint(0, 2), endpoint(1, 2)];
    endpoints[0].established(1, OwnedFd::from(left), &PEER, FRAMES);
    endpoints[1].established(0, OwnedFd::from(right), &PEER, FRAMES);
    let mut pair = Pair { endpoints, posted: Vec::new(), cancelled_recvs: false };
    let mut input = Input(data);
    for _ in 0..MAX_STEPS {
        if pair.step(&mut input).is_none() {
            break;
        }
    }
    pair.settle();
    pair.check();
}

/// In the space of collectives both sides know the length, by slot.
const AGREED: [usize; 3] = [16, EAGER_BYTES + 1, 70_001];

/// A message tells its number; what follows is not the same in any two, nor at any two places of one.
fn fill(message: &mut [u8], number: u32) {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    let noise = NOISE.get_or_init(|| {
        let words = (0..20_000u64).map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        words.flat_map(u64::to_le_bytes).collect()
    });
    message.copy_from_slice(&noise[number as usize * 8..][..message.len()]);
    message[..4].copy_from_slice(&number.to_le_bytes());
}

impl Pair {
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        let shape = input.byte()?;
        let side = usize::from(shape & 1);
        let space = if shape & 2 != 0 { Space::Collective } else { Space::User };
        let slot = u64::from(shape >> 2 & 3) % 3;
        match shape >> 4 & 7 {
            kind @ 0..=4 => {
                let bytes = match space {
                    Space::User => input.pick(&SIZES[4..])?,
                    Space::Collective => AGREED[slot as usize],
                };
                let is_send = kind & 1 == 0;
                let owner = self.posted.len() as u32;
                let mut memory = vec![0; bytes].into_boxed_slice();
                if is_send {
                    fill(&mut memory, owner);
                }
                let pointer = memory.as_mut_ptr();
                let sender = if is_send { side } else { 1 - side };
                self.posted.push(Posted { side: sender, space, slot, is_send, memory, end: None });
                let (token, check, peer) = (Token { owner, detail: 0 }, 0, 1 - side);
                let endpoint = &mut self.endpoints[side];
                // SAFETY: the memory lives as long as the endpoints.
                unsafe {
                    if is_send {
                        endpoint.send(Send { to: peer, space, slot, check, from: pointer, bytes, token });
                    } else {
                        let from = if kind == 1 { Source::Rank(peer) } else { Source::AnyOf(vec![peer].into()) };
                        let from = if space == Space::Collective { Source::Rank(peer) } else { from };
                        let (into, exact, reduce) = (pointer, false, None);
                        endpoint.recv(Recv { from, space, slot, check, into, bytes, exact, reduce, token });
                    }
                }
            }
            5 => {
                let n = usize::from(input.byte()?);
                let open: Vec<usize> = (0..self.posted.len()).filter(|i| self.posted[*i].end.is_none()).collect();
                let owner = *open.get(n % open.len().max(1))?;
                // Collectives are taken back with their whole context.
                if self.posted[owner].space == Space::User {
                    let posted = &mut self.posted[owner];
                    posted.end = Some(End::Cancelled);
                    self.cancelled_recvs |= !posted.is_send;
                    let side = if posted.is_send { posted.side } else { 1 - posted.side };
                    self.endpoints[side].cancel(owner as u32);
                    self.posted[owner].memory.fill(0xee);
                }
            }
            _ => {
                self.progress(side);
            }
        }
        Some(())
    }

    fn progress(&mut self, side: usize) -> bool {
        let mut events = Vec::new();
        let moved = self.endpoints[side].progress(&mut events);
        for Event { token, outcome } in events {
            let posted = &self.posted[token.owner as usize];
            assert!(posted.end.is_none(), "a second end of {}, or one after it was taken back", token.owner);
            let end = match outcome {
                Outcome::Done { bytes, .. } if posted.is_send => {
                    assert_eq!(bytes, posted.memory.len());
                    End::Done(token.owner)
                }
                Outcome::Done { bytes, .. } => End::Done(self.message(&posted.memory[..bytes])),
                Outcome::Failed(e) if !posted.is_send && e.message().contains("at most") => End::Refused,
                other => panic!("{other:?}"),
            };
            self.posted[token.owner as usize].end = Some(end);
        }
        moved
    }

    /// The number of the message, which must be whole.
    fn message(&self, received: &[u8]) -> u32 {
        let number = u32::from_le_bytes(received[..4].try_into().expect("no message is shorter"));
        let sent = &self.posted[number as usize];
        let mut expected = vec![0; sent.memory.len()];
        fill(&mut expected, number);
        assert!(sent.is_send && received == &expected[..], "message {number} is damaged");
        number
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            let moved = self.progress(0);
            if !(self.progress(1) || moved) {
                return;
            }
        }
        panic!("no end of progress");
    }

    fn check(&self) {
        for (side, space, slot) in (0..12).map(|i| (i / 6, [Space::User, Space::Collective][i / 3 % 2], (i % 3) as u64))
        {
            let here = |p: &&Posted| (p.side, p.space, p.slot) == (side, space, slot);
            let recvs: Vec<&Posted> = self.posted.iter().filter(here).filter(|p| !p.is_send).collect();
            let sends: Vec<&Posted> = self.posted.iter().filter(here).filter(|p| p.is_send).collect();
            let got: Vec<u32> =
                recvs.iter().filter_map(|p| if let Some(End::Done(n)) = p.end { Some(n) } else { None }).collect();
            assert!(got.is_sorted_by(|a, b| a < b), "messages {got:?} in slot {slot} came out of order");
            let waiting = recvs.iter().filter(|p| p.end.is_none()).count();
            let stuck = sends.iter().filter(|p| p.end.is_none()).count();
            assert!(
                waiting == 0 || stuck == 0,
                "{waiting} receives and {stuck} sends wait for each other in slot {slot}"
            );
            let live = sends.iter().filter(|p| p.end != Some(End::Cancelled)).count();
            let taken = recvs.iter().filter(|p| p.end.is_some()).count();
            // A receive that was taken back may have taken its message with it.
            assert!(
                waiting == 0 || taken >= live,
                "{waiting} receives wait, {live} messages were sent, {taken} received"
            );
            if !self.cancelled_recvs && live == sends.len() {
                assert_eq!(taken, recvs.len().min(sends.len()));
            }
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for owner in 0..self.posted.len() as u32 {
            self.endpoints.iter_mut().for_each(|endpoint| endpoint.cancel(owner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_credit_for_a_rank_of_unknown_address_ends_with_the_endpoint() {
        let mut endpoint = endpoint(0, 3);
        let message = vec![0; EAGER_BYTES + 1];
        let token = Token { owner: 1, detail: 0 };
        let (space, from, bytes) = (Space::Collective, message.as_ptr(), message.len());
        // SAFETY: the message outlives the endpoint's use of it.
        unsafe { endpoint.send(Send { to: 2, space, slot: 0, check: 0, from, bytes, token }) };
        endpoint.close(&Error::invalid("the end"), None);
        let mut events = Vec::new();
        endpoint.progress(&mut events);
        assert!(matches!(&events[..], [Event { token: ended, outcome: Outcome::Failed(_) }] if *ended == token));
    }
}
