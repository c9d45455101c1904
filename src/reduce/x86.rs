//! Arithmetic on 16-bit floats with AVX2 and F16C intrinsics. Compilers neither use the conversion instructions of F16C
//! nor find the arrangement used for bfloat16 here. Wider vectors gained little (AVX-512: 27 instead of 28 GB/s for
//! float16, 20 instead of 17 GB/s for bfloat16), as did native binary16 arithmetic (31 GB/s). The native conversion to
//! bfloat16 flushes subnormals.

use std::arch::x86_64::*;
use std::ptr::copy_nonoverlapping;

use super::element::{Add, Bf16, F16, Mul};
use super::{Divide, Kernel};
use crate::types::{DataType, ReduceOp};

/// The kernel of `op` on `dtype` if this file has one. Calling it requires AVX2 and F16C.
pub(super) fn kernel(dtype: DataType, op: ReduceOp) -> Option<Kernel> {
    match (dtype, op) {
        (DataType::Float16, ReduceOp::Sum | ReduceOp::Average) => Some(reduce::<F16, Add>),
        (DataType::Float16, ReduceOp::Product) => Some(reduce::<F16, Mul>),
        (DataType::Bfloat16, ReduceOp::Sum | ReduceOp::Average) => Some(reduce::<Bf16, Add>),
        (DataType::Bfloat16, ReduceOp::Product) => Some(reduce::<Bf16, Mul>),
        _ => None,
    }
}

/// The division of `dtype` if this file has one. Calling it requires AVX2 and F16C.
pub(super) fn divide(dtype: DataType) -> Option<Divide> {
    match dtype {
        DataType::Float16 => Some(divide_by::<F16>),
        DataType::Bfloat16 => Some(divide_by::<Bf16>),
        _ => None,
    }
}

/// Number of elements per iteration.
const STEP: usize = 16;

/// A 16-bit float type with arithmetic in `f32`. The two vectors together hold `STEP` elements, in an order that
/// depends on the type.
trait Half: Copy {
    /// The value used for padding.
    const ZERO: Self;

    /// Loads and converts the elements at `from`.
    ///
    /// # Safety
    /// `from` is valid for unaligned reads of `STEP` elements, and the CPU has AVX2 and F16C.
    unsafe fn load(from: *const Self) -> [__m256; 2];

    /// Rounds `values` to nearest, ties to even, and stores them. A NaN must be the one of [`one_nan`].
    ///
    /// # Safety
    /// `into` is valid for unaligned writes of `STEP` elements, and the CPU has AVX2 and F16C.
    unsafe fn store(into: *mut Self, values: [__m256; 2]);
}

/// An operation on vectors.
trait VectorOp {
    /// `left op right`.
    ///
    /// # Safety
    /// The CPU has AVX2 and F16C.
    unsafe fn apply(left: __m256, right: __m256) -> __m256;
}

impl Half for F16 {
    const ZERO: Self = Self(0);

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(from: *const Self) -> [__m256; 2] {
        let from = from.cast::<__m128i>();
        // SAFETY: the caller guarantees `STEP` elements of 16 bits at `from`, which is two vectors of 128 bits; the
        // loads are unaligned.
        let halves = unsafe { [_mm_loadu_si128(from), _mm_loadu_si128(from.add(1))] };
        halves.map(|half| _mm256_cvtph_ps(half))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store(into: *mut Self, values: [__m256; 2]) {
        let into = into.cast::<__m128i>();
        let [first, second] = values.map(|value| _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value));
        // SAFETY: the caller guarantees `STEP` elements of 16 bits at `into`, which is two vectors of 128 bits; the
        // stores are unaligned.
        unsafe {
            _mm_storeu_si128(into, first);
            _mm_storeu_si128(into.add(1), second);
        }
    }
}

/// A bfloat16 is the upper half of an `f32`, so 32 bits hold two of them: elements with odd index are already in the
/// upper half, those with even index are shifted there. No data moves between lanes.
impl Half for Bf16 {
    const ZERO: Self = Self(0);

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(from: *const Self) -> [__m256; 2] {
        // SAFETY: the caller guarantees `STEP` elements of 16 bits at `from`, which is one vector of 256 bits; the load
        // is unaligned.
        let pairs = unsafe { _mm256_loadu_si256(from.cast()) };
        let even = _mm256_slli_epi32::<16>(pairs);
        let odd = _mm256_and_si256(pairs, _mm256_set1_epi32(!0xFFFF));
        [even, odd].map(|bits| _mm256_castsi256_ps(bits))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store(into: *mut Self, values: [__m256; 2]) {
        let [even, odd] = values.map(|value| {
            let bits = _mm256_castps_si256(value);
            let is_odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), is_odd)
        });
        let pairs = _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(even), odd);
        // SAFETY: the caller guarantees `STEP` elements of 16 bits at `into`, which is one vector of 256 bits; the
        // store is unaligned.
        unsafe { _mm256_storeu_si256(into.cast(), pairs) };
    }
}

impl VectorOp for Add {
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn apply(left: __m256, right: __m256) -> __m256 {
        _mm256_add_ps(left, right)
    }
}

impl VectorOp for Mul {
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn apply(left: __m256, right: __m256) -> __m256 {
        _mm256_mul_ps(left, right)
    }
}

/// Replaces all NaNs by a single one. NaNs are rare, so one test for both vectors is cheaper than unconditional
/// replacement.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn one_nan(values: [__m256; 2]) -> [__m256; 2] {
    let any = _mm256_cmp_ps::<_CMP_UNORD_Q>(values[0], values[1]);
    if _mm256_movemask_ps(any) == 0 {
        return values;
    }
    let nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC0_0000));
    values.map(|value| _mm256_blendv_ps(value, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value)))
}

/// An array of `STEP` elements: the first `count` are those at `from`, the others are zero.
///
/// # Safety
/// `from` is valid for unaligned reads of `count` elements, at most `STEP`.
#[inline]
unsafe fn padded<T: Half>(from: *const T, count: usize) -> [T; STEP] {
    let mut block = [T::ZERO; STEP];
    // SAFETY: the caller guarantees `count` elements at `from`, and the block has room for `STEP` of them. The copy is
    // in bytes, because `from` may be unaligned.
    unsafe { copy_nonoverlapping(from.cast::<u8>(), block.as_mut_ptr().cast(), count * size_of::<T>()) };
    block
}

/// A [`Kernel`] for CPUs with AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
unsafe fn reduce<T: Half, O: VectorOp>(into: *mut u8, left: *const u8, right: *const u8, count: usize) {
    let (into, left, right) = (into.cast::<T>(), left.cast::<T>(), right.cast::<T>());
    let rest = count % STEP;
    let whole = count - rest;
    // SAFETY: the caller guarantees `count` elements at every pointer, and the CPU features. The loop accesses `whole
    // <= count` elements, the rest is copied to and from blocks of `STEP`. Each step reads both operands before it
    // writes, so equal buffers are correct.
    unsafe {
        let step = |into, left, right| {
            let ([l0, l1], [r0, r1]) = (T::load(left), T::load(right));
            T::store(into, one_nan([O::apply(l0, r0), O::apply(l1, r1)]));
        };
        for i in (0..whole).step_by(STEP) {
            step(into.add(i), left.add(i), right.add(i));
        }
        if rest > 0 {
            let (mut l, r) = (padded(left.add(whole), rest), padded(right.add(whole), rest));
            let l = l.as_mut_ptr();
            step(l, l, r.as_ptr());
            copy_nonoverlapping(l.cast::<u8>(), into.add(whole).cast(), rest * size_of::<T>());
        }
    }
}

/// A [`Divide`] for CPUs with AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
unsafe fn divide_by<T: Half>(data: *mut u8, count: usize, divisor: u64) {
    let data = data.cast::<T>();
    let divisor = _mm256_set1_ps(divisor as f32);
    let rest = count % STEP;
    let whole = count - rest;
    // SAFETY: the caller guarantees `count` elements at `data`, and the CPU features. The loop accesses `whole <=
    // count` elements, the rest is copied to and from a block of `STEP`.
    unsafe {
        let step = |data| T::store(data, one_nan(T::load(data).map(|value| _mm256_div_ps(value, divisor))));
        for i in (0..whole).step_by(STEP) {
            step(data.add(i));
        }
        if rest > 0 {
            let mut block = padded(data.add(whole), rest);
            step(block.as_mut_ptr());
            copy_nonoverlapping(block.as_ptr().cast::<u8>(), data.add(whole).cast(), rest * size_of::<T>());
        }
    }
}
