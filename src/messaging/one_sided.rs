//! Puts, gets, and memory that peers can access: regions, and [buffers](buffers) that are bound to a slot.
//!
//! Where the link accesses the peer's memory itself, regions are published to the peer. A put or get of a region that is known to be
//! published is one access by the link; others, and those of ranges that are not inside, are sent to the peer as on other links.

pub mod buffers;

use std::collections::HashMap;

use crate::error::{Error, ErrorKind, Result};
use crate::messaging::accesses::{Accesses, operation};
use crate::messaging::endpoint::{Endpoint, FIRST_REGION_OWNER};
use crate::messaging::inbox::{Finish, Incoming, Target};
use crate::messaging::operation::{Outcome, Remote, Token};
use crate::messaging::peer::Peer;
use crate::messaging::queues::Key;
use crate::slab::Slab;
use crate::types::Rank;
use crate::wire::Message;
use buffers::BoundBuffers;

/// A put or get that has not been answered.
pub struct Request {
    pub rank: Rank,
    pub token: Token,
    into: *mut u8,
    pub bytes: usize,
    is_get: bool,
    /// Its owner has cancelled it: the answer is discarded.
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
    pub buffers: BoundBuffers,
}

impl OneSided {
    /// The puts and gets that have not been answered.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().map(|(_, request)| request)
    }

    /// Puts or gets: `is_get` says which. `memory` is read or written.
    ///
    /// # Safety
    /// As for `Messenger::put` and `Messenger::get`.
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
            // SAFETY: the caller guarantees that `memory` is valid; `here` lies in a registered region, valid until `unregister`.
            unsafe { std::ptr::copy(from.cast_const(), into, bytes) };
            return ep.event(token, Outcome::Done { rank, bytes });
        }
        // SAFETY: the caller guarantees that the memory is valid until the event or the cancellation; both follow `finished`, `cancel` or
        // the end of the link.
        let start = |peer: &mut Peer, ticket| unsafe {
            peer.one_sided().is_some_and(|link| match is_get {
                true => link.get(region, offset as usize, memory, bytes, ticket),
                false => link.put(region, offset as usize, memory, bytes, ticket),
            })
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
    /// As for `Messenger::register`.
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
        // The rest of a put that is arriving is discarded.
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

    /// Binds a buffer; see [`BoundBuffers::bind`].
    ///
    /// # Safety
    /// As for `Messenger::bind`.
    pub unsafe fn bind(&mut self, key: Key, region: Region, token: Token, ep: &mut Endpoint) -> Result<()> {
        // SAFETY: the caller guarantees that the memory is valid.
        unsafe { self.buffers.bind(key, region, token, &mut self.next_region, ep) }
    }

    /// The link to `rank` is established: publishes regions and bound buffers, and goes on with writes that have waited.
    pub fn establish(&mut self, rank: Rank, ep: &mut Endpoint, accesses: &mut Accesses) {
        if let Some(link) = ep.one_sided(rank) {
            for (region, Region { memory, bytes }) in &self.regions {
                // SAFETY: as in `register`.
                unsafe { link.publish(*region, *memory, *bytes) };
            }
        }
        self.buffers.establish(rank, &mut self.next_region, ep, accesses);
    }

    /// Cancels the operations of `owner`, and retracts its bound buffers.
    pub fn cancel(&mut self, owner: u32, ep: &mut Endpoint) {
        self.buffers.cancel(owner, ep);
        let requests = self.requests.iter_mut().filter(|(_, request)| request.token.owner == owner);
        requests.for_each(|(_, request)| request.cancelled = true);
    }

    /// The link to `rank` has ended: forgets the operations with it, and returns their tokens.
    pub fn disconnect(&mut self, rank: Rank) -> Vec<Token> {
        let ended: Vec<u32> = self.requests.iter().filter(|(_, r)| r.rank == rank).map(|(index, _)| index).collect();
        let requests = ended.into_iter().filter_map(|index| self.requests.remove(index)).filter(|r| !r.cancelled);
        requests.map(|request| request.token).chain(self.buffers.disconnect(rank)).collect()
    }

    /// What remains although all operations have ended: how many, and what.
    #[cfg(test)]
    pub fn remaining(&self) -> impl Iterator<Item = (usize, &'static str)> {
        let own = [(self.requests.len(), "puts or gets"), (self.regions.len(), "regions")];
        own.into_iter().chain(self.buffers.remaining())
    }
}
