//! The payload of unexpected messages, and how much of it is queued from each rank.

use super::{EAGER_BYTES, Op, Receives};
use crate::error::Result;
use crate::reserve::exhausted;
use crate::types::Rank;
use crate::wire::Envelope;

/// The largest number of buffers for unexpected messages that are kept for reuse: 16 MiB. A rank that was not scheduled
/// for a while may receive a hundred messages at once, and must not allocate for them each time.
const MAX_SPARE_BUFFERS: usize = 256;

impl Receives {
    /// Bytes of unmatched messages queued from `from`, plus [`super::UNEXPECTED_OVERHEAD_BYTES`] for each message.
    pub fn queued_bytes(&self, from: Rank) -> usize {
        if self.queued_bytes.is_empty() { 0 } else { self.queued_bytes.get(&(from as u32)).copied().unwrap_or(0) }
    }

    /// Adds to the queued bytes of `from`.
    pub fn charge(&mut self, from: Rank, bytes: usize) {
        *self.queued_bytes.entry(from as u32).or_insert(0) += bytes;
    }

    /// Subtracts from the queued bytes of `from`.
    pub fn refund(&mut self, from: Rank, bytes: usize) {
        if let Some(queued) = self.queued_bytes.get_mut(&(from as u32)) {
            *queued = queued.saturating_sub(bytes);
        }
    }

    /// Makes room for `n` more bytes of an unexpected message.
    pub fn make_room(&mut self, queued: u32, n: usize) -> Result<()> {
        let message = &mut self.unexpected[queued];
        let data = message.data.get_or_insert_default();
        let payload = message.envelope.bytes as usize;
        let made = match payload <= EAGER_BYTES {
            // Exact, since `recycle` does not reuse larger buffers.
            true => data.try_reserve_exact(payload.saturating_sub(data.len())),
            false => data.try_reserve(n),
        };
        made.map_err(|_| {
            let (slot, from) = (message.envelope.space.describe(message.envelope.slot), message.from);
            exhausted(payload, format_args!("a message of rank {from} {slot} that no receive was posted for"))
        })
    }

    /// Appends payload, for which there is room, to an unexpected message. Returns it with its receive once it is
    /// complete and matched.
    pub fn append(&mut self, queued: u32, bytes: &[u8]) -> Option<(Op, Rank, Envelope, Vec<u8>)> {
        let message = &mut self.unexpected[queued];
        let data = message.data.get_or_insert_default();
        data.extend_from_slice(bytes);
        if message.op.is_none() {
            *self.queued_bytes.entry(message.from as u32).or_insert(0) += bytes.len();
        }
        if data.len() < message.envelope.bytes as usize || message.op.is_none() {
            return None;
        }
        let message = self.unexpected.remove(queued)?;
        let op = self.ops.remove(message.op?)?;
        (!op.cancelled).then(|| (op, message.from, message.envelope, message.data.unwrap_or_default()))
    }

    /// Stores the buffer of a delivered message for reuse.
    pub fn recycle(&mut self, mut data: Vec<u8>) {
        if self.spare.len() < MAX_SPARE_BUFFERS && data.capacity() <= EAGER_BYTES {
            data.clear();
            self.spare.push(data);
        }
    }
}
