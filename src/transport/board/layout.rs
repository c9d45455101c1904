//! The layout of a board.
//!
//! | offset | content |
//! |---|---|
//! | 0 | the number of slots that are used |
//! | [`ACKNOWLEDGEMENTS_AT`] | acknowledgements: for each [`FEW`] slots, for each member, a word for each of its slots |
//! | [`SLOTS_AT`] | the slots |
//! | [`CELLS_AT`] | the cells: memory for copies |

use super::{Place, Publication};
use crate::transport::sync::{AtomicU64, Data, Ordering};

/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Most calls that a rank can have in progress, or that its readers have not acknowledged. The models have fewer, so that they are
/// used again soon.
pub const SLOTS: usize = if cfg!(all(test, loom)) { 2 } else { 4096 };
/// Slots that are used at first; then twice as many whenever they do not suffice.
pub(super) const FEW: usize = if cfg!(all(test, loom)) { 1 } else { 64 };
/// Most members of a board: as many as a set has bits.
pub const MAX_MEMBERS: usize = u64::BITS as usize;
/// Most publications of a rank in a call.
pub const MAX_PUBLICATIONS: usize = if cfg!(all(test, loom)) { 2 } else { 64 };
/// Bytes of a publication that fit into the first cache line of a slot.
pub const INLINE_BYTES: usize = 32;
/// Calls whose publications are copied at the same time.
pub(super) const CELLS: usize = if cfg!(all(test, loom)) { 1 } else { 4 };
pub(super) const CELL_BYTES: usize = if cfg!(all(test, loom)) { LINE } else { 2 << 20 };

const ACKNOWLEDGEMENTS_AT: usize = LINE;
const SLOTS_AT: usize = (ACKNOWLEDGEMENTS_AT + MAX_MEMBERS * SLOTS * size_of::<AtomicU64>()).next_multiple_of(LINE);
const CELLS_AT: usize = (SLOTS_AT + SLOTS * size_of::<Slot>()).next_multiple_of(4096);
/// Size of a board. Pages that are never written take no memory.
pub const BOARD_BYTES: usize = CELLS_AT + CELLS * size_of::<Data<Cell>>();

/// The bits of a stamp that count publications.
pub(super) const COUNT: u64 = 0xff;

/// How a publication is stored: the two lowest bits of its entry's first word. The other bits are the length in bytes.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Inline = 0,
    Copied = 1,
    Address = 2,
}

const FORM_BITS: u32 = 2;

#[repr(C)]
struct Entry {
    form: AtomicU64,
    /// Offset on the board, or address.
    place: AtomicU64,
}

/// A slot; the first cache line suffices for a call with a small publication.
#[repr(C, align(64))]
pub(super) struct Slot {
    pub stamp: AtomicU64,
    pub tag: AtomicU64,
    pub fingerprint: AtomicU64,
    first: AtomicU64,
    /// The first publication, or its place.
    inline: Inline,
    more: [Entry; MAX_PUBLICATIONS - 1],
}

/// Memory for copies.
#[repr(C, align(64))]
pub(super) struct Cell([u8; CELL_BYTES]);

#[repr(C)]
#[cfg(not(all(test, loom)))]
union Inline {
    bytes: std::mem::ManuallyDrop<Data<[u8; INLINE_BYTES]>>,
    place: std::mem::ManuallyDrop<AtomicU64>,
}

#[cfg(not(all(test, loom)))]
impl Inline {
    fn bytes(&self) -> &Data<[u8; INLINE_BYTES]> {
        // SAFETY: every bit pattern is a valid array.
        unsafe { &self.bytes }
    }

    fn place(&self) -> &AtomicU64 {
        // SAFETY: every bit pattern is a valid number; the union begins with it, aligned.
        unsafe { &self.place }
    }
}

#[cfg(all(test, loom))]
struct Inline(Data<[u8; INLINE_BYTES]>, AtomicU64);

#[cfg(all(test, loom))]
impl Inline {
    fn bytes(&self) -> &Data<[u8; INLINE_BYTES]> {
        &self.0
    }

    fn place(&self) -> &AtomicU64 {
        &self.1
    }
}

impl Slot {
    /// # Safety
    /// `from` is valid for reads of `bytes`, at most [`INLINE_BYTES`]; this slot is on the own board, and no reader reads its
    /// memory now.
    #[inline]
    pub unsafe fn store_inline(&self, from: *const u8, bytes: usize) {
        // SAFETY: the caller guarantees the source, and that nothing else accesses the destination, which has room.
        self.inline.bytes().with_mut(|into| unsafe { copy_small(from, into.cast(), bytes) });
        self.first.store(Form::Inline as u64 | (bytes as u64) << FORM_BITS, Ordering::Relaxed);
    }

    #[inline]
    pub fn set_entry(&self, number: usize, form: Form, bytes: usize, place: u64) {
        let word = form as u64 | (bytes as u64) << FORM_BITS;
        let (form, place_word) = self.entry(number);
        form.store(word, Ordering::Relaxed);
        place_word.store(place, Ordering::Relaxed);
    }

    #[inline]
    fn entry(&self, number: usize) -> (&AtomicU64, &AtomicU64) {
        match number {
            0 => (&self.first, self.inline.place()),
            _ => (&self.more[number - 1].form, &self.more[number - 1].place),
        }
    }
}

/// Copies at most [`INLINE_BYTES`] bytes without a function call.
///
/// # Safety
/// `from` is valid for reads and `into` for writes of `bytes`, and they do not overlap.
#[inline]
unsafe fn copy_small(from: *const u8, into: *mut u8, bytes: usize) {
    let mut at = 0;
    // SAFETY: each copy is within the first `bytes` bytes, which the caller guarantees.
    unsafe {
        while at + 8 <= bytes {
            into.add(at).cast::<u64>().write_unaligned(from.add(at).cast::<u64>().read_unaligned());
            at += 8;
        }
        if at + 4 <= bytes {
            into.add(at).cast::<u32>().write_unaligned(from.add(at).cast::<u32>().read_unaligned());
            at += 4;
        }
        while at < bytes {
            into.add(at).write(from.add(at).read());
            at += 1;
        }
    }
}

/// A mapped board.
#[derive(Clone, Copy)]
pub(super) struct View(*mut u8);

// SAFETY: the memory is shared by design: what several threads or processes access concurrently is atomic, and other bytes are
// ordered by the stamps and acknowledgements.
unsafe impl Send for View {}
// SAFETY: as for `Send`.
unsafe impl Sync for View {}

impl View {
    /// # Safety
    /// `base` is valid for reads of [`BOARD_BYTES`] bytes as long as the view and its copies are used, and aligned to 4096.
    pub unsafe fn new(base: *mut u8) -> Self {
        debug_assert!(base.addr().is_multiple_of(4096));
        Self(base)
    }

    /// # Panics
    /// If `at` is not less than [`SLOTS`].
    #[inline]
    pub fn slot(&self, at: usize) -> &Slot {
        assert!(at < SLOTS);
        // SAFETY: the slots lie within the board, and every bit pattern is a valid slot of atomics and bytes.
        unsafe { &*self.0.add(SLOTS_AT).cast::<Slot>().add(at) }
    }

    /// The owner's acknowledgement of what `member` has published in its slot `at`.
    #[inline]
    pub fn acknowledgement(&self, member: usize, at: usize) -> &AtomicU64 {
        assert!(member < MAX_MEMBERS && at < SLOTS);
        let index = (at / FEW * MAX_MEMBERS + member) * FEW + at % FEW;
        // SAFETY: the acknowledgements lie within the board.
        unsafe { &*self.0.add(ACKNOWLEDGEMENTS_AT).cast::<AtomicU64>().add(index) }
    }

    /// How many of the owner's slots may be in use.
    pub fn slots(&self) -> usize {
        (self.slots_word().load(Ordering::Relaxed) as usize).clamp(FEW, SLOTS)
    }

    /// Lets others know how many slots are in use from now on, before one of the new ones is. Whoever sees a publication in one of them
    /// because of its stamp or of a wake-up sees this.
    pub fn set_slots(&self, slots: usize) {
        self.slots_word().store(slots as u64, Ordering::Relaxed);
    }

    fn slots_word(&self) -> &AtomicU64 {
        // SAFETY: the board begins with it.
        unsafe { &*self.0.cast::<AtomicU64>() }
    }

    #[inline]
    fn cell(&self, cell: usize) -> &Data<Cell> {
        assert!(cell < CELLS);
        // SAFETY: the cells lie within the board, and every bit pattern is a valid cell of bytes.
        unsafe { &*self.0.add(CELLS_AT).cast::<Data<Cell>>().add(cell) }
    }

    /// Copies `bytes` bytes at `from` to the byte `at` of the cell, and returns their offset on the board.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes`; `at + bytes` is at most [`CELL_BYTES`]; this is the own board, and nothing else accesses
    /// this part of the cell now.
    #[inline]
    pub unsafe fn store_copied(&self, cell: usize, at: usize, from: *const u8, bytes: usize) -> usize {
        self.cell(cell).with_mut(|memory| {
            // SAFETY: the caller guarantees the source, that the destination lies in the cell, and that nothing else accesses it.
            unsafe {
                let into = memory.cast::<u8>().add(at);
                std::ptr::copy_nonoverlapping(from, into, bytes);
                into.addr() - self.0.addr()
            }
        })
    }

    /// The publication `number` in `slot` of this board; `None` if its place is not in a cell.
    #[inline(always)] // On the path of small collectives.
    pub fn publication(&self, slot: &Slot, number: u32) -> Option<Publication> {
        let (form, place) = slot.entry(number as usize % MAX_PUBLICATIONS);
        let form = form.load(Ordering::Relaxed);
        let bytes = (form >> FORM_BITS) as usize;
        let place = match form & ((1 << FORM_BITS) - 1) {
            0 if bytes <= INLINE_BYTES => Place::Here(slot.inline.bytes().with(|bytes| bytes.cast())),
            1 => {
                let at = usize::try_from(place.load(Ordering::Relaxed)).ok()?;
                let is_inside = at >= CELLS_AT && at.checked_add(bytes)? <= BOARD_BYTES;
                is_inside.then(|| Place::Here(self.0.wrapping_add(at)))?
            }
            2 => Place::There(place.load(Ordering::Relaxed)),
            _ => return None,
        };
        Some(Publication { bytes, place })
    }
}

/// For the models, in whose memory words are more than their bytes.
#[cfg(all(test, loom))]
impl View {
    /// Makes a board of `members` in memory that is written for the first time.
    pub fn make(&self, members: usize) {
        let word = || AtomicU64::new(0);
        // SAFETY: the memory is as long as a board, and nothing else accesses it yet.
        unsafe { std::ptr::from_ref(self.slots_word()).cast_mut().write(word()) };
        for member in 0..members {
            for at in 0..SLOTS {
                // SAFETY: as above.
                unsafe { std::ptr::from_ref(self.acknowledgement(member, at)).cast_mut().write(word()) };
            }
        }
        for at in 0..SLOTS {
            let inline = Inline(Data::new([0; INLINE_BYTES]), word());
            let more = std::array::from_fn(|_| Entry { form: word(), place: word() });
            let slot = Slot { stamp: word(), tag: word(), fingerprint: word(), first: word(), inline, more };
            // SAFETY: as above.
            unsafe { std::ptr::from_ref(self.slot(at)).cast_mut().write(slot) };
        }
        for at in 0..CELLS {
            // SAFETY: as above.
            unsafe { std::ptr::from_ref(self.cell(at)).cast_mut().write(Data::new(Cell([0; CELL_BYTES]))) };
        }
    }

    /// The bytes at `from`, a place on this board, of which loom sees that they are read.
    pub fn content(&self, from: *const u8, bytes: usize) -> Vec<u8> {
        // SAFETY: whoever calls this has found so many bytes there.
        let read = || unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec();
        match from.addr() - self.0.addr() {
            at if at < CELLS_AT => self.slot((at - SLOTS_AT) / size_of::<Slot>()).inline.bytes().with(|_| read()),
            at => self.cell((at - CELLS_AT) / size_of::<Data<Cell>>()).with(|_| read()),
        }
    }
}

/// Where the acknowledgements and the slots begin, the bytes of a slot, and where the cells begin.
#[cfg(any(test, fuzzing))]
pub const PLACES: [usize; 4] = [ACKNOWLEDGEMENTS_AT, SLOTS_AT, size_of::<Slot>(), CELLS_AT];
