//! Checks of the plain pointers, numbers and strings that come from C.

use std::ffi::{CStr, c_char, c_void};
use std::fmt::Display;
use std::time::Duration;

use super::status::GLOO_RS_TIMEOUT_INFINITE;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::reserve::{exhausted, try_collect};
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

    /// Like [`Out::new`]; NULL is `None`.
    ///
    /// # Safety
    /// As [`Out::new`].
    pub(super) unsafe fn optional(pointer: *mut T, what: &str) -> Result<Option<Self>> {
        // SAFETY: by the contract, `pointer` is valid for writes, if it is not NULL.
        if pointer.is_null() { Ok(None) } else { unsafe { Self::new(pointer, what) }.map(Some) }
    }

    /// Stores the result.
    pub(super) fn set(&self, value: T) {
        // SAFETY: `new` found the pointer aligned and not NULL; by its contract, it is valid for writes. The memory may
        // be uninitialised, hence `write`.
        unsafe { self.0.write(value) }
    }
}

impl<T> Out<T> {
    /// Stores one of several results. `at` is less than the number of those that the pointer is valid for.
    pub(super) fn set_at(&self, at: usize, value: T) {
        // SAFETY: as for `set`; by the contract of `new`, it is valid for writes at `at`, too.
        unsafe { self.0.add(at).write(value) }
    }
}

impl<T> Out<*mut T> {
    /// Like [`Out::new`], for a new handle. Sets it to NULL first.
    ///
    /// # Safety
    /// As [`Out::new`].
    pub(super) unsafe fn handle(pointer: *mut *mut T, what: &str) -> Result<Self> {
        // SAFETY: by the contract, `pointer` is NULL or valid for writes.
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

/// Refuses NULL for `bytes` > 0, and ranges that exceed the address space.
pub(super) fn check_range(pointer: *const u8, bytes: usize, what: impl Display) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    if pointer.is_null() {
        return Err(Error::invalid(format!("{what} is NULL, but its length is {bytes} bytes")));
    }
    if bytes > isize::MAX as usize || (pointer as usize).checked_add(bytes).is_none() {
        return Err(Error::invalid(format!("{what} ({pointer:p}) of {bytes} bytes exceeds the address space")));
    }
    Ok(())
}

/// [`check_range`] for memory of messages, which must be host memory.
pub(super) fn check_host_range(pointer: *const u8, bytes: usize, what: &str) -> Result<()> {
    check_range(pointer, bytes, what)?;
    if bytes > 0 { memory::check_host(pointer, || what.to_owned()) } else { Ok(()) }
}

/// The `count` values at `pointer`, which may be NULL if `count` is 0.
///
/// # Safety
/// `pointer` is valid for reads of `count` values for as long as the slice is used, and nobody writes them.
#[inline(never)] // The inlined callers, which mostly get no list, stay small.
pub(super) unsafe fn slice<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, what)?;
    let bytes = count.checked_mul(size_of::<T>());
    let bytes = bytes.ok_or_else(|| Error::invalid(format!("{what} of {count} elements exceeds the address space")))?;
    check_range(pointer.cast(), bytes, what)?;
    // SAFETY: not NULL, aligned, and of a possible length; by the contract, valid for reads of `count` values that
    // nobody writes.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Like [`slice()`], for a list that is mostly not given.
///
/// # Safety
/// As [`slice()`].
#[inline]
pub(super) unsafe fn list<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    // SAFETY: by the contract.
    if count == 0 { Ok(&[]) } else { unsafe { slice(pointer, count, what) } }
}

/// Like [`slice()`], for one of several lists of the same length, of which some are not given: NULL is the empty slice,
/// whatever `count` is.
///
/// # Safety
/// As [`slice()`].
#[inline]
pub(super) unsafe fn optional_slice<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    // SAFETY: by the contract, `pointer` is valid for reads of `count` values, if it is not NULL.
    if pointer.is_null() { Ok(&[]) } else { unsafe { slice(pointer, count, what) } }
}

/// A string that ends with a NUL byte.
///
/// # Safety
/// `pointer` is NULL or such a string, which nobody changes as long as the result is used.
pub(super) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    check(pointer, what)?;
    // SAFETY: not NULL; by the contract, a string that nobody changes.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|error| {
        // The error does not show the rest of the text, which may be a secret.
        let (at, bytes) = (error.valid_up_to(), text.to_bytes());
        Error::invalid(format!("{what} is not UTF-8: the byte at {at} is {:#04x}", bytes[at]))
    })
}

/// Like [`text`]; NULL is `None`.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn optional_text<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>> {
    // SAFETY: by the contract, `pointer` is a string that nobody changes, if it is not NULL.
    if pointer.is_null() { Ok(None) } else { unsafe { text(pointer, what) }.map(Some) }
}

/// A secret, which no message contains: any bytes, up to a NUL byte. NULL is `None`.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn optional_secret<'a>(pointer: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: not NULL; by the contract, a string that nobody changes.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// A list of strings, which `what` names.
///
/// # Safety
/// `list` is NULL or valid for reads of `n` pointers, each of which is NULL or a string.
pub(super) unsafe fn texts<'a>(list: *const *const c_char, n: usize, what: &str) -> Result<Vec<&'a str>> {
    // SAFETY: by the contract, `list` is NULL or valid for reads of `n` pointers.
    let list = unsafe { slice(list, n, what) }?;
    let name = |at: usize| format!("{what}[{at}]");
    // SAFETY: by the contract, each of these pointers is NULL or a string.
    try_collect(list.iter().enumerate().map(|(at, one)| unsafe { text(*one, &name(at)) }), "a list of strings")
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
    i32::try_from(rank).map_err(|_| Error::new(ErrorKind::Internal, format!("rank {rank} does not fit in an int32_t")))
}

/// Copies `bytes` into the caller's `buffer`, for results of a length that the caller does not know. Sets `needed`, if
/// it is not NULL, to the length, also on failure. A NULL `buffer` is accepted if `needed` is not NULL.
///
/// # Safety
/// `buffer` is NULL or valid for writes of `capacity`; `needed` is NULL or valid for a write.
pub(super) unsafe fn copy_out(bytes: &[u8], buffer: *mut c_void, capacity: usize, needed: *mut usize) -> Result<()> {
    // SAFETY: by the contract, `needed` is NULL or valid for a write.
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
    // SAFETY: `buffer` is not NULL and, by the contract, valid for writes of `capacity` bytes, which are enough;
    // `bytes` is memory of the library and does not overlap it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len()) };
    Ok(())
}

/// Like [`copy_out`], with a NUL byte at the end.
///
/// # Safety
/// As [`copy_out`].
pub(super) unsafe fn copy_out_text(text: &str, buffer: *mut c_char, capacity: usize, needed: *mut usize) -> Result<()> {
    let bytes = [text.as_bytes(), b"\0"].concat();
    // SAFETY: by the contract, `buffer` is NULL or valid for writes of `capacity` bytes, and `needed` is NULL or valid
    // for a write.
    unsafe { copy_out(&bytes, buffer.cast(), capacity, needed) }
}

/// Memory from `malloc`, which the caller frees with `gloo_rs_free`.
pub(super) struct Malloced(*mut c_void);

impl Malloced {
    /// A copy of `bytes`; never NULL, even for none.
    pub(super) fn copy_of(bytes: &[u8]) -> Result<Self> {
        // SAFETY: `malloc` accepts any size.
        let memory = unsafe { libc::malloc(bytes.len().max(1)) };
        if memory.is_null() {
            return Err(exhausted(bytes.len(), "a copy for the caller"));
        }
        // SAFETY: `memory` was just allocated with at least `bytes.len()` bytes.
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
        // SAFETY: `self.0` is from `malloc`; `into_raw`, which hands it to the caller, prevents this drop.
        unsafe { libc::free(self.0) }
    }
}
