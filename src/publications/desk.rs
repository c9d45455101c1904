//! Which slots and cells of a rank's own board are in use. Guarded by a lock of the board's user.

use std::sync::atomic::Ordering;

use super::layout::{CELL_BYTES, CELLS, FEW, FEW_CELLS, SHORT_CELL_BYTES, SHORT_CELLS, SLOTS};
use super::{Board, Members, Seat, hash};
use crate::wire::fingerprint::kind;

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
    /// A power of two, at most [`SLOTS`].
    slots: Vec<Use>,
    /// The slot that the next call tries first.
    next: usize,
    /// The slot whose call has used each cell last, and its stamp.
    cells: [(usize, u64); CELLS + SHORT_CELLS],
    /// Whether a publication for which there is no memory can be by reference. Then fewer long cells are used, since they do not all fit
    /// into the caches.
    reads: bool,
}

impl Default for Desk {
    fn default() -> Self {
        Self::new(true)
    }
}

/// Where a call makes its first publication.
pub struct Opening {
    pub(super) slot: usize,
    pub(super) hash: u64,
    pub(super) tag: u64,
    pub(super) fingerprint: u64,
}

/// Why a call cannot get a slot now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// This member has not read the publications of an earlier call of the same kind on the same tag.
    Unread(usize),
    /// Other calls have all cells, and publications cannot be by reference.
    Cells,
    /// There are no more slots.
    Occupied,
}

impl Desk {
    /// `reads`: whether readers can read the memory of the publisher's process.
    pub fn new(reads: bool) -> Self {
        Self { slots: vec![Use::default(); FEW], next: 0, cells: [(0, 0); CELLS + SHORT_CELLS], reads }
    }

    /// Occupies a slot for the call with this tag and fingerprint, and describes it in `seat`. `room`: bytes of its publications
    /// that may be copied, and of rings: more than [`SHORT_CELL_BYTES`] if there are any. Returns whether there is memory for so many
    /// copies; if not, all publications are by reference.
    ///
    /// A call waits for nothing but what was published by earlier calls of its kind on its tag, which all ranks make in the same
    /// order. If it waited for the end of other calls, ranks that begin calls in different orders might wait for each other. Where readers
    /// cannot read the memory of the publisher's process, it waits for that of a call that has a cell.
    #[inline]
    pub fn open(
        &mut self,
        board: &Board,
        seat: &mut Seat,
        tag: u64,
        fingerprint: u64,
        room: usize,
    ) -> Result<bool, Full> {
        // SAFETY: nothing is published.
        unsafe { self.open_and_publish(board, seat, (tag, fingerprint), room, None) }
    }

    /// [`Desk::open`] for the call with this tag and fingerprint. If there is memory for copies, and `first` is given, the address and the bytes of
    /// the call's first publication, makes that: peers see it before anything else is done.
    ///
    /// # Safety
    /// `first` is valid for reads of so many bytes, at most [`INLINE_BYTES`](super::INLINE_BYTES).
    #[inline(always)] // On the path of small collectives.
    pub unsafe fn open_and_publish(
        &mut self,
        board: &Board,
        seat: &mut Seat,
        (tag, fingerprint): (u64, u64),
        room: usize,
        first: Option<(*const u8, usize)>,
    ) -> Result<bool, Full> {
        let mut slot = self.next;
        if self.slots[slot].open || self.slots[slot].unread {
            slot = self.find_slot(board, (tag, fingerprint))?;
        }
        let cell = match room {
            0 => None,
            _ => self.free_cell(board, (tag, fingerprint), room)?,
        };
        let hash = hash(tag, fingerprint);
        let has_room = room == 0 || (cell.is_some() && room <= CELL_BYTES);
        let first = first.filter(|_| has_room);
        if let Some((from, bytes)) = first {
            // SAFETY: by the contract.
            unsafe { board.publish_first(&Opening { slot, hash, tag, fingerprint }, from, bytes) };
        }
        (seat.slot, seat.hash) = (slot, hash);
        (seat.tag, seat.fingerprint) = (tag, fingerprint);
        (seat.published, seat.by_reference) = (u64::from(first.is_some()), false);
        (seat.used, seat.room) = (0, 0);
        seat.found = 0;
        if let Some(cell) = cell {
            (seat.cell, seat.room) = (cell, if cell < CELLS { CELL_BYTES } else { SHORT_CELL_BYTES });
            self.cells[cell] = (slot, hash);
        }
        self.slots[slot] = Use { hash, open: true, unread: true, readers: 0 };
        seat.ring = self.slots.len();
        self.next = (slot + 1) & (seat.ring - 1);
        Ok(has_room)
    }

    /// Ends the call of `seat`, whose publications `readers` read.
    #[inline]
    pub fn close(&mut self, seat: &Seat, readers: Members) {
        let its = &mut self.slots[seat.slot];
        (its.open, its.unread, its.readers) = (false, readers != 0 && seat.published > 0, readers);
    }

    /// Tag and fingerprint of the last call that has got a slot, if it has published anything there.
    pub fn last(&self, board: &Board) -> Option<(u64, u64)> {
        let at = self.next.checked_sub(1).unwrap_or(self.slots.len() - 1);
        let slot = board.own.slot(at);
        let (tag, fingerprint) = (slot.tag.load(Ordering::Relaxed), slot.fingerprint.load(Ordering::Relaxed));
        (self.slots[at].hash != 0 && self.slots[at].hash == hash(tag, fingerprint)).then_some((tag, fingerprint))
    }

    /// Removes all calls that have ended, and that all readers have acknowledged.
    #[cold]
    pub fn forget(&mut self, board: &Board) {
        for at in 0..self.slots.len() {
            if !self.slots[at].open && self.unread(board, at).is_none() {
                board.own.slot(at).stamp.store(0, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn find_slot(&mut self, board: &Board, call: (u64, u64)) -> Result<usize, Full> {
        let (mut first, mut behind) = (None, None);
        let slots = self.slots.len();
        // All slots, because the acknowledgements of several lie in one cache line.
        for at in (self.next..self.next + slots).map(|at| at % slots) {
            match self.unread(board, at) {
                Some(_) if first.is_some() => break,
                Some(member) if is_of_a_kind(board, at, call) => behind = Some(member),
                None if !self.slots[at].open => {
                    first.get_or_insert(at);
                }
                _ => {}
            }
        }
        match (first, behind) {
            (Some(at), _) => Ok(at),
            (None, Some(member)) => Err(Full::Unread(member)),
            (None, None) => self.add_slots(board),
        }
    }

    /// Doubles the number of slots. Returns the first new one.
    fn add_slots(&mut self, board: &Board) -> Result<usize, Full> {
        let slots = self.slots.len();
        if slots == SLOTS {
            return Err(Full::Occupied);
        }
        self.slots.resize(2 * slots, Use::default());
        board.own.set_slots(2 * slots);
        Ok(slots)
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

    /// A free cell, if there is one: a short one if that has enough `room`. Fails if there is none, and the call must wait for one.
    #[inline(never)] // Or else the smallest calls, which need none, save registers for it.
    fn free_cell(&mut self, board: &Board, call: (u64, u64), room: usize) -> Result<Option<usize>, Full> {
        let mut behind = None;
        let short = if room <= SHORT_CELL_BYTES { CELLS..CELLS + SHORT_CELLS } else { 0..0 };
        // The first that is free: calls that follow each other use two cells in turns, which stay in cache.
        for cell in short.chain(0..if self.reads { FEW_CELLS } else { CELLS }) {
            let (slot, hash) = self.cells[cell];
            let last = self.slots[slot];
            if last.hash == hash && last.open {
                continue;
            }
            // If the slot has another call since, the cell's call was acknowledged before.
            match self.unread(board, slot).filter(|_| last.hash == hash) {
                None => return Ok(Some(cell)),
                Some(member) if is_of_a_kind(board, slot, call) => behind = Some(member),
                Some(_) => {}
            }
        }
        match behind {
            Some(member) => Err(Full::Unread(member)),
            None if self.reads => Ok(None),
            None => Err(Full::Cells),
        }
    }
}

/// Whether the last call in this rank's slot `at`, which has published something, was of the same kind and on the same tag as that
/// with this tag and fingerprint.
fn is_of_a_kind(board: &Board, at: usize, (tag, fingerprint): (u64, u64)) -> bool {
    let slot = board.own.slot(at);
    let its = slot.fingerprint.load(Ordering::Relaxed);
    slot.tag.load(Ordering::Relaxed) == tag && kind(its) == kind(fingerprint)
}
