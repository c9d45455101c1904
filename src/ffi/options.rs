//! Structs with a size: reads and writes only the bytes that the caller's version of the struct has.

use super::pointer::{Out, check};
use crate::error::{Error, ErrorKind, Result};

/// A struct of the header whose first field is `size_t struct_size`.
///
/// Later versions may only add fields at the end. New fields must not lie in former padding, which callers leave
/// uninitialised, and must not add padding. Zero must stand for the behaviour of earlier versions.
///
/// # Safety
/// The type is `repr(C)`, begins with that `usize`, and any bytes are a valid value.
pub(super) unsafe trait Options: Copy {
    /// The type's name in C.
    const NAME: &'static str;
    /// Minimum size in bytes; the fields after it have defaults.
    const REQUIRED: usize;
    /// Sets the fields whose default is not zero; `struct_size` is not among them.
    fn set_defaults(&mut self);
}

/// Maximum size of a struct in any version. A larger `struct_size` was not initialised, or was overwritten, so it is
/// not the size of the caller's memory.
pub(super) const MAX_STRUCT_BYTES: usize = 4096;

fn has_right_size<T: Options>(bytes: usize) -> bool {
    (T::REQUIRED..=MAX_STRUCT_BYTES).contains(&bytes) && bytes.is_multiple_of(align_of::<T>())
}

fn defaults<T: Options>() -> T {
    // SAFETY: by the contract of `Options`, zeros are a valid value.
    let mut options: T = unsafe { std::mem::zeroed() };
    options.set_defaults();
    options
}

/// The caller's options, with defaults for fields that the caller's version does not have. Fails with `Unsupported` if
/// a field that this version does not have is not zero.
///
/// # Safety
/// `pointer` is NULL, or valid for reads of its `struct_size` bytes.
#[inline]
pub(super) unsafe fn read<T: Options>(pointer: *const T) -> Result<T> {
    check(pointer, "options")?;
    // SAFETY: `pointer` is aligned and not NULL; by the contract, its `struct_size`, the first field, can be read.
    let bytes = unsafe { pointer.cast::<usize>().read() };
    if !has_right_size::<T>(bytes) {
        return Err(wrong_size::<T>(bytes));
    }
    if bytes >= size_of::<T>() {
        if bytes > size_of::<T>() {
            // SAFETY: by the contract, `pointer` is valid for reads of `bytes`, its `struct_size`, which is more than
            // `T` has.
            unsafe { check_later(pointer, bytes) }?;
        }
        // SAFETY: `pointer` is aligned and, by the contract, valid for reads of `bytes`, which is at least the size of
        // `T`; any bytes are a valid `T`.
        return Ok(unsafe { pointer.read() });
    }
    let mut options = defaults::<T>();
    // SAFETY: by the contract, `pointer` is valid for reads of `bytes`, which is less than the size of the local
    // `options`; any bytes are a valid `T`.
    unsafe { copy_bytes(pointer.cast(), (&raw mut options).cast(), bytes) };
    Ok(options)
}

#[cold]
fn wrong_size<T: Options>(bytes: usize) -> Error {
    let name = T::NAME;
    Error::invalid(format!(
        "struct_size of {name} is {bytes}; it must be {} to {MAX_STRUCT_BYTES} and a multiple of {} (this version's is {}); call \
         {}_init first",
        T::REQUIRED,
        align_of::<T>(),
        size_of::<T>(),
        name.trim_end_matches("_t")
    ))
}

/// Refuses nonzero fields of a later version. Zero stands for the behaviour of this version.
///
/// # Safety
/// `pointer` is valid for reads of `bytes`, which are more than `T` has.
#[cold]
unsafe fn check_later<T: Options>(pointer: *const T, bytes: usize) -> Result<()> {
    let known = size_of::<T>();
    // SAFETY: by the contract, `pointer` is valid for reads of `bytes`. Later versions have no padding after `known`,
    // so these bytes are initialised.
    let later = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>().add(known), bytes - known) };
    let Some(place) = later.iter().position(|byte| *byte != 0) else { return Ok(()) };
    let text = format!(
        "{} has a nonzero value at byte {}, in a field that version {} of this library does not have: the program was compiled \
         with the header of a later version",
        T::NAME,
        known + place,
        env!("CARGO_PKG_VERSION")
    );
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// Like [`read`]; NULL means defaults.
///
/// # Safety
/// As [`read`].
pub(super) unsafe fn read_or_default<T: Options>(pointer: *const T) -> Result<T> {
    // SAFETY: by the contract, `pointer` is valid for reads of its `struct_size` bytes, if it is not NULL.
    if pointer.is_null() { Ok(defaults()) } else { unsafe { read(pointer) } }
}

/// Fills `struct_size` bytes with defaults, and with zeros for fields that only the caller's version has. Does nothing
/// for NULL and for sizes below that of `struct_size` itself. If the size exceeds [`MAX_STRUCT_BYTES`], fills only the
/// fields of this version; `read` then refuses the struct.
///
/// # Safety
/// `pointer` is NULL or valid for writes of `struct_size` bytes.
pub(super) unsafe fn init<T: Options>(pointer: *mut T, struct_size: usize) {
    if !pointer.is_aligned() || pointer.is_null() || struct_size < size_of::<usize>() {
        return;
    }
    let options = defaults::<T>();
    let known = struct_size.min(size_of::<T>());
    let unknown = if struct_size <= MAX_STRUCT_BYTES { struct_size - known } else { 0 };
    // SAFETY: `pointer` is aligned and, by the contract, valid for writes of `struct_size` bytes, which hold `known`,
    // `unknown` and the first field, a `usize`; `options` has at least `known` bytes.
    unsafe {
        copy_bytes((&raw const options).cast(), pointer.cast(), known);
        pointer.cast::<u8>().add(known).write_bytes(0, unknown);
        pointer.cast::<usize>().write(struct_size);
    }
}

/// Copies to the caller the fields of `value` that lie within the caller's `struct_size`. Fields that only the caller's
/// version has become zero.
///
/// # Safety
/// `pointer` is NULL, or valid for reads and writes of its `struct_size` bytes.
pub(super) unsafe fn fill<T: Options>(pointer: *mut T, what: &str, value: T) -> Result<()> {
    check(pointer, what)?;
    // SAFETY: `pointer` is aligned and not NULL; by the contract, its `struct_size`, the first field, can be read.
    let bytes = unsafe { pointer.cast::<usize>().read() };
    if !has_right_size::<T>(bytes) {
        return Err(wrong_size::<T>(bytes));
    }
    let known = bytes.min(size_of::<T>());
    // SAFETY: by the contract, `pointer` is valid for writes of `bytes`, its `struct_size`, which is at least `known`
    // and the first field, a `usize`; `value` has at least `known` bytes.
    unsafe {
        copy_bytes((&raw const value).cast(), pointer.cast(), known);
        pointer.cast::<u8>().add(known).write_bytes(0, bytes - known);
        pointer.cast::<usize>().write(bytes);
    }
    Ok(())
}

/// Fills the array `list` with `values`, as [`fill`] does for each, and sets `count` to their number, also if
/// `capacity` is smaller, which fails. NULL for `list` only sets `count`.
///
/// # Safety
/// `count` is valid for a write. `list` is NULL, or valid for reads and writes of `capacity` structs, each of the
/// `struct_size` bytes of the first.
pub(super) unsafe fn fill_list<T: Options>(
    list: *mut T,
    capacity: usize,
    count: *mut usize,
    what: &str,
    values: &[T],
) -> Result<()> {
    // SAFETY: by the contract.
    unsafe { Out::new(count, "count") }?.set(values.len());
    if list.is_null() || values.is_empty() {
        return Ok(());
    }
    if capacity < values.len() {
        return Err(Error::invalid(format!("{what} has room for {capacity}; {} are needed", values.len())));
    }
    check(list, what)?;
    // SAFETY: `list` is aligned and not NULL; by the contract, its `struct_size`, the first field, can be read.
    let bytes = unsafe { list.cast::<usize>().read() };
    if !has_right_size::<T>(bytes) {
        return Err(wrong_size::<T>(bytes));
    }
    for (index, value) in values.iter().enumerate() {
        // SAFETY: `index` is below `capacity`, so by the contract the struct lies in the array; its size is a multiple
        // of its alignment.
        let place = unsafe { list.cast::<u8>().add(index * bytes) }.cast::<T>();
        // SAFETY: as above; a struct that says another size would not end where the next begins.
        let own = unsafe { place.cast::<usize>().read() };
        if own != bytes {
            return Err(Error::invalid(format!(
                "struct_size of {what}[{index}] is {own}, but that of the first is {bytes}"
            )));
        }
        // SAFETY: as above.
        unsafe { fill(place, what, *value) }?;
    }
    Ok(())
}

/// # Safety
/// As `std::ptr::copy_nonoverlapping`. Bytes are moved untyped, so padding stays padding.
unsafe fn copy_bytes(from: *const std::mem::MaybeUninit<u8>, to: *mut std::mem::MaybeUninit<u8>, bytes: usize) {
    // SAFETY: by the contract, both are valid for `bytes` and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}
