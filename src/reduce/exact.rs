//! Exact sums: the sum of any number of floats, rounded once. So the result depends on neither their order nor their
//! grouping, and not on the CPU.
//!
//! A few elements at a time are added in float64. Knuth's TwoSum gives the rounding error of each addition; the errors
//! are added in the same way. If none of *their* sums was rounded, sum and errors together are exact, and are rounded
//! to the result. This fails only where the contributions to one element span more than about 100 bits, overflow, or
//! are not finite: such an element is added in integers ([`accumulator`](super::accumulator)).
//!
//! The loops are free of branches but one for each few elements, so that they are vectorised.

use super::accumulator::Accumulator;

/// `into[i]` = the sum of `inputs[..][i]`, rounded to nearest, ties to even, for `count` elements; there is at least
/// one input.
///
/// NaN, and the sum of infinities of both signs, is the single NaN of all sums. The sum of zeros is -0 if all are -0,
/// and every other sum that is zero is +0. Subnormal numbers are numbers like others. A sum is infinite if a
/// contribution is, or if it rounds to more than the largest number; partial sums do not overflow.
///
/// # Safety
/// Each input is valid for reads and `into` for writes of `count` elements, of any alignment. `into` may equal inputs,
/// but must not overlap any of them partially. No other thread accesses the elements in a conflicting way during the
/// call.
pub type Exact = unsafe fn(into: *mut u8, inputs: &[*const u8], count: usize);

/// Elements that are added at a time.
const LANES: usize = 8;

/// A type whose values are added in float64.
pub(super) trait Summand: Copy {
    /// The value, which float64 has, too.
    fn widen(self) -> f64;

    /// The single NaN of all sums.
    const NAN: Self;

    /// Whether it has fewer bits than float64.
    const IS_NARROW: bool;

    /// The nearest value.
    fn nearest(value: f64) -> Self;

    /// The value nearest to `high + low`. `high` is that sum rounded to float64, and `low` what it lacks.
    fn narrow(high: f64, low: f64) -> Self;

    /// The sum in an accumulator, rounded once.
    fn round(sum: Accumulator) -> Self;
}

impl Summand for f64 {
    const NAN: Self = Self::from_bits(0x7FF8_0000_0000_0000);
    const IS_NARROW: bool = false;

    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }

    #[inline(always)]
    fn nearest(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn narrow(high: f64, _: f64) -> Self {
        high
    }

    fn round(sum: Accumulator) -> Self {
        sum.into_f64()
    }
}

impl Summand for f32 {
    const NAN: Self = Self::from_bits(0x7FC0_0000);
    const IS_NARROW: bool = true;

    #[inline(always)]
    fn widen(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn nearest(value: f64) -> Self {
        value as Self
    }

    /// Rounds to float64 first, but to odd, so that the second rounding is right (Boldo and Melquiond, "Emulation of a
    /// FMA and correctly rounded sums", 2008).
    #[inline(always)]
    fn narrow(high: f64, low: f64) -> Self {
        let bits = high.to_bits();
        let is_away = (low < 0.0) != (high < 0.0);
        let step = if is_away { u64::MAX } else { 1 };
        let is_even = bits & 1 == 0;
        f64::from_bits(if (low != 0.0) & is_even { bits.wrapping_add(step) } else { bits }) as f32
    }

    fn round(sum: Accumulator) -> Self {
        sum.into_f32()
    }
}

/// `a + b`, rounded, and the error of that, which is exact unless something overflows; then it is NaN or infinite.
#[inline(always)]
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let other = sum - a;
    (sum, (a - (sum - other)) + (b - other))
}

/// An [`Exact`] on elements that consist of `PARTS` values of type `T`.
///
/// # Safety
/// That of [`Exact`].
#[inline(always)]
pub(super) unsafe fn add<T: Summand, const PARTS: usize>(into: *mut u8, inputs: &[*const u8], count: usize) {
    let count = count * PARTS;
    let whole = count - count % LANES;
    // SAFETY: the caller guarantees `count` values at each pointer.
    unsafe {
        for at in (0..whole).step_by(LANES) {
            add_lanes::<T, LANES>(into.cast::<T>(), inputs, at);
        }
        for at in whole..count {
            add_lanes::<T, 1>(into.cast::<T>(), inputs, at);
        }
    }
}

/// # Safety
/// That of [`Exact`], for `N` values from `at` on.
#[inline(always)]
unsafe fn add_lanes<T: Summand, const N: usize>(into: *mut T, inputs: &[*const u8], at: usize) {
    // SAFETY: the caller guarantees these values.
    let value = |input: &*const u8, lane: usize| unsafe { input.cast::<T>().add(at + lane).read_unaligned() };
    let (mut sums, mut errors, mut lost) = ([0.0; N], [0.0; N], [0; N]);
    let (first, rest) = inputs.split_at(1);
    sums.iter_mut().enumerate().for_each(|(lane, sum)| *sum = value(&first[0], lane).widen());
    for input in rest {
        for lane in 0..N {
            let (sum, error) = two_sum(sums[lane], value(input, lane).widen());
            let (errors_sum, error) = two_sum(errors[lane], error);
            (sums[lane], errors[lane]) = (sum, errors_sum);
            // The bits but the sign: 0 if nothing was lost.
            lost[lane] |= error.to_bits() << 1;
        }
    }
    let (mut rounded, mut rest, mut failed) = (0, [0.0; N], 0);
    for lane in 0..N {
        let (high, low) = two_sum(sums[lane], errors[lane]);
        // Adding an error of +0 would make +0 of -0.
        sums[lane] = if errors[lane] == 0.0 { sums[lane] } else { high };
        rest[lane] = low;
        lost[lane] |= u64::from(!high.is_finite());
        rounded |= if T::IS_NARROW { low.to_bits() << 1 } else { 0 };
        failed |= lost[lane];
    }
    let mut results = sums.map(T::nearest);
    if rounded != 0 {
        for lane in 0..N {
            results[lane] = T::narrow(sums[lane], rest[lane]);
        }
    }
    if failed != 0 {
        for lane in (0..N).filter(|lane| lost[*lane] != 0) {
            results[lane] = add_in_integers(inputs.iter().map(|input| value(input, lane)));
        }
    }
    for (lane, result) in results.into_iter().enumerate() {
        // SAFETY: as above. All inputs of these values have been read.
        unsafe { into.add(at + lane).write_unaligned(result) };
    }
}

/// The sum of one element's contributions, whatever they are.
#[cold]
#[inline(never)]
fn add_in_integers<T: Summand>(values: impl Iterator<Item = T> + Clone) -> T {
    let values = values.map(T::widen);
    match values.clone().filter(|value| !value.is_finite()).reduce(|sum, value| sum + value) {
        Some(sum) if sum.is_nan() => return T::NAN,
        Some(infinity) => return T::nearest(infinity),
        None => {}
    }
    let mut sum = Accumulator::default();
    values.for_each(|value| sum.add(value));
    T::round(sum)
}
