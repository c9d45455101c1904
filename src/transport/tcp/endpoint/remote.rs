//! Puts, gets, and the memory that peers may reach.

use super::{Binding, EarlyWrite, Endpoint, Region, Request, in_range};
use crate::error::{Error, ErrorKind, Result};
use crate::transport::matching::{EARLY_OVERHEAD, Key};
use crate::transport::{Outcome, Remote, Space, Token};
use crate::types::{Rank, Slot};

impl Endpoint {
    pub(super) fn request(&mut self, remote: Remote, into: *mut u8, bytes: usize, token: Token) -> Option<u64> {
        if remote.rank >= self.addresses.len() {
            self.event(token, Outcome::Failed(Error::invalid(format!("there is no rank {}", remote.rank))));
            return None;
        }
        if let Some(error) = self.lost(remote.rank) {
            self.event(token, Outcome::Failed(error));
            return None;
        }
        self.begin_connect(remote.rank);
        let request = Request { rank: remote.rank, token, into, bytes, cancelled: false };
        Some(u64::from(self.requests.insert(request)))
    }

    /// Our own memory, for puts and gets to ourselves.
    pub(super) fn own_region(&mut self, remote: Remote, bytes: usize, token: Token) -> Option<*mut u8> {
        match self.regions.get(&remote.region) {
            // SAFETY: the range was just checked.
            Some(r) if in_range(remote.offset, bytes as u64, r.bytes) => unsafe {
                Some(r.memory.add(remote.offset as usize))
            },
            _ => {
                let text = "no such region, or it is shorter than offset and length ask for";
                self.event(token, Outcome::Failed(Error::invalid(text)));
                None
            }
        }
    }

    /// See [`crate::transport::Transport::bind`].
    pub(super) fn bind_slot(
        &mut self,
        from: Rank,
        slot: Slot,
        memory: *mut u8,
        bytes: usize,
        token: Token,
    ) -> Result<()> {
        let key = Key::new(from, Space::User, slot);
        if self.bindings.contains_key(&key) {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a receive buffer is bound to slot {slot:#x} of {} already", self.name(from)),
            ));
        }
        if let Some(error) = self.lost(from) {
            return Err(error);
        }
        // The peer that has the binding to lose, even if its address is not known yet.
        self.peer(from);
        self.begin_connect(from);
        let binding = Binding { region: Region { memory, bytes }, token };
        self.bindings.insert(key, binding);
        for write in self.early_writes.remove(&key).unwrap_or_default() {
            self.write_late(key, binding, &write);
        }
        Ok(())
    }

    /// A write that came, or began to, before its buffer was bound.
    pub(super) fn write_late(&mut self, key: Key, binding: Binding, EarlyWrite { offset, data }: &EarlyWrite) {
        let Binding { region: Region { memory, bytes }, token } = binding;
        self.receives.refund(key.rank(), EARLY_OVERHEAD + data.len());
        let outcome = if in_range(*offset, data.len() as u64, bytes) {
            // SAFETY: the range was just checked; the poster vouches for the memory.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), memory.add(*offset as usize), data.len()) };
            Outcome::Written { offset: *offset as usize, bytes: data.len() }
        } else {
            Outcome::Failed(Error::new(
                ErrorKind::Mismatch,
                format!(
                    "{} wrote {} bytes at offset {offset} of slot {:#x}, whose buffer has {bytes} bytes",
                    self.name(key.rank()),
                    data.len(),
                    key.slot()
                ),
            ))
        };
        self.event(token, outcome);
    }
}
