//! Publications that are too long to be copied as a whole: their rank copies them piece by piece into a ring in its
//! table, as fast as all readers read. Two copies in cache take less time than one by the operating system, which looks
//! up every page.
//!
//! # Synchronisation
//! The owner stores how much it has written with release ordering after each piece; readers load it with acquire
//! ordering before they read. A reader stores how much it has read in its own table with release ordering after each
//! piece; the owner loads that with acquire ordering before it writes to that part of the ring again. Both numbers only
//! grow, also over the publications that use a ring one after the other: what is left from earlier ones means that
//! nothing has been read of this one.

use super::layout::{CELLS, Form, LINE};
use super::{EntryHandle, Members, PublicationTable, each};
use crate::sync::Ordering;

/// Pieces in a ring: the owner writes some while readers read others.
pub const PIECES: usize = if cfg!(all(test, loom)) { 2 } else { 8 };

/// A publication that this rank writes through a ring.
#[derive(Debug)]
pub struct Outgoing {
    from: *const u8,
    bytes: usize,
    written: usize,
    readers: Members,
    number: usize,
    cell: usize,
    /// Where the ring begins in the cell, and its length.
    at: usize,
    ring: usize,
    start: u64,
}

/// A publication that a member writes through a ring. The member may have written anything there, but the ring is in
/// its table.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    member: usize,
    number: usize,
    cell: usize,
    start: u64,
    from: *const u8,
    ring: usize,
}

impl PublicationTable {
    /// Publishes `bytes` bytes at `from` as the next publication of `handle`, through a ring of `ring` bytes, for
    /// `readers`, each of which reads them once from the beginning to the end. They are written by
    /// [`PublicationTable::write`]. `None` if there is no room for the ring.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes` until all is written, or the publication is withdrawn.
    pub unsafe fn publish_stream(
        &self,
        handle: &mut EntryHandle,
        from: *const u8,
        bytes: usize,
        ring: usize,
        readers: Members,
    ) -> Option<Outgoing> {
        if ring == 0 || ring > handle.room - handle.used || handle.cell >= CELLS {
            return None;
        }
        let (number, cell, at) = (handle.published as usize, handle.cell, handle.used);
        let header = self.own.ring(cell, number);
        let start = header.written.load(Ordering::Relaxed);
        header.start.store(start, Ordering::Relaxed);
        header.at.store(self.own.place(cell, at) as u64, Ordering::Relaxed);
        header.bytes.store(ring as u64, Ordering::Relaxed);
        handle.used += ring;
        self.publish_next(handle, Form::Stream, bytes, cell as u64);
        let readers = readers & self.others;
        Some(Outgoing { from, bytes, written: 0, readers, number, cell, at, ring, start })
    }

    /// Writes the next piece of `stream`, if there is room for it. Returns whether there was.
    pub fn write(&self, stream: &mut Outgoing) -> bool {
        let Outgoing { bytes, written, ring, cell, .. } = *stream;
        let length = (ring / PIECES).min(bytes - written);
        if length == 0 || self.slow_reader(stream).is_some() {
            return false;
        }
        let at = stream.at + written % ring;
        // SAFETY: by the contract of `publish_stream`. Pieces divide the ring, which is in a cell of this rank's table,
        // and readers have read what was in this part of it, if they follow the rules: if not, they harm themselves.
        unsafe { self.own.store_copied(&self.stores, cell, at, stream.from.add(written), length) };
        stream.written += length;
        let total = stream.start.wrapping_add(stream.written as u64);
        self.own.ring(cell, stream.number).written.store(total, Ordering::Release);
        true
    }

    /// A reader of `stream`: the one for which its next piece has to wait, if any.
    pub fn slowest(&self, stream: &Outgoing) -> usize {
        self.slow_reader(stream).unwrap_or(stream.readers.trailing_zeros() as usize)
    }

    /// A reader for which the next piece of `stream` has to wait.
    pub fn slow_reader(&self, stream: &Outgoing) -> Option<usize> {
        self.slow_readers(stream).next()
    }

    /// The readers for which the next piece of `stream` has to wait.
    pub fn slow_readers(&self, stream: &Outgoing) -> impl Iterator<Item = usize> {
        let Outgoing { bytes, written, ring, cell, number, start, .. } = *stream;
        let needed = (written + (ring / PIECES).min(bytes - written)).saturating_sub(ring);
        let readers = if needed > 0 { stream.readers } else { 0 };
        each(readers).filter(move |member| {
            let read = self.members[*member].consumed(self.index, cell, number).load(Ordering::Acquire);
            // A reader that has not begun has what is left from earlier publications: at most the start.
            (read.wrapping_sub(start) as i64) < needed as i64
        })
    }

    /// The publication `number` of `member`, whose ring is in `cell`; `None` if that is impossible.
    pub fn incoming(&self, member: usize, number: u32, cell: usize) -> Option<Incoming> {
        let (view, number) = (&self.members[member], number as usize);
        let header = view.ring(cell, number);
        let (at, bytes) = (header.at.load(Ordering::Relaxed), header.bytes.load(Ordering::Relaxed));
        // Operands must be aligned.
        let from = view.in_cells(at, bytes).filter(|_| bytes > 0 && at.is_multiple_of(LINE as u64))?;
        let start = header.start.load(Ordering::Relaxed);
        Some(Incoming { member, number, cell, start, from, ring: bytes as usize })
    }

    /// How many bytes of `stream` were written, from its beginning on. They can be read unless this rank has said that
    /// it has read them.
    pub fn written(&self, stream: &Incoming) -> usize {
        let total = self.members[stream.member].ring(stream.cell, stream.number).written.load(Ordering::Acquire);
        usize::try_from(total.wrapping_sub(stream.start)).unwrap_or(0)
    }

    /// Says that this rank does not read the first `bytes` bytes of `stream` any more. Returns whether it has not said
    /// so before.
    pub fn consume(&self, stream: &Incoming, bytes: usize) -> bool {
        let read = stream.start.wrapping_add(bytes as u64);
        // Only this rank writes it.
        let consumed = self.own.consumed(stream.member, stream.cell, stream.number);
        let is_new = consumed.load(Ordering::Relaxed) != read;
        consumed.store(read, Ordering::Release);
        is_new
    }
}

impl Outgoing {
    /// Whether all is written.
    pub fn is_written(&self) -> bool {
        self.written == self.bytes
    }
}

impl Incoming {
    /// The byte `at` of the publication, and how many bytes follow each other from there on. Valid for reads.
    pub fn place(&self, at: usize) -> (*const u8, usize) {
        let offset = at % self.ring;
        (self.from.wrapping_add(offset), self.ring - offset)
    }
}
