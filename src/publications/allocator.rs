//! The entries and cells of a rank's own table that are in use. A lock of the table's user guards them.

use std::sync::atomic::Ordering;

use super::layout::{CELL_BYTES, CELLS, ENTRIES, FIRST_ENTRIES, MEDIUM, MEDIUM_CELL_BYTES, SHORT, SHORT_CELL_BYTES};
use super::{EntryHandle, Members, PublicationTable, hash, layout};
use crate::wire::fingerprint::kind;

/// The last call in an entry.
#[derive(Clone, Copy, Default)]
struct Use {
    /// The entry's stamp.
    hash: u64,
    /// Whether it is in progress.
    open: bool,
    /// Whether a reader may not have acknowledged it.
    unread: bool,
    readers: Members,
}

/// The use of a table's entries and cells.
pub struct EntryAllocator {
    /// A power of two, at most [`ENTRIES`].
    entries: Vec<Use>,
    /// The entry that the next call tries first.
    next: usize,
    /// The entry whose call has used each cell last, and its stamp.
    cells: [(usize, u64); SHORT.end],
    /// Whether a publication for which there is no memory can be by reference.
    reads: bool,
    /// The calls that wait for a cell, in the order in which they asked first.
    queue: Vec<Waiting>,
    /// The ticket of the last of them so far.
    last_ticket: u64,
}

/// A call that waits for a cell.
struct Waiting {
    ticket: u64,
    /// Bytes that its cell must have.
    room: usize,
}

impl Default for EntryAllocator {
    fn default() -> Self {
        Self::new(true)
    }
}

/// Where a call makes its first publication.
pub struct OpenEntry {
    pub(super) entry: usize,
    pub(super) hash: u64,
    pub(super) tag: u64,
    pub(super) fingerprint: u64,
}

/// Why a call cannot get an entry now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// This member has not read the publications of an earlier call of the same kind on the same tag.
    Unread(usize),
    /// Other calls have all cells, and publications cannot be by reference.
    Cells,
    /// There are no more entries.
    Occupied,
}

impl EntryAllocator {
    /// `reads`: whether readers can read the memory of the publisher's process.
    pub fn new(reads: bool) -> Self {
        let entries = vec![Use::default(); FIRST_ENTRIES];
        Self { entries, next: 0, cells: [(0, 0); SHORT.end], reads, queue: Vec::new(), last_ticket: 0 }
    }

    /// Occupies an entry for the call with this tag and fingerprint, and describes it in `handle`. `room`: bytes of its
    /// publications that may be copied, and of rings: more than [`MEDIUM_CELL_BYTES`] if there are any. Returns whether
    /// there is memory for so many copies; if not, all publications are by reference.
    ///
    /// A call waits for nothing but what was published by earlier calls of its kind on its tag, which all ranks make in
    /// the same order. If it waited for the end of other calls, ranks that begin calls in different orders might wait
    /// for each other. Where readers cannot read the memory of the publisher's process, it waits for that of a call
    /// that has a cell. Calls that wait so get cells in the order in which they began: otherwise ranks that begin them
    /// in the same order might each give their cells to other calls, of which none could end.
    #[inline]
    pub fn acquire(
        &mut self,
        table: &PublicationTable,
        handle: &mut EntryHandle,
        tag: u64,
        fingerprint: u64,
        room: usize,
    ) -> Result<bool, Full> {
        // SAFETY: nothing is published.
        unsafe { self.acquire_and_publish(table, handle, (tag, fingerprint), room, None) }
    }

    /// [`EntryAllocator::acquire`] for the call with this tag and fingerprint. If there is memory for copies, and
    /// `first` is given, the address and the bytes of the call's first publication, makes that: peers see it before
    /// anything else is done.
    ///
    /// # Safety
    /// `first` is valid for reads of so many bytes, at most [`INLINE_BYTES`](super::INLINE_BYTES).
    #[inline(always)] // On the path of small collectives.
    pub unsafe fn acquire_and_publish(
        &mut self,
        table: &PublicationTable,
        handle: &mut EntryHandle,
        (tag, fingerprint): (u64, u64),
        room: usize,
        first: Option<(*const u8, usize)>,
    ) -> Result<bool, Full> {
        let mut entry = self.next;
        if self.entries[entry].open || self.entries[entry].unread {
            entry = self.find_entry(table, (tag, fingerprint))?;
        }
        let cell = match room {
            0 => None,
            _ => self.free_cell(table, (tag, fingerprint), room, &mut handle.ticket)?,
        };
        let hash = hash(tag, fingerprint);
        let has_room = room == 0 || (cell.is_some() && room <= CELL_BYTES);
        let first = first.filter(|_| has_room);
        if let Some((from, bytes)) = first {
            // SAFETY: by the contract.
            unsafe { table.publish_first(&OpenEntry { entry, hash, tag, fingerprint }, from, bytes) };
        }
        (handle.entry, handle.hash) = (entry, hash);
        (handle.tag, handle.fingerprint) = (tag, fingerprint);
        (handle.published, handle.by_reference) = (u64::from(first.is_some()), false);
        (handle.used, handle.room) = (0, 0);
        handle.found = 0;
        if let Some(cell) = cell {
            (handle.cell, handle.room) = (cell, layout::cell(cell).1);
            self.cells[cell] = (entry, hash);
        }
        self.entries[entry] = Use { hash, open: true, unread: true, readers: 0 };
        handle.ring = self.entries.len();
        self.next = (entry + 1) & (handle.ring - 1);
        Ok(has_room)
    }

    /// Ends the call of `handle`, whose publications `readers` read.
    #[inline]
    pub fn release(&mut self, handle: &EntryHandle, readers: Members) {
        let entry = &mut self.entries[handle.entry];
        (entry.open, entry.unread, entry.readers) = (false, readers != 0 && handle.published > 0, readers);
    }

    /// Ends the wait of a call for a cell, if it waits.
    #[inline]
    pub fn stop_waiting(&mut self, handle: &mut EntryHandle) {
        if handle.ticket != 0 {
            self.leave_queue(&mut handle.ticket);
        }
    }

    /// Whether calls wait for cells.
    pub fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    #[cold]
    fn leave_queue(&mut self, ticket: &mut u64) {
        self.queue.retain(|waiting| waiting.ticket != *ticket);
        *ticket = 0;
    }

    /// Whether a call before that with this ticket, or before a new one if the ticket is 0, waits for a cell like this.
    fn is_reserved(&self, cell: usize, ticket: u64) -> bool {
        let mut before = self.queue.iter().take_while(|waiting| ticket == 0 || waiting.ticket < ticket);
        before.any(|waiting| cell < CELLS || waiting.room <= layout::cell(cell).1)
    }

    /// Tag and fingerprint of the last call that has got an entry, if it has published anything there.
    pub fn last(&self, table: &PublicationTable) -> Option<(u64, u64)> {
        let at = self.next.checked_sub(1).unwrap_or(self.entries.len() - 1);
        let entry = table.own.entry(at);
        let (tag, fingerprint) = (entry.tag.load(Ordering::Relaxed), entry.fingerprint.load(Ordering::Relaxed));
        (self.entries[at].hash != 0 && self.entries[at].hash == hash(tag, fingerprint)).then_some((tag, fingerprint))
    }

    /// Removes all calls that have ended, and that all readers have acknowledged.
    #[cold]
    pub fn forget(&mut self, table: &PublicationTable) {
        for at in 0..self.entries.len() {
            if !self.entries[at].open && self.unread(table, at).is_none() {
                table.own.entry(at).stamp.store(0, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn find_entry(&mut self, table: &PublicationTable, call: (u64, u64)) -> Result<usize, Full> {
        let (mut first, mut behind) = (None, None);
        let entries = self.entries.len();
        // All entries, because the acknowledgements of several lie in one cache line.
        for at in (self.next..self.next + entries).map(|at| at % entries) {
            match self.unread(table, at) {
                Some(_) if first.is_some() => break,
                Some(member) if is_of_a_kind(table, at, call) => behind = Some(member),
                None if !self.entries[at].open => {
                    first.get_or_insert(at);
                }
                _ => {}
            }
        }
        match (first, behind) {
            (Some(at), _) => Ok(at),
            (None, Some(member)) => Err(Full::Unread(member)),
            (None, None) => self.add_entries(table),
        }
    }

    /// Doubles the number of entries. Returns the first new one.
    fn add_entries(&mut self, table: &PublicationTable) -> Result<usize, Full> {
        let entries = self.entries.len();
        if entries == ENTRIES {
            return Err(Full::Occupied);
        }
        self.entries.resize(2 * entries, Use::default());
        table.own.set_entries(2 * entries);
        Ok(entries)
    }

    /// A member that has not read the last call in the entry `at`.
    fn unread(&mut self, table: &PublicationTable, at: usize) -> Option<usize> {
        let Use { hash, open, unread, readers } = self.entries[at];
        if open || !unread {
            return None;
        }
        let behind = table.reader_behind(at, hash, readers);
        self.entries[at].unread = behind.is_some();
        behind
    }

    /// A free cell, if there is one: the shortest that has enough `room`. Fails if there is none, and the call must
    /// wait for one; `ticket` is its place in the queue then.
    #[inline(never)] // Inlined, it makes the smallest calls, which need no cell, save registers.
    fn free_cell(
        &mut self,
        table: &PublicationTable,
        call: (u64, u64),
        room: usize,
        ticket: &mut u64,
    ) -> Result<Option<usize>, Full> {
        let mut behind = None;
        let short = if room <= SHORT_CELL_BYTES { SHORT } else { 0..0 };
        let medium = if room <= MEDIUM_CELL_BYTES { MEDIUM } else { 0..0 };
        // The first that is free: calls that follow each other use two cells in turns, which stay in cache.
        for cell in short.chain(medium).chain(0..CELLS) {
            let (entry, hash) = self.cells[cell];
            let last = self.entries[entry];
            if last.hash == hash && last.open || self.is_reserved(cell, *ticket) {
                continue;
            }
            // If the entry has another call since, the cell's call was acknowledged before.
            match self.unread(table, entry).filter(|_| last.hash == hash) {
                None => {
                    if *ticket != 0 {
                        self.leave_queue(ticket);
                    }
                    return Ok(Some(cell));
                }
                Some(member) if is_of_a_kind(table, entry, call) => behind = Some(member),
                Some(_) => {}
            }
        }
        if !self.reads && *ticket == 0 {
            self.last_ticket += 1;
            *ticket = self.last_ticket;
            self.queue.push(Waiting { ticket: *ticket, room });
        }
        match behind {
            Some(member) => Err(Full::Unread(member)),
            None if self.reads => Ok(None),
            None => Err(Full::Cells),
        }
    }
}

/// Whether the last call in this rank's entry `at`, which has published something, was of the same kind and on the same
/// tag as that with this tag and fingerprint.
fn is_of_a_kind(table: &PublicationTable, at: usize, (tag, fingerprint): (u64, u64)) -> bool {
    let entry = table.own.entry(at);
    let other = entry.fingerprint.load(Ordering::Relaxed);
    entry.tag.load(Ordering::Relaxed) == tag && kind(other) == kind(fingerprint)
}
