//! Loops over 16-bit floats, for the vector instructions of an architecture that implement [`Half`].

use std::marker::PhantomData;
use std::ptr::copy_nonoverlapping;

use super::fused::Loop;
use super::mean::shares;

/// Vectors of a 16-bit float type, converted to `f32`. Its functions require the CPU features of the module that
/// implements it.
pub(super) trait Half {
    /// `STEP_ELEMENTS` elements as `f32`, in an order that depends on the type.
    type Floats: Copy;

    /// Loads and converts the elements at `from`.
    ///
    /// # Safety
    /// `from` is valid for unaligned reads of `STEP_ELEMENTS` elements.
    unsafe fn load(from: *const u16) -> Self::Floats;

    /// Rounds to nearest, ties to even, and stores, past the caches if `STREAM`. A NaN must be the one of
    /// [`Half::one_nan`].
    ///
    /// # Safety
    /// `into` is valid for unaligned writes of `STEP_ELEMENTS` elements; for stores past the caches it is aligned to
    /// them.
    unsafe fn store<const STREAM: bool>(into: *mut u16, values: Self::Floats);

    /// What `load` returns after `store`, but for the bits of a NaN.
    ///
    /// # Safety
    /// Any NaN is the result of an operation on values that were loaded.
    unsafe fn round(values: Self::Floats) -> Self::Floats;

    /// Replaces all NaNs by a single one. NaNs are rare, so one test of all values is cheaper than unconditional
    /// replacement.
    ///
    /// # Safety
    /// The CPU has the features.
    unsafe fn one_nan<const N: usize>(values: &mut [Self::Floats; N]);

    /// # Safety
    /// The CPU has the features.
    unsafe fn add(left: Self::Floats, right: Self::Floats) -> Self::Floats;

    /// # Safety
    /// The CPU has the features.
    unsafe fn multiply(left: Self::Floats, right: Self::Floats) -> Self::Floats;

    /// # Safety
    /// The CPU has the features.
    unsafe fn divide(values: Self::Floats, divisor: f32) -> Self::Floats;

    /// `values`, each multiplied by `factor`.
    ///
    /// # Safety
    /// The CPU has the features.
    unsafe fn scale(values: Self::Floats, factor: f32) -> Self::Floats;
}

/// An operation on vectors.
pub(super) trait HalfOp {
    /// `left op right`.
    ///
    /// # Safety
    /// The CPU has the features of `H`.
    unsafe fn apply<H: Half>(left: H::Floats, right: H::Floats) -> H::Floats;
}

impl HalfOp for super::element::Add {
    #[inline(always)]
    unsafe fn apply<H: Half>(left: H::Floats, right: H::Floats) -> H::Floats {
        // SAFETY: the contract is the same.
        unsafe { H::add(left, right) }
    }
}

impl HalfOp for super::element::Mul {
    #[inline(always)]
    unsafe fn apply<H: Half>(left: H::Floats, right: H::Floats) -> H::Floats {
        // SAFETY: the contract is the same.
        unsafe { H::multiply(left, right) }
    }
}

/// Number of elements in [`Half::Floats`].
pub(super) const STEP_ELEMENTS: usize = 16;

/// Number of steps that share one test for NaNs, and whose latencies overlap.
const STEPS: usize = 4;

/// Where a loop is in its buffers.
#[derive(Clone, Copy)]
struct Buffers<const N: usize> {
    into: *mut u16,
    inputs: [*const u16; N],
}

impl<const N: usize> Buffers<N> {
    /// # Safety
    /// The result is within the buffers.
    #[inline(always)]
    unsafe fn at(self, index: usize) -> Self {
        // SAFETY: the caller guarantees it.
        unsafe { Self { into: self.into.add(index), inputs: self.inputs.map(|input| input.add(index)) } }
    }
}

/// `into[i] = (inputs[0][i] op inputs[1][i]) op …` for `U * STEP` elements, rounded after each operation.
///
/// # Safety
/// That of [`Loop::run`], with `U * STEP` elements at each pointer.
#[inline(always)]
unsafe fn step<H: Half, O: HalfOp, const N: usize, const U: usize, const STREAM: bool>(buffers: Buffers<N>) {
    let Buffers { into, inputs } = buffers;
    // SAFETY: the caller guarantees `U * STEP` elements at every pointer, and the CPU features. NaNs are those of
    // operations on elements, until there is only one.
    unsafe {
        let mut values = [H::load(inputs[0]); U];
        for (u, value) in values.iter_mut().enumerate().skip(1) {
            *value = H::load(inputs[0].add(u * STEP_ELEMENTS));
        }
        for (k, input) in inputs.iter().enumerate().skip(1) {
            for (u, value) in values.iter_mut().enumerate() {
                let left = if k > 1 { H::round(*value) } else { *value };
                *value = O::apply::<H>(left, H::load(input.add(u * STEP_ELEMENTS)));
            }
        }
        H::one_nan(&mut values);
        for (u, value) in values.into_iter().enumerate() {
            H::store::<STREAM>(into.add(u * STEP_ELEMENTS), value);
        }
    }
}

/// `O` on the elements of `H`.
pub(super) struct Halves<H, O>(PhantomData<(H, O)>);

impl<H: Half, O: HalfOp> Loop for Halves<H, O> {
    #[inline(always)]
    unsafe fn run<const N: usize, const STREAM: bool>(into: *mut u8, inputs: [*const u8; N], count: usize) {
        let buffers = Buffers { into: into.cast(), inputs: inputs.map(|input| input.cast()) };
        let rest = count % STEP_ELEMENTS;
        let whole = count - rest;
        let unrolled = whole - whole % (STEP_ELEMENTS * STEPS);
        // SAFETY: the caller guarantees `count` elements at every pointer, and the CPU features. The loops access
        // `whole <= count` elements, the rest is copied to and from blocks of `STEP_ELEMENTS`. Each iteration reads all
        // inputs before it writes, so equal buffers are correct.
        unsafe {
            for i in (0..unrolled).step_by(STEP_ELEMENTS * STEPS) {
                step::<H, O, N, STEPS, STREAM>(buffers.at(i));
            }
            for i in (unrolled..whole).step_by(STEP_ELEMENTS) {
                step::<H, O, N, 1, STREAM>(buffers.at(i));
            }
            if rest > 0 {
                let last = buffers.at(whole);
                let inputs = last.inputs.map(|input| padded(input, rest));
                let mut result = [0; STEP_ELEMENTS];
                let blocks =
                    Buffers { into: result.as_mut_ptr(), inputs: inputs.each_ref().map(|input| input.as_ptr()) };
                step::<H, O, N, 1, false>(blocks);
                copy_nonoverlapping(result.as_ptr().cast::<u8>(), last.into.cast(), rest * 2);
            }
        }
    }
}

/// `data[i] = data[i] / divisor` for `count` elements.
///
/// # Safety
/// That of [`Divide`](super::Divide). The CPU has the features of `H`.
#[inline(always)]
pub(super) unsafe fn divide_by<H: Half>(data: *mut u8, count: usize, divisor: u64) {
    let data = data.cast::<u16>();
    let divisor = divisor as f32;
    let rest = count % STEP_ELEMENTS;
    let whole = count - rest;
    // SAFETY: the caller guarantees `count` elements at `data`, and the CPU features. The loop accesses `whole <=
    // count` elements, the rest is copied to and from a block of `STEP_ELEMENTS`.
    unsafe {
        let step = |data: *mut u16| {
            let mut values = [H::divide(H::load(data), divisor)];
            H::one_nan(&mut values);
            H::store::<false>(data, values[0]);
        };
        for i in (0..whole).step_by(STEP_ELEMENTS) {
            step(data.add(i));
        }
        if rest > 0 {
            let mut block = padded(data.add(whole), rest);
            step(block.as_mut_ptr());
            copy_nonoverlapping(block.as_ptr().cast::<u8>(), data.add(whole).cast(), rest * 2);
        }
    }
}

/// A [`Mean`](super::Mean).
///
/// # Safety
/// That of a [`Mean`](super::Mean). The CPU has the features of `H`.
#[inline(always)]
pub(super) unsafe fn mean_of<H: Half>(
    into: *mut u8,
    left: *const u8,
    right: *const u8,
    count: usize,
    contributions: [u32; 2],
) {
    let (into, left, right) = (into.cast::<u16>(), left.cast::<u16>(), right.cast::<u16>());
    let [a, b] = shares(contributions);
    let rest = count % STEP_ELEMENTS;
    let whole = count - rest;
    // SAFETY: the caller guarantees `count` elements at every pointer, and the CPU features. The loop accesses `whole
    // <= count` elements, the rest is copied to and from blocks of `STEP_ELEMENTS`. Each step reads both operands
    // before it writes, so equal buffers are correct.
    unsafe {
        let step = |into: *mut u16, left: *const u16, right: *const u16| {
            let mut values = [H::add(H::scale(H::load(left), a), H::scale(H::load(right), b))];
            H::one_nan(&mut values);
            H::store::<false>(into, values[0]);
        };
        for i in (0..whole).step_by(STEP_ELEMENTS) {
            step(into.add(i), left.add(i), right.add(i));
        }
        if rest > 0 {
            let (left, right) = (padded(left.add(whole), rest), padded(right.add(whole), rest));
            let mut result = [0; STEP_ELEMENTS];
            step(result.as_mut_ptr(), left.as_ptr(), right.as_ptr());
            copy_nonoverlapping(result.as_ptr().cast::<u8>(), into.add(whole).cast(), rest * 2);
        }
    }
}

/// An array of `STEP_ELEMENTS` elements: the first `count` are those at `from`, the others are zero.
///
/// # Safety
/// `from` is valid for unaligned reads of `count` elements, at most `STEP_ELEMENTS`.
#[inline(always)]
unsafe fn padded(from: *const u16, count: usize) -> [u16; STEP_ELEMENTS] {
    let mut block = [0; STEP_ELEMENTS];
    // SAFETY: the caller guarantees `count` elements at `from`, and the block has room for `STEP_ELEMENTS` of them. The
    // copy is in bytes, because `from` may be unaligned.
    unsafe { copy_nonoverlapping(from.cast::<u8>(), block.as_mut_ptr().cast(), count * 2) };
    block
}
