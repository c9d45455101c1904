//! Arithmetic on binary16 by the conversions that every AArch64 CPU has, which compilers do not find in
//! [`half`](super::half): 100 instructions for eight elements of a sum without them. What compilers make of bfloat16
//! needs no help.

use std::arch::aarch64::*;

use super::element::{Add, Mul};
use super::fused::{self, Fused, Loop};
use super::halves::{Half, HalfOp, Halves, divide_by, mean_of};
use super::stores::Stores;
use super::{Divide, Kernel, Mean};
use crate::types::{DataType, ReduceOp};

/// The kernel of `op` on `dtype` if this file has one.
pub(super) fn kernel(dtype: DataType, op: ReduceOp) -> Option<Kernel> {
    match (dtype, op) {
        (DataType::Float16, ReduceOp::Sum | ReduceOp::Average) => Some(reduce::<Add>),
        (DataType::Float16, ReduceOp::Product) => Some(reduce::<Mul>),
        _ => None,
    }
}

/// The sum of several inputs of `dtype` if this file has one.
pub(super) fn sum(dtype: DataType) -> Option<Fused> {
    (dtype == DataType::Float16).then_some(several)
}

/// The division of `dtype` if this file has one.
pub(super) fn divide(dtype: DataType) -> Option<Divide> {
    (dtype == DataType::Float16).then_some(divided)
}

pub(super) const MEAN: Mean = weighed;

/// A [`Kernel`].
unsafe fn reduce<O: HalfOp>(into: *mut u8, left: *const u8, right: *const u8, count: usize) {
    // SAFETY: the caller fulfils the contract of [`Kernel`]; every CPU of this architecture has NEON.
    unsafe { Halves::<F16, O>::run::<2, false>(into, [left, right], count) }
}

/// A [`Fused`].
unsafe fn several(into: *mut u8, inputs: &[*const u8], count: usize, stores: Stores) {
    // SAFETY: the caller fulfils the contract of [`Fused`]; every CPU of this architecture has NEON.
    unsafe { fused::run::<Halves<F16, Add>>(into, inputs, count, stores) }
}

/// A [`Divide`].
unsafe fn divided(data: *mut u8, count: usize, divisor: u64) {
    // SAFETY: the caller fulfils the contract of [`Divide`]; every CPU of this architecture has NEON.
    unsafe { divide_by::<F16>(data, count, divisor) }
}

/// A [`Mean`].
unsafe fn weighed(into: *mut u8, left: *const u8, right: *const u8, count: usize, contributions: [u32; 2]) {
    // SAFETY: the caller fulfils the contract of [`Mean`]; every CPU of this architecture has NEON.
    unsafe { mean_of::<F16>(into, left, right, count, contributions) }
}

struct F16;

impl Half for F16 {
    /// In order.
    type Floats = [float32x4_t; 4];

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load(from: *const u16) -> [float32x4_t; 4] {
        // SAFETY: the caller guarantees `STEP_ELEMENTS` elements of 16 bits at `from`, which is two vectors of 128
        // bits; loads of bytes are unaligned.
        let halves = unsafe { [vld1q_u8(from.cast()), vld1q_u8(from.add(8).cast())] };
        widen(halves.map(|bytes| vreinterpretq_f16_u8(bytes)))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn store<const STREAM: bool>(into: *mut u16, values: [float32x4_t; 4]) {
        let [first, second] = narrow(values);
        // SAFETY: the caller guarantees `STEP_ELEMENTS` elements of 16 bits at `into`, which is two vectors of 128
        // bits; stores of bytes are unaligned.
        unsafe {
            vst1q_u8(into.cast(), vreinterpretq_u8_f16(first));
            vst1q_u8(into.add(8).cast(), vreinterpretq_u8_f16(second));
        }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn round(values: [float32x4_t; 4]) -> [float32x4_t; 4] {
        widen(narrow(values))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn one_nan<const N: usize>(values: &mut [[float32x4_t; 4]; N]) {
        let values = values.as_flattened_mut();
        let mut numbers = vdupq_n_u32(u32::MAX);
        for value in &*values {
            numbers = vandq_u32(numbers, vceqq_f32(*value, *value));
        }
        if vminvq_u32(numbers) == 0 {
            let nan = vdupq_n_f32(f32::from_bits(0x7FC0_0000));
            for value in values {
                *value = vbslq_f32(vceqq_f32(*value, *value), *value, nan);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn add(mut left: [float32x4_t; 4], right: [float32x4_t; 4]) -> [float32x4_t; 4] {
        for (value, other) in left.iter_mut().zip(right) {
            *value = vaddq_f32(*value, other);
        }
        left
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn multiply(mut left: [float32x4_t; 4], right: [float32x4_t; 4]) -> [float32x4_t; 4] {
        for (value, other) in left.iter_mut().zip(right) {
            *value = vmulq_f32(*value, other);
        }
        left
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn divide(mut values: [float32x4_t; 4], divisor: f32) -> [float32x4_t; 4] {
        for value in &mut values {
            *value = vdivq_f32(*value, vdupq_n_f32(divisor));
        }
        values
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn scale(mut values: [float32x4_t; 4], factor: f32) -> [float32x4_t; 4] {
        for value in &mut values {
            *value = vmulq_n_f32(*value, factor);
        }
        values
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn widen([first, second]: [float16x8_t; 2]) -> [float32x4_t; 4] {
    [
        vcvt_f32_f16(vget_low_f16(first)),
        vcvt_high_f32_f16(first),
        vcvt_f32_f16(vget_low_f16(second)),
        vcvt_high_f32_f16(second),
    ]
}

/// Rounds to nearest, ties to even.
#[inline]
#[target_feature(enable = "neon")]
fn narrow([a, b, c, d]: [float32x4_t; 4]) -> [float16x8_t; 2] {
    [vcvt_high_f16_f32(vcvt_f16_f32(a), b), vcvt_high_f16_f32(vcvt_f16_f32(c), d)]
}
