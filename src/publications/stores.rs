//! How copies are stored in the table: through the caches, or past them by non-temporal stores.
//!
//! A store through the caches needs the line for itself, and so takes it away from the readers of the copy before.
//! Between cores that share a cache this is quick, and the readers find the new copy in that cache. Between cores that
//! share none it can take ten times as long as to write the line to memory, from where readers fetch the following
//! lines in advance. What the system says of caches does not tell: in virtual machines it may be wrong, or change. So
//! both ways are measured while copies are made, and the faster one is taken.

#[cfg(test)]
mod tests;

use crate::reduce::{self, Stores};
use std::sync::atomic::{AtomicU32, Ordering};

/// Shorter copies are stored through the caches: they are not worth the clock's time.
const MIN_BYTES: usize = 2048;
/// One of this many copies is stored in the other way, to measure it.
const COPIES_PER_TRIAL: u32 = 256;
/// Copies are stored past the caches if through them a byte takes more ticks of the processor's clock than the first
/// figure, and past them less than this part of it. A tick is 0.25 to 0.5 ns: on Zen 4 a byte takes 0.1 to 0.3 ticks
/// between cores that share a cache, or are one, and else 1.2. The time to store past the caches alone does not decide,
/// because the readers pay for what it saves.
const ENTER: [f32; 2] = [0.6, 0.4];
/// Copies that are stored past the caches are stored through them again once either figure is less than this.
const LEAVE: [f32; 2] = [0.45, 0.67];

/// Chooses how the copies of one table are stored. Threads that use it at the same time may lose measurements, and
/// nothing else.
#[derive(Debug, Default)]
pub struct Choice {
    copies: AtomicU32,
    /// Ticks for a byte through and past the caches, as the bits of an `f32`; 0 until they are known.
    cached: AtomicU32,
    streamed: AtomicU32,
    streams: AtomicU32,
}

impl Choice {
    /// Copies `bytes` bytes.
    ///
    /// # Safety
    /// As for [`reduce::copy`].
    #[inline]
    pub unsafe fn copy(&self, into: *mut u8, from: *const u8, bytes: usize) {
        let before = if bytes >= MIN_BYTES { ticks() } else { None };
        let stores = before.map_or(Stores::Cached, |_| self.next());
        // SAFETY: as the caller guarantees.
        unsafe { reduce::copy(into, from, bytes, stores) };
        if let Some(before) = before
            && let Some(after) = ticks()
        {
            self.took(stores, bytes, after.wrapping_sub(before));
        }
    }

    /// How the next copy is stored.
    fn next(&self) -> Stores {
        let number = self.copies.load(Ordering::Relaxed).wrapping_add(1);
        self.copies.store(number, Ordering::Relaxed);
        match (self.streams.load(Ordering::Relaxed) != 0) != number.is_multiple_of(COPIES_PER_TRIAL) {
            true => Stores::Streaming,
            false => Stores::Cached,
        }
    }

    /// Records that a copy of `bytes` bytes took `ticks` ticks, and chooses again.
    fn took(&self, stores: Stores, bytes: usize, ticks: u64) {
        let figure = match stores {
            Stores::Cached => &self.cached,
            Stores::Streaming => &self.streamed,
        };
        let (before, now) = (load(figure), ticks as f32 / bytes as f32);
        let mean = match before {
            0.0 => now,
            // The thread may have been interrupted, so one slow copy does not change the choice.
            before if now > before => before + (now.min(2.0 * before) - before) / 4.0,
            before => (before + now) / 2.0,
        };
        figure.store(mean.to_bits(), Ordering::Relaxed);
        let (cached, streamed) = (load(&self.cached), load(&self.streamed));
        if cached > 0.0 && streamed > 0.0 {
            let streams = self.streams.load(Ordering::Relaxed) != 0;
            let [min, part] = if streams { LEAVE } else { ENTER };
            self.streams.store((cached > min && streamed < cached * part).into(), Ordering::Relaxed);
        }
    }
}

/// The processor's clock; `None` where there is no other way to store, or no clock that is quick to read.
#[inline]
fn ticks() -> Option<u64> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every CPU of this architecture has the instruction.
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    None
}

fn load(figure: &AtomicU32) -> f32 {
    f32::from_bits(figure.load(Ordering::Relaxed))
}
