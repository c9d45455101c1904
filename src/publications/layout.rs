//! The layout of a table.
//!
//! | offset | content |
//! |---|---|
//! | 0 | the number of entries that are used |
//! | [`ACKNOWLEDGEMENTS_AT`] | acknowledgements: for each [`FIRST_ENTRIES`] entries, for each member, a word for each of its entries |
//! | [`CONSUMED_AT`] | how far the owner has read streams: for each member, for each of its cells, a word for each publication |
//! | [`ENTRIES_AT`] | the entries |
//! | [`RINGS_AT`] | rings of streams: for each cell, one for each publication |
//! | [`CELLS_AT`] | the cells: memory for copies, first the long ones, then the medium and the short ones |

use std::ops::Range;

use super::stores::Choice;
use super::{Place, Publication};
use crate::sync::{AtomicU64, Data, Ordering};

/// Bytes of a cache line.
pub const LINE: usize = 64;
/// The maximum number of calls that a rank can have in progress, or that its readers have not acknowledged. The models
/// have fewer, so that they are used again soon.
pub const ENTRIES: usize = if cfg!(all(test, loom)) { 2 } else { 4096 };
/// Entries that are used at first; then twice as many whenever they do not suffice.
pub(super) const FIRST_ENTRIES: usize = if cfg!(all(test, loom)) { 1 } else { 64 };
/// The maximum number of members of a table: as many as a set has bits.
pub const MAX_MEMBERS: usize = u64::BITS as usize;
/// The maximum number of publications of a rank in a call.
pub const MAX_PUBLICATIONS: usize = if cfg!(all(test, loom)) { 2 } else { 64 };
/// Bytes of a publication that fit into an entry, the first 32 into its first cache line. What lies elsewhere costs a
/// reader one miss more, since it must read first where that is: 16 allreduces of 40 to 256 bytes take 5.6 µs in place
/// of 8.5. With 16 lines, those of 64 bytes take 40 % longer, since 64 entries then take twice as many pages.
pub const INLINE_BYTES: usize = if cfg!(all(test, loom)) { 32 } else { 32 + 4 * LINE };
/// Long cells: calls whose publications are streams, or longer copies than a medium cell has room for, at the same
/// time.
pub(super) const CELLS: usize = if cfg!(all(test, loom)) { 1 } else { 8 };
/// Bytes of a long cell.
pub const CELL_BYTES: usize = if cfg!(all(test, loom)) { 2 * LINE } else { 2 << 20 };
/// Cells of medium length, for a training step's many requests of some tens of KiB. Their numbers follow those of the
/// long ones, and they follow them in the table.
pub(super) const MEDIUM_CELLS: usize = if cfg!(all(test, loom)) { 0 } else { 64 };
/// Bytes of a medium cell.
pub const MEDIUM_CELL_BYTES: usize = 128 << 10;
/// Short cells. Their numbers follow those of the medium ones, and they follow them in the table.
pub(super) const SHORT_CELLS: usize = if cfg!(all(test, loom)) { 0 } else { 256 };
/// Bytes of a short cell.
pub const SHORT_CELL_BYTES: usize = 16 << 10;

const ACKNOWLEDGEMENTS_AT: usize = LINE;
const CONSUMED_AT: usize =
    (ACKNOWLEDGEMENTS_AT + MAX_MEMBERS * ENTRIES * size_of::<AtomicU64>()).next_multiple_of(LINE);
const ENTRIES_AT: usize =
    (CONSUMED_AT + MAX_MEMBERS * CELLS * MAX_PUBLICATIONS * size_of::<AtomicU64>()).next_multiple_of(LINE);
const RINGS_AT: usize = ENTRIES_AT + ENTRIES * size_of::<Entry>();
const CELLS_AT: usize = (RINGS_AT + CELLS * MAX_PUBLICATIONS * size_of::<Ring>()).next_multiple_of(4096);
/// Size of a table. Pages that are never written take no memory.
pub const TABLE_BYTES: usize = SHORT_CELLS_AT + SHORT_CELLS * SHORT_CELL_BYTES;
const MEDIUM_CELLS_AT: usize = CELLS_AT + CELLS * size_of::<Cell>();
const SHORT_CELLS_AT: usize = MEDIUM_CELLS_AT + MEDIUM_CELLS * MEDIUM_CELL_BYTES;
/// The numbers of the medium cells.
pub(super) const MEDIUM: Range<usize> = CELLS..CELLS + MEDIUM_CELLS;
/// The numbers of the short cells.
pub(super) const SHORT: Range<usize> = MEDIUM.end..MEDIUM.end + SHORT_CELLS;

/// Where the cell with this number is in the table, and how many bytes it has.
#[inline]
pub(super) fn cell(number: usize) -> (usize, usize) {
    assert!(number < SHORT.end);
    let (at, bytes, first) = if number < MEDIUM.start {
        (CELLS_AT, CELL_BYTES, 0)
    } else if number < SHORT.start {
        (MEDIUM_CELLS_AT, MEDIUM_CELL_BYTES, MEDIUM.start)
    } else {
        (SHORT_CELLS_AT, SHORT_CELL_BYTES, SHORT.start)
    };
    (at + (number - first) * bytes, bytes)
}

/// The bits of a stamp that count publications.
pub(super) const COUNT_MASK: u64 = 0xff;

/// How a publication is stored: the two lowest bits of its descriptor's first word. The other bits are the length in
/// bytes.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Inline = 0,
    Copied = 1,
    Address = 2,
    Stream = 3,
}

const FORM_BITS: u32 = 2;

#[repr(C)]
struct Descriptor {
    form: AtomicU64,
    /// Offset in the table, or address, or of a stream the number of its cell.
    place: AtomicU64,
}

/// An entry; the first cache line suffices for a call with a publication of at most 32 bytes.
#[repr(C, align(64))]
pub(super) struct Entry {
    pub stamp: AtomicU64,
    pub tag: AtomicU64,
    pub fingerprint: AtomicU64,
    first: AtomicU64,
    /// The first publication, or its place.
    inline: Inline,
    more: [Descriptor; MAX_PUBLICATIONS - 1],
}

/// Memory for copies, in lines because loom watches each of them by itself.
#[repr(C, align(64))]
pub(super) struct Cell([Data<[u8; LINE]>; CELL_BYTES / LINE]);

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Cell>() == CELL_BYTES);

/// A ring in a cell, through which the owner writes a publication piece by piece.
#[repr(C, align(64))]
pub(super) struct Ring {
    /// Bytes that were written through rings with this number: those of this publication after those of earlier ones.
    pub written: AtomicU64,
    /// What `written` was before this publication.
    pub start: AtomicU64,
    /// Where the ring begins in the table.
    pub at: AtomicU64,
    /// The ring's length in bytes.
    pub bytes: AtomicU64,
}

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

impl Entry {
    /// # Safety
    /// `from` is valid for reads of `bytes`, at most [`INLINE_BYTES`]; this entry is in the own table, and no reader
    /// reads its memory now.
    #[inline]
    pub unsafe fn store_inline(&self, from: *const u8, bytes: usize) {
        // SAFETY: the caller guarantees the source, and that nothing else accesses the destination, which has room.
        self.inline.bytes().with_mut(|into| unsafe { copy_small(from, into.cast(), bytes) });
        self.first.store(Form::Inline as u64 | (bytes as u64) << FORM_BITS, Ordering::Relaxed);
    }

    #[inline]
    pub fn set_descriptor(&self, number: usize, form: Form, bytes: usize, place: u64) {
        let word = form as u64 | (bytes as u64) << FORM_BITS;
        let (form, place_word) = self.descriptor(number);
        form.store(word, Ordering::Relaxed);
        place_word.store(place, Ordering::Relaxed);
    }

    #[inline]
    fn descriptor(&self, number: usize) -> (&AtomicU64, &AtomicU64) {
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
#[inline(always)] // On the path of small collectives.
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

/// A mapped table.
#[derive(Clone, Copy)]
pub(super) struct View(*mut u8);

// SAFETY: the memory is shared by design: what several threads or processes access concurrently is atomic, and other
// bytes are ordered by the stamps and acknowledgements.
unsafe impl Send for View {}
// SAFETY: as for `Send`.
unsafe impl Sync for View {}

impl View {
    /// # Safety
    /// `base` is valid for reads of [`TABLE_BYTES`] bytes as long as the view and its copies are used, and aligned to
    /// 4096.
    pub unsafe fn new(base: *mut u8) -> Self {
        debug_assert!(base.addr().is_multiple_of(4096));
        Self(base)
    }

    /// # Panics
    /// If `at` is not less than [`ENTRIES`].
    #[inline]
    pub fn entry(&self, at: usize) -> &Entry {
        assert!(at < ENTRIES);
        // SAFETY: the entries lie within the table, and every bit pattern is a valid entry of atomics and bytes.
        unsafe { &*self.0.add(ENTRIES_AT).cast::<Entry>().add(at) }
    }

    /// The owner's acknowledgement of what `member` has published in its entry `at`.
    #[inline]
    pub fn acknowledgement(&self, member: usize, at: usize) -> &AtomicU64 {
        assert!(member < MAX_MEMBERS && at < ENTRIES);
        let index = (at / FIRST_ENTRIES * MAX_MEMBERS + member) * FIRST_ENTRIES + at % FIRST_ENTRIES;
        // SAFETY: the acknowledgements lie within the table.
        unsafe { &*self.0.add(ACKNOWLEDGEMENTS_AT).cast::<AtomicU64>().add(index) }
    }

    /// How many of the owner's entries may be in use.
    pub fn entries(&self) -> usize {
        (self.entries_word().load(Ordering::Relaxed) as usize).clamp(FIRST_ENTRIES, ENTRIES)
    }

    /// Lets others know how many entries are in use from now on, before one of the new ones is. Whoever sees a
    /// publication in one of them because of its stamp or of a wake-up sees this.
    pub fn set_entries(&self, entries: usize) {
        self.entries_word().store(entries as u64, Ordering::Relaxed);
    }

    fn entries_word(&self) -> &AtomicU64 {
        // SAFETY: the table begins with it.
        unsafe { &*self.0.cast::<AtomicU64>() }
    }

    /// How far the owner has read the publication `number` of `member`, of which the copies are in that member's
    /// `cell`.
    #[inline]
    pub fn consumed(&self, member: usize, cell: usize, number: usize) -> &AtomicU64 {
        assert!(member < MAX_MEMBERS && cell < CELLS && number < MAX_PUBLICATIONS);
        let index = (member * CELLS + cell) * MAX_PUBLICATIONS + number;
        // SAFETY: these words lie within the table.
        unsafe { &*self.0.add(CONSUMED_AT).cast::<AtomicU64>().add(index) }
    }

    /// The ring of the owner's publication `number` in `cell`, a long one.
    #[inline]
    pub fn ring(&self, cell: usize, number: usize) -> &Ring {
        assert!(cell < CELLS && number < MAX_PUBLICATIONS);
        // SAFETY: the rings lie within the table, and every bit pattern is a valid one.
        unsafe { &*self.0.add(RINGS_AT).cast::<Ring>().add(cell * MAX_PUBLICATIONS + number) }
    }

    /// The byte `at` of the table, which is in a cell with `bytes` bytes after it, or not.
    pub fn in_cells(&self, at: u64, bytes: u64) -> Option<*const u8> {
        let is_inside = at >= CELLS_AT as u64 && at.checked_add(bytes)? <= TABLE_BYTES as u64;
        is_inside.then(|| self.0.cast_const().wrapping_add(at as usize))
    }

    /// Copies `bytes` bytes at `from` to the byte `at` of the cell, stored as `choice` says, and returns their offset
    /// in the table.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes`; `at + bytes` is at most the length of the cell; this is the own table, and
    /// nothing else accesses this part of the cell now.
    #[inline]
    pub unsafe fn store_copied(&self, choice: &Choice, cell: usize, at: usize, from: *const u8, bytes: usize) -> usize {
        let offset = self.place(cell, at);
        // SAFETY: the caller guarantees the source, that the destination lies in the cell, and that nothing else
        // accesses it.
        unsafe { self.write(choice, offset, from, bytes) };
        offset
    }

    /// Where the byte `at` of the cell is in the table.
    #[inline]
    pub fn place(&self, cell: usize, at: usize) -> usize {
        self::cell(cell).0 + at
    }

    /// # Safety
    /// As for [`View::store_copied`].
    #[inline(always)]
    #[cfg(not(all(test, loom)))]
    unsafe fn write(&self, choice: &Choice, offset: usize, from: *const u8, bytes: usize) {
        // SAFETY: by the contract.
        unsafe { choice.copy(self.0.add(offset), from, bytes) };
    }

    /// The publication `number` in `entry` of this table; `None` if its place is not in a cell.
    #[inline(always)] // On the path of small collectives.
    pub fn publication(&self, entry: &Entry, number: u32) -> Option<Publication> {
        let (form, place) = entry.descriptor(number as usize % MAX_PUBLICATIONS);
        let form = form.load(Ordering::Relaxed);
        let bytes = (form >> FORM_BITS) as usize;
        let place = match form & ((1 << FORM_BITS) - 1) {
            0 if bytes <= INLINE_BYTES => Place::Here(entry.inline.bytes().with(|bytes| bytes.cast())),
            1 => Place::Here(self.in_cells(place.load(Ordering::Relaxed), bytes as u64)?),
            2 => Place::There(place.load(Ordering::Relaxed)),
            3 => {
                let cell = place.load(Ordering::Relaxed);
                (cell < CELLS as u64).then_some(Place::Stream { cell: cell as usize })?
            }
            _ => return None,
        };
        Some(Publication { bytes, place })
    }
}

/// The models need views of their own: in their memory a word is more than its bytes.
#[cfg(all(test, loom))]
impl View {
    /// Makes a table of `members` in memory that is written for the first time.
    pub fn make(&self, members: usize) {
        let word = || AtomicU64::new(0);
        // SAFETY: the memory is as long as a table, and nothing else accesses it yet.
        unsafe { std::ptr::from_ref(self.entries_word()).cast_mut().write(word()) };
        for member in 0..members {
            for at in 0..ENTRIES {
                // SAFETY: as above.
                unsafe { std::ptr::from_ref(self.acknowledgement(member, at)).cast_mut().write(word()) };
            }
        }
        for at in 0..ENTRIES {
            let inline = Inline(Data::new([0; INLINE_BYTES]), word());
            let more = std::array::from_fn(|_| Descriptor { form: word(), place: word() });
            let entry = Entry { stamp: word(), tag: word(), fingerprint: word(), first: word(), inline, more };
            // SAFETY: as above.
            unsafe { std::ptr::from_ref(self.entry(at)).cast_mut().write(entry) };
        }
        for cell in 0..CELLS {
            let lines = Cell(std::array::from_fn(|_| Data::new([0; LINE])));
            // SAFETY: as above.
            unsafe { self.0.add(CELLS_AT).cast::<Cell>().add(cell).write(lines) };
            for number in 0..MAX_PUBLICATIONS {
                let ring = Ring { written: word(), start: word(), at: word(), bytes: word() };
                // SAFETY: as above.
                unsafe { std::ptr::from_ref(self.ring(cell, number)).cast_mut().write(ring) };
                for member in 0..members {
                    // SAFETY: as above.
                    unsafe { std::ptr::from_ref(self.consumed(member, cell, number)).cast_mut().write(word()) };
                }
            }
        }
    }

    /// The lines of the cells from `offset` on, at the beginning of one of them, with `bytes` bytes.
    fn lines(&self, offset: usize, bytes: usize) -> &[Data<[u8; LINE]>] {
        let size = size_of::<Data<[u8; LINE]>>();
        let line = |byte: usize| (byte - CELLS_AT) / LINE;
        let (first, end) = (line(offset), line(offset + bytes - 1) + 1);
        assert!((offset - CELLS_AT).is_multiple_of(LINE) && end * size <= CELLS * size_of::<Cell>());
        // SAFETY: these lines lie within the table.
        unsafe {
            let first = self.0.add(CELLS_AT).cast::<Data<[u8; LINE]>>().add(first);
            std::slice::from_raw_parts(first, end - line(offset))
        }
    }

    /// # Safety
    /// As for [`View::store_copied`].
    unsafe fn write(&self, _: &Choice, offset: usize, from: *const u8, bytes: usize) {
        for (n, line) in self.lines(offset, bytes).iter().enumerate() {
            let part = (bytes - n * LINE).min(LINE);
            // SAFETY: by the contract.
            line.with_mut(|into| unsafe { std::ptr::copy_nonoverlapping(from.add(n * LINE), into.cast(), part) });
        }
    }

    /// The bytes at `from`, a place in this table, of which loom sees that they are read.
    pub fn content(&self, from: *const u8, bytes: usize) -> Vec<u8> {
        // SAFETY: whoever calls this has found so many bytes there.
        let read = || unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec();
        match from.addr() - self.0.addr() {
            at if at < CELLS_AT => self.entry((at - ENTRIES_AT) / size_of::<Entry>()).inline.bytes().with(|_| read()),
            at => {
                let part = |(n, line): (usize, &Data<[u8; LINE]>)| {
                    // SAFETY: as above.
                    line.with(|line| unsafe { *line })[..(bytes - n * LINE).min(LINE)].to_vec()
                };
                self.lines(at, bytes).iter().enumerate().flat_map(part).collect()
            }
        }
    }
}

/// Where the acknowledgements and the entries begin, the bytes of an entry, and where the rings and the cells begin.
#[cfg(any(test, fuzzing))]
pub const PLACES: [usize; 5] = [ACKNOWLEDGEMENTS_AT, ENTRIES_AT, size_of::<Entry>(), RINGS_AT, CELLS_AT];
