//! Messages that are written into memory which the receiver has exposed.

use std::ptr::NonNull;

use super::{Connection, Exposure, Local, Piece, Placement};
use crate::transport::ibverbs::common::Common;
use crate::transport::ibverbs::frame::{Record, RecordKind};
use crate::transport::ibverbs::memory::{Keys, MAX_RAILS};

impl Connection {
    /// Exposes memory for one message; see [`crate::transport::Placement::expose`].
    pub fn expose(&mut self, key: u32, into: Option<*mut u8>, bytes: usize, common: &mut Common) -> bool {
        if self.broken.is_some() {
            return false;
        }
        let direct = into.and_then(|into| Some((into as u64, common.registry.keys(into, bytes)?)));
        let (exposure, address, keys) = match direct {
            Some((address, keys)) => (Exposure::Direct, address, keys),
            None => {
                let Some(buffer) = common.pool.take(bytes) else { return false };
                (Exposure::Buffer(buffer, bytes), buffer.memory.as_ptr() as u64, buffer.keys)
            }
        };
        self.exposures.insert(key, exposure);
        self.records.push(Record { key, kind: RecordKind::Message, address, bytes: bytes as u64, keys: keys.remote });
        true
    }

    /// Where the message is that was placed under `key`, and its length, if it is not where it should go.
    pub fn placed(&self, key: u32) -> Option<(NonNull<u8>, usize)> {
        match self.exposures.get(&key)? {
            Exposure::Direct => None,
            Exposure::Buffer(buffer, bytes) => Some((buffer.memory, *bytes)),
        }
    }

    /// Ends an exposure. If its message has not come, the peer may still write: into a buffer it may, and this returns
    /// to the pool once it does not any more; if it would be the program's memory, the connection is given up.
    pub fn withdraw(&mut self, key: u32, is_done: bool, common: &mut Common) {
        match self.exposures.get(&key) {
            Some(Exposure::Buffer(buffer, _)) if is_done => {
                common.pool.give_back(*buffer);
                self.exposures.remove(&key);
            }
            Some(Exposure::Direct) => {
                self.exposures.remove(&key);
                if !is_done {
                    self.kill("a receive was cancelled for which the peer may still write", common);
                }
            }
            _ => {}
        }
    }

    /// No message will be placed under `key`, which the peer has exposed.
    pub fn forget(&mut self, key: u32) {
        self.theirs.remove(&key);
    }

    /// See [`crate::transport::Link::exposures`].
    #[cfg(test)]
    pub fn in_use(&self) -> (usize, usize) {
        (self.exposures.len(), self.theirs.len())
    }

    /// Starts to write a message to what the peer has exposed; see [`crate::transport::Placement::place`].
    pub fn place(&mut self, key: u32, from: *const u8, bytes: usize, ticket: u32, common: &mut Common) -> bool {
        let remote = self.theirs.remove(&key).filter(|record| record.bytes == bytes as u64);
        let Some(remote) = remote.filter(|_| self.broken.is_none()) else { return false };
        let Some((at, keys, local)) = self.readable(from, bytes, true, common) else { return false };
        if matches!(local, Local::Copy { .. }) {
            self.finished.push_back(ticket);
            self.touch(common);
        }
        self.access(Placement { ticket, left: 0, local }, (at, keys), (remote.address, remote.keys), bytes, false);
        true
    }

    /// Where the device reads the program's `bytes` bytes at `from`: there, if they are registered, else in a copy.
    fn readable(
        &mut self,
        from: *const u8,
        bytes: usize,
        has_finished: bool,
        common: &mut Common,
    ) -> Option<(u64, Keys, Local)> {
        if let Some(keys) = common.registry.keys(from, bytes) {
            return Some((from as u64, keys, Local::Program));
        }
        let buffer = common.pool.take(bytes)?;
        // SAFETY: the caller of `place` or `put` guarantees that `from` is valid; the buffer is as long.
        unsafe { std::ptr::copy_nonoverlapping(from, buffer.memory.as_ptr(), bytes) };
        Some((buffer.memory.as_ptr() as u64, buffer.keys, Local::Copy { buffer, has_finished }))
    }

    /// Queues an access to the peer's memory in as many parts as the ports demand.
    fn access(
        &mut self,
        placement: Placement,
        (local, local_keys): (u64, Keys),
        (remote, remote_keys): (u64, [u32; MAX_RAILS]),
        bytes: usize,
        reads: bool,
    ) {
        let longest = self.pairs.iter().map(|pair| pair.max_message).min().unwrap_or(bytes);
        let placement = self.placements.insert(Placement { left: bytes.div_ceil(longest), ..placement });
        for at in (0..bytes).step_by(longest) {
            self.pieces.push_back(Piece {
                placement,
                reads,
                local: local + at as u64,
                local_keys,
                remote: remote + at as u64,
                remote_keys,
                bytes: longest.min(bytes - at),
            });
        }
    }

    /// Lets the peer access a region; see [`crate::transport::OneSided::publish`].
    pub fn publish(&mut self, region: u32, memory: *mut u8, bytes: usize, common: &mut Common) -> bool {
        let Some(keys) = common.registry.register(memory, bytes).filter(|_| self.broken.is_none()) else {
            return false;
        };
        let (address, keys) = (memory as u64, keys.remote);
        self.tell(Record { key: region, kind: RecordKind::Region, address, bytes: bytes as u64, keys }, common);
        true
    }

    /// Ends what [`Connection::publish`] has begun.
    pub fn retract(&mut self, region: u32, common: &mut Common) {
        let (kind, keys) = (RecordKind::Retracted, [0; MAX_RAILS]);
        self.tell(Record { key: region, kind, address: 0, bytes: 0, keys }, common);
    }

    /// Sends a record now, since no bytes may follow for long.
    fn tell(&mut self, record: Record, common: &mut Common) {
        self.records.push(record);
        self.owes_records = true;
        self.progress(common);
    }

    /// The length of the peer's region, if it is known.
    pub fn published(&self, region: u32) -> Option<usize> {
        self.regions.get(&region).map(|record| record.bytes as usize)
    }

    /// Starts to write to the peer's region; see [`crate::transport::OneSided::put`].
    pub fn put(
        &mut self,
        (region, offset): (u32, usize),
        from: *const u8,
        bytes: usize,
        ticket: u32,
        common: &mut Common,
    ) -> bool {
        let Some(remote) = self.region(region) else { return false };
        let Some((at, keys, local)) = self.readable(from, bytes, false, common) else { return false };
        let remote = (remote.address + offset as u64, remote.keys);
        self.access(Placement { ticket, left: 0, local }, (at, keys), remote, bytes, false);
        self.progress(common);
        true
    }

    /// Starts to read from the peer's region; see [`crate::transport::OneSided::get`].
    pub fn get(
        &mut self,
        (region, offset): (u32, usize),
        into: *mut u8,
        bytes: usize,
        ticket: u32,
        common: &mut Common,
    ) -> bool {
        let Some(remote) = self.region(region) else { return false };
        let (at, keys, local) = match common.registry.keys(into, bytes) {
            Some(keys) => (into as u64, keys, Local::Program),
            None => {
                let Some(buffer) = common.pool.take(bytes) else { return false };
                (buffer.memory.as_ptr() as u64, buffer.keys, Local::Into { buffer, memory: into, bytes })
            }
        };
        let remote = (remote.address + offset as u64, remote.keys);
        self.access(Placement { ticket, left: 0, local }, (at, keys), remote, bytes, true);
        self.progress(common);
        true
    }

    fn region(&self, region: u32) -> Option<Record> {
        self.regions.get(&region).copied().filter(|_| self.broken.is_none())
    }

    /// Takes the ticket of a placement whose memory is not accessed any more.
    pub fn take_finished(&mut self) -> Option<u32> {
        self.finished.pop_front()
    }

    /// The memory of this placement is not accessed any more when this returns.
    pub fn cancel(&mut self, ticket: u32, common: &mut Common) {
        self.finished.retain(|finished| *finished != ticket);
        let mut accesses = false;
        for (_, placement) in self.placements.iter_mut().filter(|(_, placement)| placement.ticket == ticket) {
            match &mut placement.local {
                Local::Program => accesses = true,
                Local::Copy { has_finished, .. } => *has_finished = true,
                Local::Into { memory, .. } => *memory = std::ptr::null_mut(),
            }
        }
        if accesses {
            self.kill("an operation was cancelled while the device accessed its memory", common);
        }
    }

    /// Destroys the queue pairs, so that memory is not accessed any more.
    pub(super) fn kill(&mut self, why: &str, common: &mut Common) {
        self.fail(why, common);
        self.pairs.clear();
        self.pieces.clear();
        self.give_back_buffers(common);
    }

    pub(super) fn give_back_buffers(&mut self, common: &mut Common) {
        let indices: Vec<u32> = self.placements.iter().map(|(index, _)| index).collect();
        let placements = indices.into_iter().filter_map(|index| match self.placements.remove(index)?.local {
            Local::Program => None,
            Local::Copy { buffer, .. } | Local::Into { buffer, .. } => Some(buffer),
        });
        let exposures = self.exposures.drain().filter_map(|(_, exposure)| match exposure {
            Exposure::Buffer(buffer, _) => Some(buffer),
            Exposure::Direct => None,
        });
        placements.chain(exposures).for_each(|buffer| common.pool.give_back(buffer));
    }
}
