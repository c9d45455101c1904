//! Means of operands that are means themselves, for averages of float16: their sum, which would be divided in the end,
//! may overflow although the average does not.

use std::mem::MaybeUninit;
use std::ptr::null;

use super::Kernel;

/// `into[i] = (left[i] * a + right[i] * b) / (a + b)` for `count` elements, where `left` is the mean of `a`
/// contributions, and `right` of `b`: the two numbers of `contributions`, not both 0. Computed in float32 as `left[i] *
/// (a / (a + b)) + right[i] * (b / (a + b))`, each operation rounded, then rounded to float16. Equal operands are the
/// result, and no result is outside the operands' range.
///
/// # Safety
/// That of [`Kernel`].
pub type Mean = unsafe fn(into: *mut u8, left: *const u8, right: *const u8, count: usize, contributions: [u32; 2]);

/// The parts of both operands in the result of a [`Mean`].
#[inline(always)]
pub fn shares([left, right]: [u32; 2]) -> [f32; 2] {
    let all = f64::from(left) + f64::from(right);
    [left, right].map(|contributions| (f64::from(contributions) / all) as f32)
}

/// How two operands are combined.
#[derive(Clone, Copy, Debug)]
pub enum Pairwise {
    /// By a kernel.
    Kernel(Kernel),
    /// By the mean of operands that stand for so many contributions.
    Mean(Mean, [u32; 2]),
}

impl Pairwise {
    /// `into[i] = left[i] op right[i]` for `count` elements.
    ///
    /// # Safety
    /// That of [`Kernel`].
    #[inline(always)]
    pub unsafe fn run(&self, into: *mut u8, left: *const u8, right: *const u8, count: usize) {
        // SAFETY: the caller fulfils the contract of both.
        unsafe {
            match *self {
                Self::Kernel(kernel) => kernel(into, left, right, count),
                Self::Mean(mean, contributions) => mean(into, left, right, count, contributions),
            }
        }
    }
}

/// Elements of a result that are kept in the first-level cache between one input and the next.
const CHUNK_ELEMENTS: usize = 512;

#[repr(align(64))]
struct Chunk(MaybeUninit<[u16; CHUNK_ELEMENTS]>);

/// The mean of two or more inputs, `count` elements of 16 bits each, from left to right, rounded after each;
/// `contributions` has one number for each input.
///
/// # Safety
/// That of [`Kernel`] for each input.
pub unsafe fn mean_n(mean: Mean, into: *mut u8, inputs: &[*const u8], contributions: &[u32], count: usize) {
    let mut chunk = Chunk(MaybeUninit::uninit());
    let chunk = chunk.0.as_mut_ptr().cast::<u8>();
    let step = if inputs.len() > 2 { CHUNK_ELEMENTS } else { count.max(1) };
    for at in (0..count).step_by(step) {
        let len = step.min(count - at);
        let (mut left, mut sum) = (null(), 0);
        for (index, (input, &number)) in inputs.iter().zip(contributions).enumerate() {
            // SAFETY: the caller guarantees `count` elements at each pointer, and `at + len <= count`. With more than
            // two inputs the chunk has room for `len` elements, and is filled by the first two. `into` is written after
            // all inputs have been read.
            unsafe {
                let input = input.add(2 * at);
                if index == 0 {
                    left = input;
                } else {
                    let result = if index + 1 == inputs.len() { into.add(2 * at) } else { chunk };
                    mean(result, left, input, len, [sum, number]);
                    left = result.cast_const();
                }
            }
            sum += number;
        }
    }
}
