//! Reduction kernels: one function per element type and operation, chosen by what the CPU can do.
//!
//! A result's bits depend on the two elements and the operation alone: not on the CPU, nor on alignment, nor on where in
//! a buffer the elements stand. So ranks on unlike machines agree, as long as they combine the same elements in the same
//! order.
//!
//! | elements | sum, product | min, max | average (the sum, divided once) |
//! |---|---|---|---|
//! | integers | in their own type; overflow wraps | by value | truncates towards zero; the sum may have wrapped |
//! | float32, float64 | in their own type, rounded to nearest, ties to even; overflow is infinite | by value, -0 below +0 | divided by the divisor as such a float |
//! | float16, bfloat16 | each operation in float32, then rounded to the 16 bits, nearest, ties to even | by value, -0 below +0 | in float32, then rounded |
//! | complex | by the textbook's formula, each operation rounded (no fused multiply-add, no recovery of infinities) | none | each part |
//! | bool | or, and; the result is 0 or 1 | and, or | none |
//!
//! Subnormal numbers are kept. The floating-point environment must be the default one; under another, float sums and
//! products follow it.
//!
//! NaN: sums, products and averages yield one NaN, positive, quiet, without payload (`0x7FC00000` in float32); which of
//! two an addition returns otherwise depends on the CPU and the compiler. They commute, therefore, to the bit. Minimum and
//! maximum return a NaN's bits unchanged; the left one's of two.

mod element;
mod half;
mod level;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

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
///
/// Takes a few nanoseconds. Kernels may run on any number of threads at once.
pub fn kernel(dtype: DataType, op: ReduceOp) -> Option<Kernel> {
    (level::best().kernel)(dtype, op)
}

/// The division that ends an average, or `None` for `Bool`.
pub fn divide(dtype: DataType) -> Option<Divide> {
    (level::best().divide)(dtype)
}

/// Makes of `count` elements that nothing was combined with what combining makes of any: of NaNs the one of sums, products and
/// averages, of bools 0 or 1.
///
/// # Safety
/// `data` is valid for `count` elements, of any alignment.
pub unsafe fn settle(dtype: DataType, op: ReduceOp, data: *mut u8, count: usize) {
    use DataType::*;
    match (dtype, op) {
        (Bool, _) => {
            if let Some(or) = kernel(dtype, ReduceOp::BitOr) {
                // SAFETY: the caller's promise; all three may be the same.
                unsafe { or(data, data, data, count) };
            }
        }
        (
            Float16 | Bfloat16 | Float32 | Float64 | Complex64 | Complex128,
            ReduceOp::Sum | ReduceOp::Product | ReduceOp::Average,
        ) => {
            if let Some(divide) = divide(dtype) {
                // SAFETY: the caller's promise. Division by 1 is exact.
                unsafe { divide(data, count, 1) };
            }
        }
        _ => {}
    }
}

/// The name of the kernels that this process uses: `avx512`, `avx2`, or `baseline` for what every CPU of the
/// architecture can do (SSE2 on x86-64, NEON on AArch64).
pub fn cpu_features() -> &'static str {
    level::best().name
}
