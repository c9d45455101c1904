//! The memory that calls need besides the caller's buffers: a context keeps it for later calls, and gives back what it
//! has not needed for a while.

use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::transport::Watch;

/// Bytes of scratch memory that a context keeps in any case.
pub const KEPT_BYTES: usize = 8 << 20;
/// What exceeds that is given back when it was not needed for so long, and at most twice as long.
pub const KEPT_TIME: Duration = Duration::from_secs(1);

/// How much scratch memory a context has.
#[derive(Default)]
pub struct Kept {
    bytes: AtomicUsize,
    /// Whether the device will remind the context of it.
    is_watched: AtomicBool,
    /// When that is to be.
    due: Mutex<Option<Instant>>,
    watch: OnceLock<Weak<dyn Watch>>,
}

impl Kept {
    /// Sets whose device reminds the context. Called once.
    pub fn set_watch(&self, watch: Weak<dyn Watch>) {
        let _ = self.watch.set(watch);
    }

    /// Bytes of scratch memory.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether there is more than is kept in any case.
    pub fn is_much(&self) -> bool {
        self.bytes() > KEPT_BYTES
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.watch();
    }

    /// Has the device remind the context if there is much, unless it does so already.
    fn watch(&self) {
        if self.is_much() && !self.is_watched.swap(true, Ordering::Relaxed) {
            *self.due.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + KEPT_TIME);
            self.remind(KEPT_TIME);
        }
    }

    fn remind(&self, time: Duration) {
        // A context that is being dropped needs no reminder.
        self.watch.get().and_then(Weak::upgrade).into_iter().for_each(|watch| watch.remind(time));
    }

    /// Whether the time has come for which it was to be reminded; if not, but such a time will come, has the device
    /// remind it again.
    pub fn is_due(&self) -> bool {
        let due = *self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let left = due.map(|at| at.saturating_duration_since(Instant::now()));
        let waits = left.filter(|left| !left.is_zero() && self.is_watched.load(Ordering::Relaxed));
        waits.into_iter().for_each(|left| self.remind(left));
        left.is_some_and(|left| left.is_zero())
    }

    /// Gives memory back on a context that was reminded. `release` calls [`Scratch::release`] of all memory that no
    /// call uses; what it returns is freed.
    pub fn reminded(&self, release: impl FnOnce() -> Vec<Scratch>) {
        self.is_watched.store(false, Ordering::Relaxed);
        if self.is_much() {
            drop(release());
            self.watch();
        }
    }
}

/// Memory for calls that follow each other. Used only through its pointer. New memory is zero, because a barrier sends
/// bytes of it, which must not be what this process has freed.
#[derive(Default)]
pub struct Scratch {
    /// Its length stays 0.
    words: Vec<u128>,
    /// The most words that a call has needed since the last look.
    needed: usize,
    /// The count to which `words` belongs; `None` if it was never allocated.
    kept: Option<Arc<Kept>>,
}

impl Scratch {
    /// Makes room for `elements` of `element` bytes. Returns whether there is enough memory. Allocates only if no
    /// earlier call needed as much.
    #[inline]
    pub fn reserve(&mut self, kept: &Arc<Kept>, elements: usize, element: usize) -> bool {
        if elements == 0 {
            return true;
        }
        let words = elements.checked_mul(element).map(|bytes| bytes.div_ceil(size_of::<u128>()));
        words.is_some_and(|words| {
            self.needed = self.needed.max(words);
            words <= self.words.capacity() || self.grow(kept, words)
        })
    }

    #[cold]
    fn grow(&mut self, kept: &Arc<Kept>, words: usize) -> bool {
        let before = self.bytes();
        // What is there has no contents to be moved.
        self.words = Vec::new();
        self.words = zeros(words).unwrap_or_default();
        kept.bytes.fetch_sub(before, Ordering::Relaxed);
        self.kept = Some(kept.clone());
        kept.add(self.bytes());
        words <= self.words.capacity()
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u128>()
    }

    /// The memory. Valid until more room is made, or it is released.
    pub fn pointer(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    /// Gives it to `released` if no call has needed all of it since the last time.
    pub fn release(&mut self, released: &mut Vec<Self>) {
        if std::mem::take(&mut self.needed) < self.words.capacity() {
            released.push(std::mem::take(self));
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(kept) = &self.kept {
            kept.bytes.fetch_sub(self.bytes(), Ordering::Relaxed);
        }
    }
}

/// Allocates `words` words of zeros. The system makes pages of them when they are touched. `None` if there is not
/// enough memory.
fn zeros(words: usize) -> Option<Vec<u128>> {
    let layout = Layout::array::<u128>(words).ok().filter(|layout| layout.size() > 0)?;
    // SAFETY: the layout is not empty.
    let pointer = unsafe { alloc_zeroed(layout) };
    // SAFETY: the global allocator has allocated it with the layout of so many words.
    (!pointer.is_null()).then(|| unsafe { Vec::from_raw_parts(pointer.cast(), 0, words) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Counts how often it is asked to remind the context.
    #[derive(Default)]
    struct Reminder(AtomicUsize);

    impl Watch for Reminder {
        fn arm(&self) {}

        fn disarm(&self) {}

        fn is_armed(&self) -> bool {
            false
        }

        fn remind(&self, time: Duration) {
            assert_eq!(time, KEPT_TIME);
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_was_not_needed_between_two_looks_is_given_back() {
        let (kept, reminder) = (Arc::<Kept>::default(), Arc::<Reminder>::default());
        let watch: Weak<dyn Watch> = Arc::<Reminder>::downgrade(&reminder);
        kept.set_watch(watch);
        let reminders = || reminder.0.load(Ordering::Relaxed);
        let (mut large, mut small) = (Scratch::default(), Scratch::default());
        let is_clear = |scratch: &mut Scratch, bytes| {
            assert!(scratch.reserve(&kept, bytes, 1));
            // SAFETY: so many bytes were reserved, and cleared.
            unsafe { std::slice::from_raw_parts(scratch.pointer(), bytes) }.iter().all(|byte| *byte == 0)
        };
        assert!(is_clear(&mut small, KEPT_BYTES) && small.reserve(&kept, 1, 1) && small.reserve(&kept, 0, 8));
        assert_eq!((kept.bytes(), reminders()), (KEPT_BYTES, 0), "so much is kept");
        assert!(large.reserve(&kept, KEPT_BYTES, 2) && large.reserve(&kept, 5, 1));
        assert_eq!((kept.bytes(), reminders()), (3 * KEPT_BYTES, 1));
        assert!(!large.reserve(&kept, usize::MAX, 2));
        let look = |large: &mut Scratch, small: &mut Scratch| {
            kept.reminded(|| {
                let mut released = Vec::new();
                large.release(&mut released);
                small.release(&mut released);
                released
            });
        };
        look(&mut large, &mut small);
        assert_eq!((kept.bytes(), reminders()), (3 * KEPT_BYTES, 2), "both were needed a moment ago");
        assert!(large.reserve(&kept, 2 * KEPT_BYTES, 1) && small.reserve(&kept, 1, 1));
        look(&mut large, &mut small);
        assert_eq!((large.bytes(), small.bytes(), reminders()), (2 * KEPT_BYTES, 0, 3), "not all of the other was");
        look(&mut large, &mut small);
        assert_eq!((kept.bytes(), reminders()), (0, 3), "and no further look");
        assert!(is_clear(&mut large, 2 * KEPT_BYTES));
        drop(large);
        assert_eq!((kept.bytes(), reminders()), (0, 4));
    }
}
