//! Enumerations of the header as parameters and fields: C can pass any number for them, which a Rust enumeration must never
//! hold.

use std::mem::MaybeUninit;

use crate::error::{Error, Result};

/// The number that C passed as an enumeration.
///
/// # Safety
/// `value` is initialised, by whatever number.
#[inline]
pub(super) unsafe fn number<T>(value: MaybeUninit<T>) -> u32 {
    const { assert!(size_of::<T>() == size_of::<u32>() && align_of::<T>() == align_of::<u32>()) };
    // SAFETY: of the same size and alignment, and initialised by the contract; any bytes are a `u32`.
    unsafe { value.as_ptr().cast::<u32>().read() }
}

/// The flag that C has put into a struct: any byte but 0 is true.
///
/// # Safety
/// `flag` is initialised, by whatever byte.
pub(super) unsafe fn is_set(flag: MaybeUninit<bool>) -> bool {
    // SAFETY: of the same size, and initialised by the contract; any bits are a `u8`.
    unsafe { flag.as_ptr().cast::<u8>().read() != 0 }
}

/// The value among `known` that C passed as the enumeration `field`.
///
/// # Safety
/// As for [`number`].
pub(super) unsafe fn known<T: Copy, V: Copy>(value: MaybeUninit<T>, field: &str, known: &[(T, V)]) -> Result<V> {
    // SAFETY: the same contract; and values of the type itself are initialised.
    let (number, is) = unsafe { (number(value), |known: T| number(MaybeUninit::new(known))) };
    let found = known.iter().find(|(known, _)| is(*known) == number);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| Error::invalid(format!("{field} is {number}, which is none of its values")))
}

/// What C passes as an enumeration whose value is `number`.
#[cfg(any(test, fuzzing))]
pub(super) fn from_number<T>(number: u32) -> MaybeUninit<T> {
    const { assert!(size_of::<T>() == size_of::<u32>()) };
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: of the same size; a `MaybeUninit` may hold any number.
    unsafe { value.as_mut_ptr().cast::<u32>().write_unaligned(number) };
    value
}
