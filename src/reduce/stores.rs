//! How results are stored: through the caches, or past them.
//!
//! A store through the caches first reads the line that it writes to, and evicts another. For results that exceed the
//! last-level cache this is a quarter of the memory traffic of a sum of two. Non-temporal stores write whole lines
//! without reading them, and leave none in the caches: who reads the result soon afterwards reads memory.

use std::ptr::copy_nonoverlapping;

/// How results are stored. The bytes are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stores {
    /// Through the caches.
    Cached,
    /// Past the caches where the CPU can (x86-64), by non-temporal stores; a fence orders them before all later stores
    /// of this thread, so that a release store publishes the result as usual. [`Stores::for_working_set`] says when it
    /// pays. Other architectures store through the caches, and so do reductions whose result replaces an input: its
    /// lines are in the caches.
    Streaming,
}

impl Stores {
    /// The faster way to store results that no one reads before most of `working_set` bytes have been accessed: inputs
    /// and results, of all ranks that share the cache. `cache` is [`last_level_cache`].
    pub fn for_working_set(working_set: usize, cache: usize) -> Self {
        if working_set > cache { Self::Streaming } else { Self::Cached }
    }
}

/// Size of the last-level cache where the system does not tell it.
const DEFAULT_CACHE_BYTES: usize = 32 << 20;

/// Size of the last-level cache in bytes. Reads files in `/sys`, so callers keep it.
///
/// The figures of sysconf are not used: glibc 2.36 reports the caches of all of an AMD processor's chiplets as one.
pub fn last_level_cache() -> usize {
    let files = (0..8).map_while(|index| {
        let read =
            |name| std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).ok();
        Some((read("level")?, read("size")?))
    });
    last_level(files).unwrap_or(DEFAULT_CACHE_BYTES)
}

/// Size in bytes of the cache with the highest level; `caches` are levels and sizes in the system's notation, such as
/// `3` and `32768K`.
pub(super) fn last_level(caches: impl Iterator<Item = (String, String)>) -> Option<usize> {
    let parsed = caches.filter_map(|(level, size)| {
        let size: usize = size.trim().strip_suffix('K')?.parse().ok()?;
        Some((level.trim().parse::<u8>().ok()?, size.checked_mul(1 << 10)?))
    });
    parsed.filter(|&(_, size)| size > 0).max().map(|(_, size)| size)
}

/// Copies `bytes` bytes. The C library's `memcpy` stores past the caches only from a multiple of their size on.
///
/// # Safety
/// `from` is valid for reads and `into` for writes of `bytes` bytes; they are equal or do not overlap. No other thread
/// accesses the bytes in a conflicting way during the call.
pub unsafe fn copy(into: *mut u8, from: *const u8, bytes: usize, stores: Stores) {
    if from == into.cast_const() {
        return;
    }
    // SAFETY: the caller guarantees `bytes` bytes at both pointers, which are not equal and so do not overlap. `head`
    // is at most `bytes`.
    unsafe {
        let head = match stores {
            Stores::Cached => bytes,
            Stores::Streaming if STREAMS => into.align_offset(LINE_BYTES).min(bytes),
            Stores::Streaming => bytes,
        };
        copy_nonoverlapping(from, into, head);
        if head < bytes {
            stream(into.add(head), from.add(head), bytes - head);
            fence();
        }
    }
}

/// Whether this architecture can store past the caches. Miri cannot; there, [`stream`] copies.
pub(super) const STREAMS: bool = cfg!(target_arch = "x86_64");

/// Number of bytes that non-temporal stores should write together, to a multiple of it.
pub(super) const LINE_BYTES: usize = 64;

/// Copies `bytes` bytes past the caches where the CPU can; [`fence`] must follow before other threads read them.
///
/// # Safety
/// That of [`copy_nonoverlapping`] for bytes; `into` is a multiple of [`LINE_BYTES`].
#[inline]
pub(super) unsafe fn stream(into: *mut u8, from: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let done = {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
        let whole = bytes - bytes % LINE_BYTES;
        for at in (0..whole).step_by(16) {
            // SAFETY: `at + 16 <= whole <= bytes`, and the caller guarantees `bytes` bytes at both pointers. `into` and
            // so `into + at` are multiples of 16; the load is unaligned. Every CPU of this architecture has SSE2.
            unsafe { _mm_stream_si128(into.add(at).cast(), _mm_loadu_si128(from.add(at).cast())) };
        }
        whole
    };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let done = 0;
    // SAFETY: `done <= bytes`, and the caller guarantees `bytes` bytes at both pointers, which do not overlap.
    unsafe { copy_nonoverlapping(from.add(done), into.add(done), bytes - done) };
}

/// Orders earlier non-temporal stores of this thread before its later stores.
#[inline]
pub(super) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every CPU of this architecture has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
