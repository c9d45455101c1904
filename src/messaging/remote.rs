//! Puts, gets, and the memory that peers may reach.

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
    /// Its owner is gone: the answer is thrown away.
    pub(super) cancelled: bool,
}

/// Memory that peers may reach.
#[derive(Clone, Copy)]
pub(super) struct Region {
    memory: *mut u8,
    bytes: usize,
}

impl Region {
    /// `memory` is valid for `bytes`, for as long as the poster has promised.
    pub(super) fn new(memory: *mut u8, bytes: usize) -> Self {
        Self { memory, bytes }
    }

    /// Its length.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where `bytes` at `offset` lie; `None` if they do not all lie inside.
    pub(super) fn at(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes as u64);
        inside.then(|| self.memory.wrapping_add(offset as usize))
    }
}

/// A buffer that a peer may write into.
#[derive(Clone, Copy)]
pub(super) struct Binding {
    pub(super) region: Region,
    pub(super) token: Token,
}

/// A write that came before its buffer was bound.
pub(super) struct UnexpectedWrite {
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
}

/// Owners from here on are the messenger's own: answers to gets are queued under the key of their region, so that
/// `unregister` finds them.
pub(super) const FIRST_REGION_OWNER: u32 = 0xc000_0000;

pub(super) fn region_owner(region: u32) -> u32 {
    FIRST_REGION_OWNER | region
}

impl Messenger {
    /// Writes `bytes` from `from` to the remote range; done when they are there.
    ///
    /// # Safety
    /// `from` is valid for `bytes` until the event or the cancellation.
    pub unsafe fn put(&mut self, remote: Remote, from: *const u8, bytes: usize, token: Token) {
        if remote.rank == self.rank {
            if let Some(into) = self.own_region(remote, bytes, token) {
                // SAFETY: the poster vouches for `from`; the region was checked.
                unsafe { std::ptr::copy(from, into, bytes) };
                self.event(token, Outcome::Done { rank: self.rank, bytes });
            }
            return;
        }
        let Some(request) = self.request(remote, std::ptr::null_mut(), bytes, false, token) else { return };
        let Remote { rank, region, offset } = remote;
        self.outgoing += 1;
        let message = Message::Put { request, region, offset, bytes: bytes as u64 };
        self.peer(rank).push(&message, from, Some(token), false);
        self.mark_dirty(rank);
    }

    /// Reads `bytes` of the remote range to `into`; done when they are here.
    ///
    /// # Safety
    /// `into` is valid for writes of `bytes` until the event or the cancellation, and nobody else touches it meanwhile.
    pub unsafe fn get(&mut self, remote: Remote, into: *mut u8, bytes: usize, token: Token) {
        if remote.rank == self.rank {
            if let Some(from) = self.own_region(remote, bytes, token) {
                // SAFETY: the poster vouches for `into`; the region was checked.
                unsafe { std::ptr::copy(from, into, bytes) };
                self.event(token, Outcome::Done { rank: self.rank, bytes });
            }
            return;
        }
        let Some(request) = self.request(remote, into, bytes, true, token) else { return };
        let Remote { rank, region, offset } = remote;
        self.outgoing += 1;
        let message = Message::Get { request, region, offset, bytes: bytes as u64 };
        self.peer(rank).push(&message, std::ptr::null(), None, false);
        self.mark_dirty(rank);
    }

    /// Lets peers `put` to and `get` from this memory under the key that it returns, until `unregister`.
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
        Ok(key)
    }

    /// Ends `register`.
    pub fn unregister(&mut self, region: u32) {
        if self.regions.remove(&region).is_none() {
            return;
        }
        self.cancel(region_owner(region));
        // A put that is arriving must not write there any more.
        for peer in self.peers.iter_mut() {
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
        if let Some(error) = self.lost(remote.rank) {
            self.event(token, Outcome::Failed(error));
            return None;
        }
        self.connect(remote.rank);
        // The peer that has the request to lose, even if its address is not known yet.
        self.peer(remote.rank);
        let request = Request { rank: remote.rank, token, into, bytes, is_get, cancelled: false };
        Some(self.requests.insert(request))
    }

    /// Our own memory, for puts and gets to ourselves.
    fn own_region(&mut self, remote: Remote, bytes: usize, token: Token) -> Option<*mut u8> {
        let memory = self.regions.get(&remote.region).and_then(|region| region.at(remote.offset, bytes as u64));
        if memory.is_none() {
            let text = "no such region, or it is shorter than offset and length ask for";
            self.event(token, Outcome::Failed(Error::invalid(text)));
        }
        memory
    }

    /// Writes into the buffer that `to` bound to `slot`, at `offset`; done when the bytes have left.
    ///
    /// # Safety
    /// `from` is valid for `bytes` until the event or the cancellation.
    pub unsafe fn write(&mut self, to: Rank, slot: Slot, offset: u64, from: *const u8, bytes: usize, token: Token) {
        if let Some(error) = self.lost(to) {
            return self.event(token, Outcome::Failed(error));
        }
        self.connect(to);
        self.outgoing += 1;
        let message = Message::Write { slot, offset, bytes: bytes as u64 };
        self.peer(to).push(&message, from, Some(token), true);
        self.mark_dirty(to);
    }

    /// Binds memory to `slot` for writes from `from`; each arrival is an `Outcome::Written`. Ends with `cancel`.
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
        if let Some(error) = self.lost(from) {
            return Err(error);
        }
        // The peer that has the binding to lose, even if its address is not known yet.
        self.peer(from);
        self.connect(from);
        let binding = Binding { region: Region::new(memory, bytes), token };
        self.bindings.insert(key, binding);
        for write in self.unexpected_writes.remove(&key).unwrap_or_default() {
            if let Err(error) = self.write_late(key, binding, &write) {
                // The buffer's owner hears of it as of a write that comes later: by waiting.
                self.cut_off(from, error);
                break;
            }
        }
        Ok(())
    }

    /// A write that came, or began to, before its buffer was bound.
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
        // SAFETY: so many bytes lie there; the poster vouches for the memory.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), into, bytes) };
        self.event(binding.token, Outcome::Written { offset: *offset as usize, bytes });
        Ok(())
    }

    /// A peer wrote past the end of a bound buffer.
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
