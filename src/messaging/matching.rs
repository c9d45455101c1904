//! Which message goes to which receive. No I/O: shared by all transports.
//!
//! Messages from one rank on one slot meet receives in the order in which both were posted. A receive from any of several
//! ranks takes the message of the rank whose turn it is among those that have messages waiting on the slot: a rank gets the
//! last turn when its first message begins to wait, and again whenever such a receive takes one of several. So a rank that
//! waits is passed over by each other rank once at most, whatever sets of ranks the receives name.
//!
//! Small messages ("eager", up to [`EAGER_BYTES`]) are sent at once; one that meets no receive is kept. Large ones wait until
//! the receiver is ready, so that they go straight into its memory:
//! - A large receive from one known rank sends that rank a grant as soon as it is posted, without being asked. A
//!   sender that has this grant sends at once: no round trip is lost when the receive is posted first.
//! - A sender without a grant announces its message (`Announce`); the announcement stands in the message's place in the
//!   order. The receive that it meets sends a grant unless it has sent one already.
//!
//! A grant is a permission, not a promise: one that was left over (its receive took a shorter, eager message, or was
//! cancelled) only means that a large message may come unasked, and then it is kept like a small one. One that crosses an
//! announcement on the way may set that message free before any receive has met it; it takes its announcement's place.
//!
//! On a link that reads the peer's memory, large messages are offered, which is an announcement that no grant answers: the receive
//! that it meets reads the message. Then no receive sends grants of its own accord.
//!
//! As many receives count on a grant as the sender has grants, at most. So a large message that comes unasked, and meets a
//! receive that sent no grant, has used up another receive's, which must answer the announcement that it meets.

mod ends;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

use crate::error::{Error, ErrorKind};
use crate::hash::QuickMap;
use crate::messaging::operation::{Outcome, Recv, Source};
use crate::messaging::queues::{Key, Queues};
use crate::slab::Slab;
use crate::types::{Rank, Slot, Space};
use crate::wire::Envelope;
use crate::wire::fingerprint::differs;

/// Messages up to this length are sent without asking.
pub const EAGER_BYTES: usize = 64 << 10;

/// Counted for each message that is kept or announced, beside its bytes: for what it costs to remember it.
pub const UNEXPECTED_OVERHEAD: usize = 256;

/// A posted receive.
#[derive(Debug)]
pub struct Op {
    /// As posted.
    pub recv: Recv,
    /// The sender, once known.
    pub matched: Option<Rank>,
    /// Taken back after it was matched: what comes for it is thrown away.
    pub cancelled: bool,
    sequence: u64,
    /// It sent a grant when it was posted, and counts on it.
    granted_early: bool,
}

/// A message that came, or was announced, before its receive.
#[derive(Debug)]
struct Unexpected {
    from: Rank,
    envelope: Envelope,
    /// What has come of it; `None` while it is only announced or offered.
    data: Option<Vec<u8>>,
    /// Under which key it is offered.
    offer: Option<u32>,
    /// Set once it has met its receive while still arriving.
    op: Option<u32>,
}

/// What became of a receive that was posted.
#[derive(Debug)]
pub enum Posting {
    /// It waits. With a rank: send that rank a grant now.
    Waits {
        /// Its number.
        op: u32,
        /// Who is to hear of it.
        grant: Option<Rank>,
    },
    /// It met an announcement: send this rank a grant now.
    Granted {
        /// The sender.
        to: Rank,
    },
    /// It met an offer: the message is to be read.
    Offered {
        /// Its number.
        op: u32,
        /// The sender.
        from: Rank,
        /// The message's envelope.
        envelope: Envelope,
        /// The offer's key.
        key: u32,
    },
    /// It met a message that has come whole. The receive is over for the matching.
    Message {
        /// The receive.
        op: Op,
        /// The sender.
        from: Rank,
        /// The message's envelope.
        envelope: Envelope,
        /// Its payload.
        data: Vec<u8>,
    },
}

/// Where an arriving message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// To this receive.
    Op(u32),
    /// It is kept under this number.
    Unexpected(u32),
    /// Nowhere.
    Discard,
}

/// The receiving side of one context.
#[derive(Debug, Default)]
pub struct Receives {
    ops: Slab<Op>,
    posted: Queues<u32>,
    granted: Queues<u32>,
    unexpected: Slab<Unexpected>,
    unexpected_order: Queues<u32>,
    /// By slot: the ranks that have messages waiting, in the order of their turns at receives from any.
    turns: Queues<u32>,
    /// What is kept from each rank, in bytes.
    kept: QuickMap<u32, usize>,
    sequence: u64,
    /// Memory for kept messages, for the next ones.
    spare: Vec<Vec<u8>>,
}

/// Memory blocks for kept messages that are held for reuse: 16 MiB at most. A rank that was not scheduled for a while may find
/// a hundred messages waiting, and the next time it is to allocate nothing for them.
const MAX_SPARE: usize = 256;

impl Receives {
    /// Receives that wait or are under way.
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

    /// All receives.
    pub fn ops(&self) -> impl Iterator<Item = (u32, &Op)> {
        self.ops.iter()
    }

    /// Messages that no receive has met: sender and envelope.
    pub fn unmet(&self) -> impl Iterator<Item = (Rank, &Envelope)> {
        self.unexpected.iter().filter(|(_, e)| e.op.is_none()).map(|(_, e)| (e.from, &e.envelope))
    }

    /// What is kept from `from` without a receive: its bytes, and [`UNEXPECTED_OVERHEAD`] for each message.
    pub fn kept(&self, from: Rank) -> usize {
        if self.kept.is_empty() { 0 } else { self.kept.get(&(from as u32)).copied().unwrap_or(0) }
    }

    /// Counts `bytes` that are kept from `from`.
    pub fn charge(&mut self, from: Rank, bytes: usize) {
        *self.kept.entry(from as u32).or_insert(0) += bytes;
    }

    /// Ends `charge`.
    pub fn refund(&mut self, from: Rank, bytes: usize) {
        if let Some(kept) = self.kept.get_mut(&(from as u32)) {
            *kept = kept.saturating_sub(bytes);
        }
    }

    /// Posts a receive. `grants`: its sender waits for a grant if the message is large.
    pub fn post(&mut self, recv: Recv, grants: bool) -> Posting {
        self.sequence += 1;
        let (space, slot) = (recv.space, recv.slot);
        let large = grants && recv.bytes > EAGER_BYTES;
        let (waiting_key, early) = match &recv.from {
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
            Source::Rank(rank) if large && early.is_none() => Some(*rank),
            _ => None,
        };
        let mut op =
            Op { recv, matched: None, cancelled: false, sequence: self.sequence, granted_early: grant.is_some() };
        let Some(index) = early else {
            let op = self.ops.insert(op);
            self.posted.push(waiting_key, op);
            return Posting::Waits { op, grant };
        };
        let from = self.unexpected[index].from;
        op.matched = Some(from);
        let key = Key::new(from, space, slot);
        self.unexpected_order.pop(key);
        self.end_turn(key, matches!(op.recv.from, Source::AnyOf(_)));
        let message = &mut self.unexpected[index];
        let bytes = UNEXPECTED_OVERHEAD + message.data.as_ref().map_or(0, Vec::len);
        if let Some(kept) = self.kept.get_mut(&(from as u32)) {
            *kept = kept.saturating_sub(bytes);
        }
        match &message.data {
            None if message.offer.is_some() => {
                let message = self.unexpected.remove(index).expect("present");
                let (envelope, key) = (message.envelope, message.offer.unwrap_or_default());
                Posting::Offered { op: self.ops.insert(op), from, envelope, key }
            }
            None => {
                self.unexpected.remove(index);
                let op = self.ops.insert(op);
                self.granted.push(key, op);
                Posting::Granted { to: from }
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

    /// Takes the posted receive that a message from `from` meets.
    fn meet(&mut self, from: Rank, space: Space, slot: Slot) -> Option<u32> {
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

    /// A message begins to arrive.
    pub fn arrive(&mut self, from: Rank, envelope: &Envelope, announced: bool) -> Arrival {
        let key = Key::new(from, envelope.space, envelope.slot);
        if announced {
            return match self.granted.pop(key) {
                Some(op) if self.ops[op].cancelled => {
                    self.ops.remove(op);
                    Arrival::Discard
                }
                Some(op) => Arrival::Op(op),
                None => self.fill(key, envelope),
            };
        }
        // Order: behind an earlier message that is still kept, this one is kept too.
        if self.unexpected_order.front(key).is_none()
            && let Some(op) = self.meet(from, envelope.space, envelope.slot)
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
        Arrival::Unexpected(self.line_up(key, Unexpected { from, envelope: *envelope, data, offer: None, op: None }))
    }

    /// An announced message comes before a receive has met its announcement.
    fn fill(&mut self, key: Key, envelope: &Envelope) -> Arrival {
        let announced = |message: &Unexpected| message.data.is_none() && message.offer.is_none();
        let place = self.unexpected_order.iter(key).find(|early| announced(&self.unexpected[*early]));
        match place {
            Some(early) => self.fill_place(early, envelope),
            None => Arrival::Discard,
        }
    }

    /// A message comes that has a place in its order already.
    fn fill_place(&mut self, early: u32, envelope: &Envelope) -> Arrival {
        let message = &mut self.unexpected[early];
        message.envelope = *envelope;
        message.offer = None;
        message.data = Some(self.spare.pop().unwrap_or_default());
        Arrival::Unexpected(early)
    }

    /// A message is offered under `key`. The receive that it meets, if one waits.
    pub fn offer(&mut self, from: Rank, envelope: &Envelope, key: u32) -> Option<u32> {
        let order = Key::new(from, envelope.space, envelope.slot);
        if self.unexpected_order.front(order).is_none()
            && let Some(op) = self.meet(from, envelope.space, envelope.slot)
        {
            return Some(op);
        }
        let message = Unexpected { from, envelope: *envelope, data: None, offer: Some(key), op: None };
        self.line_up(order, message);
        None
    }

    /// A message is sent after all that was offered under `key` and has not met a receive.
    pub fn replace(&mut self, from: Rank, envelope: &Envelope, key: u32) -> Arrival {
        let order = Key::new(from, envelope.space, envelope.slot);
        let place = self.unexpected_order.iter(order).find(|early| self.unexpected[*early].offer == Some(key));
        match place {
            Some(early) => self.fill_place(early, envelope),
            None => Arrival::Discard,
        }
    }

    /// The grants that receives from `from` have sent will not be used.
    pub fn take_back_grants(&mut self, from: Rank) {
        let of = |op: &Op| matches!(op.recv.from, Source::Rank(rank) if rank == from);
        self.ops.iter_mut().filter(|(_, op)| of(op)).for_each(|(_, op)| op.granted_early = false);
    }

    /// A message is announced. `true`: send the sender a grant now.
    pub fn announce(&mut self, from: Rank, envelope: &Envelope) -> bool {
        let key = Key::new(from, envelope.space, envelope.slot);
        if self.unexpected_order.front(key).is_none()
            && let Some(op) = self.meet(from, envelope.space, envelope.slot)
        {
            self.granted.push(key, op);
            return !self.ops[op].granted_early;
        }
        self.line_up(key, Unexpected { from, envelope: *envelope, data: None, offer: None, op: None });
        false
    }

    /// Begins to keep a message, behind the others of its order.
    fn line_up(&mut self, key: Key, message: Unexpected) -> u32 {
        if let Some(any) = key.of_any_rank()
            && self.unexpected_order.front(key).is_none()
        {
            self.turns.push(any, key.rank() as u32);
        }
        let early = self.unexpected.insert(message);
        self.unexpected_order.push(key, early);
        self.charge(key.rank(), UNEXPECTED_OVERHEAD);
        early
    }

    /// A message was taken out of the order `key`. If it was the last, its rank has no turn any more; else the rank has the
    /// last one, if this was its turn (`used`).
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

    /// Adds to a kept message. Once it is whole and has met a receive, that receive and the message.
    pub fn keep(&mut self, early: u32, bytes: &[u8]) -> Option<(Op, Rank, Envelope, Vec<u8>)> {
        let message = &mut self.unexpected[early];
        let data = message.data.get_or_insert_default();
        let payload = message.envelope.bytes as usize;
        if payload <= EAGER_BYTES {
            // Not more, or it would be too long for `recycle`.
            data.reserve_exact(payload.saturating_sub(data.len()));
        }
        data.extend_from_slice(bytes);
        if message.op.is_none() {
            *self.kept.entry(message.from as u32).or_insert(0) += bytes.len();
        }
        if data.len() < message.envelope.bytes as usize || message.op.is_none() {
            return None;
        }
        let message = self.unexpected.remove(early)?;
        let op = self.ops.remove(message.op?)?;
        (!op.cancelled).then(|| (op, message.from, message.envelope, message.data.unwrap_or_default()))
    }

    /// Takes back the memory of a kept message that has been delivered.
    pub fn recycle(&mut self, mut data: Vec<u8>) {
        if self.spare.len() < MAX_SPARE && data.capacity() <= EAGER_BYTES {
            data.clear();
            self.spare.push(data);
        }
    }

    /// The receive is over.
    pub fn finish(&mut self, op: u32) -> Option<Op> {
        self.ops.remove(op)
    }
}

/// Why the message with `header` cannot serve `recv`, if it cannot; `name` is what messages call its sender.
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
