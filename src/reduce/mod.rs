//! Reduction kernels: one function per element type and operation, selected by the features of the CPU.
//!
//! The bits of a result depend only on the two elements and the operation: not on the CPU, the alignment, or the
//! position in the buffer. Ranks on different machines therefore get the same result if they reduce the same elements
//! in the same order.
//!
//! | elements | sum, product | min, max | average (the sum, divided once) |
//! |---|---|---|---|
//! | integers | in their own type; overflow wraps | by value | truncates towards zero; the sum may have wrapped |
//! | float32, float64 | in their own type, rounded to nearest, ties to even; overflow is infinite | by value, -0 below
//! +0 | divided by the divisor converted to that type |
//! | float16, bfloat16 | each operation in float32, then rounded to 16 bits, nearest, ties to even | by value, -0 below
//! +0 | in float32, then rounded |
//! | complex | by the textbook formula, each operation rounded (no fused multiply-add, no recovery of infinities) | not
//! supported | each part |
//! | bool | or, and; the result is 0 or 1 | and, or | not supported |
//!
//! Subnormal numbers are preserved. The floating-point environment must be the default one; with another one, sums and
//! products of floats follow it.
//!
//! NaN: sums, products and averages return a single NaN, positive, quiet, without payload (`0x7FC00000` in float32).
//! Otherwise the CPU and the compiler would determine which of two NaNs an addition returns. So these operations
//! commute to the bit. Minimum and maximum return the bits of a NaN unchanged; of two, the left one's.
//!
//! A reduction of several inputs ([`kernel_n`]) gives the bits of a chain of reductions of two, from the left: 16-bit
//! floats are rounded after each operation.
//!
//! An [`Exact`] sum of several inputs is rounded once.
//!
//! A [`Factor`] multiplies elements as a product of two does: 16-bit floats in float32, then rounded.
//!
//! Averages of float16 in collectives are not divided sums but means of means ([`Mean`]), which do not overflow.

mod accumulator;
mod element;
mod exact;
mod factor;
mod fused;
mod half;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod halves;
mod level;
mod mean;
#[cfg(target_arch = "aarch64")]
mod neon;
mod several;
mod stores;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use exact::Exact;
pub use factor::Factor;
pub use mean::{Mean, Pairwise, mean_n, shares};
pub use several::KernelN;
pub use stores::{Stores, copy, last_level_cache};

use crate::types::{DataType, ReduceOp};

/// `into[i] = left[i] op right[i]` for `count` elements.
///
/// # Safety
/// `left` and `right` are valid for reads and `into` for writes of `count` elements, of any alignment. `into`
/// may equal `left`, `right` or both, but must not overlap either of them partially. No other thread accesses the
/// elements in a conflicting way during the call.
pub type Kernel = unsafe fn(into: *mut u8, left: *const u8, right: *const u8, count: usize);

/// The operand that received elements become. It matters for user-defined functions that do not commute, and for the
/// bits of a NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// `incoming op local`.
    Left,
    /// `local op incoming`.
    Right,
}

/// `data[i] = data[i] / divisor` for `count` elements: the last step of an average.
///
/// # Safety
/// `data` is valid for reads and writes of `count` elements, of any alignment; `divisor` is not zero.
pub type Divide = unsafe fn(data: *mut u8, count: usize, divisor: u64);

/// The kernel of `op` on `dtype`; `None` if [`ReduceOp::supports`] says no. The kernel of `Average` is that of `Sum`.
///
/// Takes a few nanoseconds. Any number of threads may run kernels concurrently.
pub fn kernel(dtype: DataType, op: ReduceOp) -> Option<Kernel> {
    (level::best().kernel)(dtype, op)
}

/// The kernel of `op` on `dtype` for any number of inputs; `None` where [`kernel`] has none.
///
/// Sums of up to eight inputs are one loop, which reads each of them once and writes the result once. Other operations,
/// and more inputs, go through a piece of a result in the first-level cache.
pub fn kernel_n(dtype: DataType, op: ReduceOp) -> Option<KernelN> {
    KernelN::new(level::best(), dtype, op)
}

/// The exact sum of any number of inputs; `None` for all but float32, float64 and complex numbers of them.
pub fn exact(dtype: DataType) -> Option<Exact> {
    (level::best().exact)(dtype)
}

/// The division for averages; `None` for `Bool`.
pub fn divide(dtype: DataType) -> Option<Divide> {
    (level::best().divide)(dtype)
}

/// The mean of float16.
pub fn mean() -> Mean {
    level::best().mean
}

/// Converts `count` elements that were not reduced (a single contribution) to the form that every reduction returns:
/// for sums, products and averages the single NaN, for bools 0 or 1.
///
/// # Safety
/// `data` is valid for reads and writes of `count` elements, of any alignment.
pub unsafe fn settle(dtype: DataType, op: ReduceOp, data: *mut u8, count: usize) {
    use DataType::*;
    match (dtype, op) {
        (Bool, _) => {
            if let Some(or) = kernel(dtype, ReduceOp::BitOr) {
                // SAFETY: the caller guarantees `count` elements at `data`, for reads and writes; the three pointers of
                // a kernel may be equal.
                unsafe { or(data, data, data, count) };
            }
        }
        (
            Float16 | Bfloat16 | Float32 | Float64 | Complex64 | Complex128,
            ReduceOp::Sum | ReduceOp::Product | ReduceOp::Average,
        ) => {
            if let Some(divide) = divide(dtype) {
                // SAFETY: the caller guarantees `count` elements at `data`, for reads and writes; the divisor is not
                // zero. Division by 1 is exact.
                unsafe { divide(data, count, 1) };
            }
        }
        _ => {}
    }
}

/// The name of the kernels in use: `avx512`, `avx2`, `neon`, or `baseline` for what compilers make of the features that
/// every CPU of the architecture has.
pub fn cpu_features() -> &'static str {
    level::best().name
}
