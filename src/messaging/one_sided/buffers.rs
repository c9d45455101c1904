//! Buffers that are bound to a slot, and writes into those of peers.
//!
//! Where the link accesses the peer's memory itself, bound buffers are published to the peer. A write waits until the peer has said by which
//! region the link reaches the buffer (`Bound`), or that it must be sent. Then all writes into that buffer take the same way, so that they
//! stay in order; a header behind the bytes (`Written`) says where they are.

use std::collections::VecDeque;

use super::Region;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickMap;
use crate::messaging::accesses::{Accesses, operation};
use crate::messaging::endpoint::Endpoint;
use crate::messaging::inbox::{Finish, Incoming, Target};
use crate::messaging::matching::UNEXPECTED_OVERHEAD_BYTES;
use crate::messaging::operation::{Outcome, Token};
use crate::messaging::peer::Peer;
use crate::messaging::queues::Key;
use crate::types::Rank;
use crate::wire::Message;

/// A buffer that a peer can write into.
#[derive(Clone, Copy)]
pub struct Binding {
    pub region: Region,
    pub token: Token,
    /// The number by which the peer's link reaches it, if it does.
    published: Option<u32>,
}

/// A write whose header arrived before its buffer was bound.
struct UnexpectedWrite {
    offset: u64,
    data: Vec<u8>,
}

/// A write into a bound buffer of the peer that waits until it is known by which way.
#[derive(Clone, Copy)]
pub struct WaitingWrite {
    pub token: Token,
    offset: u64,
    from: *const u8,
    pub bytes: usize,
}

/// Bound buffers of this rank, and writes into those of peers.
#[derive(Default)]
pub struct BoundBuffers {
    bindings: QuickMap<Key, Binding>,
    unexpected_writes: QuickMap<Key, Vec<UnexpectedWrite>>,
    /// Writes into bound buffers of peers of which it is not known by which way.
    writes: QuickMap<Key, VecDeque<WaitingWrite>>,
    /// The regions of bound buffers of peers, on links that access memory; `None` if writes are sent.
    bound: QuickMap<Key, Option<u32>>,
    /// Keys of waiting writes whose way has become known while a link was read; they are started afterwards.
    granted_writes: Vec<Key>,
}

impl BoundBuffers {
    /// The bound buffers.
    pub fn bindings(&self) -> impl Iterator<Item = (&Key, &Binding)> {
        self.bindings.iter()
    }

    /// The writes that wait until it is known by which way.
    pub fn waiting(&self) -> impl Iterator<Item = (&Key, &WaitingWrite)> {
        self.writes.iter().flat_map(|(key, writes)| writes.iter().map(move |write| (key, write)))
    }

    /// Binds memory to `slot` for writes by `from`.
    ///
    /// # Safety
    /// As for `Messenger::bind`.
    pub unsafe fn bind(
        &mut self,
        key: Key,
        region: Region,
        token: Token,
        next_region: &mut u32,
        ep: &mut Endpoint,
    ) -> Result<()> {
        let from = key.rank();
        if self.bindings.contains_key(&key) {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a receive buffer is bound to slot {:#x} of {} already", key.slot(), ep.peer_name(from)),
            ));
        }
        if let Some(error) = ep.disconnect_error(from) {
            return Err(error);
        }
        // Creates the peer's entry even if its address is not known yet, so that `close` fails the binding.
        ep.peer(from);
        ep.connect(from);
        self.bindings.insert(key, Binding { region, token, published: None });
        self.publish(key, next_region, ep);
        Ok(())
    }

    /// Says by which way the peer's writes reach the buffer that is bound with this key, if the link has a choice.
    fn publish(&mut self, key: Key, next_region: &mut u32, ep: &mut Endpoint) {
        let Some(binding) = self.bindings.get_mut(&key) else { return };
        let rank = key.rank();
        let region = *next_region;
        let Some(link) = ep.one_sided(rank) else { return };
        let Region { memory, bytes } = binding.region;
        // SAFETY: the memory is valid until the buffer is unbound, which retracts the region.
        let published = bytes > 0 && unsafe { link.publish(region, memory, bytes) };
        if published {
            *next_region += 1;
            binding.published = Some(region);
        }
        let number = if published { region + 1 } else { 0 };
        ep.push_control(rank, &Message::Bound { slot: key.slot(), region: number });
    }

    /// Completes the writes into a buffer that was just bound whose headers arrived before.
    pub fn write_early(&mut self, key: Key, ep: &mut Endpoint) -> Result<()> {
        let writes = self.unexpected_writes.remove(&key).unwrap_or_default();
        writes.iter().try_for_each(|write| self.write_late(key, self.bindings[&key], write, ep))
    }

    /// Completes a write whose header arrived before its buffer was bound.
    fn write_late(
        &self,
        key: Key,
        binding: Binding,
        UnexpectedWrite { offset, data }: &UnexpectedWrite,
        ep: &mut Endpoint,
    ) -> Result<()> {
        let bytes = data.len();
        ep.receives.refund(key.rank(), UNEXPECTED_OVERHEAD_BYTES + bytes);
        let into = binding.region.at(*offset, bytes as u64);
        let into = into.ok_or_else(|| wrote_outside(key, binding, *offset, bytes as u64, ep))?;
        // SAFETY: `at` has checked that `bytes` bytes lie there; the poster keeps the memory valid until the cancellation.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), into, bytes) };
        ep.event(binding.token, Outcome::Written { offset: *offset as usize, bytes });
        Ok(())
    }

    /// The header of a write into a bound buffer has come.
    pub fn begin_write(&self, key: Key, offset: u64, bytes: u64, ep: &mut Endpoint) -> Result<Incoming> {
        let (target, finish) = match self.bindings.get(&key).copied() {
            Some(binding) => match binding.region.at(offset, bytes) {
                Some(into) => (Target::Memory(into), Finish::Written { token: binding.token, offset }),
                None => return Err(wrote_outside(key, binding, offset, bytes, ep)),
            },
            None => {
                ep.receives.charge(key.rank(), UNEXPECTED_OVERHEAD_BYTES);
                (Target::Own(Vec::new()), Finish::UnexpectedWrite { slot: key.slot(), offset })
            }
        };
        Ok(Incoming::new(bytes as usize, target, finish))
    }

    /// A write whose header arrived before its buffer was bound is complete.
    pub fn finish_unexpected(&mut self, key: Key, offset: u64, data: Vec<u8>, ep: &mut Endpoint) -> Result<()> {
        let write = UnexpectedWrite { offset, data };
        match self.bindings.get(&key).copied() {
            // The buffer was bound while the write arrived.
            Some(binding) => return self.write_late(key, binding, &write, ep),
            None => self.unexpected_writes.entry(key).or_default().push(write),
        }
        Ok(())
    }

    /// The peer has put `bytes` bytes at `offset` of the buffer that is bound with this key.
    pub fn written(&self, key: Key, offset: u64, bytes: u64, ep: &mut Endpoint) -> Result<()> {
        // It may have been unbound meanwhile.
        let Some(binding) = self.bindings.get(&key).copied() else { return Ok(()) };
        if binding.region.at(offset, bytes).is_none() {
            return Err(wrote_outside(key, binding, offset, bytes, ep));
        }
        ep.event(binding.token, Outcome::Written { offset: offset as usize, bytes: bytes as usize });
        Ok(())
    }

    /// Writes at `offset` into the buffer that the peer has bound or will bind with this key.
    ///
    /// # Safety
    /// As for `Messenger::write`.
    pub unsafe fn write(
        &mut self,
        key: Key,
        offset: u64,
        from: *const u8,
        bytes: usize,
        token: Token,
        (ep, accesses): (&mut Endpoint, &mut Accesses),
    ) {
        let to = key.rank();
        if let Some(error) = ep.disconnect_error(to) {
            return ep.event(token, Outcome::Failed(error));
        }
        ep.connect(to);
        let peer = ep.peer(to);
        if !peer.is_established() || peer.one_sided().is_some() {
            self.writes.entry(key).or_default().push_back(WaitingWrite { token, offset, from, bytes });
            return self.release(key, ep, accesses);
        }
        let message = Message::Write { slot: key.slot(), offset, bytes: bytes as u64 };
        ep.push(to, &message, from, Some(token), true);
    }

    /// The peer has bound a buffer with this key, which the link reaches by `region`, less one.
    pub fn bound(&mut self, key: Key, peer: &mut Peer, region: u32, ep: &Endpoint) -> Result<()> {
        if peer.one_sided().is_none() {
            let what = "names regions of bound buffers, which do not belong on this link";
            return Err(ep.violation(key.rank(), what));
        }
        self.bound.insert(key, region.checked_sub(1));
        if self.writes.contains_key(&key) {
            self.granted_writes.push(key);
        }
        Ok(())
    }

    /// Starts the writes whose way has become known while a link was read.
    #[inline]
    pub fn go_on(&mut self, ep: &mut Endpoint, accesses: &mut Accesses) {
        while let Some(key) = self.granted_writes.pop() {
            self.release(key, ep, accesses);
        }
    }

    /// Starts the writes with this key, unless their way is not known yet.
    fn release(&mut self, key: Key, ep: &mut Endpoint, accesses: &mut Accesses) {
        let (rank, slot) = (key.rank(), key.slot());
        let Some(peer) = ep.peers.get_mut(rank).filter(|peer| peer.is_established()) else { return };
        let way = match (peer.one_sided(), self.bound.get(&key)) {
            (None, _) => None,
            (Some(_), Some(way)) => *way,
            (Some(_), None) => return,
        };
        for WaitingWrite { token, offset, from, bytes } in self.writes.remove(&key).unwrap_or_default() {
            let started = way.is_some_and(|region| {
                // SAFETY: the poster keeps the memory valid until the event or the cancellation; both follow `finished`, `cancel` or the
                // end of the link.
                let put = |peer: &mut Peer, ticket| unsafe {
                    peer.one_sided().is_some_and(|link| link.put(region, offset as usize, from, bytes, ticket))
                };
                let header = Message::Written { slot, offset, bytes: bytes as u64 };
                // The buffer may have been unbound.
                ep.reaches(rank, region, offset, bytes)
                    && accesses.begin(operation(rank, slot, from, bytes, token), Some(header), ep, put)
            });
            if !started {
                let message = Message::Write { slot, offset, bytes: bytes as u64 };
                ep.push(rank, &message, from, Some(token), true);
            }
        }
    }

    /// The link to `rank` is established: publishes bound buffers, and goes on with writes that have waited.
    pub fn establish(&mut self, rank: Rank, next_region: &mut u32, ep: &mut Endpoint, accesses: &mut Accesses) {
        let keys: Vec<Key> = self.bindings.keys().copied().filter(|key| key.rank() == rank).collect();
        keys.into_iter().for_each(|key| self.publish(key, next_region, ep));
        let waiting: Vec<Key> = self.writes.keys().copied().filter(|key| key.rank() == rank).collect();
        waiting.into_iter().for_each(|key| self.release(key, ep, accesses));
    }

    /// Cancels the writes of `owner`, and retracts its bound buffers.
    pub fn cancel(&mut self, owner: u32, ep: &mut Endpoint) {
        self.writes.values_mut().for_each(|writes| writes.retain(|write| write.token.owner != owner));
        self.writes.retain(|_, writes| !writes.is_empty());
        for (key, binding) in self.bindings.extract_if(|_, binding| binding.token.owner == owner) {
            if let (Some(link), Some(region)) = (ep.one_sided(key.rank()), binding.published) {
                link.retract(region);
            }
        }
    }

    /// The link to `rank` has ended: forgets the writes that wait. Returns their tokens, and those of buffers that the peer cannot write
    /// into any more.
    pub fn disconnect(&mut self, rank: Rank) -> Vec<Token> {
        self.bound.retain(|key, _| key.rank() != rank);
        let waiting = self.writes.extract_if(|key, _| key.rank() == rank);
        let mut tokens: Vec<Token> = waiting.flat_map(|(_, writes)| writes).map(|write| write.token).collect();
        tokens.extend(self.bindings.iter().filter(|(key, _)| key.rank() == rank).map(|(_, binding)| binding.token));
        tokens
    }

    /// What remains although all operations have ended: how many, and what.
    #[cfg(test)]
    pub fn remaining(&self) -> [(usize, &'static str); 3] {
        [
            (self.bindings.len(), "bound buffers"),
            (self.writes.len(), "slots with writes that wait"),
            (self.unexpected_writes.values().map(Vec::len).sum(), "unexpected writes"),
        ]
    }
}

/// The error for a write outside of a bound buffer.
#[cold]
fn wrote_outside(key: Key, binding: Binding, offset: u64, bytes: u64, ep: &Endpoint) -> Error {
    let (slot, length) = (key.slot(), binding.region.bytes);
    let what =
        format_args!("wrote {bytes} bytes at offset {offset} of slot {slot:#x}, whose buffer has {length} bytes");
    ep.violation(key.rank(), what)
}
