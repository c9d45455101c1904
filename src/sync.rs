//! What ranks that share memory meet at: words and bytes of that memory, or, compiled for `cfg(loom)`, what loom runs
//! through every order of events with.

#[cfg(not(all(test, loom)))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(all(test, loom))]
pub use loom::cell::UnsafeCell as Data;
#[cfg(all(test, loom))]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes that one side writes and the other reads.
#[cfg(not(all(test, loom)))]
#[repr(transparent)]
pub struct Data<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(test, loom)))]
impl<T> Data<T> {
    /// Outside of shared memory.
    #[cfg(test)]
    pub fn new(data: T) -> Self {
        Self(std::cell::UnsafeCell::new(data))
    }

    /// Calls `body`, which reads.
    #[inline]
    pub fn with<R>(&self, body: impl FnOnce(*const T) -> R) -> R {
        body(self.0.get())
    }

    /// Calls `body`, which writes.
    #[inline]
    pub fn with_mut<R>(&self, body: impl FnOnce(*mut T) -> R) -> R {
        body(self.0.get())
    }
}
