//! Publications of collectives in memory that the ranks of a host share.
//!
//! Each rank has a board in memory that it alone writes and that the others read. A rank that takes part in a call occupies one
//! of the board's slots. In it, it publishes spans of memory: by value, as a copy on the board, or by reference, as an address
//! that the others read through the operating system. A slot names its call by a tag and a fingerprint, so each rank may have
//! several calls in progress, in any order. A rank that looks for a peer's slot of a call first tries the slot that it occupies
//! itself, because ranks that make the same calls occupy the same slots. Long publications are [streams](stream). Copies are stored
//! [through the caches or past them](stores).
//!
//! # Synchronisation
//! A slot's `stamp` consists of a hash of tag and fingerprint, and of the number of publications. It is stored with release
//! ordering after each publication and loaded with acquire ordering by readers, so a reader that sees publication `n` sees its
//! content. When a reader has finished with the publications of a peer in a call, it acknowledges this: it stores the stamp's
//! hash on its own board, with release ordering, after its last read. The slot, and its memory for copies, are not reused before
//! all readers have acknowledged it, which the owner sees by loads with acquire ordering.
//!
//! Everything that is read from a peer's board is checked before it is used, and read once: a peer that writes nonsense causes
//! wrong results or an error, but no access outside its board.

mod desk;
mod layout;
#[cfg(all(test, loom))]
pub(crate) mod model;
mod stores;
mod stream;
#[cfg(all(test, not(loom)))]
mod tests;

pub use desk::{Desk, Full, Opening};
#[cfg(any(test, fuzzing))]
pub use layout::PLACES;
pub use layout::{BOARD_BYTES, CELL_BYTES, INLINE_BYTES, LINE, MAX_MEMBERS, MAX_PUBLICATIONS, SHORT_CELL_BYTES, SLOTS};
pub use stream::{Incoming, Outgoing, PIECES};

use crate::sync::{Ordering, fence};
use layout::{Form, View};

/// The boards of the ranks that share memory. Members are numbered from 0.
pub struct Board {
    own: View,
    /// The boards of all members; the own one is among them.
    members: Box<[View]>,
    index: usize,
    /// All members but this rank.
    others: Members,
    /// How copies on the own board are stored.
    stores: stores::Choice,
}

/// One rank's part in one call: a slot of its board, and the slots of the peers as far as they were found. Belongs to the thread
/// that makes the call.
#[derive(Debug, Default)]
pub struct Seat {
    slot: usize,
    /// The number of this rank's slots.
    ring: usize,
    /// The stamp without publications.
    hash: u64,
    tag: u64,
    fingerprint: u64,
    published: u64,
    /// Memory for copies: the cell's number, and the bytes of it that are in use.
    cell: usize,
    used: usize,
    room: usize,
    /// Whether a publication is by reference.
    by_reference: bool,
    /// The members whose slots were found, and are not acknowledged.
    found: Members,
    /// For each of them: its slot.
    slots: PerMember,
    /// For each member: by how many slots it was ahead of this rank in the last call of which a look at all slots found it.
    ahead: PerMember,
}

/// A set of members: bit `n` stands for member `n`.
pub type Members = u64;

/// A number for each member.
#[derive(Clone, Debug)]
struct PerMember([u16; MAX_MEMBERS]);

impl Default for PerMember {
    fn default() -> Self {
        Self([0; MAX_MEMBERS])
    }
}

/// The members of a set.
pub fn each(mut set: Members) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let member = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(member)
    })
}

/// A span that a member has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Its length in bytes.
    pub bytes: usize,
    /// Its place.
    pub place: Place,
}

/// The place of a published span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this process, valid for reads until the reader has acknowledged the call.
    Here(*const u8),
    /// At this address in the member's process.
    There(u64),
    /// Written piece by piece through a ring in this cell; see [`Board::incoming`].
    Stream {
        /// The cell's number.
        cell: usize,
    },
}

/// Upper bits of the stamp: everything but the number of publications. Never 0, which is the stamp of an unused slot.
fn hash(tag: u64, fingerprint: u64) -> u64 {
    let mixed = (tag ^ fingerprint.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ fingerprint;
    mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) & !layout::COUNT | (layout::COUNT + 1)
}

impl Board {
    /// The board of member `index`.
    ///
    /// # Safety
    /// `members` points to [`BOARD_BYTES`] bytes for each member, aligned to 4096, zero when the member created them, and valid
    /// for reads as long as this lives. That of `index` is valid for writes too, and nothing else writes to it.
    pub unsafe fn new(members: &[*mut u8], index: usize) -> Self {
        assert!(
            members.len() <= MAX_MEMBERS && index < members.len(),
            "a board for member {index} of {}",
            members.len()
        );
        // SAFETY: the caller guarantees the memory.
        let views: Box<[View]> = members.iter().map(|base| unsafe { View::new(*base) }).collect();
        let others = (u64::MAX >> (MAX_MEMBERS - members.len())) & !(1 << index);
        Self { own: views[index], members: views, index, others, stores: stores::Choice::default() }
    }

    /// Number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The number of this rank among the members.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Publishes `bytes` bytes at `from` as the next publication of `seat`: by value if they are at most `copied` and there is
    /// room, else by reference.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes`, until the readers of a publication by reference have acknowledged it or it is
    /// withdrawn.
    #[inline]
    pub unsafe fn publish(&self, seat: &mut Seat, from: *const u8, bytes: usize, copied: usize) {
        let number = seat.published;
        debug_assert!((number as usize) < MAX_PUBLICATIONS);
        if number == 0 && bytes <= INLINE_BYTES {
            let (hash, tag, fingerprint) = (seat.hash, seat.tag, seat.fingerprint);
            // SAFETY: as the caller guarantees.
            unsafe { self.publish_first(&Opening { slot: seat.slot, hash, tag, fingerprint }, from, bytes) };
            seat.published = 1;
            return;
        }
        if bytes <= copied.min(seat.room - seat.used) {
            // SAFETY: the caller guarantees `bytes` at `from`. This seat alone uses its cell, which has room for them. No reader
            // reads them before the stamp is stored.
            let at = unsafe { self.own.store_copied(&self.stores, seat.cell, seat.used, from, bytes) };
            seat.used += bytes.next_multiple_of(layout::LINE);
            self.publish_entry(seat, Form::Copied, bytes, at as u64);
        } else {
            seat.by_reference |= bytes > 0;
            self.publish_entry(seat, Form::Address, bytes, from.addr() as u64);
        }
    }

    /// Makes the next publication of `seat`, of `bytes` bytes.
    #[inline]
    fn publish_entry(&self, seat: &mut Seat, form: Form, bytes: usize, place: u64) {
        let slot = self.own.slot(seat.slot);
        let number = seat.published;
        if number == 0 {
            slot.tag.store(seat.tag, Ordering::Relaxed);
            slot.fingerprint.store(seat.fingerprint, Ordering::Relaxed);
        }
        slot.set_entry(number as usize, form, bytes, place);
        seat.published = number + 1;
        slot.stamp.store(seat.hash | seat.published, Ordering::Release);
    }

    /// Publishes `bytes` bytes at `from` as the first publication of a call, in the slot itself.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes`, at most [`INLINE_BYTES`].
    #[inline(always)] // On the path of small collectives.
    pub unsafe fn publish_first(&self, call: &Opening, from: *const u8, bytes: usize) {
        let slot = self.own.slot(call.slot % SLOTS);
        slot.tag.store(call.tag, Ordering::Relaxed);
        slot.fingerprint.store(call.fingerprint, Ordering::Relaxed);
        // SAFETY: the caller guarantees `bytes` at `from`. No reader reads the slot's memory before the stamp is stored.
        unsafe { slot.store_inline(from, bytes) };
        slot.stamp.store(call.hash | 1, Ordering::Release);
    }

    /// The publication `number` of `member` in the call of `seat`; `None` if it is not published, as far as a look at one slot
    /// shows, see [`Board::search`]; `Some(None)` if its place is impossible.
    #[inline(always)] // On the path of small collectives.
    pub fn find(&self, seat: &mut Seat, member: usize, number: u32) -> Option<Option<Publication>> {
        let known = seat.found >> member & 1 != 0;
        let at = match known {
            // Most ranks have equal numbers of slots.
            false => (seat.slot + usize::from(seat.ahead.0[member])) & (seat.ring - 1) & (SLOTS - 1),
            true => usize::from(seat.slots.0[member]) % SLOTS,
        };
        let view = &self.members[member];
        let slot = view.slot(at);
        let stamp = slot.stamp.load(Ordering::Acquire);
        if stamp & !layout::COUNT != seat.hash || stamp & layout::COUNT <= u64::from(number) {
            return None;
        }
        if !known {
            let names_call = (slot.tag.load(Ordering::Relaxed), slot.fingerprint.load(Ordering::Relaxed));
            if names_call != (seat.tag, seat.fingerprint) {
                return None;
            }
            seat.found |= 1 << member;
            seat.slots.0[member] = at as u16;
        }
        Some(view.publication(slot, number))
    }

    /// Looks for the slot of `member` in all its slots; for a member whose slot is not the expected one.
    #[cold]
    pub fn search(&self, seat: &mut Seat, member: usize) {
        if seat.has_found(member) {
            return;
        }
        for at in 0..self.members[member].slots() {
            let slot = self.members[member].slot(at);
            if slot.stamp.load(Ordering::Acquire) & !layout::COUNT == seat.hash
                && slot.tag.load(Ordering::Relaxed) == seat.tag
                && slot.fingerprint.load(Ordering::Relaxed) == seat.fingerprint
            {
                seat.found |= 1 << member;
                seat.slots.0[member] = at as u16;
                seat.ahead.0[member] = ((at + SLOTS - seat.slot) % SLOTS) as u16;
                return;
            }
        }
    }

    /// The fingerprint of a call with this tag in which `member` takes part, or did, and for which `differs` says so.
    #[cold]
    pub fn other_call(&self, of: u64, member: usize, differs: impl Fn(u64) -> bool) -> Option<u64> {
        (0..self.members[member].slots()).find_map(|at| {
            let slot = self.members[member].slot(at);
            let stamp = slot.stamp.load(Ordering::Acquire) & !layout::COUNT;
            let (tag, fingerprint) = (slot.tag.load(Ordering::Relaxed), slot.fingerprint.load(Ordering::Relaxed));
            // The hash shows that the two words and the stamp belong together.
            (stamp != 0 && tag == of && stamp == hash(tag, fingerprint) && differs(fingerprint)).then_some(fingerprint)
        })
    }

    /// Whether `member` has not withdrawn its publications of this call. If so, what was read by reference before was its content.
    #[inline]
    pub fn stands(&self, seat: &Seat, member: usize) -> bool {
        fence(Ordering::Acquire);
        let at = usize::from(seat.slots.0[member]);
        seat.has_found(member)
            && self.members[member].slot(at).stamp.load(Ordering::Relaxed) & !layout::COUNT == seat.hash
    }

    /// Acknowledges the publications of the members of which one was found and for which `finished` says so: this rank does not
    /// read them any more. Each is acknowledged once: the member may then use its slot for another call, whose acknowledgement a
    /// second one would replace. Returns whether any was.
    #[inline(always)] // On the path of small collectives.
    pub fn acknowledge(&self, seat: &mut Seat, finished: impl Fn(usize) -> bool) -> bool {
        let before = seat.found;
        for member in each(seat.found).filter(|member| finished(*member)) {
            let at = usize::from(seat.slots.0[member]);
            seat.found &= !(1 << member);
            self.own.acknowledgement(member, at).store(seat.hash, Ordering::Release);
        }
        seat.found != before
    }

    /// A reader that has not acknowledged this rank's publications of this call; `None` if all have.
    #[inline]
    pub fn missing_reader(&self, seat: &Seat, readers: Members) -> Option<usize> {
        self.reader_behind(seat.slot, seat.hash, readers)
    }

    #[inline]
    fn reader_behind(&self, slot: usize, hash: u64, readers: Members) -> Option<usize> {
        each(readers & self.others)
            .find(|member| self.members[*member].acknowledgement(self.index, slot).load(Ordering::Acquire) != hash)
    }

    /// Withdraws the publications of a call that fails. Its memory may be reused as soon as this returns: peers that read it by
    /// reference find out afterwards; see [`Board::stands`].
    #[cold]
    pub fn withdraw(&self, seat: &Seat) {
        self.own.slot(seat.slot).stamp.store(0, Ordering::Relaxed);
        // A peer that has read what is written to the memory from now on sees that.
        fence(Ordering::Release);
    }
}

impl Seat {
    /// Whether a publication is by reference, so that the readers must be awaited.
    #[inline]
    pub fn is_by_reference(&self) -> bool {
        self.by_reference
    }

    /// Number of publications.
    pub fn published(&self) -> usize {
        self.published as usize
    }

    /// The call's fingerprint.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Whether the slot of `member` was found, and is not acknowledged.
    pub fn has_found(&self, member: usize) -> bool {
        self.found >> member & 1 != 0
    }
}

const _: () = assert!(SLOTS <= u16::MAX as usize && SLOTS.is_power_of_two() && CELL_BYTES > 0);
