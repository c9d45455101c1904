//! A ring of records: the bytes that one rank sends to another, in the sender's segment.
//!
//! The ring consists of cache lines. The first word of a line holds a stamp and never anything else; the other 56 bytes
//! hold data. A record is a row of lines, and the stamp of its first line publishes it: it contains the number of the
//! lap and the record's length. So the flag and the data of a small message are in one cache line, and what earlier
//! laps have left is never taken for a record. The reader publishes in its own segment how far it has read. Positions
//! count lines and never wrap around.
//!
//! A sender that finds the ring empty goes back to its beginning (a record without data says so), so a pair that
//! exchanges small messages keeps to the same few lines, which stay in the cache.

#[cfg(all(test, not(loom)))]
mod tests;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use crate::sync::{AtomicU64, Data, Ordering};

/// Bytes of data in a line.
const DATA_BYTES: usize = 56;
/// Lines of the longest record.
const RECORD_LINES: u64 = 128;
/// Bits of a stamp for the length.
const LENGTH_BITS: u32 = 16;
/// How many lines are written before the sender looks whether it can go back to the beginning.
const RESTART_LINES: u64 = 128;
/// A reader tells a waiting sender of room when it has passed so much of the ring: one in so many parts.
const PARTS: u64 = 4;

/// A cache line of a ring.
#[repr(C, align(64))]
pub struct Line {
    stamp: AtomicU64,
    data: Data<[u8; DATA_BYTES]>,
}

#[cfg(test)]
impl Line {
    /// A line that was never written.
    pub fn new() -> Self {
        Self { stamp: AtomicU64::new(0), data: Data::new([0; DATA_BYTES]) }
    }
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Line>() == 64);
const _: () = assert!((RECORD_LINES as usize * DATA_BYTES) < 1 << LENGTH_BITS);

/// The stamp of a record at the position `at` in a ring of `count` lines. No stamp is 0.
fn stamp(at: u64, count: u64, bytes: usize) -> u64 {
    (at / count + 1) << LENGTH_BITS | bytes as u64
}

/// The other side has written something that it never writes.
fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed shared memory: {what}"))
}

fn lines_for(bytes: usize) -> u64 {
    bytes.div_ceil(DATA_BYTES) as u64
}

/// Lines of the longest record in a ring of `count` lines.
fn longest(count: u64) -> u64 {
    RECORD_LINES.min(count / 2)
}

/// The lines of a ring, and where their reader is.
#[derive(Clone, Copy)]
struct Ring {
    lines: *const Line,
    /// A power of two.
    count: u64,
    /// How far the reader has read.
    consumed: *const AtomicU64,
}

// SAFETY: it points to memory that is not tied to a thread, and is accessed as `Line` and `AtomicU64` permit.
unsafe impl Send for Ring {}

impl Ring {
    #[inline]
    fn line(&self, at: u64) -> &Line {
        // SAFETY: the index is less than `count`, and by the contract of the constructors the lines stay valid.
        unsafe { &*self.lines.add((at & (self.count - 1)) as usize) }
    }

    #[inline]
    fn consumed(&self) -> &AtomicU64 {
        // SAFETY: valid by the contract of the constructors.
        unsafe { &*self.consumed }
    }
}

/// The sender's end of a ring.
pub struct Producer {
    ring: Ring,
    /// Position of the next record.
    at: u64,
    /// Up to this position the ring was free when the reader's position was last read.
    limit: u64,
    /// Where to look next whether the ring is empty.
    restart_at: u64,
}

impl Producer {
    /// The sending end of a ring of `count` lines, a power of two, all zero.
    ///
    /// # Safety
    /// The lines, and `consumed`, which the reader writes, are valid as long as this end; only this end writes the
    /// lines.
    pub unsafe fn new(lines: *const Line, count: usize, consumed: *const AtomicU64) -> Self {
        debug_assert!(count.is_power_of_two() && count as u64 >= 2);
        let count = count as u64;
        Self { ring: Ring { lines, count, consumed }, at: 0, limit: count, restart_at: RESTART_LINES.min(count / 2) }
    }

    /// Position of the next record; see [`has_room`].
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Publishes as much from the front of `parts` as there is room for, and returns the number of bytes. Fails with
    /// `WouldBlock` if there is none.
    pub fn push(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut source = Source { parts, offset: 0, left: parts.iter().map(|part| part.len()).sum() };
        let total = source.left;
        while source.left > 0 {
            if self.at >= self.restart_at {
                self.restart()?;
            }
            // A record does not pass the end of the ring.
            let max = longest(self.ring.count).min(self.ring.count - (self.at & (self.ring.count - 1)));
            let bytes = source.left.min(max as usize * DATA_BYTES);
            let lines = lines_for(bytes);
            if self.limit - self.at < lines {
                self.refresh()?;
                if self.limit - self.at < lines {
                    break;
                }
            }
            for line in 0..lines {
                self.ring.line(self.at + line).data.with_mut(|data| {
                    // SAFETY: the line is free, so only this end accesses it until it is published; it has room for so
                    // many bytes.
                    unsafe { source.copy(data.cast(), DATA_BYTES) };
                });
            }
            // Orders the data before it.
            self.ring.line(self.at).stamp.store(stamp(self.at, self.ring.count, bytes), Ordering::Release);
            self.at += lines;
        }
        match total - source.left {
            0 if total > 0 => Err(io::ErrorKind::WouldBlock.into()),
            sent => Ok(sent),
        }
    }

    /// Reads how far the reader is; returns whether it has read everything.
    fn refresh(&mut self) -> io::Result<bool> {
        // The reader's accesses to the lines before that are over.
        let consumed = self.ring.consumed().load(Ordering::Acquire);
        let limit = consumed.wrapping_add(self.ring.count);
        if consumed > self.at || limit < self.limit {
            return Err(malformed("the reader of a ring is where it cannot be"));
        }
        self.limit = limit;
        Ok(consumed == self.at)
    }

    /// Goes back to the beginning if the ring is empty.
    fn restart(&mut self) -> io::Result<()> {
        let next = (self.at / self.ring.count + 1) * self.ring.count;
        let in_lap = self.at & (self.ring.count - 1);
        // Until the reader has gone back, too, there are only so many lines. They must be enough for a record: nobody
        // wakes a reader that sleeps only to go back.
        if in_lap >= longest(self.ring.count) && self.refresh()? {
            self.ring.line(self.at).stamp.store(stamp(self.at, self.ring.count, 0), Ordering::Release);
            self.at = next;
        }
        self.restart_at = self.at + RESTART_LINES.min(self.ring.count / 2);
        Ok(())
    }
}

/// Whether a ring with `count` lines whose reader is at `consumed` has room for any record at the sender's position
/// `at`.
pub fn has_room(count: usize, consumed: u64, at: u64) -> bool {
    consumed.wrapping_add(count as u64).wrapping_sub(at) >= longest(count as u64)
}

/// Whether there is a record for a reader at `consumed`.
///
/// # Safety
/// The lines are valid.
pub unsafe fn has_record(lines: *const Line, count: usize, consumed: u64) -> bool {
    let ring = Ring { lines, count: count as u64, consumed: std::ptr::null() };
    ring.line(consumed).stamp.load(Ordering::Relaxed) >> LENGTH_BITS == consumed / ring.count + 1
}

/// The receiver's end of a ring.
pub struct Consumer {
    ring: Ring,
    /// Position of the current record.
    at: u64,
    /// Bytes of the current record; 0 if none is known.
    bytes: usize,
    /// How many of them have been taken.
    taken: usize,
}

impl Consumer {
    /// The receiving end of a ring of `count` lines, a power of two.
    ///
    /// # Safety
    /// The lines, and `consumed`, are valid as long as this end; only this end writes `consumed`, which is 0.
    pub unsafe fn new(lines: *const Line, count: usize, consumed: *const AtomicU64) -> Self {
        debug_assert!(count.is_power_of_two() && count as u64 >= 2);
        Self { ring: Ring { lines, count: count as u64, consumed }, at: 0, bytes: 0, taken: 0 }
    }

    /// Takes as many bytes as there are and fit into `parts`, and returns their number, and whether a sender that waits
    /// for room must be told. Fails with `WouldBlock` if there are none, and with `InvalidData` if the sender violates
    /// the rules.
    pub fn pop(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<(usize, bool)> {
        let part_before = self.at / (self.ring.count / PARTS).max(1);
        let mut got = 0;
        'parts: for part in parts {
            let mut into = &mut part[..];
            while !into.is_empty() {
                if !self.find()? {
                    // What is published from now on must not go into the next part: this one is not full.
                    break 'parts;
                }
                let n = into.len().min(self.bytes - self.taken);
                let (now, rest) = into.split_at_mut(n);
                // SAFETY: `&mut [u8]` is as valid as `&mut [MaybeUninit<u8>]` where only initialised bytes are written.
                self.take(unsafe { &mut *(std::ptr::from_mut(now) as *mut [MaybeUninit<u8>]) });
                into = rest;
                got += n;
            }
        }
        let crossed = self.at / (self.ring.count / PARTS).max(1) != part_before;
        if got == 0 && !crossed { Err(io::ErrorKind::WouldBlock.into()) } else { Ok((got, crossed)) }
    }

    /// Finds the next record; returns whether there is one.
    fn find(&mut self) -> io::Result<bool> {
        while self.bytes == 0 {
            // Read once: the sender could change it. Orders the record's data after it.
            let found = self.ring.line(self.at).stamp.load(Ordering::Acquire);
            if found >> LENGTH_BITS != self.at / self.ring.count + 1 {
                return Ok(false);
            }
            let bytes = (found & ((1 << LENGTH_BITS) - 1)) as usize;
            let left = self.ring.count - (self.at & (self.ring.count - 1));
            if bytes == 0 {
                self.advance(left);
            } else if lines_for(bytes) > left.min(RECORD_LINES) {
                return Err(malformed("the length of a record"));
            } else {
                (self.bytes, self.taken) = (bytes, 0);
            }
        }
        Ok(true)
    }

    /// Copies the next bytes of the current record, which has as many.
    fn take(&mut self, into: &mut [MaybeUninit<u8>]) {
        let mut rest = into;
        while !rest.is_empty() {
            let (line, offset) = (self.at + (self.taken / DATA_BYTES) as u64, self.taken % DATA_BYTES);
            let n = rest.len().min(DATA_BYTES - offset);
            self.ring.line(line).data.with(|data| {
                let data = data.cast::<MaybeUninit<u8>>();
                // SAFETY: `offset + n <= DATA_BYTES`; `find` has checked that the record ends within the ring. A sender
                // that obeys the rules does not write the line now; one that does not can only change what is copied.
                unsafe { copy_line(data.add(offset), rest.as_mut_ptr(), n) };
            });
            self.taken += n;
            rest = &mut rest[n..];
        }
        if self.taken == self.bytes {
            let lines = lines_for(self.bytes);
            self.bytes = 0;
            self.advance(lines);
        }
    }

    fn advance(&mut self, lines: u64) {
        self.at += lines;
        // Orders the reads of the lines before it.
        self.ring.consumed().store(self.at, Ordering::Release);
    }
}

/// Copies `n` bytes, of which a full line is the common case.
///
/// # Safety
/// As for `copy_nonoverlapping`; `n` is at most [`DATA_BYTES`].
#[inline]
unsafe fn copy_line<T>(from: *const T, to: *mut T, n: usize) {
    const { assert!(size_of::<T>() == 1) };
    // SAFETY: by the contract.
    unsafe {
        if n == DATA_BYTES {
            std::ptr::copy_nonoverlapping(from, to, DATA_BYTES);
        } else {
            std::ptr::copy_nonoverlapping(from, to, n);
        }
    }
}

/// What is left to send of several parts.
struct Source<'a, 'b> {
    parts: &'a [IoSlice<'b>],
    /// Bytes of the first part that have been sent.
    offset: usize,
    /// Bytes of all parts that have not.
    left: usize,
}

impl Source<'_, '_> {
    /// Copies the next bytes, at most `room`.
    ///
    /// # Safety
    /// `into` is valid for writes of `room` bytes, at most [`DATA_BYTES`].
    #[inline]
    unsafe fn copy(&mut self, into: *mut u8, room: usize) {
        let mut done = 0;
        while done < room && self.left > 0 {
            let rest = &self.parts[0][self.offset..];
            let n = rest.len().min(room - done);
            // SAFETY: `n` bytes can be read from `rest`, and `done + n <= room` can be written.
            unsafe { copy_line(rest.as_ptr(), into.add(done), n) };
            done += n;
            self.left -= n;
            self.offset += n;
            if self.offset == self.parts[0].len() {
                (self.parts, self.offset) = (&self.parts[1..], 0);
            }
        }
    }
}
