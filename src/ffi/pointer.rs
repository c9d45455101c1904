//! Checks of the plain pointers, numbers and strings that come from C.

use std::ffi::{CStr, c_char, c_void};
use std::fmt::Display;
use std::time::Duration;

use super::status::GLOO_RS_TIMEOUT_INFINITE;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::types::Rank;

/// A result parameter: not NULL, aligned.
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Checks `pointer`; `what` is the parameter's name.
    ///
    /// # Safety
    /// `pointer` is NULL or valid for writes as long as the `Out` is used.
    pub(super) unsafe fn new(pointer: *mut T, what: &str) -> Result<Self> {
        check(pointer, what)?;
        Ok(Self(pointer))
    }

    /// As [`Out::new`], for a result that the caller need not ask for.
    ///
    /// # Safety
    /// As [`Out::new`].
    pub(super) unsafe fn optional(pointer: *mut T, what: &str) -> Result<Option<Self>> {
        // SAFETY: the same contract.
        if pointer.is_null() { Ok(None) } else { unsafe { Self::new(pointer, what) }.map(Some) }
    }

    /// Stores the result.
    pub(super) fn set(&self, value: T) {
        // SAFETY: checked and vouched for in `new`. The memory may be uninitialised, hence `write`.
        unsafe { self.0.write(value) }
    }
}

impl<T> Out<*mut T> {
    /// A place for a new handle, which is NULL until there is one.
    ///
    /// # Safety
    /// As [`Out::new`].
    pub(super) unsafe fn handle(pointer: *mut *mut T, what: &str) -> Result<Self> {
        // SAFETY: the same contract.
        let out = unsafe { Self::new(pointer, what) }?;
        out.set(std::ptr::null_mut());
        Ok(out)
    }
}

/// Refuses NULL and misaligned pointers.
pub(super) fn check<T>(pointer: *const T, what: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::invalid(format!("{what} is NULL")));
    }
    if !pointer.is_aligned() {
        let align = align_of::<T>();
        return Err(Error::invalid(format!("{what} ({pointer:p}) is not aligned to {align} bytes")));
    }
    Ok(())
}

/// Refuses NULL for `bytes` > 0, and ranges that no memory can have.
pub(super) fn check_range(pointer: *const u8, bytes: usize, what: impl Display) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    if pointer.is_null() {
        return Err(Error::invalid(format!("{what} is NULL, but has {bytes} bytes")));
    }
    if bytes > isize::MAX as usize || (pointer as usize).checked_add(bytes).is_none() {
        return Err(Error::invalid(format!("{what} ({pointer:p}) cannot have {bytes} bytes")));
    }
    Ok(())
}

/// [`check_range`] for memory of messages, which must be host memory.
pub(super) fn check_host_range(pointer: *const u8, bytes: usize, what: &str) -> Result<()> {
    check_range(pointer, bytes, what)?;
    if bytes > 0 { memory::check_host(pointer, || what.to_owned()) } else { Ok(()) }
}

/// `count` values at `pointer`, which may be NULL if there are none.
///
/// # Safety
/// `pointer` is valid for reads of `count` values for as long as the slice is used, and nobody writes them.
#[inline(never)] // `optional_slice`, which mostly gets NULL, stays small.
pub(super) unsafe fn slice<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, what)?;
    let bytes = count.checked_mul(size_of::<T>());
    let bytes = bytes.ok_or_else(|| Error::invalid(format!("{what} cannot have {count} elements")))?;
    check_range(pointer.cast(), bytes, what)?;
    // SAFETY: not NULL, aligned, of a possible length; the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// As [`slice()`]; NULL is an empty one, whatever `count` is.
///
/// # Safety
/// As [`slice()`].
#[inline]
pub(super) unsafe fn optional_slice<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    // SAFETY: the same contract.
    if pointer.is_null() { Ok(&[]) } else { unsafe { slice(pointer, count, what) } }
}

/// A string that ends with a NUL byte.
///
/// # Safety
/// `pointer` is NULL or such a string that nobody changes as long as the result is used.
pub(super) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    check(pointer, what)?;
    // SAFETY: not NULL; the caller vouches for the rest.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|_| Error::invalid(format!("{what} is not UTF-8: {bytes:?}")))
}

/// As [`text`]; NULL is `None`.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn optional_text<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>> {
    // SAFETY: the same contract.
    if pointer.is_null() { Ok(None) } else { unsafe { text(pointer, what) }.map(Some) }
}

/// A secret: any bytes before a NUL byte, which no message shows. NULL is `None`.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn optional_secret<'a>(pointer: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: not NULL; the caller vouches for the rest.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// Milliseconds from C; `None` for the default, `Duration::MAX` for GLOO_RS_TIMEOUT_INFINITE.
#[inline]
pub(super) fn timeout(ms: i64) -> Result<Option<Duration>> {
    match ms {
        -1 => Ok(None),
        i64::MAX => Ok(Some(Duration::MAX)),
        0.. => Ok(Some(Duration::from_millis(ms.unsigned_abs()))),
        _ => Err(Error::invalid(format!(
            "timeout_ms is {ms}; it must be GLOO_RS_TIMEOUT_DEFAULT (-1), GLOO_RS_TIMEOUT_INFINITE or not negative"
        ))),
    }
}

/// Milliseconds for C.
pub(super) fn timeout_to_c(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(GLOO_RS_TIMEOUT_INFINITE)
}

/// A rank from C, below `size`.
#[inline]
pub(super) fn rank(number: i32, size: usize, what: &str) -> Result<Rank> {
    let rank = usize::try_from(number).ok().filter(|rank| *rank < size);
    rank.ok_or_else(|| Error::invalid(format!("{what} is {number}; ranks of this context are 0 to {}", size - 1)))
}

/// A rank for C. Contexts are created with `int32_t` sizes, so every rank fits.
pub(super) fn rank_to_c(rank: Rank) -> Result<i32> {
    i32::try_from(rank).map_err(|_| Error::new(ErrorKind::Internal, format!("rank {rank} does not fit an int32_t")))
}

/// Copies `bytes` into a caller's buffer: the form of every result whose length the caller does not know. `needed`, if
/// asked for, is set in any case; a NULL `buffer` only asks for it.
///
/// # Safety
/// `buffer` is NULL or valid for writes of `capacity`; `needed` is NULL or valid for a write.
pub(super) unsafe fn copy_out(bytes: &[u8], buffer: *mut c_void, capacity: usize, needed: *mut usize) -> Result<()> {
    // SAFETY: the same contract.
    let needed = unsafe { Out::optional(needed, "needed") }?;
    if let Some(needed) = &needed {
        needed.set(bytes.len());
    }
    if buffer.is_null() {
        return match needed {
            Some(_) => Ok(()),
            None => Err(Error::invalid("buffer and needed are both NULL")),
        };
    }
    if capacity < bytes.len() {
        return Err(Error::invalid(format!("the buffer has {capacity} bytes; {} are needed", bytes.len())));
    }
    // SAFETY: not NULL and long enough; the caller vouches for the rest. `bytes` is the library's own memory.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len()) };
    Ok(())
}

/// As [`copy_out`], with a NUL byte at the end.
///
/// # Safety
/// As [`copy_out`].
pub(super) unsafe fn copy_out_text(text: &str, buffer: *mut c_char, capacity: usize, needed: *mut usize) -> Result<()> {
    let bytes = [text.as_bytes(), b"\0"].concat();
    // SAFETY: the same contract.
    unsafe { copy_out(&bytes, buffer.cast(), capacity, needed) }
}

/// Memory from `malloc` that the caller ends with `gloo_rs_free`.
pub(super) struct Malloced(*mut c_void);

impl Malloced {
    /// A copy of `bytes`; never NULL, even for none.
    pub(super) fn copy_of(bytes: &[u8]) -> Result<Self> {
        // SAFETY: any size may be asked for.
        let memory = unsafe { libc::malloc(bytes.len().max(1)) };
        if memory.is_null() {
            return Err(Error::new(ErrorKind::ResourceExhausted, format!("no memory for {} bytes", bytes.len())));
        }
        // SAFETY: just allocated with that length.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len()) };
        Ok(Self(memory))
    }

    /// Hands the memory to the caller.
    pub(super) fn into_raw(self) -> *mut c_void {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Malloced {
    fn drop(&mut self) {
        // SAFETY: from `malloc`, and not handed on.
        unsafe { libc::free(self.0) }
    }
}
