//! Arithmetic on 16-bit floats with AVX2 and F16C intrinsics. Compilers neither use the conversion instructions of F16C
//! nor find the arrangement used for bfloat16 here.
//!
//! Nothing of AVX-512 is used. Wider vectors gained little (27 instead of 28 GB/s for float16, 20 instead of 17 GB/s
//! for bfloat16), as did the binary16 arithmetic of AVX512-FP16 (31 GB/s). AVX512-BF16 gives other bits: its conversion
//! (VCVTNEPS2BF16) and its dot product (VDPBF16PS) take subnormal numbers as zero, whatever MXCSR says.

use std::arch::x86_64::*;

use super::element::{Add, Mul};
use super::fused::{self, BLOCK_BYTES, Block, Fused, Loop, Store};
use super::halves::{Half, HalfOp, Halves, divide_by, mean_of};
use super::stores::Stores;
use super::{Divide, Kernel, Mean};
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

/// The sum of several inputs of `dtype` if this file has one. Calling it requires AVX2 and F16C.
pub(super) fn sum(dtype: DataType) -> Option<Fused> {
    match dtype {
        DataType::Float16 => Some(several::<F16, Add>),
        DataType::Bfloat16 => Some(several::<Bf16, Add>),
        _ => None,
    }
}

/// The division of `dtype` if this file has one. Calling it requires AVX2 and F16C.
pub(super) fn divide(dtype: DataType) -> Option<Divide> {
    match dtype {
        DataType::Float16 => Some(divided::<F16>),
        DataType::Bfloat16 => Some(divided::<Bf16>),
        _ => None,
    }
}

/// Calling it requires AVX2 and F16C.
pub(super) const MEAN: Mean = weighed::<F16>;

/// A [`Kernel`] for CPUs with AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
unsafe fn reduce<H: Half, O: HalfOp>(into: *mut u8, left: *const u8, right: *const u8, count: usize) {
    // SAFETY: the caller fulfils the contract of [`Kernel`]; the CPU has the features that this file's types ask for.
    unsafe { Halves::<H, O>::run::<2, false>(into, [left, right], count) }
}

/// A [`Fused`] for CPUs with AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
unsafe fn several<H: Half, O: HalfOp>(into: *mut u8, inputs: &[*const u8], count: usize, stores: Stores) {
    // SAFETY: the caller fulfils the contract of [`Fused`]; the CPU has the features that this file's types ask for.
    unsafe { fused::run::<Halves<H, O>>(into, inputs, count, stores) }
}

/// A [`Divide`] for CPUs with AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
unsafe fn divided<H: Half>(data: *mut u8, count: usize, divisor: u64) {
    // SAFETY: the caller fulfils the contract of [`Divide`]; the CPU has the features that this file's types ask for.
    unsafe { divide_by::<H>(data, count, divisor) }
}

/// A [`Mean`] for CPUs with AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
unsafe fn weighed<H: Half>(into: *mut u8, left: *const u8, right: *const u8, count: usize, contributions: [u32; 2]) {
    // SAFETY: the caller fulfils the contract of [`Mean`]; the CPU has the features that this file's types ask for.
    unsafe { mean_of::<H>(into, left, right, count, contributions) }
}

/// Stores past the caches, on CPUs with AVX: its instruction avoids the cost that others have on some CPUs while the
/// upper halves of vectors are in use.
pub(super) struct PastCaches;

impl Store for PastCaches {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store(block: &Block, into: *mut u8) {
        for at in (0..BLOCK_BYTES).step_by(32) {
            // SAFETY: `at + 32 <= BLOCK`; the caller guarantees that the block is filled, and room for one at `into`.
            unsafe { store::<true>(into.add(at).cast(), _mm256_loadu_si256(block.as_ptr().add(at).cast())) };
        }
    }
}

/// Stores a vector, past the caches if `STREAM`.
///
/// # Safety
/// `into` is valid for unaligned writes of 32 bytes; for stores past the caches it is a multiple of 32.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store<const STREAM: bool>(into: *mut __m256i, vector: __m256i) {
    // SAFETY: the caller guarantees what each needs.
    unsafe {
        // Miri has no stores past the caches.
        if STREAM && !cfg!(miri) { _mm256_stream_si256(into, vector) } else { _mm256_storeu_si256(into, vector) }
    }
}

/// binary16, by the conversions of F16C.
struct F16;

/// A bfloat16 is the upper half of an `f32`, so 32 bits hold two of them: elements with odd index are already in the
/// upper half, those with even index are shifted there. No data moves between lanes.
struct Bf16;

/// Implements what does not depend on the type.
macro_rules! arithmetic {
    () => {
        type Floats = [__m256; 2];

        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn one_nan<const N: usize>(values: &mut [[__m256; 2]; N]) {
            let mut any = _mm256_setzero_ps();
            for [first, second] in &*values {
                any = _mm256_or_ps(any, _mm256_cmp_ps::<_CMP_UNORD_Q>(*first, *second));
            }
            if _mm256_movemask_ps(any) != 0 {
                let nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC0_0000));
                for value in values.as_flattened_mut() {
                    *value = _mm256_blendv_ps(*value, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(*value, *value));
                }
            }
        }

        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn add([a, b]: [__m256; 2], [c, d]: [__m256; 2]) -> [__m256; 2] {
            [_mm256_add_ps(a, c), _mm256_add_ps(b, d)]
        }

        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn multiply([a, b]: [__m256; 2], [c, d]: [__m256; 2]) -> [__m256; 2] {
            [_mm256_mul_ps(a, c), _mm256_mul_ps(b, d)]
        }

        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn divide([a, b]: [__m256; 2], divisor: f32) -> [__m256; 2] {
            let divisor = _mm256_set1_ps(divisor);
            [_mm256_div_ps(a, divisor), _mm256_div_ps(b, divisor)]
        }

        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn scale([a, b]: [__m256; 2], factor: f32) -> [__m256; 2] {
            let factor = _mm256_set1_ps(factor);
            [_mm256_mul_ps(a, factor), _mm256_mul_ps(b, factor)]
        }
    };
}

impl Half for F16 {
    arithmetic!();

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(from: *const u16) -> [__m256; 2] {
        let from = from.cast::<__m128i>();
        // SAFETY: the caller guarantees `STEP_ELEMENTS` elements of 16 bits at `from`, which is two vectors of 128
        // bits; the loads are unaligned.
        let [first, second] = unsafe { [_mm_loadu_si128(from), _mm_loadu_si128(from.add(1))] };
        [_mm256_cvtph_ps(first), _mm256_cvtph_ps(second)]
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store<const STREAM: bool>(into: *mut u16, values: [__m256; 2]) {
        let [first, second] = narrow(values);
        // SAFETY: the caller guarantees `STEP_ELEMENTS` elements of 16 bits at `into`, which is a vector of 256 bits.
        unsafe { store::<STREAM>(into.cast(), _mm256_set_m128i(second, first)) };
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn round(values: [__m256; 2]) -> [__m256; 2] {
        let [first, second] = narrow(values);
        [_mm256_cvtph_ps(first), _mm256_cvtph_ps(second)]
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow([first, second]: [__m256; 2]) -> [__m128i; 2] {
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
    [_mm256_cvtps_ph::<NEAREST>(first), _mm256_cvtps_ph::<NEAREST>(second)]
}

impl Half for Bf16 {
    arithmetic!();

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(from: *const u16) -> [__m256; 2] {
        // SAFETY: the caller guarantees `STEP_ELEMENTS` elements of 16 bits at `from`, which is one vector of 256 bits;
        // the load is unaligned.
        let pairs = unsafe { _mm256_loadu_si256(from.cast()) };
        let even = _mm256_slli_epi32::<16>(pairs);
        [_mm256_castsi256_ps(even), upper_halves(pairs)]
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store<const STREAM: bool>(into: *mut u16, [even, odd]: [__m256; 2]) {
        let even = _mm256_srli_epi32::<16>(round_upper_half(even));
        let pairs = _mm256_blend_epi16::<0b1010_1010>(even, round_upper_half(odd));
        // SAFETY: the caller guarantees `STEP_ELEMENTS` elements of 16 bits at `into`, which is a vector of 256 bits.
        unsafe { store::<STREAM>(into.cast(), pairs) };
    }

    /// The lower half of such a NaN is zero, so rounding does not carry into the upper one.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn round([even, odd]: [__m256; 2]) -> [__m256; 2] {
        [upper_halves(round_upper_half(even)), upper_halves(round_upper_half(odd))]
    }
}

/// The upper half of each 32 bits, as `f32`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn upper_halves(bits: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(!0xFFFF)))
}

/// Rounds the upper half of each 32 bits by the lower one, to nearest, ties to even. The lower half becomes arbitrary.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn round_upper_half(value: __m256) -> __m256i {
    let bits = _mm256_castps_si256(value);
    let is_odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), is_odd)
}
