//! Puts, gets, and memory that peers can access.

use super::Messenger;
use super::inbox::{Finish, Incoming, Target};
use super::matching::UNEXPECTED_OVERHEAD;
use super::operation::{Outcome, Remote, Token};
use super::queues::Key;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Rank, Slot, Space};
use crate::wire::Message;

/// A put or get that has not been answered.
pub(super) struct Request {
    pub(super) rank: Rank,
    pub(super) token: Token,
    pub(super) into: *mut u8,
    pub(super) bytes: usize,
    pub(super) is_get: bool,
    /// Its owner has cancelled it: the answer is discarded.
    pub(super) cancelled: bool,
}

/// Memory that peers can access.
#[derive(Clone, Copy)]
pub(super) struct Region {
    memory: *mut u8,
    bytes: usize,
}

impl Region {
    /// `memory` is valid for `bytes` until it is unregistered or unbound.
    pub(super) fn new(memory: *mut u8, bytes: usize) -> Self {
        Self { memory, bytes }
    }

    /// Its length.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its memory and length.
    pub(super) fn parts(&self) -> (*mut u8, usize) {
        (self.memory, self.bytes)
    }

    /// The address of `bytes` at `offset`; `None` if they are not all inside.
    pub(super) fn at(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes as u64);
        inside.then(|| self.memory.wrapping_add(offset as usize))
    }
}

/// A buffer that a peer can write into.
#[derive(Clone, Copy)]
pub(super) struct Binding {
    pub(super) region: Region,
    pub(super) token: Token,
    /// The number by which the peer's link reaches it, if it does.
    pub(super) published: Option<u32>,
}

/// A write whose header arrived before its buffer was bound.
pub(super) struct UnexpectedWrite {
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
}

/// Token owners from this number on are regions: the answers to gets have their region as owner, so that `unregister` cancels
/// them.
pub(super) const FIRST_REGION_OWNER: u32 = 0xc000_0000;

pub(super) fn region_owner(region: u32) -> u32 {
    FIRST_REGION_OWNER | region
}

impl Messenger {
    /// Writes `bytes` from `from` to the remote range; completes when they are there.
    ///
    /// # Safety
    /// `from` is valid for `bytes` until the event or the cancellation.
    pub unsafe fn put(&mut self, remote: Remote, from: *const u8, bytes: usize, token: Token) {
        if remote.rank == self.rank {
            if let Some(into) = self.own_region(remote, bytes, token) {
                // SAFETY: the caller guarantees that `from` is valid; `into` lies in a registered region, valid until
                // `unregister`.
                unsafe { std::ptr::copy(from, into, bytes) };
                self.event(token, Outcome::Done { rank: self.rank, bytes });
            }
            return;
        }
        // SAFETY: the caller guarantees that `from` is valid.
        if unsafe { self.put_directly(remote, from, bytes, token) } {
            return;
        }
        let Some(request) = self.request(remote, std::ptr::null_mut(), bytes, false, token) else { return };
        let Remote { rank, region, offset } = remote;
        self.outgoing += 1;
        let message = Message::Put { request, region, offset, bytes: bytes as u64 };
        self.peer(rank).push(&message, from, Some(token), false);
        self.mark_dirty(rank);
    }

    /// Reads `bytes` of the remote range to `into`; completes when they are here.
    ///
    /// # Safety
    /// `into` is valid for writes of `bytes` until the event or the cancellation, and nothing else accesses it meanwhile.
    pub unsafe fn get(&mut self, remote: Remote, into: *mut u8, bytes: usize, token: Token) {
        if remote.rank == self.rank {
            if let Some(from) = self.own_region(remote, bytes, token) {
                // SAFETY: the caller guarantees that `into` is valid; `from` lies in a registered region, valid until
                // `unregister`.
                unsafe { std::ptr::copy(from, into, bytes) };
                self.event(token, Outcome::Done { rank: self.rank, bytes });
            }
            return;
        }
        // SAFETY: the caller guarantees that `into` is valid.
        if unsafe { self.get_directly(remote, into, bytes, token) } {
            return;
        }
        let Some(request) = self.request(remote, into, bytes, true, token) else { return };
        let Remote { rank, region, offset } = remote;
        self.outgoing += 1;
        let message = Message::Get { request, region, offset, bytes: bytes as u64 };
        self.peer(rank).push(&message, std::ptr::null(), None, false);
        self.mark_dirty(rank);
    }

    /// Lets peers `put` to and `get` from this memory under the returned key, until `unregister`.
    ///
    /// # Safety
    /// `memory` is valid for reads and writes of `bytes` until `unregister`.
    pub unsafe fn register(&mut self, memory: *mut u8, bytes: usize) -> Result<u32> {
        let key = self.next_region;
        if key >= !FIRST_REGION_OWNER {
            return Err(Error::new(ErrorKind::ResourceExhausted, "this context has given out all keys of memory"));
        }
        self.next_region += 1;
        self.regions.insert(key, Region::new(memory, bytes));
        self.publish(key, memory, bytes);
        Ok(key)
    }

    /// Ends the registration of `region`, and cancels accesses in progress.
    pub fn unregister(&mut self, region: u32) {
        if self.regions.remove(&region).is_none() {
            return;
        }
        self.retract(region);
        self.cancel(region_owner(region));
        // The rest of a put that is arriving is discarded.
        for (_, peer) in self.peers.iter_mut() {
            if let Some(Incoming { target, finish: Finish::PutDone { region: its, refused, .. }, .. }) =
                &mut peer.incoming
                && *its == region
            {
                (*target, *refused) = (Target::Discard, true);
            }
        }
    }

    fn request(&mut self, remote: Remote, into: *mut u8, bytes: usize, is_get: bool, token: Token) -> Option<u32> {
        if remote.rank >= self.size {
            self.event(token, Outcome::Failed(Error::invalid(format!("there is no rank {}", remote.rank))));
            return None;
        }
        if let Some(error) = self.disconnect_error(remote.rank) {
            self.event(token, Outcome::Failed(error));
            return None;
        }
        self.connect(remote.rank);
        // Creates the peer's entry even if its address is not known yet, so that `close` fails the request.
        self.peer(remote.rank);
        let request = Request { rank: remote.rank, token, into, bytes, is_get, cancelled: false };
        Some(self.requests.insert(request))
    }

    /// The address in this rank's own memory, for puts and gets to itself.
    fn own_region(&mut self, remote: Remote, bytes: usize, token: Token) -> Option<*mut u8> {
        let memory = self.regions.get(&remote.region).and_then(|region| region.at(remote.offset, bytes as u64));
        if memory.is_none() {
            let text = "no such region, or it is shorter than offset and length ask for";
            self.event(token, Outcome::Failed(Error::invalid(text)));
        }
        memory
    }

    /// Writes at `offset` into the buffer that `to` has bound to `slot`; completes when the bytes are sent.
    ///
    /// # Safety
    /// `from` is valid for `bytes` until the event or the cancellation.
    pub unsafe fn write(&mut self, to: Rank, slot: Slot, offset: u64, from: *const u8, bytes: usize, token: Token) {
        if let Some(error) = self.disconnect_error(to) {
            return self.event(token, Outcome::Failed(error));
        }
        self.connect(to);
        self.outgoing += 1;
        let peer = self.peer(to);
        if !peer.is_established() || peer.one_sided().is_some() {
            // SAFETY: the caller guarantees that `from` is valid.
            return unsafe { self.queue_write(to, slot, offset, from, bytes, token) };
        }
        let message = Message::Write { slot, offset, bytes: bytes as u64 };
        peer.push(&message, from, Some(token), true);
        self.mark_dirty(to);
    }

    /// Binds memory to `slot` for writes by `from`; each write causes an `Outcome::Written`. Ends with `cancel`.
    ///
    /// # Safety
    /// `memory` is valid for writes of `bytes` until the cancellation.
    pub unsafe fn bind(&mut self, from: Rank, slot: Slot, memory: *mut u8, bytes: usize, token: Token) -> Result<()> {
        let key = Key::new(from, Space::USER, slot);
        if self.bindings.contains_key(&key) {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a receive buffer is bound to slot {slot:#x} of {} already", self.peer_name(from)),
            ));
        }
        if let Some(error) = self.disconnect_error(from) {
            return Err(error);
        }
        // Creates the peer's entry even if its address is not known yet, so that `close` fails the binding.
        self.peer(from);
        self.connect(from);
        let binding = Binding { region: Region::new(memory, bytes), token, published: None };
        self.bindings.insert(key, binding);
        self.publish_binding(key);
        for write in self.unexpected_writes.remove(&key).unwrap_or_default() {
            if let Err(error) = self.write_late(key, binding, &write) {
                // As with a later write, the buffer's owner gets the error when it waits.
                self.fail_connection(from, error);
                break;
            }
        }
        Ok(())
    }

    /// Completes a write whose header arrived before its buffer was bound.
    pub(super) fn write_late(
        &mut self,
        key: Key,
        binding: Binding,
        UnexpectedWrite { offset, data }: &UnexpectedWrite,
    ) -> Result<()> {
        let bytes = data.len();
        self.receives.refund(key.rank(), UNEXPECTED_OVERHEAD + bytes);
        let into = binding.region.at(*offset, bytes as u64);
        let into = into.ok_or_else(|| self.wrote_outside(key, binding, *offset, bytes as u64))?;
        // SAFETY: `at` has checked that `bytes` bytes lie there; the poster keeps the memory valid until the cancellation.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), into, bytes) };
        self.event(binding.token, Outcome::Written { offset: *offset as usize, bytes });
        Ok(())
    }

    /// The error for a write outside of a bound buffer.
    pub(super) fn wrote_outside(&self, key: Key, binding: Binding, offset: u64, bytes: u64) -> Error {
        Error::new(
            ErrorKind::Mismatch,
            format!(
                "{} wrote {bytes} bytes at offset {offset} of slot {:#x}, whose buffer has {} bytes",
                self.peer_name(key.rank()),
                key.slot(),
                binding.region.bytes
            ),
        )
    }
}
