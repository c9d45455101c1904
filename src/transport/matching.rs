//! Which message goes to which receive. No I/O: shared by all transports.
//!
//! Messages from one rank on one slot meet receives in the order in which both were posted. A receive from any of several
//! ranks takes the message that came first, and where several wait, the ranks take turns.
//!
//! Small messages ("eager", up to [`EAGER_BYTES`]) are sent at once; one that meets no receive is kept. Large ones wait until
//! the receiver is ready, so that they go straight into its memory:
//! - A large receive from one known rank tells that rank `ClearToSend` as soon as it is posted, without being asked. A
//!   sender that has this credit sends at once: no round trip is lost when the receive is posted first.
//! - A sender without credit announces its message (`ReadyToSend`); the announcement stands in the message's place in the
//!   order. The receive that it meets answers `ClearToSend` unless it has sent its credit already.
//!
//! A credit is a permission, not a promise: one that was left over (its receive took a shorter, eager message, or was
//! cancelled) only means that a large message may come unasked, and then it is kept like a small one. One that crosses an
//! announcement on the way may set that message free before any receive has met it; it takes its announcement's place.
//!
//! As many receives count on a credit as the sender has credits, at most. So a large message that comes unasked, and meets a
//! receive that gave no credit, has used up another receive's, which must answer the announcement that it meets.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

use crate::error::{Error, ErrorKind};
use crate::hash::QuickMap;
use crate::transport::frame::{FLAG_ANNOUNCED, Header};
use crate::transport::slab::Slab;
use crate::transport::{Outcome, Recv, Source, Space, Token};
use crate::types::{Rank, Slot};

/// Messages up to this length are sent without asking.
pub const EAGER_BYTES: usize = 64 << 10;

/// Counted for each message that is kept or announced, beside its bytes: for what it costs to remember it.
pub const EARLY_OVERHEAD: usize = 256;

const NIL: u32 = u32::MAX;
const ANY: u32 = u32::MAX;

/// One order of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    rank: u32,
    space: Space,
    slot: Slot,
}

impl Key {
    /// Messages between this process and `rank`.
    pub fn new(rank: Rank, space: Space, slot: Slot) -> Self {
        Self { rank: rank as u32, space, slot }
    }

    /// The other process.
    pub fn rank(&self) -> Rank {
        self.rank as usize
    }

    /// The slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }
}

/// First-in-first-out queues by key, which share their storage.
#[derive(Debug, Default)]
pub struct Queues<T> {
    ends: QuickMap<Key, (u32, u32)>,
    links: Slab<(T, u32)>,
}

impl<T: Copy + PartialEq> Queues<T> {
    /// Whether every queue is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Appends.
    pub fn push(&mut self, key: Key, value: T) {
        let link = self.links.insert((value, NIL));
        match self.ends.get_mut(&key) {
            Some((_, tail)) => self.links[std::mem::replace(tail, link)].1 = link,
            None => {
                self.ends.insert(key, (link, link));
            }
        }
    }

    /// The first.
    pub fn front(&self, key: Key) -> Option<T> {
        self.ends.get(&key).map(|(head, _)| self.links[*head].0)
    }

    /// Takes the first.
    pub fn pop(&mut self, key: Key) -> Option<T> {
        let (head, tail) = *self.ends.get(&key)?;
        let (value, next) = self.links.remove(head).expect("linked");
        if next == NIL {
            self.ends.remove(&key);
        } else {
            self.ends.insert(key, (next, tail));
        }
        Some(value)
    }

    /// The values of one queue, from the front.
    pub fn iter(&self, key: Key) -> impl Iterator<Item = T> + '_ {
        let mut link = self.ends.get(&key).map_or(NIL, |(head, _)| *head);
        std::iter::from_fn(move || {
            let (value, next) = *self.links.get(link)?;
            link = next;
            Some(value)
        })
    }

    /// Takes `value` out of the middle; whether it was there.
    pub fn remove(&mut self, key: Key, value: T) -> bool {
        let Some((head, tail)) = self.ends.get(&key).copied() else { return false };
        let (mut before, mut link) = (NIL, head);
        while link != NIL {
            let (current, next) = self.links[link];
            if current == value {
                self.links.remove(link);
                if before != NIL {
                    self.links[before].1 = next;
                }
                let ends = (if before == NIL { next } else { head }, if next == NIL { before } else { tail });
                if ends.0 == NIL {
                    self.ends.remove(&key);
                } else {
                    self.ends.insert(key, ends);
                }
                return true;
            }
            (before, link) = (link, next);
        }
        false
    }
}

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
    credited: bool,
}

/// A message that came, or was announced, before its receive.
#[derive(Debug)]
struct Early {
    from: Rank,
    header: Header,
    /// What has come of it; `None` while it is only announced.
    data: Option<Vec<u8>>,
    /// Set once it has met its receive while still arriving.
    op: Option<u32>,
}

/// What became of a receive that was posted.
#[derive(Debug)]
pub enum Posting {
    /// It waits. With a rank: tell that rank `ClearToSend` now.
    Waits {
        /// Its number.
        op: u32,
        /// Who is to hear of it.
        credit: Option<Rank>,
    },
    /// It met an announcement: tell this rank `ClearToSend` now.
    Granted {
        /// The sender.
        to: Rank,
    },
    /// It met a message that has come whole. The receive is over for the matching.
    Message {
        /// The receive.
        op: Op,
        /// The sender.
        from: Rank,
        /// The message's header.
        header: Header,
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
    Early(u32),
    /// Nowhere.
    Discard,
}

/// The receiving side of one context.
#[derive(Debug, Default)]
pub struct Receives {
    ops: Slab<Op>,
    posted: Queues<u32>,
    granted: Queues<u32>,
    early: Slab<Early>,
    early_order: Queues<u32>,
    /// What is kept from each rank, in bytes.
    kept: QuickMap<u32, usize>,
    sequence: u64,
    turn: usize,
    /// Memory for kept messages, for the next ones.
    spare: Vec<Vec<u8>>,
}

/// Memory blocks for kept messages that are held for reuse.
const MAX_SPARE: usize = 64;

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

    /// Messages that no receive has met: sender and header.
    pub fn unmet(&self) -> impl Iterator<Item = (Rank, &Header)> {
        self.early.iter().filter(|(_, e)| e.op.is_none()).map(|(_, e)| (e.from, &e.header))
    }

    /// What is kept from `from` without a receive: its bytes, and [`EARLY_OVERHEAD`] for each message.
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

    /// Posts a receive.
    pub fn post(&mut self, recv: Recv) -> Posting {
        self.sequence += 1;
        let (space, slot) = (recv.space, recv.slot);
        let large = recv.bytes > EAGER_BYTES;
        let (waiting_key, early) = match &recv.from {
            Source::Rank(rank) => {
                let key = Key::new(*rank, space, slot);
                (key, self.early_order.front(key))
            }
            Source::AnyOf(ranks) => {
                // Whoever stands behind the rank that was served last comes first.
                self.turn = self.turn.wrapping_add(1);
                let n = ranks.len();
                let early = (0..n).find_map(|i| {
                    self.early_order.front(Key::new(ranks[(self.turn.wrapping_add(i)) % n], space, slot))
                });
                (Key { rank: ANY, space, slot }, early)
            }
        };
        let credit = match &recv.from {
            Source::Rank(rank) if large && early.is_none() => Some(*rank),
            _ => None,
        };
        let mut op = Op { recv, matched: None, cancelled: false, sequence: self.sequence, credited: credit.is_some() };
        let Some(index) = early else {
            let op = self.ops.insert(op);
            self.posted.push(waiting_key, op);
            return Posting::Waits { op, credit };
        };
        let message = &mut self.early[index];
        let from = message.from;
        op.matched = Some(from);
        let key = Key::new(from, space, slot);
        self.early_order.pop(key);
        let bytes = EARLY_OVERHEAD + message.data.as_ref().map_or(0, Vec::len);
        if let Some(kept) = self.kept.get_mut(&(from as u32)) {
            *kept = kept.saturating_sub(bytes);
        }
        match &message.data {
            None => {
                self.early.remove(index);
                let op = self.ops.insert(op);
                self.granted.push(key, op);
                Posting::Granted { to: from }
            }
            Some(data) if data.len() == message.header.payload() => {
                let message = self.early.remove(index).expect("present");
                Posting::Message { op, from, header: message.header, data: message.data.unwrap_or_default() }
            }
            Some(_) => {
                let op = self.ops.insert(op);
                message.op = Some(op);
                Posting::Waits { op, credit: None }
            }
        }
    }

    /// Takes the posted receive that a message from `from` meets.
    fn meet(&mut self, from: Rank, space: Space, slot: Slot) -> Option<u32> {
        let own = Key::new(from, space, slot);
        let any = Key { rank: ANY, space, slot };
        let first_any = if self.posted.ends.contains_key(&any) {
            self.posted.iter(any).find(|op| match &self.ops[*op].recv.from {
                Source::AnyOf(ranks) => ranks.contains(&from),
                Source::Rank(_) => false,
            })
        } else {
            None
        };
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
    pub fn arrive(&mut self, from: Rank, header: &Header) -> Arrival {
        let key = Key::new(from, header.space, header.slot);
        if header.flags & FLAG_ANNOUNCED != 0 {
            return match self.granted.pop(key) {
                Some(op) if self.ops[op].cancelled => {
                    self.ops.remove(op);
                    Arrival::Discard
                }
                Some(op) => Arrival::Op(op),
                None => self.fill(key, header),
            };
        }
        // Order: behind an earlier message that is still kept, this one is kept too.
        if self.early_order.front(key).is_none()
            && let Some(op) = self.meet(from, header.space, header.slot)
        {
            if header.bytes > EAGER_BYTES as u64 && !self.ops[op].credited {
                let creditor = self.posted.iter(key).find(|other| self.ops[*other].credited);
                if let Some(creditor) = creditor {
                    self.ops[creditor].credited = false;
                }
            }
            return Arrival::Op(op);
        }
        let data = Some(self.spare.pop().unwrap_or_default());
        let early = self.early.insert(Early { from, header: *header, data, op: None });
        self.early_order.push(key, early);
        self.charge(from, EARLY_OVERHEAD);
        Arrival::Early(early)
    }

    /// An announced message comes before a receive has met its announcement.
    fn fill(&mut self, key: Key, header: &Header) -> Arrival {
        let Some(early) = self.early_order.iter(key).find(|early| self.early[*early].data.is_none()) else {
            return Arrival::Discard;
        };
        let message = &mut self.early[early];
        message.header = *header;
        message.data = Some(self.spare.pop().unwrap_or_default());
        Arrival::Early(early)
    }

    /// A message is announced. `true`: tell the sender `ClearToSend` now.
    pub fn announce(&mut self, from: Rank, header: &Header) -> bool {
        let key = Key::new(from, header.space, header.slot);
        if self.early_order.front(key).is_none()
            && let Some(op) = self.meet(from, header.space, header.slot)
        {
            self.granted.push(key, op);
            return !self.ops[op].credited;
        }
        let early = self.early.insert(Early { from, header: *header, data: None, op: None });
        self.early_order.push(key, early);
        self.charge(from, EARLY_OVERHEAD);
        false
    }

    /// Adds to a kept message. Once it is whole and has met a receive, that receive and the message.
    pub fn keep(&mut self, early: u32, bytes: &[u8]) -> Option<(Op, Rank, Header, Vec<u8>)> {
        let message = &mut self.early[early];
        let data = message.data.get_or_insert_default();
        data.extend_from_slice(bytes);
        if message.op.is_none() {
            *self.kept.entry(message.from as u32).or_insert(0) += bytes.len();
        }
        if data.len() < message.header.payload() || message.op.is_none() {
            return None;
        }
        let message = self.early.remove(early)?;
        let op = self.ops.remove(message.op?)?;
        (!op.cancelled).then(|| (op, message.from, message.header, message.data.unwrap_or_default()))
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

    /// Takes back the receives of `owner`; those that messages are arriving for are given to `arriving`, which must no
    /// longer write to them.
    pub fn cancel(&mut self, owner: u32, mut arriving: impl FnMut(u32)) {
        let ops: Vec<u32> = self.ops.iter().filter(|(_, op)| op.recv.token.owner == owner).map(|(i, _)| i).collect();
        for op in ops {
            match self.ops[op].matched {
                None => {
                    self.unpost(op);
                    self.ops.remove(op);
                }
                Some(from) => {
                    self.ops[op].cancelled = true;
                    let key = Key::new(from, self.ops[op].recv.space, self.ops[op].recv.slot);
                    let expected = self.granted.iter(key).any(|g| g == op);
                    if !expected && !self.early.iter().any(|(_, e)| e.op == Some(op)) {
                        arriving(op);
                        self.ops.remove(op);
                    }
                }
            }
        }
    }

    /// Takes back one receive that was just posted and waits.
    pub fn withdraw(&mut self, op: u32) {
        self.unpost(op);
        self.ops.remove(op);
    }

    fn unpost(&mut self, op: u32) {
        let recv = &self.ops[op].recv;
        let key = match recv.from {
            Source::Rank(rank) => Key::new(rank, recv.space, recv.slot),
            Source::AnyOf(_) => Key { rank: ANY, space: recv.space, slot: recv.slot },
        };
        self.posted.remove(key, op);
    }

    /// The connection to `lost` is gone: takes out every receive that only ranks of `is_lost` could serve. What has come
    /// whole stays; what came in part, or was announced, is dropped.
    pub fn lose(&mut self, lost: Rank, is_lost: impl Fn(Rank) -> bool) -> Vec<Token> {
        let mut tokens = Vec::new();
        let ops: Vec<u32> = self
            .ops
            .iter()
            .filter(|(_, op)| match (&op.matched, &op.recv.from) {
                (Some(rank), _) => *rank == lost,
                (None, Source::Rank(rank)) => *rank == lost,
                (None, Source::AnyOf(ranks)) => ranks.contains(&lost) && ranks.iter().all(|r| is_lost(*r)),
            })
            .map(|(i, _)| i)
            .collect();
        for op in ops {
            match self.ops[op].matched {
                None => self.unpost(op),
                Some(from) => {
                    let key = Key::new(from, self.ops[op].recv.space, self.ops[op].recv.slot);
                    self.granted.remove(key, op);
                }
            }
            if let Some(op) = self.ops.remove(op)
                && !op.cancelled
            {
                tokens.push(op.recv.token);
            }
        }
        let partial: Vec<u32> = self
            .early
            .iter()
            .filter(|(_, e)| e.from == lost && e.data.as_ref().is_none_or(|d| d.len() < e.header.payload()))
            .map(|(i, _)| i)
            .collect();
        for index in partial {
            if let Some(message) = self.early.remove(index) {
                if message.op.is_none() {
                    self.refund(lost, EARLY_OVERHEAD + message.data.as_ref().map_or(0, Vec::len));
                }
                self.early_order.remove(Key::new(lost, message.header.space, message.header.slot), index);
            }
        }
        tokens
    }
}

/// Why the message with `header` cannot serve `recv`, if it cannot; `name` is what messages call its sender.
pub fn refusal(recv: &Recv, from: Rank, header: &Header, name: impl FnOnce() -> String) -> Option<Outcome> {
    if recv.check != header.check {
        return Some(Outcome::Mismatch { rank: from, theirs: header.check });
    }
    let fits = if recv.exact { header.bytes == recv.bytes as u64 } else { header.bytes <= recv.bytes as u64 };
    (!fits).then(|| {
        Outcome::Failed(Error::new(
            ErrorKind::Mismatch,
            format!(
                "{} sent a message of {} bytes in slot {:#x}, where {}{} bytes are expected{}",
                name(),
                header.bytes,
                header.slot,
                if recv.exact { "" } else { "at most " },
                recv.bytes,
                if recv.exact { ": the counts that it was called with differ from those here" } else { "" }
            ),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::frame::Kind;

    fn recv(from: Source, slot: Slot, bytes: usize, owner: u32) -> Recv {
        Recv {
            from,
            space: Space::User,
            slot,
            check: 0,
            into: std::ptr::null_mut(),
            bytes,
            exact: false,
            reduce: None,
            token: Token { owner, detail: 0 },
        }
    }

    fn data(slot: Slot, bytes: u64) -> Header {
        Header::new(Kind::Data, slot, bytes)
    }

    fn announced(slot: Slot, bytes: u64) -> Header {
        Header { flags: FLAG_ANNOUNCED, ..data(slot, bytes) }
    }

    fn any(ranks: &[Rank]) -> Source {
        Source::AnyOf(ranks.into())
    }

    fn owner_of(r: &Receives, arrival: Arrival) -> u32 {
        match arrival {
            Arrival::Op(op) => r.op(op).recv.token.owner,
            other => panic!("{other:?}"),
        }
    }

    const LARGE: usize = EAGER_BYTES + 1;

    #[test]
    fn messages_meet_receives_in_order_by_rank_and_slot() {
        let mut r = Receives::default();
        for (owner, (rank, slot)) in [(1, 7), (1, 8), (2, 7), (1, 7)].into_iter().enumerate() {
            assert!(matches!(
                r.post(recv(Source::Rank(rank), slot, 4, owner as u32)),
                Posting::Waits { credit: None, .. }
            ));
        }
        let got: Vec<u32> = [(2, 7), (1, 7), (1, 8), (1, 7)]
            .into_iter()
            .map(|(rank, slot)| {
                let arrival = r.arrive(rank, &data(slot, 4));
                owner_of(&r, arrival)
            })
            .collect();
        assert_eq!(got, [2, 0, 1, 3]);
        assert!(matches!(r.arrive(1, &data(7, 4)), Arrival::Early(_)));
    }

    #[test]
    fn an_early_message_waits_for_its_receive_even_while_it_arrives() {
        let mut r = Receives::default();
        let Arrival::Early(first) = r.arrive(3, &data(5, 4)) else { panic!() };
        let Arrival::Early(second) = r.arrive(3, &data(5, 2)) else { panic!() };
        assert!(r.keep(first, b"ab").is_none());
        assert!(matches!(r.post(recv(Source::Rank(3), 5, 4, 1)), Posting::Waits { credit: None, .. }));
        let (op, from, _, bytes) = r.keep(first, b"cd").unwrap();
        assert_eq!((op.recv.token.owner, from, &bytes[..]), (1, 3, &b"abcd"[..]));
        assert!(r.keep(second, b"ef").is_none());
        match r.post(recv(any(&[9, 3]), 5, 4, 2)) {
            Posting::Message { from: 3, data, .. } => assert_eq!(data, b"ef"),
            other => panic!("{other:?}"),
        }
        assert!(r.is_empty());
    }

    #[test]
    fn receive_from_any_takes_turns() {
        let mut r = Receives::default();
        for _ in 0..3 {
            for rank in [0, 1, 2] {
                let Arrival::Early(e) = r.arrive(rank, &data(5, 1)) else { panic!() };
                assert!(r.keep(e, b"x").is_none());
            }
        }
        let mut served = Vec::new();
        for _ in 0..9 {
            match r.post(recv(any(&[0, 1, 2]), 5, 1, 0)) {
                Posting::Message { from, .. } => served.push(from),
                other => panic!("{other:?}"),
            }
        }
        for round in served.chunks(3) {
            let mut round = round.to_vec();
            round.sort_unstable();
            assert_eq!(round, [0, 1, 2], "{served:?}");
        }
    }

    #[test]
    fn the_receive_posted_first_is_served_first() {
        let mut r = Receives::default();
        r.post(recv(any(&[1, 2]), 5, 1, 10));
        r.post(recv(Source::Rank(1), 5, 1, 11));
        r.post(recv(any(&[2]), 5, 1, 12));
        let first = r.arrive(1, &data(5, 1));
        let second = r.arrive(1, &data(5, 1));
        let third = r.arrive(2, &data(5, 1));
        assert_eq!([owner_of(&r, first), owner_of(&r, second), owner_of(&r, third)], [10, 11, 12]);
    }

    #[test]
    fn large_receives_give_credit_and_announcements_are_answered_once() {
        let mut r = Receives::default();
        assert!(matches!(r.post(recv(Source::Rank(1), 5, LARGE, 0)), Posting::Waits { credit: Some(1), .. }));
        // The announcement crossed the credit on the way: no second grant.
        assert!(!r.announce(1, &data(5, LARGE as u64)));
        let arrival = r.arrive(1, &announced(5, LARGE as u64));
        assert_eq!(owner_of(&r, arrival), 0);
        // Announced first, received later: one grant.
        assert!(!r.announce(2, &data(5, LARGE as u64)));
        assert!(matches!(r.post(recv(any(&[1, 2]), 5, LARGE, 1)), Posting::Granted { to: 2 }));
        let arrival = r.arrive(2, &announced(5, LARGE as u64));
        assert_eq!(owner_of(&r, arrival), 1);
        // From any, posted first: granted when announced.
        assert!(matches!(r.post(recv(any(&[1, 2]), 5, LARGE, 2)), Posting::Waits { credit: None, .. }));
        assert!(r.announce(1, &data(5, LARGE as u64)));
    }

    #[test]
    fn an_announced_message_that_a_credit_set_free_keeps_its_place() {
        let mut r = Receives::default();
        assert!(!r.announce(1, &Header::new(Kind::ReadyToSend, 5, LARGE as u64)));
        let Arrival::Early(early) = r.arrive(1, &announced(5, LARGE as u64)) else { panic!() };
        assert!(matches!(r.arrive(1, &data(5, 1)), Arrival::Early(_)));
        assert!(matches!(r.post(recv(Source::Rank(1), 5, LARGE, 0)), Posting::Waits { credit: None, .. }));
        let (op, _, header, bytes) = r.keep(early, &[7; LARGE]).unwrap();
        assert_eq!((op.recv.token.owner, header.payload(), bytes.len()), (0, LARGE, LARGE));
        // Not announced at all.
        assert_eq!(r.arrive(1, &announced(6, LARGE as u64)), Arrival::Discard);
    }

    #[test]
    fn a_credit_is_used_up_once() {
        let mut r = Receives::default();
        assert!(matches!(r.post(recv(any(&[1, 2]), 5, LARGE, 0)), Posting::Waits { credit: None, .. }));
        assert!(matches!(r.post(recv(Source::Rank(1), 5, LARGE, 1)), Posting::Waits { credit: Some(1), .. }));
        // The sender used the credit of the second receive for what the first one gets.
        let arrival = r.arrive(1, &data(5, LARGE as u64));
        assert_eq!(owner_of(&r, arrival), 0);
        assert!(r.announce(1, &data(5, LARGE as u64)));
    }

    #[test]
    fn a_small_message_does_not_overtake_an_announced_one() {
        let mut r = Receives::default();
        assert!(!r.announce(1, &data(5, LARGE as u64)));
        assert!(matches!(r.arrive(1, &data(5, 1)), Arrival::Early(_)));
        assert!(matches!(r.post(recv(Source::Rank(1), 5, LARGE, 0)), Posting::Granted { to: 1 }));
    }

    #[test]
    fn cancelled_receives_take_nothing_and_what_was_granted_is_thrown_away() {
        let mut r = Receives::default();
        r.post(recv(Source::Rank(1), 5, 4, 7));
        r.post(recv(Source::Rank(1), 5, 4, 8));
        r.cancel(7, |_| panic!("nothing was arriving"));
        let arrival = r.arrive(1, &data(5, 4));
        assert_eq!(owner_of(&r, arrival), 8);
        let mut arriving = Vec::new();
        r.cancel(8, |op| arriving.push(op));
        assert_eq!(arriving.len(), 1);
        assert!(r.announce(2, &data(6, LARGE as u64)) || r.is_empty());
        r.post(recv(Source::Rank(2), 6, LARGE, 9));
        r.cancel(9, |_| panic!("nothing was arriving"));
        assert_eq!(r.arrive(2, &announced(6, LARGE as u64)), Arrival::Discard);
        assert!(r.is_empty());
    }

    #[test]
    fn a_lost_rank_fails_what_only_it_could_serve() {
        let mut r = Receives::default();
        r.post(recv(Source::Rank(1), 5, 4, 0));
        r.post(recv(Source::Rank(2), 5, 4, 1));
        r.post(recv(any(&[1, 2]), 6, 4, 2));
        r.post(recv(any(&[1]), 7, 4, 3));
        let Arrival::Early(whole) = r.arrive(1, &data(9, 1)) else { panic!() };
        assert!(r.keep(whole, b"x").is_none());
        let Arrival::Early(_part) = r.arrive(1, &data(10, 2)) else { panic!() };
        let mut owners: Vec<u32> = r.lose(1, |rank| rank == 1).iter().map(|t| t.owner).collect();
        owners.sort_unstable();
        assert_eq!(owners, [0, 3]);
        assert!(matches!(r.post(recv(Source::Rank(1), 9, 1, 4)), Posting::Message { .. }));
        assert!(matches!(r.post(recv(Source::Rank(1), 10, 2, 5)), Posting::Waits { .. }));
    }

    #[test]
    fn refuses_messages_that_do_not_fit() {
        let mut want = recv(Source::Rank(1), 5, 4, 0);
        let name = || "rank 1".to_owned();
        assert!(refusal(&want, 1, &data(5, 3), name).is_none());
        assert!(
            matches!(refusal(&want, 1, &data(5, 5), name), Some(Outcome::Failed(e)) if e.message().contains("at most 4"))
        );
        want.exact = true;
        assert!(
            matches!(refusal(&want, 1, &data(5, 3), name), Some(Outcome::Failed(e)) if e.message().contains("rank 1"))
        );
        want.check = 9;
        assert!(matches!(refusal(&want, 1, &data(5, 4), name), Some(Outcome::Mismatch { rank: 1, theirs: 0 })));
    }

    #[test]
    fn queues_keep_order_through_removals() {
        let mut q = Queues::default();
        let key = Key::new(1, Space::User, 2);
        (0..5).for_each(|v| q.push(key, v));
        assert!(q.remove(key, 0) && q.remove(key, 2) && q.remove(key, 4) && !q.remove(key, 4));
        q.push(key, 5);
        assert_eq!(q.iter(key).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!((q.pop(key), q.pop(key), q.pop(key), q.pop(key)), (Some(1), Some(3), Some(5), None));
        assert!(q.is_empty());
    }
}
