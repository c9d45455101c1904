//! Exact sums, compared with sums in integers that are as long as they must be, in all orders and with all levels.

use super::super::exact;
use super::super::exact::Exact;
use super::*;

/// A number as a multiple of 2^-1074, in 34 words of two's complement, the least significant first.
#[derive(Clone, Debug, PartialEq)]
struct Integer([u64; 34]);

impl Integer {
    fn add(&mut self, other: &Self) {
        let mut carried = false;
        for (word, other) in self.0.iter_mut().zip(other.0) {
            let (sum, first) = word.overflowing_add(other);
            let (sum, second) = sum.overflowing_add(u64::from(carried));
            (*word, carried) = (sum, first | second);
        }
    }

    fn is_negative(&self) -> bool {
        self.0[33] >> 63 != 0
    }

    fn negated(&self) -> Self {
        let mut negated = Self([0; 34]);
        negated.0[0] = 1;
        negated.add(&Self(self.0.map(|word| !word)));
        negated
    }

    fn of(value: f64) -> Self {
        let (exponent, fraction) = (value.to_bits() >> 52 & 0x7FF, value.to_bits() & ((1 << 52) - 1));
        let (mantissa, shift) = if exponent == 0 { (fraction, 0) } else { (fraction | 1 << 52, exponent as usize - 1) };
        let mut words = [0; 34];
        let shifted = u128::from(mantissa) << (shift % 64);
        (words[shift / 64], words[shift / 64 + 1]) = (shifted as u64, (shifted >> 64) as u64);
        if value < 0.0 { Self(words).negated() } else { Self(words) }
    }

    fn is_bit_set(&self, bit: usize) -> bool {
        self.0[bit / 64] >> (bit % 64) & 1 != 0
    }

    /// The nearest number with a mantissa of so many bits, which is a multiple of 2^-`min`; of two, the even one. It is
    /// built bit by bit.
    fn round(&self, (mantissa, min): (usize, usize)) -> f64 {
        let magnitude = if self.is_negative() { self.negated() } else { self.clone() };
        let Some(top) = (0..34 * 64).rfind(|bit| magnitude.is_bit_set(*bit)) else { return 0.0 };
        // The lowest bit that is kept, above the lowest of float64's subnormal numbers.
        let lowest = (top + 1).saturating_sub(mantissa).max(1074 - min);
        let kept = (lowest..=top).rev().fold(0u64, |kept, bit| kept << 1 | u64::from(magnitude.is_bit_set(bit)));
        let half = lowest > 0 && magnitude.is_bit_set(lowest - 1);
        let more = (0..lowest.saturating_sub(1)).any(|bit| magnitude.is_bit_set(bit));
        let rounded = kept + u64::from(half && (more || kept & 1 != 0));
        // By repeated doubling, which is exact, or infinite.
        let value = (0..lowest).fold(rounded as f64 * f64::from_bits(1), |value, _| value * 2.0);
        if self.is_negative() { -value } else { value }
    }
}

/// The sum of numbers that float64 has; `format` is that of [`Integer::round`].
fn sum_of(values: &[f64], format: (usize, usize)) -> f64 {
    let is = |special: f64| values.contains(&special);
    if values.iter().any(|value| value.is_nan()) || is(f64::INFINITY) && is(f64::NEG_INFINITY) {
        return f64::NAN;
    }
    if let Some(infinity) = values.iter().find(|value| value.is_infinite()) {
        return *infinity;
    }
    if values.iter().all(|value| value.to_bits() == (-0.0f64).to_bits()) {
        return -0.0;
    }
    let mut sum = Integer([0; 34]);
    values.iter().for_each(|value| sum.add(&Integer::of(*value)));
    sum.round(format)
}

const FLOAT32: (usize, usize) = (24, 149);
const FLOAT64: (usize, usize) = (53, 1074);

trait Float: Copy + PartialEq + std::fmt::Debug {
    const DTYPES: [DataType; 2];
    fn random(random: &mut Random) -> Self;
    fn sum(values: &[Self]) -> Self;
    fn bits(self) -> u64;
}

impl Float for f32 {
    const DTYPES: [DataType; 2] = [Float32, Complex64];

    fn random(random: &mut Random) -> Self {
        let bits = random.next() as u32;
        match random.below(16) {
            0 => [0.0, -0.0, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN][random.below(7)],
            // Subnormal numbers, and all exponents.
            1 => f32::from_bits(bits & 0x800F_FFFF),
            2 => f32::from_bits(bits),
            // Some exponents, and few bits: sums that are zero, and ties.
            3..8 => f32::from_bits(bits & 0x83E0_0000 | 0x3C00_0000),
            _ => f32::from_bits(bits & 0x83FF_FFFF | 0x3C00_0000),
        }
    }

    fn sum(values: &[Self]) -> Self {
        let sum = sum_of(&values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), FLOAT32);
        if sum.is_nan() { f32::from_bits(0x7FC0_0000) } else { sum as f32 }
    }

    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Float for f64 {
    const DTYPES: [DataType; 2] = [Float64, Complex128];

    fn random(random: &mut Random) -> Self {
        let bits = random.next();
        match random.below(16) {
            0 => [0.0, -0.0, f64::MAX, f64::MIN, f64::INFINITY, f64::NEG_INFINITY, f64::NAN][random.below(7)],
            1 => f64::from_bits(bits & 0x800F_FFFF_FFFF_FFFF),
            2 => f64::from_bits(bits),
            3..8 => f64::from_bits(bits & 0x807C_0000_0000_0000 | 0x3F80_0000_0000_0000),
            _ => f64::from_bits(bits & 0x807F_FFFF_FFFF_FFFF | 0x3F80_0000_0000_0000),
        }
    }

    fn sum(values: &[Self]) -> Self {
        let sum = sum_of(values, FLOAT64);
        if sum.is_nan() { f64::from_bits(0x7FF8_0000_0000_0000) } else { sum }
    }

    fn bits(self) -> u64 {
        self.to_bits()
    }
}

/// The sums of `inputs` by `kernel`, written over the input `alias`, or elsewhere.
fn add<T: Float>(kernel: Exact, inputs: &[Vec<T>], parts: usize, alias: Option<usize>) -> Vec<T> {
    let mut inputs = inputs.to_vec();
    let mut result = inputs[0].clone();
    let count = result.len() / parts;
    let pointers: Vec<_> = inputs.iter_mut().map(|input| input.as_mut_ptr().cast::<u8>()).collect();
    let into = alias.map_or(result.as_mut_ptr().cast(), |alias| pointers[alias]);
    let operands: Vec<_> = pointers.iter().map(|pointer| pointer.cast_const()).collect();
    // SAFETY: all have as many elements; `levels` returns only levels that this CPU supports.
    unsafe { kernel(into, &operands, count) };
    alias.map_or(result, |alias| inputs.swap_remove(alias))
}

/// Contributions to `count` elements, and their sums in any order, for each level.
fn check<T: Float>(random: &mut Random, number: usize, count: usize) {
    let mut inputs: Vec<Vec<T>> = (0..number).map(|_| (0..count).map(|_| T::random(random)).collect()).collect();
    let at = |inputs: &[Vec<T>], i: usize| inputs.iter().map(|input| input[i]).collect::<Vec<T>>();
    let expected: Vec<T> = (0..count).map(|i| T::sum(&at(&inputs, i))).collect();
    for level in levels() {
        for (parts, dtype) in [1, 2].into_iter().zip(T::DTYPES) {
            // Another order.
            let (from, to) = (random.below(number), random.below(number));
            inputs.swap(from, to);
            let alias = Some(random.below(2 * number)).filter(|alias| *alias < number);
            let sums = add((level.exact)(dtype).unwrap(), &inputs, parts, alias);
            for i in 0..count {
                let (is, must) = (sums[i].bits(), expected[i].bits());
                assert_eq!(is, must, "{} {dtype}: {:?} of {:?}", level.name, sums[i], at(&inputs, i));
            }
        }
    }
}

#[test]
fn a_sum_is_exact_and_rounded_once() {
    let mut random = Random(39);
    for round in 0..if cfg!(miri) { 2 } else { Tier::from_environment().of(20, 2_000, 20_000) } {
        let number = 1 + random.below(if round % 8 == 7 { 70 } else { 9 });
        let count = 2 * random.below(20);
        check::<f32>(&mut random, number, count);
        check::<f64>(&mut random, number, count);
    }
}

/// What takes integers, and what is known without a reference.
#[test]
fn sums_that_cancel_overflow_or_are_zero() {
    let tiny = f64::from_bits(1);
    let cases: [(&[f64], f64); 13] = [
        (&[1e300, 1.0, -1e300], 1.0),
        (&[1e300, tiny, -1e300, -1.0], -1.0),
        (&[f64::MAX, f64::MAX, -f64::MAX], f64::MAX),
        (&[f64::MAX, f64::MAX, f64::MIN_POSITIVE], f64::INFINITY),
        (&[1.0, f64::EPSILON / 2.0, tiny], 1.0 + f64::EPSILON),
        (&[1.0, f64::EPSILON / 2.0, -tiny], 1.0),
        (&[1.0, f64::EPSILON / 2.0, 0.0], 1.0),
        (&[-0.0, -0.0, -0.0], -0.0),
        (&[-0.0, 0.0, -0.0], 0.0),
        (&[1e300, 1e-300, -1e300, -1e-300], 0.0),
        (&[tiny, tiny, tiny], f64::from_bits(3)),
        (&[f64::INFINITY, 1.0, f64::MIN], f64::INFINITY),
        (&[f64::MIN, f64::MIN, f64::INFINITY], f64::INFINITY),
    ];
    for (values, sum) in cases {
        let inputs: Vec<Vec<f64>> = values.iter().map(|value| vec![*value; 9]).collect();
        for level in levels() {
            let sums = add((level.exact)(Float64).unwrap(), &inputs, 1, None);
            assert_eq!(sums[0].to_bits(), sum.to_bits(), "{} {values:?}: {}", level.name, sums[0]);
            assert!(sums.iter().all(|other| other.to_bits() == sum.to_bits()));
        }
        assert_eq!(f64::sum(values).to_bits(), sum.to_bits(), "the reference of {values:?}");
    }
    // A float64 would be half-way between two float32, and be rounded to the even one.
    let near_tie = [1.0f32, f32::EPSILON / 2.0, 1e-30];
    let inputs: Vec<Vec<f32>> = near_tie.iter().map(|value| vec![*value; 9]).collect();
    assert_eq!(add((levels().next().unwrap().exact)(Float32).unwrap(), &inputs, 1, None)[0], 1.0 + f32::EPSILON);
}

#[test]
fn exact_sums_exist_for_floats_of_32_and_64_bits() {
    for &dtype in DataType::ALL {
        let is_exact = matches!(dtype, Float32 | Float64 | Complex64 | Complex128);
        assert_eq!(exact(dtype).is_some(), is_exact, "{dtype}");
    }
}
