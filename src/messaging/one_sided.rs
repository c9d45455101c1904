//! Puts, gets, and memory that peers can access: regions, and buffers that are bound to a slot.
//!
//! Where the link accesses the peer's memory itself, regions and bound buffers are published to the peer. A put or get
//! of a region that is known to be published is one access by the link; others, and those of ranges that are not
//! inside, are sent to the peer as on other links. A write into a bound buffer waits until the peer has said by which
//! region the link reaches the buffer (`Bound`), or that it must be sent. Then all writes into that buffer take the
//! same way, so that they stay in order; a header behind the bytes (`Written`) says where they are.

use std::collections::{HashMap, VecDeque};

use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickMap;
use crate::messaging::accesses::{Accesses, operation};
use crate::messaging::endpoint::{Endpoint, FIRST_REGION_OWNER};
use crate::messaging::inbox::{Finish, Incoming, Target};
use crate::messaging::matching::UNEXPECTED_OVERHEAD_BYTES;
use crate::messaging::operation::{Outcome, Remote, Token};
use crate::messaging::peer::Peer;
use crate::messaging::queues::Key;
use crate::slab::Slab;
use crate::types::Rank;
use crate::wire::Message;

/// A put or get that has not been answered.
pub struct Request {
    pub rank: Rank,
    pub token: Token,
    into: *mut u8,
    pub bytes: usize,
    is_get: bool,
    /// Whether its owner has cancelled the operation: the answer is discarded.
    cancelled: bool,
}

/// Memory that peers can access.
#[derive(Clone, Copy)]
pub struct Region {
    pub memory: *mut u8,
    pub bytes: usize,
}

impl Region {
    /// The address of `bytes` at `offset`; `None` if they are not all inside.
    pub fn at(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes as u64);
        inside.then(|| self.memory.wrapping_add(offset as usize))
    }
}

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

/// The owner of the answers to gets from `region`.
pub fn region_owner(region: u32) -> u32 {
    FIRST_REGION_OWNER | region
}

/// One-sided operations of one context, and the memory that peers can access.
#[derive(Default)]
pub struct OneSided {
    requests: Slab<Request>,
    regions: HashMap<u32, Region>,
    next_region: u32,
    bindings: QuickMap<Key, Binding>,
    unexpected_writes: QuickMap<Key, Vec<UnexpectedWrite>>,
    /// Writes into bound buffers of peers of which it is not known by which way.
    writes: QuickMap<Key, VecDeque<WaitingWrite>>,
    /// The regions of bound buffers of peers, on links that access memory; `None` if writes are sent.
    bound: QuickMap<Key, Option<u32>>,
    /// Keys of waiting writes whose way has become known while a link was read; they are started afterwards.
    granted_writes: Vec<Key>,
}

impl OneSided {
    /// The puts and gets that have not been answered.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().map(|(_, request)| request)
    }

    /// The bound buffers.
    pub fn bindings(&self) -> impl Iterator<Item = (&Key, &Binding)> {
        self.bindings.iter()
    }

    /// The writes that wait until it is known by which way.
    pub fn waiting_writes(&self) -> impl Iterator<Item = (&Key, &WaitingWrite)> {
        self.writes.iter().flat_map(|(key, writes)| writes.iter().map(move |write| (key, write)))
    }

    /// Puts or gets: `is_get` says which. `memory` is read or written.
    ///
    /// # Safety
    /// See `Messenger::put` and `Messenger::get`.
    pub unsafe fn request(
        &mut self,
        is_get: bool,
        remote: Remote,
        memory: *mut u8,
        bytes: usize,
        token: Token,
        (ep, accesses): (&mut Endpoint, &mut Accesses),
    ) {
        let Remote { rank, region, offset } = remote;
        let refuse = |ep: &mut Endpoint, error| ep.event(token, Outcome::Failed(error));
        if rank == ep.rank {
            let Some(here) = self.regions.get(&region).and_then(|region| region.at(offset, bytes as u64)) else {
                let text = "no such region, or it is shorter than offset and length ask for";
                return refuse(ep, Error::invalid(text));
            };
            let (from, into) = if is_get { (here, memory) } else { (memory, here) };
            // SAFETY: the caller guarantees that `memory` is valid; `here` lies in a registered region, valid until
            // `unregister`.
            unsafe { std::ptr::copy(from.cast_const(), into, bytes) };
            return ep.event(token, Outcome::Done { rank, bytes });
        }
        // SAFETY: the caller guarantees that the memory is valid until the event or the cancellation; both follow
        // `finished`, `cancel` or the end of the link.
        let start = |peer: &mut Peer, ticket| unsafe {
            let is_started = peer.one_sided().is_some_and(|link| match is_get {
                true => link.get(region, offset as usize, memory, bytes, ticket),
                false => link.put(region, offset as usize, memory, bytes, ticket),
            });
            peer.traffic.add(is_get, if is_started { bytes as u64 } else { 0 });
            is_started
        };
        if ep.reaches(rank, region, offset, bytes)
            && accesses.begin(operation(rank, 0, memory, bytes, token), None, ep, start)
        {
            return;
        }
        if rank >= ep.size {
            return refuse(ep, Error::invalid(format!("there is no rank {rank}")));
        }
        if let Some(error) = ep.disconnect_error(rank) {
            return refuse(ep, error);
        }
        ep.connect(rank);
        let request = self.requests.insert(Request { rank, token, into: memory, bytes, is_get, cancelled: false });
        match is_get {
            true => ep.push_header(rank, &Message::Get { request, region, offset, bytes: bytes as u64 }),
            false => {
                let message = Message::Put { request, region, offset, bytes: bytes as u64 };
                ep.push(rank, &message, memory, Some(token), false);
            }
        }
    }

    /// Handles the answer of `rank` to a put or, if `bytes` follow, to a get.
    pub fn begin_answer(
        &self,
        rank: Rank,
        peer: &Peer,
        index: u32,
        refused: bool,
        bytes: Option<u64>,
        ep: &Endpoint,
    ) -> Result<Incoming> {
        let Some(request) = self.requests.get(index).filter(|r| r.rank == rank && r.is_get == bytes.is_some()) else {
            return Err(ep.violation(rank, "answered a request that was not made"));
        };
        // Completing the request would permit the poster to reuse memory that is still being sent.
        if peer.queue.is_putting(index) {
            return Err(ep.violation(rank, "answered a put before it was sent"));
        }
        let bytes = bytes.unwrap_or(0);
        if refused && bytes > 0 || !refused && request.is_get && bytes != request.bytes as u64 {
            return Err(ep.violation(rank, format_args!("sent {bytes} bytes for a get of {}", request.bytes)));
        }
        let target = if bytes > 0 && !request.cancelled { Target::Memory(request.into) } else { Target::Discard };
        Ok(Incoming::new(bytes as usize, target, Finish::Answer { request: index, refused }))
    }

    /// The answer of `rank` to a put or get is complete.
    pub fn answered(&mut self, rank: Rank, request: u32, refused: bool, ep: &mut Endpoint) {
        if let Some(request) = self.requests.remove(request).filter(|r| !r.cancelled) {
            let outcome = if refused {
                let name = ep.peer_name(rank);
                let text = format!("{name} has no such region, or it is shorter than offset and length ask for");
                Outcome::Failed(Error::invalid(text).with_rank(rank))
            } else {
                Outcome::Done { rank, bytes: request.bytes }
            };
            ep.event(request.token, outcome);
        }
    }

    /// Whether the answer that arrives for this request is for `owner`.
    pub fn answers(&self, request: u32, owner: u32) -> bool {
        self.requests.get(request).is_some_and(|request| request.token.owner == owner)
    }

    /// The memory of `region` that a peer accesses; `None` if the range is not inside it.
    pub fn region_at(&self, region: u32, offset: u64, bytes: u64) -> Option<*mut u8> {
        self.regions.get(&region)?.at(offset, bytes)
    }

    /// Registers memory, and publishes it to all peers whose links access memory. Returns its key.
    ///
    /// # Safety
    /// See `Messenger::register`.
    pub unsafe fn register(&mut self, memory: *mut u8, bytes: usize, ep: &mut Endpoint) -> Result<u32> {
        let key = self.next_region;
        if key >= !FIRST_REGION_OWNER {
            return Err(Error::new(ErrorKind::ResourceExhausted, "this context has given out all keys of memory"));
        }
        self.next_region += 1;
        self.regions.insert(key, Region { memory, bytes });
        for rank in ep.linked.clone() {
            if let Some(link) = ep.one_sided(rank) {
                // SAFETY: the memory is valid until the region is unregistered, which retracts it.
                unsafe { link.publish(key, memory, bytes) };
            }
        }
        Ok(key)
    }

    /// Ends the registration of `region`, except for accesses in progress. Returns whether it was registered.
    pub fn unregister(&mut self, region: u32, ep: &mut Endpoint) -> bool {
        if self.regions.remove(&region).is_none() {
            return false;
        }
        for rank in ep.linked.clone() {
            if let Some(link) = ep.one_sided(rank) {
                link.retract(region);
            }
        }
        // What has yet to arrive of a put is discarded.
        for (_, peer) in ep.peers.iter_mut() {
            if let Some(Incoming { target, finish: Finish::PutDone { region: put, refused, .. }, .. }) =
                &mut peer.incoming
                && *put == region
            {
                (*target, *refused) = (Target::Discard, true);
            }
        }
        true
    }

    /// Binds memory to `slot` for writes by `from`.
    ///
    /// # Safety
    /// See `Messenger::bind`.
    pub unsafe fn bind(&mut self, key: Key, region: Region, token: Token, ep: &mut Endpoint) -> Result<()> {
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
        self.publish_binding(key, ep);
        Ok(())
    }

    /// Says by which way the peer's writes reach the buffer that is bound with this key, if the link has a choice.
    fn publish_binding(&mut self, key: Key, ep: &mut Endpoint) {
        let Some(binding) = self.bindings.get_mut(&key) else { return };
        let rank = key.rank();
        let region = self.next_region;
        let Some(link) = ep.one_sided(rank) else { return };
        let Region { memory, bytes } = binding.region;
        // SAFETY: the memory is valid until the buffer is unbound, which retracts the region.
        let published = bytes > 0 && unsafe { link.publish(region, memory, bytes) };
        if published {
            self.next_region += 1;
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
        // SAFETY: `at` has checked that `bytes` bytes lie there; the poster keeps the memory valid until the
        // cancellation.
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
        // The buffer may have been unbound meanwhile.
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
    /// See `Messenger::write`.
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
            return self.release_writes(key, ep, accesses);
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
    pub fn progress(&mut self, ep: &mut Endpoint, accesses: &mut Accesses) {
        while let Some(key) = self.granted_writes.pop() {
            self.release_writes(key, ep, accesses);
        }
    }

    /// Starts the writes with this key, unless their way is not known yet.
    fn release_writes(&mut self, key: Key, ep: &mut Endpoint, accesses: &mut Accesses) {
        let (rank, slot) = (key.rank(), key.slot());
        let Some(peer) = ep.peers.get_mut(rank).filter(|peer| peer.is_established()) else { return };
        let way = match (peer.one_sided(), self.bound.get(&key)) {
            (None, _) => None,
            (Some(_), Some(way)) => *way,
            (Some(_), None) => return,
        };
        for WaitingWrite { token, offset, from, bytes } in self.writes.remove(&key).unwrap_or_default() {
            let started = way.is_some_and(|region| {
                // SAFETY: the poster keeps the memory valid until the event or the cancellation; both follow
                // `finished`, `cancel` or the end of the link.
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

    /// The link to `rank` is established: publishes regions and bound buffers, and goes on with writes that have
    /// waited.
    pub fn establish(&mut self, rank: Rank, ep: &mut Endpoint, accesses: &mut Accesses) {
        if let Some(link) = ep.one_sided(rank) {
            for (region, Region { memory, bytes }) in &self.regions {
                // SAFETY: as in `register`.
                unsafe { link.publish(*region, *memory, *bytes) };
            }
        }
        let keys: Vec<Key> = self.bindings.keys().copied().filter(|key| key.rank() == rank).collect();
        keys.into_iter().for_each(|key| self.publish_binding(key, ep));
        let waiting: Vec<Key> = self.writes.keys().copied().filter(|key| key.rank() == rank).collect();
        waiting.into_iter().for_each(|key| self.release_writes(key, ep, accesses));
    }

    /// Cancels the operations of `owner`, and retracts its bound buffers.
    pub fn cancel(&mut self, owner: u32, ep: &mut Endpoint) {
        self.writes.values_mut().for_each(|writes| writes.retain(|write| write.token.owner != owner));
        self.writes.retain(|_, writes| !writes.is_empty());
        for (key, binding) in self.bindings.extract_if(|_, binding| binding.token.owner == owner) {
            if let (Some(link), Some(region)) = (ep.one_sided(key.rank()), binding.published) {
                link.retract(region);
            }
        }
        let requests = self.requests.iter_mut().filter(|(_, request)| request.token.owner == owner);
        requests.for_each(|(_, request)| request.cancelled = true);
    }

    /// The link to `rank` has ended: forgets the puts, gets and writes, and returns their tokens, and those of buffers
    /// that the peer cannot write into any more.
    pub fn disconnect(&mut self, rank: Rank) -> Vec<Token> {
        let ended: Vec<u32> = self.requests.iter().filter(|(_, r)| r.rank == rank).map(|(index, _)| index).collect();
        let requests = ended.into_iter().filter_map(|index| self.requests.remove(index)).filter(|r| !r.cancelled);
        let mut tokens: Vec<Token> = requests.map(|request| request.token).collect();
        self.bound.retain(|key, _| key.rank() != rank);
        let writes = self.writes.extract_if(|key, _| key.rank() == rank);
        tokens.extend(writes.flat_map(|(_, writes)| writes).map(|write| write.token));
        tokens.extend(self.bindings.iter().filter(|(key, _)| key.rank() == rank).map(|(_, binding)| binding.token));
        tokens
    }

    /// What remains although all operations have ended: how many, and what.
    #[cfg(test)]
    pub fn remaining(&self) -> [(usize, &'static str); 5] {
        [
            (self.requests.len(), "puts or gets"),
            (self.regions.len(), "regions"),
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
