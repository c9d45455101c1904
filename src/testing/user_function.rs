//! The sum as a reduction function of a caller, for the tests of the library and for those of whole jobs.

use std::ffi::c_void;
use std::ops::Add;

/// Adds elements of type `T`.
///
/// # Safety
/// See `UserFunction` of the library; the elements of the call have the size of `T`.
pub unsafe extern "C" fn add<T: Copy + Add<Output = T>>(
    into: *mut c_void,
    left: *const c_void,
    right: *const c_void,
    count: usize,
    _: *mut c_void,
) -> i32 {
    let (into, left, right) = (into.cast::<T>(), left.cast::<T>(), right.cast::<T>());
    assert!(into.is_aligned() && left.is_aligned() && right.is_aligned());
    for i in 0..count {
        // SAFETY: the library passes `count` elements of the call's type.
        unsafe { into.add(i).write(left.add(i).read() + right.add(i).read()) };
    }
    0
}
