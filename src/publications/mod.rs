//! Publications of collectives in memory that the ranks of a host share.
//!
//! Each rank has a table in memory that it alone writes and that the others read. A rank that takes part in a call
//! occupies one of the table's entries. In it, it publishes spans of memory: by value, as a copy in the table, or by
//! reference, as an address that the others read through the operating system. An entry names its call by a tag and a
//! fingerprint, so each rank may have several calls in progress, in any order. A rank that looks for a peer's entry of
//! a call first tries the entry that it occupies itself, because ranks that make the same calls occupy the same
//! entries. Long publications are [streams](stream). Copies are stored [through the caches or past them](stores).
//!
//! # Synchronisation
//! An entry's `stamp` consists of a hash of tag and fingerprint, and of the number of publications. It is stored with
//! release ordering after each publication and loaded with acquire ordering by readers, so a reader that sees
//! publication `n` sees its content. When a reader has finished with the publications of a peer in a call, it
//! acknowledges this: it stores the stamp's hash in its own table, with release ordering, after its last read. The
//! entry, and its memory for copies, are not reused before all readers have acknowledged it, which the owner sees by
//! loads with acquire ordering.
//!
//! Everything that is read from a peer's table is checked before it is used, and read once: a peer that writes nonsense
//! causes wrong results or an error, but no access outside its table.

mod allocator;
mod layout;
#[cfg(all(test, loom))]
pub(crate) mod model;
mod stores;
mod stream;
#[cfg(all(test, not(loom)))]
mod tests;

pub use allocator::{EntryAllocator, Full, OpenEntry};
#[cfg(any(test, fuzzing))]
pub use layout::PLACES;
pub use layout::{
    CELL_BYTES, ENTRIES, INLINE_BYTES, LINE, MAX_MEMBERS, MAX_PUBLICATIONS, MEDIUM_CELL_BYTES, TABLE_BYTES,
};
pub use stream::{Incoming, Outgoing, PIECES};

use crate::sync::{Ordering, fence};
use layout::{Form, View};

/// The tables of the ranks that share memory. Members are numbered from 0.
pub struct PublicationTable {
    own: View,
    /// The tables of all members; the own one is among them.
    members: Box<[View]>,
    index: usize,
    /// All members but this rank.
    others: Members,
    /// How copies in the own table are stored.
    stores: stores::Choice,
}

/// One rank's part in one call: an entry of its table, and the entries of the peers as far as they were found. Belongs
/// to the thread that makes the call.
#[derive(Debug, Default)]
pub struct EntryHandle {
    entry: usize,
    /// The number of this rank's entries.
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
    /// The call's place among those that wait for a cell; 0 if it does not wait.
    ticket: u64,
    /// The members whose entries were found, and are not acknowledged.
    found: Members,
    /// The entry of each of these members.
    entries: PerMember,
    /// By how many entries each member was ahead of this rank in the last call of which a look at all entries found it.
    ahead: PerMember,
}

/// A set of members: bit `n` stands for member `n`.
pub type Members = u64;

/// All of so many members but the one at `index`; those beyond [`MAX_MEMBERS`] do not publish, and have no bit.
pub fn all_but(index: usize, members: usize) -> Members {
    let all = Members::MAX >> (MAX_MEMBERS - members.clamp(1, MAX_MEMBERS));
    all & !Members::from(1u8).checked_shl(index as u32).unwrap_or(0)
}

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
    /// The publication's length in bytes.
    pub bytes: usize,
    /// The publication's place.
    pub place: Place,
}

/// The place of a published span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this process, valid for reads until the reader has acknowledged the call.
    Here(*const u8),
    /// At this address in the member's process.
    There(u64),
    /// Written piece by piece through a ring in this cell; see [`PublicationTable::incoming`].
    Stream {
        /// The cell's number.
        cell: usize,
    },
}

/// Upper bits of the stamp: everything but the number of publications. Never 0, which is the stamp of an unused entry.
fn hash(tag: u64, fingerprint: u64) -> u64 {
    let mixed = (tag ^ fingerprint.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ fingerprint;
    mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) & !layout::COUNT_MASK | (layout::COUNT_MASK + 1)
}

impl PublicationTable {
    /// The table of member `index`.
    ///
    /// # Safety
    /// `members` points to [`TABLE_BYTES`] bytes for each member, aligned to 4096, zero when the member created them,
    /// and valid for reads as long as this lives. That of `index` is valid for writes too, and nothing else writes to
    /// it.
    pub unsafe fn new(members: &[*mut u8], index: usize) -> Self {
        assert!(
            members.len() <= MAX_MEMBERS && index < members.len(),
            "a table for member {index} of {}",
            members.len()
        );
        // SAFETY: the caller guarantees the memory.
        let views: Box<[View]> = members.iter().map(|base| unsafe { View::new(*base) }).collect();
        let others = all_but(index, members.len());
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

    /// Publishes `bytes` bytes at `from` as the next publication of `handle`: by value if they are at most `copied` and
    /// there is room, else by reference.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes`, until the readers of a publication by reference have acknowledged it or it
    /// is withdrawn.
    #[inline]
    pub unsafe fn publish(&self, handle: &mut EntryHandle, from: *const u8, bytes: usize, copied: usize) {
        let number = handle.published;
        debug_assert!((number as usize) < MAX_PUBLICATIONS);
        if number == 0 && bytes <= INLINE_BYTES {
            let (hash, tag, fingerprint) = (handle.hash, handle.tag, handle.fingerprint);
            // SAFETY: as the caller guarantees.
            unsafe { self.publish_first(&OpenEntry { entry: handle.entry, hash, tag, fingerprint }, from, bytes) };
            handle.published = 1;
            return;
        }
        if bytes <= copied.min(handle.room - handle.used) {
            // SAFETY: the caller guarantees `bytes` at `from`. This handle alone uses its cell, which has room for
            // them. No reader reads them before the stamp is stored.
            let at = unsafe { self.own.store_copied(&self.stores, handle.cell, handle.used, from, bytes) };
            handle.used += bytes.next_multiple_of(layout::LINE);
            self.publish_next(handle, Form::Copied, bytes, at as u64);
        } else {
            handle.by_reference |= bytes > 0;
            self.publish_next(handle, Form::Address, bytes, from.addr() as u64);
        }
    }

    /// Makes the next publication of `handle`, of `bytes` bytes.
    #[inline]
    fn publish_next(&self, handle: &mut EntryHandle, form: Form, bytes: usize, place: u64) {
        let entry = self.own.entry(handle.entry);
        let number = handle.published;
        if number == 0 {
            entry.tag.store(handle.tag, Ordering::Relaxed);
            entry.fingerprint.store(handle.fingerprint, Ordering::Relaxed);
        }
        entry.set_descriptor(number as usize, form, bytes, place);
        handle.published = number + 1;
        entry.stamp.store(handle.hash | handle.published, Ordering::Release);
    }

    /// Publishes `bytes` bytes at `from` as the first publication of a call, in the entry itself.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes`, at most [`INLINE_BYTES`].
    #[inline(always)] // On the path of small collectives.
    pub unsafe fn publish_first(&self, call: &OpenEntry, from: *const u8, bytes: usize) {
        let entry = self.own.entry(call.entry % ENTRIES);
        entry.tag.store(call.tag, Ordering::Relaxed);
        entry.fingerprint.store(call.fingerprint, Ordering::Relaxed);
        // SAFETY: the caller guarantees `bytes` at `from`. No reader reads the entry's memory before the stamp is
        // stored.
        unsafe { entry.store_inline(from, bytes) };
        entry.stamp.store(call.hash | 1, Ordering::Release);
    }

    /// The publication `number` of `member` in the call of `handle`; `None` if it is not published, as far as a look at
    /// one entry shows, see [`PublicationTable::search`]; `Some(None)` if its place is impossible.
    #[inline(always)] // On the path of small collectives.
    pub fn find(&self, handle: &mut EntryHandle, member: usize, number: u32) -> Option<Option<Publication>> {
        let known = handle.found >> member & 1 != 0;
        let at = match known {
            // Most ranks have equal numbers of entries.
            false => (handle.entry + usize::from(handle.ahead.0[member])) & (handle.ring - 1) & (ENTRIES - 1),
            true => usize::from(handle.entries.0[member]) % ENTRIES,
        };
        let view = &self.members[member];
        let entry = view.entry(at);
        let stamp = entry.stamp.load(Ordering::Acquire);
        if stamp & !layout::COUNT_MASK != handle.hash || stamp & layout::COUNT_MASK <= u64::from(number) {
            return None;
        }
        if !known {
            let names_call = (entry.tag.load(Ordering::Relaxed), entry.fingerprint.load(Ordering::Relaxed));
            if names_call != (handle.tag, handle.fingerprint) {
                return None;
            }
            handle.found |= 1 << member;
            handle.entries.0[member] = at as u16;
        }
        Some(view.publication(entry, number))
    }

    /// Looks for the entry of `member` in all its entries; for a member whose entry is not the expected one.
    #[cold]
    pub fn search(&self, handle: &mut EntryHandle, member: usize) {
        if handle.has_found(member) {
            return;
        }
        for at in 0..self.members[member].entries() {
            let entry = self.members[member].entry(at);
            if entry.stamp.load(Ordering::Acquire) & !layout::COUNT_MASK == handle.hash
                && entry.tag.load(Ordering::Relaxed) == handle.tag
                && entry.fingerprint.load(Ordering::Relaxed) == handle.fingerprint
            {
                handle.found |= 1 << member;
                handle.entries.0[member] = at as u16;
                handle.ahead.0[member] = ((at + ENTRIES - handle.entry) % ENTRIES) as u16;
                return;
            }
        }
    }

    /// The fingerprint of a call with this tag in which `member` takes part, or did, and for which `differs` says so.
    #[cold]
    pub fn other_call(&self, of: u64, member: usize, differs: impl Fn(u64) -> bool) -> Option<u64> {
        (0..self.members[member].entries()).find_map(|at| {
            let entry = self.members[member].entry(at);
            let stamp = entry.stamp.load(Ordering::Acquire) & !layout::COUNT_MASK;
            let (tag, fingerprint) = (entry.tag.load(Ordering::Relaxed), entry.fingerprint.load(Ordering::Relaxed));
            // The hash shows that the two words and the stamp belong together.
            (stamp != 0 && tag == of && stamp == hash(tag, fingerprint) && differs(fingerprint)).then_some(fingerprint)
        })
    }

    /// Whether `member` has not withdrawn its publications of this call. If so, what was read by reference before was
    /// its content.
    #[inline]
    pub fn stands(&self, handle: &EntryHandle, member: usize) -> bool {
        fence(Ordering::Acquire);
        let at = usize::from(handle.entries.0[member]);
        handle.has_found(member)
            && self.members[member].entry(at).stamp.load(Ordering::Relaxed) & !layout::COUNT_MASK == handle.hash
    }

    /// Acknowledges the publications of the members of which one was found and for which `finished` says so: this rank
    /// does not read them any more. Each is acknowledged once: the member may then use its entry for another call,
    /// whose acknowledgement a second one would replace. Returns whether any was.
    #[inline(always)] // On the path of small collectives.
    pub fn acknowledge(&self, handle: &mut EntryHandle, finished: impl Fn(usize) -> bool) -> bool {
        let before = handle.found;
        for member in each(handle.found).filter(|member| finished(*member)) {
            let at = usize::from(handle.entries.0[member]);
            handle.found &= !(1 << member);
            self.own.acknowledgement(member, at).store(handle.hash, Ordering::Release);
        }
        handle.found != before
    }

    /// A reader that has not acknowledged this rank's publications of this call; `None` if all have.
    #[inline]
    pub fn missing_reader(&self, handle: &EntryHandle, readers: Members) -> Option<usize> {
        self.reader_behind(handle.entry, handle.hash, readers)
    }

    #[inline]
    fn reader_behind(&self, entry: usize, hash: u64, readers: Members) -> Option<usize> {
        each(readers & self.others)
            .find(|member| self.members[*member].acknowledgement(self.index, entry).load(Ordering::Acquire) != hash)
    }

    /// Withdraws the publications of a call that fails. Its memory may be reused as soon as this returns: peers that
    /// read it by reference find out afterwards; see [`PublicationTable::stands`].
    #[cold]
    pub fn withdraw(&self, handle: &EntryHandle) {
        self.own.entry(handle.entry).stamp.store(0, Ordering::Relaxed);
        // A peer that has read what is written to the memory from now on sees that.
        fence(Ordering::Release);
    }
}

impl EntryHandle {
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

    /// Whether the entry of `member` was found, and is not acknowledged.
    pub fn has_found(&self, member: usize) -> bool {
        self.found >> member & 1 != 0
    }
}

const _: () = assert!(ENTRIES <= u16::MAX as usize && ENTRIES.is_power_of_two() && CELL_BYTES > 0);
