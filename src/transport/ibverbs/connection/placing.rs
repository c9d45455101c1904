//! Messages that are written into memory which the receiver has exposed.

use std::ptr::NonNull;

use super::{Connection, Exposure, Piece, Placement};
use crate::transport::ibverbs::frame::{Record, RecordKind};
use crate::transport::ibverbs::shared::Common;

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

    /// Ends an exposure. If its message has not come, the peer may still write: then the connection is given up, unless that does no harm.
    pub fn withdraw(&mut self, key: u32, arrived: bool, common: &mut Common) {
        match self.exposures.remove(&key) {
            Some(Exposure::Buffer(buffer, _)) if arrived => common.pool.give_back(buffer),
            Some(Exposure::Buffer(buffer, _)) => self.abandoned.push(buffer),
            Some(Exposure::Direct) if !arrived => {
                self.kill("a receive was cancelled for which the peer may still write", common)
            }
            _ => {}
        }
    }

    /// Starts to write a message to what the peer has exposed; see [`crate::transport::Placement::place`].
    pub fn place(&mut self, key: u32, from: *const u8, bytes: usize, ticket: u32, common: &mut Common) -> bool {
        let remote = self.theirs.remove(&key).filter(|record| record.bytes == bytes as u64);
        let Some(remote) = remote.filter(|_| self.broken.is_none()) else { return false };
        let (local, keys, buffer) = match common.registry.keys(from, bytes) {
            Some(keys) => (from as u64, keys, None),
            None => {
                let Some(buffer) = common.pool.take(bytes) else { return false };
                // SAFETY: the caller guarantees that `from` is valid; the buffer is as long.
                unsafe { std::ptr::copy_nonoverlapping(from, buffer.memory.as_ptr(), bytes) };
                self.finished.push_back(ticket);
                self.touch(common);
                (buffer.memory.as_ptr() as u64, buffer.keys, Some(buffer))
            }
        };
        let longest = self.pairs.iter().map(|pair| pair.max_message).min().unwrap_or(bytes);
        let parts = bytes.div_ceil(longest);
        let placement = self.placements.insert(Placement { ticket, left: parts, buffer });
        for at in (0..bytes).step_by(longest) {
            self.pieces.push_back(Piece {
                placement,
                local: local + at as u64,
                local_keys: keys,
                remote: remote.address + at as u64,
                remote_keys: remote.keys,
                bytes: longest.min(bytes - at),
            });
        }
        true
    }

    /// Takes the ticket of a placement whose memory is not accessed any more.
    pub fn take_finished(&mut self) -> Option<u32> {
        self.finished.pop_front()
    }

    /// The memory of this placement is not accessed any more when this returns.
    pub fn cancel(&mut self, ticket: u32, common: &mut Common) {
        self.finished.retain(|finished| *finished != ticket);
        if self.placements.iter().any(|(_, placement)| placement.ticket == ticket && placement.buffer.is_none()) {
            self.kill("a send was cancelled while it was being written", common);
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
        let placements = indices.into_iter().filter_map(|index| self.placements.remove(index)?.buffer);
        let exposures = self.exposures.drain().filter_map(|(_, exposure)| match exposure {
            Exposure::Buffer(buffer, _) => Some(buffer),
            Exposure::Direct => None,
        });
        placements.chain(exposures).chain(self.abandoned.drain(..)).for_each(|buffer| common.pool.give_back(buffer));
    }
}
