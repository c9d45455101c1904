//! Which slots and cells of a rank's own board are in use. Guarded by a lock of the board's user.

use std::sync::atomic::Ordering;

use super::layout::{CELL_BYTES, CELLS, SLOTS};
use super::{Board, Members, Seat, hash};

/// The last call in a slot.
#[derive(Clone, Copy, Default)]
struct Use {
    /// Its stamp.
    hash: u64,
    /// Whether it is in progress.
    open: bool,
    /// Whether a reader may not have acknowledged it.
    unread: bool,
    readers: Members,
}

/// The use of a board's slots and cells.
pub struct Desk {
    slots: [Use; SLOTS],
    /// The slot that the next call tries first.
    next: usize,
    /// The slot whose call has used each cell last, and its stamp.
    cells: [(usize, u64); CELLS],
}

impl Default for Desk {
    fn default() -> Self {
        Self { slots: [Use::default(); SLOTS], next: 0, cells: [(0, 0); CELLS] }
    }
}

/// Why a call cannot get a slot now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// This member has not read an earlier call's publications.
    Unread(usize),
    /// Calls of this rank occupy all slots.
    Occupied,
}

impl Desk {
    /// Occupies a slot for the call with this tag and fingerprint, and describes it in `seat`. `room`: bytes of its publications
    /// that may be copied.
    #[inline(always)] // On the path of small collectives.
    pub fn open(
        &mut self,
        board: &Board,
        seat: &mut Seat,
        tag: u64,
        fingerprint: u64,
        room: usize,
    ) -> Result<(), Full> {
        let mut slot = self.next % SLOTS;
        if self.slots[slot].open || self.slots[slot].unread {
            slot = self.find_slot(board)? % SLOTS;
        }
        let (room, cell) = match room {
            0 => (0, 0),
            _ => (room.min(CELL_BYTES), self.free_cell(board)?),
        };
        seat.slot = slot;
        seat.hash = hash(tag, fingerprint);
        (seat.tag, seat.fingerprint) = (tag, fingerprint);
        (seat.published, seat.by_reference) = (0, false);
        (seat.used, seat.room) = (0, room);
        seat.found = 0;
        if room > 0 {
            seat.cell = cell;
            self.cells[cell] = (slot, seat.hash);
        }
        self.slots[slot] = Use { hash: seat.hash, open: true, unread: true, readers: 0 };
        self.next = (slot + 1) % SLOTS;
        Ok(())
    }

    /// Ends the call of `seat`, whose publications `readers` read.
    #[inline]
    pub fn close(&mut self, seat: &Seat, readers: Members) {
        let its = &mut self.slots[seat.slot % SLOTS];
        (its.open, its.unread, its.readers) = (false, readers != 0 && seat.published > 0, readers);
    }

    /// Removes all calls that have ended, and that all readers have acknowledged.
    #[cold]
    pub fn forget(&mut self, board: &Board) {
        for at in 0..SLOTS {
            if !self.slots[at].open && self.unread(board, at).is_none() {
                board.own.slot(at).stamp.store(0, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn find_slot(&mut self, board: &Board) -> Result<usize, Full> {
        let (mut first, mut full) = (None, Full::Occupied);
        // All slots, because the acknowledgements of several lie in one cache line.
        for at in (self.next..self.next + SLOTS).map(|at| at % SLOTS) {
            match self.unread(board, at) {
                Some(_) if first.is_some() => break,
                Some(member) => full = Full::Unread(member),
                None if !self.slots[at].open => {
                    first.get_or_insert(at);
                }
                None => {}
            }
        }
        first.ok_or(full)
    }

    /// A member that has not read the last call in the slot `at`.
    fn unread(&mut self, board: &Board, at: usize) -> Option<usize> {
        let Use { hash, open, unread, readers } = self.slots[at];
        if open || !unread {
            return None;
        }
        let behind = board.reader_behind(at, hash, readers);
        self.slots[at].unread = behind.is_some();
        behind
    }

    fn free_cell(&mut self, board: &Board) -> Result<usize, Full> {
        let mut full = Full::Occupied;
        // The first that is free: calls that follow each other use two cells in turns, which stay in cache.
        for cell in 0..CELLS {
            let (slot, hash) = self.cells[cell];
            let last = self.slots[slot];
            if last.hash == hash && last.open {
                continue;
            }
            // If the slot has another call since, the cell's call was acknowledged before.
            match self.unread(board, slot).filter(|_| last.hash == hash) {
                None => return Ok(cell),
                Some(member) => full = Full::Unread(member),
            }
        }
        Err(full)
    }
}
