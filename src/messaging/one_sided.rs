//! Puts, gets and writes into bound buffers on links that access the peer's memory themselves.
//!
//! On such a link, regions and bound buffers are published to the peer. A put or get of a region that is known to be published is one
//! access by the link; others, and those of ranges that are not inside, are sent to the peer as on other links. A write into a bound
//! buffer waits until the peer has said by which region the link reaches the buffer (`Bound`), or that it must be sent. Then all writes
//! into that buffer take the same way, so that they stay in order; a header behind the bytes (`Written`) says where they are.

use super::Messenger;
use super::operation::{Outcome, Remote, Send, Token};
use super::peer::Peer;
use super::placements::Placing;
use super::queues::Key;
use crate::error::{Error, ErrorKind, Result};
use crate::transport::OneSided;
use crate::types::{Rank, Slot, Space};
use crate::wire::Message;

/// A write into a bound buffer of the peer that waits until it is known by which way.
#[derive(Clone, Copy)]
pub(super) struct WaitingWrite {
    pub(super) token: Token,
    slot: Slot,
    offset: u64,
    from: *const u8,
    pub(super) bytes: usize,
}

/// The operation in terms of which an access by the link is kept until it has ended.
fn access(to: Rank, slot: Slot, from: *const u8, bytes: usize, token: Token) -> Send {
    Send { to, space: Space::USER, slot, fingerprint: 0, from, bytes, more: false, token }
}

impl Messenger {
    fn one_sided(&mut self, rank: Rank) -> Option<&mut dyn OneSided> {
        self.peers.get_mut(rank).and_then(Peer::one_sided)
    }

    /// Lets the link put or get; `start` is called with the link and a ticket. Returns false if the peer's region is not known to be
    /// published, the range is not inside it, or the link cannot do it: the operation is then sent as a message.
    fn access(
        &mut self,
        remote: Remote,
        bytes: usize,
        operation: Send,
        start: impl FnOnce(&mut dyn OneSided, u32) -> bool,
    ) -> bool {
        let inside = |length: usize| (remote.offset as usize).checked_add(bytes).is_some_and(|end| end <= length);
        let published = self.one_sided(remote.rank).and_then(|link| link.published(remote.region));
        if bytes == 0 || !published.is_some_and(inside) {
            return false;
        }
        let ticket = self.placing.insert(Placing::alone(operation));
        let started = self.one_sided(remote.rank).is_some_and(|link| start(link, ticket));
        match started {
            true => self.note_placing(remote.rank),
            false => drop(self.placing.remove(ticket)),
        }
        started
    }

    /// Puts by the link, if it can. See [`Messenger::access`].
    ///
    /// # Safety
    /// As for [`Messenger::put`].
    pub(super) unsafe fn put_directly(&mut self, remote: Remote, from: *const u8, bytes: usize, token: Token) -> bool {
        let operation = access(remote.rank, 0, from, bytes, token);
        // SAFETY: the caller guarantees that the memory is valid until the event or the cancellation; both follow `finished`, `cancel` or
        // the end of the link.
        let put = |link: &mut dyn OneSided, ticket| unsafe {
            link.put(remote.region, remote.offset as usize, from, bytes, ticket)
        };
        self.access(remote, bytes, operation, put)
    }

    /// Gets by the link, if it can. See [`Messenger::access`].
    ///
    /// # Safety
    /// As for [`Messenger::get`].
    pub(super) unsafe fn get_directly(&mut self, remote: Remote, into: *mut u8, bytes: usize, token: Token) -> bool {
        let operation = access(remote.rank, 0, into, bytes, token);
        // SAFETY: as above.
        let get = |link: &mut dyn OneSided, ticket| unsafe {
            link.get(remote.region, remote.offset as usize, into, bytes, ticket)
        };
        self.access(remote, bytes, operation, get)
    }

    /// Publishes a region to all peers whose links access memory.
    pub(super) fn publish(&mut self, region: u32, memory: *mut u8, bytes: usize) {
        for rank in self.linked.clone() {
            if let Some(link) = self.one_sided(rank) {
                // SAFETY: the memory is valid until the region is unregistered, which retracts it.
                unsafe { link.publish(region, memory, bytes) };
            }
        }
    }

    /// Retracts a region from all peers.
    pub(super) fn retract(&mut self, region: u32) {
        for rank in self.linked.clone() {
            if let Some(link) = self.one_sided(rank) {
                link.retract(region);
            }
        }
    }

    /// Says by which way the peer's writes reach the buffer that is bound with this key, if the link has a choice.
    pub(super) fn publish_binding(&mut self, key: Key) {
        let Some(binding) = self.bindings.get(&key).copied() else { return };
        let rank = key.rank();
        let region = self.next_region;
        let Some(link) = self.one_sided(rank) else { return };
        let (memory, bytes) = binding.region.parts();
        // SAFETY: the memory is valid until the buffer is unbound, which retracts the region.
        let published = bytes > 0 && unsafe { link.publish(region, memory, bytes) };
        if published {
            self.next_region += 1;
            self.bindings.get_mut(&key).expect("looked up above").published = Some(region);
        }
        let number = if published { region + 1 } else { 0 };
        self.peer(rank).push_control(&Message::Bound { slot: key.slot(), region: number });
        self.mark_dirty(rank);
    }

    /// The link to `rank` is established: publishes regions and bound buffers, and goes on with writes that have waited.
    pub(super) fn begin_one_sided(&mut self, rank: Rank) {
        if self.one_sided(rank).is_some() {
            let regions: Vec<_> = self.regions.iter().map(|(region, its)| (*region, its.parts())).collect();
            for (region, (memory, bytes)) in regions {
                if let Some(link) = self.one_sided(rank) {
                    // SAFETY: as in `publish`.
                    unsafe { link.publish(region, memory, bytes) };
                }
            }
            let keys: Vec<Key> = self.bindings.keys().copied().filter(|key| key.rank() == rank).collect();
            keys.into_iter().for_each(|key| self.publish_binding(key));
        }
        let waiting: Vec<Key> = self.writes.keys().copied().filter(|key| key.rank() == rank).collect();
        waiting.into_iter().for_each(|key| self.release_writes(key));
    }

    /// `rank` has bound a buffer to `slot`, which the link reaches by `region`, less one.
    pub(super) fn bound(&mut self, rank: Rank, peer: &mut Peer, slot: Slot, region: u32) -> Result<()> {
        if peer.one_sided().is_none() {
            let text =
                format!("{} names regions of bound buffers, which do not belong on this link", self.peer_name(rank));
            return Err(Error::new(ErrorKind::Mismatch, text));
        }
        let key = Key::new(rank, Space::USER, slot);
        self.bound.insert(key, region.checked_sub(1));
        if self.writes.contains_key(&key) {
            self.granted_writes.push(key);
        }
        Ok(())
    }

    /// `rank` has put `bytes` bytes at `offset` of the buffer that is bound to `slot`.
    pub(super) fn written(&mut self, rank: Rank, slot: Slot, offset: u64, bytes: u64) -> Result<()> {
        let key = Key::new(rank, Space::USER, slot);
        // It may have been unbound meanwhile.
        let Some(binding) = self.bindings.get(&key).copied() else { return Ok(()) };
        if binding.region.at(offset, bytes).is_none() {
            return Err(self.wrote_outside(key, binding, offset, bytes));
        }
        self.event(binding.token, Outcome::Written { offset: offset as usize, bytes: bytes as usize });
        Ok(())
    }

    /// Queues a write into the buffer that `to` has bound or will bind to `slot`, and goes on with those that can go on.
    ///
    /// # Safety
    /// As for [`Messenger::write`].
    pub(super) unsafe fn queue_write(
        &mut self,
        to: Rank,
        slot: Slot,
        offset: u64,
        from: *const u8,
        bytes: usize,
        token: Token,
    ) {
        let key = Key::new(to, Space::USER, slot);
        self.writes.entry(key).or_default().push_back(WaitingWrite { token, slot, offset, from, bytes });
        self.release_writes(key);
    }

    /// Starts the writes with this key, unless their way is not known yet.
    pub(super) fn release_writes(&mut self, key: Key) {
        let rank = key.rank();
        let Some(peer) = self.peers.get_mut(rank).filter(|peer| peer.is_established()) else { return };
        let way = match (peer.one_sided(), self.bound.get(&key)) {
            (None, _) => None,
            (Some(_), Some(way)) => *way,
            (Some(_), None) => return,
        };
        for write in self.writes.remove(&key).unwrap_or_default() {
            if way.is_none_or(|region| !self.write_directly(rank, region, &write)) {
                let WaitingWrite { token, slot, offset, from, bytes } = write;
                let message = Message::Write { slot, offset, bytes: bytes as u64 };
                self.peer(rank).push(&message, from, Some(token), true);
            }
        }
        self.mark_dirty(rank);
    }

    /// Writes by the link, and queues the header behind it. Returns false if the link cannot do it, as when the buffer was unbound.
    fn write_directly(&mut self, rank: Rank, region: u32, write: &WaitingWrite) -> bool {
        let &WaitingWrite { token, slot, offset, from, bytes } = write;
        let inside = |length: usize| (offset as usize).checked_add(bytes).is_some_and(|end| end <= length);
        // The peer reports a write that is not inside its buffer, if it is sent.
        if bytes == 0 || !self.one_sided(rank).and_then(|link| link.published(region)).is_some_and(inside) {
            return false;
        }
        let ticket = self.placing.insert(Placing::new(access(rank, slot, from, bytes, token)));
        // SAFETY: the poster keeps the memory valid until the event or the cancellation; both follow `finished`, `cancel` or the end of the
        // link.
        let started =
            self.one_sided(rank).is_some_and(|link| unsafe { link.put(region, offset as usize, from, bytes, ticket) });
        if !started {
            self.placing.remove(ticket);
            return false;
        }
        // The header counts for the write that was queued.
        self.peer(rank).push_placed(&Message::Written { slot, offset, bytes: bytes as u64 }, ticket);
        self.note_placing(rank);
        true
    }

    /// Cancels the waiting writes of `owner`, and retracts its bound buffers.
    pub(super) fn cancel_writes(&mut self, owner: u32) {
        for writes in self.writes.values_mut() {
            let before = writes.len();
            writes.retain(|write| write.token.owner != owner);
            self.outgoing -= before - writes.len();
        }
        self.writes.retain(|_, writes| !writes.is_empty());
        let unbound = self.bindings.iter().filter(|(_, binding)| binding.token.owner == owner);
        let regions: Vec<_> = unbound.filter_map(|(key, binding)| Some((key.rank(), binding.published?))).collect();
        for (rank, region) in regions {
            if let Some(link) = self.one_sided(rank) {
                link.retract(region);
            }
        }
    }

    /// The link to `rank` has ended: forgets the writes that wait, and returns their tokens.
    pub(super) fn end_writes(&mut self, rank: Rank) -> Vec<Token> {
        self.bound.retain(|key, _| key.rank() != rank);
        let waiting = self.writes.extract_if(|key, _| key.rank() == rank);
        let tokens: Vec<Token> = waiting.flat_map(|(_, writes)| writes.into_iter().map(|write| write.token)).collect();
        self.outgoing -= tokens.len();
        tokens
    }
}
