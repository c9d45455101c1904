//! Options structs: read without looking past what the caller has, whatever version it was compiled against.

use super::pointer::check;
use crate::error::{Error, Result};

/// A struct of the header whose first field is `size_t struct_size`.
///
/// Later versions may only add fields at the end, and never in what was padding: callers leave padding uninitialised.
///
/// # Safety
/// The type is `repr(C)`, begins with that `usize`, and any bytes are a valid value.
pub(super) unsafe trait Options: Copy {
    /// The type's name in C.
    const NAME: &'static str;
    /// Bytes without which a call has no meaning; what comes after has a default.
    const REQUIRED: usize;
    /// Sets the fields whose default is not zero; `struct_size` is not among them.
    fn set_defaults(&mut self);
}

/// No version of a struct is longer: a larger `struct_size` was never set, or was overwritten, so it tells nothing about the
/// caller's memory.
pub(super) const MOST_BYTES: usize = 4096;

fn has_right_size<T: Options>(bytes: usize) -> bool {
    (T::REQUIRED..=MOST_BYTES).contains(&bytes) && bytes.is_multiple_of(align_of::<T>())
}

fn defaults<T: Options>() -> T {
    // SAFETY: any bytes are a valid value.
    let mut options: T = unsafe { std::mem::zeroed() };
    options.set_defaults();
    options
}

/// The caller's options, with defaults for what its version did not have yet.
///
/// # Safety
/// `pointer` is NULL, or valid for reads of the bytes that its `struct_size` tells.
#[inline]
pub(super) unsafe fn read<T: Options>(pointer: *const T) -> Result<T> {
    check(pointer, "options")?;
    // SAFETY: not NULL, aligned, and the size comes first.
    let bytes = unsafe { pointer.cast::<usize>().read() };
    if !has_right_size::<T>(bytes) {
        return Err(wrong_size::<T>(bytes));
    }
    if bytes >= size_of::<T>() {
        // SAFETY: so many bytes are there, aligned; any are a valid value.
        return Ok(unsafe { pointer.read() });
    }
    let mut options = defaults::<T>();
    // SAFETY: the source has `bytes`, the target has its own size, which is more; any bytes are a valid value.
    unsafe { copy_bytes(pointer.cast(), (&raw mut options).cast(), bytes) };
    Ok(options)
}

#[cold]
fn wrong_size<T: Options>(bytes: usize) -> Error {
    let name = T::NAME;
    let init = name.strip_suffix("_options_t").map_or(String::new(), |s| format!("; call {s}_options_init first"));
    Error::invalid(format!(
        "struct_size of {name} is {bytes}; this version's is {}, at least {} are required, and at most {MOST_BYTES} are \
         possible{init}",
        size_of::<T>(),
        T::REQUIRED
    ))
}

/// As [`read`]; NULL means defaults.
///
/// # Safety
/// As [`read`].
pub(super) unsafe fn read_or_default<T: Options>(pointer: *const T) -> Result<T> {
    // SAFETY: the same contract.
    if pointer.is_null() { Ok(defaults()) } else { unsafe { read(pointer) } }
}

/// Fills `struct_size` bytes: defaults, then zeros for what only the caller's version knows. Does nothing for NULL and for
/// sizes that hold no `struct_size`. Of a size that no version has only the known part is filled; `read` then refuses it.
///
/// # Safety
/// `pointer` is NULL or valid for writes of `struct_size` bytes.
pub(super) unsafe fn init<T: Options>(pointer: *mut T, struct_size: usize) {
    if !pointer.is_aligned() || pointer.is_null() || struct_size < size_of::<usize>() {
        return;
    }
    let options = defaults::<T>();
    let known = struct_size.min(size_of::<T>());
    let unknown = if struct_size <= MOST_BYTES { struct_size - known } else { 0 };
    // SAFETY: the caller vouches for `struct_size` bytes; the source has `known`; the first field is a usize.
    unsafe {
        copy_bytes((&raw const options).cast(), pointer.cast(), known);
        pointer.cast::<u8>().add(known).write_bytes(0, unknown);
        pointer.cast::<usize>().write(struct_size);
    }
}

/// Gives the caller `value`, as much of it as its version knows; its `struct_size` tells. What only the caller's version
/// knows becomes zero.
///
/// # Safety
/// `pointer` is NULL, or valid for reads and writes of the bytes that its `struct_size` tells.
pub(super) unsafe fn fill<T: Options>(pointer: *mut T, what: &str, value: T) -> Result<()> {
    check(pointer, what)?;
    // SAFETY: not NULL, aligned, and the size comes first.
    let bytes = unsafe { pointer.cast::<usize>().read() };
    if !has_right_size::<T>(bytes) {
        return Err(wrong_size::<T>(bytes));
    }
    let known = bytes.min(size_of::<T>());
    // SAFETY: the caller vouches for `bytes`; the source has `known`; the first field is a usize.
    unsafe {
        copy_bytes((&raw const value).cast(), pointer.cast(), known);
        pointer.cast::<u8>().add(known).write_bytes(0, bytes - known);
        pointer.cast::<usize>().write(bytes);
    }
    Ok(())
}

/// # Safety
/// As `std::ptr::copy_nonoverlapping`. Bytes are moved untyped, so padding stays padding.
unsafe fn copy_bytes(from: *const std::mem::MaybeUninit<u8>, to: *mut std::mem::MaybeUninit<u8>, bytes: usize) {
    // SAFETY: the same contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}
