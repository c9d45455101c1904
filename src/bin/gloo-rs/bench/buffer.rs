//! Memory for a collective: aligned, and with guards that show who writes beside it.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use gloo_rs::error::{Error, ErrorKind, Result};

/// Bytes before and behind that nobody may touch; also the alignment, that of a cache line.
const GUARD: usize = 64;
/// What the guards hold, and the buffer until somebody writes into it.
const UNTOUCHED: u8 = 0xa5;

/// Bytes that a library may use through [`Self::as_ptr`] while nobody holds a slice of them.
pub struct Buffer {
    /// Of the allocation, which begins with a guard.
    base: NonNull<u8>,
    layout: Layout,
}

impl Buffer {
    /// `len` bytes, all of them touched, so that the system has given its pages.
    pub fn new(len: usize) -> Result<Self> {
        let refused = || Error::new(ErrorKind::ResourceExhausted, format!("no memory for a buffer of {len} bytes"));
        let total = len.checked_add(2 * GUARD).ok_or_else(refused)?;
        let layout = Layout::from_size_align(total, GUARD).map_err(|_| refused())?;
        // SAFETY: the layout has a size, that of the guards at least.
        let base = NonNull::new(unsafe { alloc(layout) }).ok_or_else(refused)?;
        // SAFETY: the allocation is that long.
        unsafe { base.write_bytes(UNTOUCHED, total) };
        Ok(Self { base, layout })
    }

    pub fn len(&self) -> usize {
        self.layout.size() - 2 * GUARD
    }

    /// The first byte, aligned to 64.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the allocation is longer than the guard.
        unsafe { self.base.add(GUARD).as_ptr() }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: between the guards lie `len` bytes, all written once; the borrow keeps writers away.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Whether only the buffer was written.
    pub fn check_guards(&self) -> Result<(), String> {
        // SAFETY: all of the allocation has been written once.
        let all = unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.layout.size()) };
        let (before, behind) = (&all[..GUARD], &all[GUARD + self.len()..]);
        if let Some(at) = before.iter().rposition(|&byte| byte != UNTOUCHED) {
            return Err(format!("byte {} before it: written", GUARD - at));
        }
        if let Some(at) = behind.iter().position(|&byte| byte != UNTOUCHED) {
            return Err(format!("byte {at} behind its {}: written", self.len()));
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_beside_the_buffer_is_noticed() {
        for len in [0, 1, 100] {
            let mut buffer = Buffer::new(len).unwrap();
            buffer.bytes_mut().fill(1);
            assert_eq!(buffer.as_ptr() as usize % GUARD, 0);
            assert_eq!(buffer.check_guards(), Ok(()));
            // SAFETY: within the allocation's guard.
            unsafe { buffer.as_ptr().add(len + 3).write(1) };
            assert!(buffer.check_guards().unwrap_err().starts_with("byte 3 behind"));
            // SAFETY: as above.
            unsafe { buffer.as_ptr().sub(2).write(1) };
            assert!(buffer.check_guards().unwrap_err().starts_with("byte 2 before"));
        }
    }
}
