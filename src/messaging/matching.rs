//! Matches messages to receives. No I/O: shared by all transports.
//!
//! Messages from one rank on one slot match receives in the order in which both were posted. A receive from any of
//! several ranks takes the message of the rank whose turn it is among those with unexpected messages on the slot. A
//! rank gets the last turn when its first unexpected message is queued, and again whenever such a receive takes one of
//! several. So each other rank is preferred to a waiting rank at most once, whatever sets of ranks the receives name.
//!
//! Small messages ("eager", up to [`EAGER_BYTES`]) are sent at once; those that match no posted receive are queued.
//! Large ones wait until the receiver is ready, so that they are received directly into its memory:
//! - A large receive from one given rank sends that rank a grant when it is posted. A sender that has this grant sends
//!   at once, so a receive posted in time costs no round trip.
//! - A sender without a grant announces its message (`Announce`); the announcement takes the message's position in the
//!   order. The receive that it matches sends a grant unless it has sent one already.
//!
//! A grant permits one large message, but does not reserve memory for it. If the granting receive takes a shorter,
//! eager message, or is cancelled, the grant remains: a later large message can come without an announcement, and is
//! queued like a small one. A grant that crosses an announcement may release that message before a receive has matched
//! the announcement; then the message replaces its announcement.
//!
//! On a link that reads the peer's memory, large messages are offered. An offer is like an announcement, but instead of
//! sending a grant, the matching receive reads the message. Receives send no grants on such links.
//!
//! On a link that places messages in the peer's memory, a grant is for one receive, because it can hold a key of memory
//! that is exposed for it; see `rendezvous/placements.rs`.
//!
//! The number of receives that count on a grant never exceeds the number of grants that the sender has. So a large
//! message without an announcement that matches a receive without a grant has used the grant of another receive; that
//! one must answer the announcement that it matches.

mod ends;
mod payload;

use crate::error::{Error, ErrorKind};
use crate::hash::QuickMap;
use crate::messaging::operation::{Outcome, Recv, Source};
use crate::messaging::queues::{Key, Queues};
use crate::slab::Slab;
use crate::types::{Rank, Slot, Space};
use crate::wire::Envelope;
use crate::wire::fingerprint::differs;

/// Messages up to this length are sent without a grant.
pub const EAGER_BYTES: usize = 64 << 10;

/// Bytes counted for each queued message or announcement beside its payload, for its bookkeeping.
pub const UNEXPECTED_OVERHEAD_BYTES: usize = 256;

/// A posted receive.
#[derive(Debug)]
pub struct Op {
    /// What was posted.
    pub recv: Recv,
    /// The sender, once matched.
    pub matched: Option<Rank>,
    /// Cancelled after it was matched: its message is discarded.
    pub cancelled: bool,
    sequence: u64,
    /// The memory that is exposed for its message.
    pub exposed: Option<Exposed>,
    /// Whether the receive sent a grant when it was posted, and that grant is still for it.
    granted_early: bool,
}

impl Op {
    /// The ranks that can serve it: only the sender, once it is matched.
    pub fn servers(&self) -> &[Rank] {
        self.matched.as_ref().map_or(self.recv.from.ranks(), std::slice::from_ref)
    }
}

/// Memory that the link to a rank has exposed for the message of one receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The sender.
    pub from: Rank,
    /// The key.
    pub key: u32,
    /// Length of the message in bytes.
    pub bytes: usize,
}

/// An unexpected message: it arrived, or was announced or offered, before its receive was posted.
#[derive(Debug)]
struct Unexpected {
    from: Rank,
    envelope: Envelope,
    /// The payload received so far; `None` if it is only announced or offered.
    data: Option<Vec<u8>>,
    /// The key of the offer, if it is offered.
    offer: Option<u32>,
    /// The number of the announcement, if it is announced.
    announcement: u32,
    /// The receive that it matched while still arriving.
    op: Option<u32>,
}

/// The result of posting a receive.
#[derive(Debug)]
pub enum Posting {
    /// The receive matched no complete message and waits.
    Waits {
        /// The receive.
        op: u32,
        /// A rank to send a grant to now.
        grant: Option<Rank>,
    },
    /// The receive matched an announcement: send its sender a grant now.
    Granted {
        /// The receive.
        op: u32,
        /// The sender.
        to: Rank,
        /// The message's envelope.
        envelope: Envelope,
        /// The number of the announcement.
        announcement: u32,
    },
    /// The receive matched an offer: read the message.
    Offered {
        /// The receive.
        op: u32,
        /// The sender.
        from: Rank,
        /// The message's envelope.
        envelope: Envelope,
        /// The offer's key.
        key: u32,
    },
    /// The receive matched a complete message, and was removed.
    Message {
        /// The receive.
        op: Op,
        /// The sender.
        from: Rank,
        /// The message's envelope.
        envelope: Envelope,
        /// The message's payload.
        data: Vec<u8>,
    },
}

/// The destination of an arriving message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The receive with this index.
    Op(u32),
    /// The unexpected message with this index.
    Unexpected(u32),
    /// The message has no destination: it is discarded. If it is for a receive that was cancelled, this is the memory
    /// that was exposed for it.
    Discard(Option<Exposed>),
}

/// Posted receives and unexpected messages of one context.
#[derive(Debug, Default)]
pub struct Receives {
    ops: Slab<Op>,
    posted: Queues<u32>,
    granted: Queues<u32>,
    unexpected: Slab<Unexpected>,
    unexpected_order: Queues<u32>,
    /// By slot: the ranks with unexpected messages, in the order of their turns at receives from any of several ranks.
    turns: Queues<u32>,
    /// Bytes of unexpected messages queued from each rank.
    queued_bytes: QuickMap<u32, usize>,
    sequence: u64,
    /// Buffers for further unexpected messages.
    spare: Vec<Vec<u8>>,
}

impl Receives {
    /// Posted receives, matched or not.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The receive `op`.
    pub fn op(&self, op: u32) -> &Op {
        &self.ops[op]
    }

    /// The receive `op`.
    pub fn op_mut(&mut self, op: u32) -> &mut Op {
        &mut self.ops[op]
    }

    /// All receives.
    pub fn ops_mut(&mut self) -> impl Iterator<Item = &mut Op> {
        self.ops.iter_mut().map(|(_, op)| op)
    }

    /// All receives.
    pub fn ops(&self) -> impl Iterator<Item = (u32, &Op)> {
        self.ops.iter()
    }

    /// Unexpected messages that no receive has matched: sender and envelope.
    pub fn unmatched(&self) -> impl Iterator<Item = (Rank, &Envelope)> {
        self.unexpected.iter().filter(|(_, e)| e.op.is_none()).map(|(_, e)| (e.from, &e.envelope))
    }

    /// Posts a receive. If it is from one rank and longer than `grants_above`, that rank waits for a grant.
    pub fn post(&mut self, recv: Recv, grants_above: usize) -> Posting {
        self.sequence += 1;
        let (space, slot) = (recv.space, recv.slot);
        let large = recv.bytes > grants_above;
        let (waiting_key, queued) = match &recv.from {
            Source::Rank(rank) => {
                let key = Key::new(*rank, space, slot);
                (key, self.unexpected_order.front(key))
            }
            Source::AnyOf(ranks) => {
                let any = Key::any(space, slot);
                let next = self.turns.iter(any).find(|rank| ranks.contains(&(*rank as Rank)));
                (any, next.and_then(|rank| self.unexpected_order.front(Key::new(rank as Rank, space, slot))))
            }
        };
        let grant = match &recv.from {
            Source::Rank(rank) if large && queued.is_none() => Some(*rank),
            _ => None,
        };
        let (sequence, granted_early) = (self.sequence, grant.is_some());
        let mut op = Op { recv, matched: None, cancelled: false, sequence, exposed: None, granted_early };
        let Some(index) = queued else {
            let op = self.ops.insert(op);
            self.posted.push(waiting_key, op);
            return Posting::Waits { op, grant };
        };
        let from = self.unexpected[index].from;
        op.matched = Some(from);
        let key = Key::new(from, space, slot);
        self.unexpected_order.pop(key);
        self.end_turn(key, matches!(op.recv.from, Source::AnyOf(_)));
        let bytes = UNEXPECTED_OVERHEAD_BYTES + self.unexpected[index].data.as_ref().map_or(0, Vec::len);
        self.refund(from, bytes);
        let message = &mut self.unexpected[index];
        match &message.data {
            None if message.offer.is_some() => {
                let message = self.unexpected.remove(index).expect("present");
                let (envelope, key) = (message.envelope, message.offer.unwrap_or_default());
                Posting::Offered { op: self.ops.insert(op), from, envelope, key }
            }
            None => {
                let (envelope, announcement) = (message.envelope, message.announcement);
                self.unexpected.remove(index);
                let op = self.ops.insert(op);
                self.granted.push(key, op);
                Posting::Granted { op, to: from, envelope, announcement }
            }
            Some(data) if data.len() == message.envelope.bytes as usize => {
                let message = self.unexpected.remove(index).expect("present");
                Posting::Message { op, from, envelope: message.envelope, data: message.data.unwrap_or_default() }
            }
            Some(_) => {
                let op = self.ops.insert(op);
                message.op = Some(op);
                Posting::Waits { op, grant: None }
            }
        }
    }

    /// Removes and returns the posted receive that a message from `from` matches.
    fn match_posted(&mut self, from: Rank, space: Space, slot: Slot) -> Option<u32> {
        let own = Key::new(from, space, slot);
        let any = Key::any(space, slot);
        let first_any = self.posted.iter(any).find(|op| match &self.ops[*op].recv.from {
            Source::AnyOf(ranks) => ranks.contains(&from),
            Source::Rank(_) => false,
        });
        let op = match (self.posted.front(own), first_any) {
            (Some(a), Some(b)) if self.ops[b].sequence < self.ops[a].sequence => {
                self.posted.remove(any, b);
                b
            }
            (Some(a), _) => {
                self.posted.pop(own);
                a
            }
            (None, Some(b)) => {
                self.posted.remove(any, b);
                b
            }
            (None, None) => return None,
        };
        self.ops[op].matched = Some(from);
        Some(op)
    }

    /// Handles the header of a message, and returns where its payload goes.
    pub fn arrive(&mut self, from: Rank, envelope: &Envelope, announced: bool) -> Arrival {
        let key = Key::new(from, envelope.space, envelope.slot);
        if announced {
            return self.take_granted(key).unwrap_or_else(|| self.fill(key, envelope));
        }
        // A message behind queued ones is queued too, to preserve the order.
        if self.unexpected_order.front(key).is_none()
            && let Some(op) = self.match_posted(from, envelope.space, envelope.slot)
        {
            if envelope.bytes > EAGER_BYTES as u64 && !self.ops[op].granted_early {
                let used = self.posted.iter(key).find(|other| self.ops[*other].granted_early);
                if let Some(used) = used {
                    self.ops[used].granted_early = false;
                }
            }
            return Arrival::Op(op);
        }
        let data = Some(self.spare.pop().unwrap_or_default());
        let message = Unexpected { from, envelope: *envelope, data, offer: None, announcement: 0, op: None };
        Arrival::Unexpected(self.enqueue(key, message))
    }

    /// Handles the header of a message that was placed: the receive that it matches, if any, or that it is discarded.
    pub fn arrive_placed(&mut self, from: Rank, envelope: &Envelope, announced: bool) -> Option<Arrival> {
        let key = Key::new(from, envelope.space, envelope.slot);
        if announced {
            return self.take_granted(key);
        }
        if self.unexpected_order.front(key).is_some() {
            return None;
        }
        self.match_posted(from, envelope.space, envelope.slot).map(Arrival::Op)
    }

    /// The receive that has matched the first announcement of which the message has not arrived; it may have been
    /// cancelled since.
    fn take_granted(&mut self, key: Key) -> Option<Arrival> {
        let op = self.granted.pop(key)?;
        if self.ops[op].cancelled {
            return Some(Arrival::Discard(self.ops.remove(op)?.exposed));
        }
        Some(Arrival::Op(op))
    }

    /// Handles a message whose announcement no receive has matched.
    fn fill(&mut self, key: Key, envelope: &Envelope) -> Arrival {
        let announced = |message: &Unexpected| message.data.is_none() && message.offer.is_none();
        let place = self.unexpected_order.iter(key).find(|queued| announced(&self.unexpected[*queued]));
        match place {
            Some(queued) => self.fill_position(queued, envelope),
            None => Arrival::Discard(None),
        }
    }

    /// Puts a message in the position of its announcement or offer.
    fn fill_position(&mut self, queued: u32, envelope: &Envelope) -> Arrival {
        let message = &mut self.unexpected[queued];
        message.envelope = *envelope;
        message.offer = None;
        message.data = Some(self.spare.pop().unwrap_or_default());
        Arrival::Unexpected(queued)
    }

    /// Handles an offer under `key`. Returns the posted receive that it matches, if any.
    pub fn offer(&mut self, from: Rank, envelope: &Envelope, key: u32) -> Option<u32> {
        let order = Key::new(from, envelope.space, envelope.slot);
        if self.unexpected_order.front(order).is_none()
            && let Some(op) = self.match_posted(from, envelope.space, envelope.slot)
        {
            return Some(op);
        }
        let message = Unexpected { from, envelope: *envelope, data: None, offer: Some(key), announcement: 0, op: None };
        self.enqueue(order, message);
        None
    }

    /// Handles a message that was offered under `key` and is now sent, because it was cancelled before it was read.
    pub fn replace(&mut self, from: Rank, envelope: &Envelope, key: u32) -> Arrival {
        let order = Key::new(from, envelope.space, envelope.slot);
        let place = self.unexpected_order.iter(order).find(|queued| self.unexpected[*queued].offer == Some(key));
        match place {
            Some(queued) => self.fill_position(queued, envelope),
            None => Arrival::Discard(None),
        }
    }

    /// The grants that receives from `from` have sent will not be used.
    pub fn take_back_grants(&mut self, from: Rank) {
        let of = |op: &Op| matches!(op.recv.from, Source::Rank(rank) if rank == from);
        self.ops.iter_mut().filter(|(_, op)| of(op)).for_each(|(_, op)| op.granted_early = false);
    }

    /// The receives of collectives that wait for messages of more than `above` bytes from `from`, in their order. They
    /// count as granted.
    pub fn grant_again(&mut self, from: Rank, above: usize) -> Vec<u32> {
        let is_from = |op: &Op| matches!(op.recv.from, Source::Rank(rank) if rank == from) && !op.recv.space.is_user();
        let waits = |op: &Op| is_from(op) && op.matched.is_none() && op.recv.bytes > above;
        let mut ops: Vec<u32> = self.ops.iter().filter(|(_, op)| waits(op)).map(|(index, _)| index).collect();
        ops.sort_unstable_by_key(|op| self.ops[*op].sequence);
        ops.iter().for_each(|op| self.ops[*op].granted_early = true);
        ops
    }

    /// Handles an announcement with this number. Returns the receive for which to send the sender a grant now, if any.
    pub fn announce(&mut self, from: Rank, envelope: &Envelope, announcement: u32) -> Option<u32> {
        let key = Key::new(from, envelope.space, envelope.slot);
        if self.unexpected_order.front(key).is_none()
            && let Some(op) = self.match_posted(from, envelope.space, envelope.slot)
        {
            self.granted.push(key, op);
            return (!self.ops[op].granted_early).then_some(op);
        }
        self.enqueue(key, Unexpected { from, envelope: *envelope, data: None, offer: None, announcement, op: None });
        None
    }

    /// Appends an unexpected message to the queue of its key.
    fn enqueue(&mut self, key: Key, message: Unexpected) -> u32 {
        if let Some(any) = key.of_any_rank()
            && self.unexpected_order.front(key).is_none()
        {
            self.turns.push(any, key.rank() as u32);
        }
        let queued = self.unexpected.insert(message);
        self.unexpected_order.push(key, queued);
        self.charge(key.rank(), UNEXPECTED_OVERHEAD_BYTES);
        queued
    }

    /// Updates the turn of the rank of `key` after one of its messages was taken: removes it if that was the last
    /// message; moves it to the end if the turn was used (`used`).
    fn end_turn(&mut self, key: Key, used: bool) {
        let Some(any) = key.of_any_rank() else { return };
        let more = self.unexpected_order.front(key).is_some();
        if more && !used {
            return;
        }
        self.turns.remove(any, key.rank() as u32);
        if more {
            self.turns.push(any, key.rank() as u32);
        }
    }

    /// Removes a receive.
    pub fn finish(&mut self, op: u32) -> Option<Op> {
        self.ops.remove(op)
    }
}

/// Why the message with `envelope` cannot serve `recv`, if it cannot; `name` is the sender's name in the error.
pub fn refusal(recv: &Recv, from: Rank, envelope: &Envelope, name: impl FnOnce() -> String) -> Option<Outcome> {
    if differs(recv.fingerprint, envelope.fingerprint) {
        return Some(Outcome::Mismatch { rank: from, theirs: envelope.fingerprint });
    }
    let (sent, room) = (envelope.bytes, recv.bytes as u64);
    let fits = if recv.exact { (sent, envelope.more) == (room, recv.more) } else { sent <= room };
    (!fits).then(|| {
        let text = format!("{} sent a message of {sent} bytes {}, ", name(), envelope.space.describe(envelope.slot));
        let why = match recv.exact {
            false => format!("where at most {room} bytes are expected"),
            true => {
                let what = match (sent == room, envelope.more) {
                    (false, _) => format!("where {room} bytes are expected"),
                    (true, true) => "behind which more follows, where no more is expected".into(),
                    (true, false) => "behind which nothing follows, where more is expected".into(),
                };
                what + ": the counts that it was called with differ from those here"
            }
        };
        Outcome::Failed(Error::new(ErrorKind::Mismatch, text + &why).with_rank(from))
    })
}

#[cfg(test)]
mod tests;
