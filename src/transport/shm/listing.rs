//! The table in which a rank lists what it has allocated, in its segment. What a peer finds there is checked like bytes
//! from a socket, and read once.

use crate::sync::{AtomicU64, Ordering, fence};

/// The maximum number of allocations of a rank that peers read in place.
pub(super) const ENTRIES: usize = 64;

/// What a rank has allocated, in its segment.
#[repr(C)]
pub(super) struct Table {
    /// Later entries were never used.
    pub used: AtomicU64,
    pub entries: [Entry; ENTRIES],
}

/// An allocation.
#[repr(C)]
pub(super) struct Entry {
    /// 0 if there is none, else a number that no earlier allocation had. Set to 0 first when an allocation ends, and
    /// written last when one begins.
    pub generation: AtomicU64,
    pub address: AtomicU64,
    pub bytes: AtomicU64,
    pub descriptor: AtomicU64,
}

/// The content of an entry.
pub(super) struct Listed {
    pub generation: u64,
    pub address: u64,
    pub bytes: u64,
    pub descriptor: u64,
}

impl Table {
    /// The entries that have been used.
    pub fn entries(&self) -> &[Entry] {
        let used = usize::try_from(self.used.load(Ordering::Relaxed)).unwrap_or(ENTRIES);
        &self.entries[..used.min(ENTRIES)]
    }

    /// Whether the `bytes` from `address` on lie in a listed allocation.
    pub fn contains(&self, address: u64, bytes: u64) -> bool {
        self.entries().iter().filter_map(Entry::load).any(|listed| listed.offset(address, bytes).is_some())
    }
}

impl Listed {
    /// Where the `bytes` from `address` on begin in the allocation, if they lie in it.
    pub fn offset(&self, address: u64, bytes: u64) -> Option<u64> {
        let offset = address.checked_sub(self.address)?;
        (offset.checked_add(bytes)? <= self.bytes).then_some(offset)
    }
}

impl Entry {
    /// The allocation that was listed here at one moment of this call, if any.
    pub fn load(&self) -> Option<Listed> {
        let generation = self.generation.load(Ordering::Acquire);
        let [address, bytes, descriptor] =
            [&self.address, &self.bytes, &self.descriptor].map(|word| word.load(Ordering::Relaxed));
        // If a word is a later allocation's, the generation is seen to have changed; see `set`.
        fence(Ordering::Acquire);
        let same = self.generation.load(Ordering::Relaxed) == generation;
        (same && generation != 0).then_some(Listed { generation, address, bytes, descriptor })
    }

    /// Called by the owner: lists an allocation in an entry that has none.
    pub fn set(&self, listed: &Listed) {
        // After the store of 0 to the generation.
        fence(Ordering::Release);
        self.address.store(listed.address, Ordering::Relaxed);
        self.bytes.store(listed.bytes, Ordering::Relaxed);
        self.descriptor.store(listed.descriptor, Ordering::Relaxed);
        self.generation.store(listed.generation, Ordering::Release);
    }

    /// Called by the owner: lists the allocation no more. The owner may close its descriptor after this call.
    pub fn clear(&self) {
        self.generation.store(0, Ordering::Relaxed);
        // Peers that find the descriptor closed, or another's, see that the entry has ended.
        fence(Ordering::SeqCst);
    }

    /// Whether the descriptor that a peer has used for the allocation `generation` may have been another allocation's.
    pub fn has_ended(&self, generation: u64) -> bool {
        // In `load` a fence comes before the last look at the generation; see `clear`.
        self.load().is_none_or(|now| now.generation != generation)
    }
}

#[cfg(all(test, loom))]
impl Entry {
    /// An entry without an allocation.
    pub fn new() -> Self {
        let [generation, address, bytes, descriptor] = [0; 4].map(AtomicU64::new);
        Self { generation, address, bytes, descriptor }
    }
}
