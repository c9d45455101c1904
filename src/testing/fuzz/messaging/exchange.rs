//! Two messengers connected to each other.

use std::sync::OnceLock;
use std::time::Instant;

use super::{CONNECTION, MAX_STEPS, SIZES};
use crate::messaging::matching::EAGER_BYTES;
use crate::messaging::{Event, Messenger, Outcome, Recv, Send, Source, Token};
use crate::testing::fuzz::Input;
use crate::testing::links::{Ended, StreamLink, messenger, sockets};
#[cfg(test)]
use crate::testing::loopback::Network;
use crate::testing::tier::Tier;
use crate::types::Space;

/// A send or a receive of one of two messengers.
struct Posted {
    /// The sending side and slot; for a receive, those of the messages that it matches.
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
    /// The operation is done; a receive has got the message with this number.
    Done(u32),
    Refused,
}

/// Two messengers connected to each other.
struct Pair {
    messengers: [Messenger; 2],
    /// By token owner.
    posted: Vec<Posted>,
    cancelled_recvs: bool,
    /// The link has broken, as some do when memory that is in use is taken back.
    broken: bool,
    /// The network of links in memory, whose time passes with each turn.
    #[cfg(test)]
    network: Option<Network>,
}

/// Two messengers deliver messages complete, in order, once, and as soon as there is a receive for them, whatever is
/// posted and cancelled in whatever order on both sides.
pub fn exchange(data: &[u8]) {
    let (left, right) = sockets();
    let mut messengers = [messenger(0, 2), messenger(1, 2)];
    messengers[0].established(1, Box::new(StreamLink::new(left, Ended::default())), CONNECTION);
    messengers[1].established(0, Box::new(StreamLink::new(right, Ended::default())), CONNECTION);
    Pair::new(messengers).play(data);
}

/// Message lengths of collectives, on which both sides agree, by slot.
const AGREED: [usize; 3] = [16, EAGER_BYTES + 1, 70_001];

/// What memory of a cancelled operation contains.
const TAKEN_BACK: u8 = 0xee;

/// Writes a message that begins with its number; no two messages, nor two parts of one, are equal.
fn fill(message: &mut [u8], number: u32) {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    let noise = NOISE.get_or_init(|| {
        let words = (0..20_000u64).map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        words.flat_map(u64::to_le_bytes).collect()
    });
    message.copy_from_slice(&noise[number as usize * 8..][..message.len()]);
    message[..4].copy_from_slice(&number.to_le_bytes());
}

/// Space and slot number `number`: slots of buffers, or of collectives of two kinds with two channels.
fn place(collective: bool, number: usize) -> (Space, u64) {
    if collective {
        (Space::collective(1 + number as u8 % 2, number as u32 / 2), 1)
    } else {
        (Space::USER, number as u64)
    }
}

impl Pair {
    fn new(messengers: [Messenger; 2]) -> Self {
        let posted = Vec::new();
        Self {
            messengers,
            posted,
            cancelled_recvs: false,
            broken: false,
            #[cfg(test)]
            network: None,
        }
    }

    fn play(mut self, data: &[u8]) {
        let mut input = Input(data);
        for _ in 0..MAX_STEPS {
            if self.step(&mut input).is_none() {
                break;
            }
        }
        self.settle();
        let taken_back = self.posted.iter().filter(|posted| posted.end == Some(End::Cancelled));
        assert!(taken_back.flat_map(|posted| &posted.memory).all(|byte| *byte == TAKEN_BACK));
        #[cfg(test)]
        self.check_placements();
        if !self.broken {
            self.check();
        }
    }

    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        let shape = input.byte()?;
        let side = usize::from(shape & 1);
        let number = usize::from(shape >> 2 & 3) % 3;
        let (space, slot) = place(shape & 2 != 0, number);
        match shape >> 4 & 7 {
            kind @ 0..=4 => {
                let bytes = if space.is_user() { input.pick(&SIZES[4..])? } else { AGREED[number] };
                let is_send = kind & 1 == 0;
                let owner = self.posted.len() as u32;
                let mut memory = vec![0; bytes].into_boxed_slice();
                if is_send {
                    fill(&mut memory, owner);
                }
                let pointer = memory.as_mut_ptr();
                let sender = if is_send { side } else { 1 - side };
                self.posted.push(Posted { side: sender, space, slot, is_send, memory, end: None });
                let (token, fingerprint, peer) = (Token { owner, detail: 0 }, 0, 1 - side);
                let messenger = &mut self.messengers[side];
                // SAFETY: the memory lives as long as the messengers.
                unsafe {
                    if is_send {
                        messenger.send(Send {
                            to: peer,
                            space,
                            slot,
                            fingerprint,
                            from: pointer,
                            bytes,
                            more: false,
                            token,
                        });
                    } else {
                        let from = if kind == 1 { Source::Rank(peer) } else { Source::AnyOf(vec![peer].into()) };
                        let from = if space.is_user() { from } else { Source::Rank(peer) };
                        let (into, exact, reduce) = (pointer, false, None);
                        messenger.recv(Recv {
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
                        });
                    }
                }
            }
            5 => {
                let n = usize::from(input.byte()?);
                let open: Vec<usize> = (0..self.posted.len()).filter(|i| self.posted[*i].end.is_none()).collect();
                let owner = *open.get(n % open.len().max(1))?;
                // Operations of collectives are cancelled only by closing the context.
                if self.posted[owner].space.is_user() {
                    let posted = &mut self.posted[owner];
                    posted.end = Some(End::Cancelled);
                    self.cancelled_recvs |= !posted.is_send;
                    let side = if posted.is_send { posted.side } else { 1 - posted.side };
                    self.messengers[side].cancel(owner as u32);
                    self.posted[owner].memory.fill(TAKEN_BACK);
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
        #[cfg(test)]
        let (now, passes) = self.pass_time();
        #[cfg(not(test))]
        let (now, passes) = (Instant::now(), false);
        let moved = self.messengers[side].progress(now, &mut events) | passes;
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
                #[cfg(test)]
                Outcome::Failed(e) if self.network.is_some() && e.message().contains("is gone") => self.lose(),
                #[cfg(test)]
                Outcome::Failed(e) if self.network.is_some() && e.message().contains("broke while") => self.lose(),
                other => panic!("{other:?}"),
            };
            self.posted[token.owner as usize].end = Some(end);
        }
        moved
    }

    /// The number of the message, which must be complete.
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
        for (side, (space, slot)) in (0..12).map(|i| (i / 6, place(i / 3 % 2 == 1, i % 3))) {
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
            // A receive that was cancelled may have discarded its message.
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
            self.messengers.iter_mut().for_each(|messenger| messenger.cancel(owner));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::secret::JobToken;
    use crate::testing::loopback::{LinkModel, Node, Random};
    use crate::transport::Device;

    impl Pair {
        /// Lets the time pass until something happens at a rank. Returns the time, and whether something will happen.
        pub(super) fn pass_time(&self) -> (Instant, bool) {
            let Some(network) = &self.network else { return (Instant::now(), false) };
            let next = (0..2).filter_map(|node| network.next_event(node)).min();
            next.into_iter().for_each(|at| network.step(at));
            (network.now(), next.is_some())
        }

        /// Memory is exposed for those receives that wait for their messages, or could not be told that none comes, and
        /// no others; and what has been sent is reported.
        pub(super) fn check_placements(&self) {
            let here: usize = self.messengers.iter().map(Messenger::exposed).sum();
            assert_eq!(self.network.as_ref().map_or(0, Network::exposed), here);
            assert_eq!(self.messengers.each_ref().map(Messenger::unreported), [0, 0]);
        }

        /// An operation has failed because the link broke.
        pub(super) fn lose(&mut self) -> End {
            self.broken = true;
            End::Refused
        }
    }

    /// Two messengers with a link in memory, which places messages, or reads them.
    fn in_memory(seed: u64) -> Pair {
        let mut random = Random::new(seed);
        let above = Some([8, 1000, EAGER_BYTES, EAGER_BYTES + 5000][random.below(4)]);
        let [reads_above, places_above] = if random.one_in(4) { [above, None] } else { [None, above] };
        let delay = Duration::from_micros(1)..Duration::from_micros(2 + [1, 100][random.below(2)]);
        let network =
            Network::new(seed, LinkModel { delay, capacity: 100_000, piece: 40_000, reads_above, places_above });
        if random.one_in(2) {
            network.never_breaks();
        }
        let mut connectors = [0, 1].map(|rank| {
            let node: Arc<dyn Device> = Node::new(&network, |_| panic!("this test does not sleep"));
            let mut connector = node.connections(&JobToken::none()).unwrap();
            connector.set_rank(rank, 2);
            connector
        });
        let addresses = connectors.each_ref().map(|connector| connector.address().clone());
        for (connector, peer) in connectors.iter_mut().zip([1, 0]) {
            connector.set_peer(peer, addresses[peer].clone()).unwrap();
        }
        let mut rank = 0;
        let messengers = connectors.map(|connector| {
            rank += 1;
            Messenger::new(rank - 1, 2, connector, None)
        });
        let mut pair = Pair::new(messengers);
        pair.network = Some(network);
        pair
    }

    /// `SEEDS=20000` sets the number of seeds.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn messages_are_exchanged_over_links_that_place_or_read_them() {
        let number = Tier::from_environment().of(200, 1000, 1000);
        let seeds = std::env::var("SEEDS").map_or(number, |seeds| seeds.parse().expect("a number"));
        for seed in 0..seeds {
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let bytes = random.below(400);
            let data: Vec<u8> = (0..bytes).map(|_| random.bits() as u8).collect();
            in_memory(!seed).play(&data);
        }
    }
}
