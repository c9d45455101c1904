//! What the ranks of a context on one host have of each other if they share memory, whatever the system shares it by.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, ErrorKind, Result};
use crate::publications::Members;
use crate::sync;
use crate::sys::ForkMark;
use crate::sys::shared_memory::Mapping;
use crate::types::Rank;

/// The ranks of a context on one host that share memory, this one included. Members are numbered from 0, in the order
/// of their ranks; all have the same numbers for them.
pub trait LocalRanks: Send + Sync {
    /// The ranks of the members in the context, ascending.
    fn ranks(&self) -> &[u32];

    /// The number of this rank among the members.
    fn index(&self) -> usize;

    /// The number of `rank`, if it is a member.
    fn index_of(&self, rank: Rank) -> Option<usize> {
        self.ranks().binary_search(&u32::try_from(rank).ok()?).ok()
    }

    /// The publications of the member at `index`: [`TABLE_BYTES`](crate::publications::TABLE_BYTES), aligned to a page,
    /// zero at first; for reading only, unless it is this rank. Valid as long as this, and even after the member's
    /// process has ended. It may change at any time, so what is read there must be atomic, or be ordered after a flag.
    fn table(&self, index: usize) -> *mut u8;

    /// Whether every member can read the memory of every other's process.
    fn reads_memory(&self) -> bool;

    /// Whether there are more members than cores on which they may run.
    fn shares_cores(&self) -> bool;

    /// The mark of the process that may write here: not of a child by fork.
    fn mark(&self) -> &Arc<ForkMark>;

    /// The events for which this rank waits: a member that causes one of them must wake it.
    fn waiting(&self) -> &Waiting;

    /// Wakes those of `members` that wait for [`PUBLICATIONS`] or [`STARTED`], after this rank has published something
    /// for them, or acknowledged what they have published. The bits of this rank and of no member are ignored.
    fn wake_members(&self, members: Members);

    /// Wakes the device of this rank, which then looks for all events. A system call.
    fn wake_self(&self);

    /// The `bytes` from `address` on in the process of the member at `index`, if they lie in memory that it has
    /// [allocated](super::Allocations), and that this rank can map.
    fn in_place(&self, index: usize, address: u64, bytes: usize) -> Option<InPlace>;

    /// Whether others can find the `bytes` at `from`, which this rank has allocated, in place.
    fn has_allocated(&self, from: *const u8, bytes: usize) -> bool;

    /// Reads `bytes` from `address` in the process of the member at `index`. If this succeeds, that process had not
    /// ended before it was read, or the memory is [in place](LocalRanks::in_place). Fails if any of the memory is not
    /// mapped there; then part of `into` may have been written. [`LocalRanks::why_unreadable`] says why in words.
    ///
    /// # Safety
    /// `into` is valid for writes of `bytes`.
    unsafe fn read_memory(&self, index: usize, address: u64, into: *mut u8, bytes: usize) -> io::Result<()>;

    /// Says for messages why the memory of another process cannot be read, and what helps.
    fn why_unreadable(&self, error: &io::Error) -> String;

    /// All memory that this rank shares, and its length.
    #[cfg(test)]
    fn own_memory(&self) -> (*mut u8, usize);

    /// How many allocations of the member at `index` this rank has mapped.
    #[cfg(test)]
    fn mapped(&self, index: usize) -> usize;
}

/// What a rank has found about the memory of the other ranks of its host, which decides what they all do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharing {
    /// The rank cannot map all segments of the others.
    Nothing = 0,
    /// The rank has mapped all segments.
    Segments = 1,
    /// The rank has mapped all segments, and can read the memory of the others' processes.
    Processes = 2,
    /// The rank's process has too few descriptors left for the context.
    NoRoom = 3,
}

impl Sharing {
    /// The number that stands for it in messages to other ranks.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Parses what `size` ranks have found.
    pub fn parse(numbers: &[u8], size: usize) -> Result<Vec<Self>> {
        let known = [Self::Nothing, Self::Segments, Self::Processes, Self::NoRoom];
        let one = |number: &u8| known.into_iter().find(|sharing| sharing.number() == *number);
        numbers.iter().map(one).collect::<Option<Vec<_>>>().filter(|all| all.len() == size).ok_or_else(|| {
            let text = format!("{numbers:?} is not what {size} ranks have found about their hosts' memory");
            Error::new(ErrorKind::Mismatch, text)
        })
    }

    /// Fails, in the same words on all ranks, if one of the ranks that have found this has no room for the context.
    pub fn check_room(found: impl IntoIterator<Item = (Rank, Self)>) -> Result<()> {
        let Some((rank, _)) = found.into_iter().find(|(_, sharing)| *sharing == Self::NoRoom) else { return Ok(()) };
        let text = format!(
            "the process of rank {rank} has too few descriptors left for another context: raise its limit (ulimit -n), or destroy contexts"
        );
        Err(Error::new(ErrorKind::ResourceExhausted, text).with_rank(rank))
    }
}

/// Bytes of a peer's allocation, for reading. They may change at any time; they stay mapped as long as this exists.
pub struct InPlace {
    _mapping: Arc<Mapping>,
    start: *const u8,
}

impl InPlace {
    /// The bytes from `start` on in `mapping`.
    pub(super) fn new(mapping: Arc<Mapping>, start: *const u8) -> Self {
        Self { _mapping: mapping, start }
    }

    /// Where they begin in this process.
    pub fn start(&self) -> *const u8 {
        self.start
    }
}

/// Something came for a link, or there is room in one: while no thread polls the links.
pub const MESSAGES: u64 = 1;
/// A member has published something, or read something: while a thread sleeps that may wait for it.
pub const PUBLICATIONS: u64 = 2;
/// Publications for calls that were started, and for which no thread waits.
pub const STARTED: u64 = 4;

/// One more answer to the doorbell.
const ANSWER: u64 = 8;

/// The events for which a rank waits, a set of bits: a peer that causes one of them must wake it. The bits above count
/// how often the rank has answered its doorbell, in units of [`ANSWER`], so that a peer need not ring twice. The word
/// has a cache line of its own, because peers read it often.
#[repr(align(64))]
pub struct Waiting {
    events: sync::AtomicU64,
    /// Members that need not ring for [`PUBLICATIONS`], a set of bits. In memory that is zero at first, none.
    ignored: sync::AtomicU64,
}

impl Waiting {
    /// Called by the owner when it waits for `events`, too. It must look for them once more after this call.
    pub fn begin(&self, events: u64) {
        if self.events.load(Ordering::Relaxed) & events != events {
            // Only then: the cache line stays with the peers that read it.
            self.events.fetch_or(events, Ordering::Relaxed);
        }
        // Between this rank's store of the set and its loads of what it waits for; a peer has the counterpart between
        // its store of that and its load of the set. So at least one of the two sees the other's store.
        sync::fence(Ordering::SeqCst);
    }

    /// Called by the owner before it waits for [`PUBLICATIONS`]: of `members` only, a set of bits.
    pub fn wait_only_for(&self, members: u64) {
        self.ignored.store(!members, Ordering::Relaxed);
    }

    /// Called by the owner, which may wait for [`PUBLICATIONS`] already: also of `members`. It must look for them once
    /// more after this call.
    pub fn wait_also_for(&self, members: u64) {
        if self.ignored.load(Ordering::Relaxed) & members != 0 {
            self.ignored.fetch_and(!members, Ordering::Relaxed);
            // See `begin`.
            sync::fence(Ordering::SeqCst);
        }
    }

    /// Called by the owner when it does not wait for `events` any more.
    #[inline]
    pub fn end(&self, events: u64) {
        if self.waits_for(events) {
            self.events.fetch_and(!events, Ordering::Relaxed);
        }
    }

    /// Whether the owner waits for one of `events`.
    #[inline]
    pub fn waits_for(&self, events: u64) -> bool {
        self.events.load(Ordering::Relaxed) & events != 0
    }

    /// Whether a peer that has stored what the owner may wait for must wake the owner.
    #[inline]
    pub fn must_be_woken(&self, events: u64) -> bool {
        // See `begin`.
        sync::fence(Ordering::SeqCst);
        self.waits_for(events)
    }

    /// Whether the peer with number `member`, which has stored what the owner may wait for, and has a fence behind that
    /// as [`Waiting::must_be_woken`] has, must ring the owner's doorbell. `rung`, 0 at first, records for which answer
    /// the peer has rung last.
    #[inline]
    pub fn must_be_rung(&self, events: u64, member: usize, rung: &sync::AtomicU64) -> bool {
        let now = self.events.load(Ordering::Relaxed);
        let waits = now & events;
        waits != 0 && (waits != PUBLICATIONS || self.ignored.load(Ordering::Relaxed) >> member & 1 == 0) && {
            // One ring is enough until the owner answers: it then looks for all events.
            let answer = now / ANSWER + 1;
            rung.load(Ordering::Relaxed) != answer && rung.swap(answer, Ordering::Relaxed) != answer
        }
    }

    /// Called by the owner once it has made the doorbell unreadable: peers ring again from now on. It must look for all
    /// events after this call.
    pub fn answer(&self) {
        self.events.fetch_add(ANSWER, Ordering::Relaxed);
        // See `begin`.
        sync::fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
impl Waiting {
    /// The state of a rank that does not wait.
    pub fn new() -> Self {
        Self { events: sync::AtomicU64::new(0), ignored: sync::AtomicU64::new(0) }
    }
}
