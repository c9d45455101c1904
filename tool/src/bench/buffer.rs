//! Memory for a collective: aligned, with guards that detect writes outside of the buffer.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use gloo_rs::context::Context;
use gloo_rs::error::{Error, ErrorKind, Result};

/// Bytes of a guard before and after the buffer; also the alignment, that of a cache line.
const GUARD_BYTES: usize = 64;
/// Initial value of the guards and the buffer.
const UNTOUCHED: u8 = 0xa5;

/// Memory that the library may access through [`Self::as_ptr`] while no slice of it is borrowed.
pub struct Buffer {
    /// The allocation, which begins with a guard.
    base: NonNull<u8>,
    layout: Layout,
    /// The context that has allocated it, if one has.
    owner: Option<Arc<Context>>,
}

impl Buffer {
    /// `len` bytes, all of them written, so that the system has allocated their pages; by `owner` if that is not
    /// `None`.
    pub fn new(len: usize, owner: Option<&Arc<Context>>) -> Result<Self> {
        let refused = || Error::new(ErrorKind::ResourceExhausted, format!("no memory for a buffer of {len} bytes"));
        let total = len.checked_add(2 * GUARD_BYTES).ok_or_else(refused)?;
        let layout = Layout::from_size_align(total, GUARD_BYTES).map_err(|_| refused())?;
        let base = match owner {
            Some(context) => context.alloc(total)?,
            // SAFETY: the size of the layout is not zero, since it includes the guards.
            None => NonNull::new(unsafe { alloc(layout) }).ok_or_else(refused)?,
        };
        // SAFETY: the allocation has this length.
        unsafe { base.write_bytes(UNTOUCHED, total) };
        Ok(Self { base, layout, owner: owner.cloned() })
    }

    pub fn len(&self) -> usize {
        self.layout.size() - 2 * GUARD_BYTES
    }

    /// The first byte, aligned to 64.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the offset lies within the allocation, which begins with the guard.
        unsafe { self.base.add(GUARD_BYTES).as_ptr() }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: between the guards are `len` initialized bytes; the shared borrow excludes writers.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: between the guards are `len` initialized bytes; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Whether the guards are unchanged.
    pub fn check_guards(&self) -> Result<(), String> {
        // SAFETY: the whole allocation is initialized, and borrowed through `self`.
        let all = unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.layout.size()) };
        let (before, behind) = (&all[..GUARD_BYTES], &all[GUARD_BYTES + self.len()..]);
        if let Some(at) = before.iter().rposition(|&byte| byte != UNTOUCHED) {
            return Err(format!("byte {} before it: written", GUARD_BYTES - at));
        }
        if let Some(at) = behind.iter().position(|&byte| byte != UNTOUCHED) {
            return Err(format!("byte {at} behind its {}: written", self.len()));
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by the context, or with this layout, and freed only here.
        unsafe {
            match &self.owner {
                Some(context) => drop(context.dealloc(self.base.as_ptr())),
                None => dealloc(self.base.as_ptr(), self.layout),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_beside_the_buffer_is_noticed() {
        for len in [0, 1, 100] {
            let mut buffer = Buffer::new(len, None).unwrap();
            buffer.bytes_mut().fill(1);
            assert_eq!(buffer.as_ptr() as usize % GUARD_BYTES, 0);
            assert_eq!(buffer.check_guards(), Ok(()));
            // SAFETY: the address lies within the guard of the allocation.
            unsafe { buffer.as_ptr().add(len + 3).write(1) };
            assert!(buffer.check_guards().unwrap_err().starts_with("byte 3 behind"));
            // SAFETY: the address lies within the guard of the allocation.
            unsafe { buffer.as_ptr().sub(2).write(1) };
            assert!(buffer.check_guards().unwrap_err().starts_with("byte 2 before"));
        }
    }
}
