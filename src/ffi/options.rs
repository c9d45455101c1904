//! Options structs: read without looking past what the caller has, whatever version it was compiled against.

use super::pointer::check;
use crate::error::{Error, ErrorKind, Result};

/// A struct of the header whose first field is `size_t struct_size`.
///
/// Later versions may only add fields at the end, never in what was padding (callers leave padding uninitialised) and with no
/// padding of their own; zero must mean what earlier versions do.
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

/// The caller's options, with defaults for what its version did not have yet. Fails with `Unsupported` if a field that this
/// version does not have is not zero.
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
        if bytes > size_of::<T>() {
            // SAFETY: so many bytes are there, by the contract.
            unsafe { check_later(pointer, bytes) }?;
        }
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
    Error::invalid(format!(
        "struct_size of {name} is {bytes}; this version's is {}, at least {} are required, and at most {MOST_BYTES} are \
         possible; call {}_init first",
        size_of::<T>(),
        T::REQUIRED,
        name.trim_end_matches("_t")
    ))
}

/// Refuses fields that only a later version knows, unless they are zero, which stands for what this version does.
///
/// # Safety
/// `pointer` is valid for reads of `bytes`, which are more than `T` has.
#[cold]
unsafe fn check_later<T: Options>(pointer: *const T, bytes: usize) -> Result<()> {
    let known = size_of::<T>();
    // SAFETY: in bounds by the contract. Later versions leave no padding there, so that all bytes are initialised.
    let later = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>().add(known), bytes - known) };
    let Some(place) = later.iter().position(|byte| *byte != 0) else { return Ok(()) };
    let text = format!(
        "{} has a value at byte {}, in a field that version {} of this library does not know: the program was compiled with \
         the header of a later version",
        T::NAME,
        known + place,
        env!("CARGO_PKG_VERSION")
    );
    Err(Error::new(ErrorKind::Unsupported, text))
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
