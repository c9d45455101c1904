//! Memory of a rank that a peer may read for one message.

use crate::sync::{AtomicU64, Ordering, fence};

/// A place for such memory, in the lane of the peer. All zero if there is none.
#[repr(C)]
pub(super) struct Registration {
    /// 0 if there is none, else the message's key and 2^32. Written first when a registration ends, and last when one
    /// begins.
    stamp: AtomicU64,
    address: AtomicU64,
    bytes: AtomicU64,
    _rest: AtomicU64,
}

/// What a peer reads for the message `key`.
fn stamp_of(key: u32) -> u64 {
    1 << 32 | u64::from(key)
}

impl Registration {
    /// Called by the owner: registers that the message `key` is in the `bytes` from `address` on. Returns whether the
    /// place was free.
    pub fn begin(&self, key: u32, address: u64, bytes: u64) -> bool {
        let is_free = self.stamp.load(Ordering::Relaxed) == 0;
        if is_free {
            self.address.store(address, Ordering::Relaxed);
            self.bytes.store(bytes, Ordering::Relaxed);
            self.stamp.store(stamp_of(key), Ordering::Release);
        }
        is_free
    }

    /// Called by the owner: ends the registration of the message `key`, if it is here. The memory may be written after
    /// this call.
    pub fn end(&self, key: u32) {
        if self.stamp.load(Ordering::Relaxed) == stamp_of(key) {
            self.clear();
        }
    }

    /// Like [`Registration::end`], for whichever message is registered.
    pub fn clear(&self) {
        self.stamp.store(0, Ordering::Relaxed);
        // A peer that has read what is written to the memory, or here, from now on sees that the registration has
        // ended.
        fence(Ordering::Release);
    }

    /// Returns to a peer the address and number of the bytes of the message `key`, if it is here. After the peer has
    /// read them, it must ask whether [the registration has ended](Registration::has_ended) meanwhile.
    pub fn load(&self, key: u32) -> Option<(u64, u64)> {
        let is_here = self.stamp.load(Ordering::Acquire) == stamp_of(key);
        is_here.then(|| (self.address.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed)))
    }

    /// Whether what a peer has read since [`Registration::load`] may be something else than the message.
    pub fn has_ended(&self, key: u32) -> bool {
        // See `clear`.
        fence(Ordering::Acquire);
        self.stamp.load(Ordering::Relaxed) != stamp_of(key)
    }
}

#[cfg(all(test, loom))]
impl Registration {
    /// A registration without a message.
    pub fn new() -> Self {
        let [stamp, address, bytes, _rest] = [0; 4].map(AtomicU64::new);
        Self { stamp, address, bytes, _rest }
    }
}
