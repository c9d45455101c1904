//! Reduction kernels: one function per element type and operation, chosen once per process by CPU features.

use crate::types::{DataType, ReduceOp};

/// `into[i] = left[i] op right[i]` for `count` elements.
///
/// # Safety
/// Each pointer is valid for `count` elements, of any alignment. `into` may equal `left`, `right`, or both, but never
/// overlaps either of them partially.
pub type Kernel = unsafe fn(into: *mut u8, left: *const u8, right: *const u8, count: usize);

/// On which side of the operation the received elements stand. It matters for callers' functions that do not commute, and
/// for the bits of a NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// `incoming op local`.
    Left,
    /// `local op incoming`.
    Right,
}

/// `data[i] = data[i] / divisor` for `count` elements: the end of an average.
///
/// # Safety
/// `data` is valid for `count` elements, of any alignment; `divisor` is not zero.
pub type Divide = unsafe fn(data: *mut u8, count: usize, divisor: u64);

/// The kernel of `op` on `dtype`, or `None` where [`ReduceOp::supports`] says no. That of `Average` is the sum's.
pub fn kernel(dtype: DataType, op: ReduceOp) -> Option<Kernel> {
    let _ = (dtype, op);
    None
}

/// The division that ends an average, or `None` for `Bool`.
pub fn divide(dtype: DataType) -> Option<Divide> {
    let _ = dtype;
    None
}
