//! Calls of requests that have ended, and exclude others until the wait for them.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::calls::{ENDED, Entry};
use super::run::Call;

/// The entry of a call that has ended, and still excludes others of its kind on its tag; or none.
#[derive(Default)]
pub struct Claim(AtomicPtr<Entry>);

impl Claim {
    /// That of `call`, which [claims](Call::claims), and has ended well.
    #[inline]
    pub fn set(&self, call: &Call) {
        debug_assert!(call.claims, "its entry may be another call's");
        self.0.store(call.entry.as_ptr(), Ordering::Relaxed);
    }

    /// Ends it, if there is one.
    ///
    /// # Safety
    /// The [`Shared`](super::Shared) with which the call was made still exists.
    #[inline]
    pub unsafe fn release(&self) {
        if let Some(entry) = NonNull::new(self.0.swap(std::ptr::null_mut(), Ordering::Relaxed)) {
            // SAFETY: by the contract, since the list of calls neither frees it nor gives it to another call before
            // this; it is atomic.
            unsafe { &(*entry.as_ptr()).stage }.store(ENDED, Ordering::Release);
        }
    }
}
