//! Enumerations and flags of the header as parameters and fields. C can pass any number, but a Rust enumeration with a
//! number that is none of its values is undefined behaviour.

use std::mem::MaybeUninit;

use crate::error::{Error, Result};

/// The number that C passed as an enumeration.
///
/// # Safety
/// `value` is initialised, with any number.
#[inline]
pub(super) unsafe fn number<T>(value: MaybeUninit<T>) -> u32 {
    const { assert!(size_of::<T>() == size_of::<u32>() && align_of::<T>() == align_of::<u32>()) };
    // SAFETY: `value` has the size and alignment of a `u32`, for which any bytes are valid; the contract says that it
    // is initialised.
    unsafe { value.as_ptr().cast::<u32>().read() }
}

/// The value of an enumeration of C with this number.
pub(super) fn from_number<T>(number: u32) -> MaybeUninit<T> {
    const { assert!(size_of::<T>() == size_of::<u32>() && align_of::<T>() == align_of::<u32>()) };
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `value` has the size and alignment of a `u32`, and may have any bytes.
    unsafe { value.as_mut_ptr().cast::<u32>().write(number) };
    value
}

/// A flag in a struct from C: every byte except 0 is true.
///
/// # Safety
/// `flag` is initialised, with any byte.
pub(super) unsafe fn is_set(flag: MaybeUninit<bool>) -> bool {
    // SAFETY: `flag` has the size of a `u8`, for which any bits are valid; the contract says that it is initialised.
    unsafe { flag.as_ptr().cast::<u8>().read() != 0 }
}

/// The value among `known` that C passed as the enumeration `field`.
///
/// # Safety
/// As for [`number`].
pub(super) unsafe fn known<T: Copy, V: Copy>(value: MaybeUninit<T>, field: &str, known: &[(T, V)]) -> Result<V> {
    // SAFETY: the contract says that `value` is initialised; `MaybeUninit::new` initialises the others.
    let (number, is) = unsafe { (number(value), |known: T| number(MaybeUninit::new(known))) };
    let found = known.iter().find(|(known, _)| is(*known) == number);
    found.map(|(_, value)| *value).ok_or_else(|| unknown(field, number))
}

/// `number`, which C passed as the enumeration `field`, is none of its values.
#[cold]
pub(super) fn unknown(field: &str, number: u32) -> Error {
    Error::invalid(format!("{field} is {number}, which is not a value of its enumeration"))
}
