//! The sum of float64 numbers as one long integer, without any rounding: the long accumulator of Kulisch and Miranker,
//! "The arithmetic of the digital computer: a new approach", 1986.

/// Bits of a digit.
const DIGIT_BITS: usize = 32;

/// Digits for the mantissas of all exponents, and for the carries out of the largest.
const DIGITS: usize = (MAX_SHIFT + 53) / DIGIT_BITS + 4;

/// The exponent of the largest numbers above that of the smallest, 2^-1074, whose multiples all numbers are.
const MAX_SHIFT: usize = 2045;

const MIN_EXPONENT: i32 = -1074;

const MANTISSA_BITS: u32 = 52;

/// A sum of finite numbers.
pub(super) struct Accumulator {
    /// The digits, least significant first: multiples of 2^-1074. Each has a sign, and so much room that 2^30 numbers
    /// can be added before a carry is needed.
    digits: [i64; DIGITS],
    /// The first digit that may not be 0, and the one after the last, into which that may be carried.
    start: usize,
    end: usize,
    /// Whether all numbers were -0.
    is_negative_zero: bool,
}

impl Default for Accumulator {
    fn default() -> Self {
        Self { digits: [0; DIGITS], start: DIGITS, end: 0, is_negative_zero: true }
    }
}

/// The magnitude of a sum that is not 0, and its sign.
struct Rounded {
    /// The 64 most significant bits, of which the last is also set if any bit after it is.
    bits: u64,
    /// What the last bit stands for: 2 to this power.
    exponent: i32,
    is_negative: bool,
}

impl Accumulator {
    /// Adds a finite number. At most 2^30 are added.
    pub fn add(&mut self, value: f64) {
        let bits = value.to_bits();
        self.is_negative_zero &= bits == (-0.0f64).to_bits();
        let (exponent, fraction) = ((bits >> MANTISSA_BITS) as usize & 0x7FF, bits & ((1 << MANTISSA_BITS) - 1));
        let mantissa = if exponent == 0 { fraction } else { fraction | 1 << MANTISSA_BITS };
        let shift = exponent.max(1) - 1;
        let shifted = u128::from(mantissa) << (shift % DIGIT_BITS);
        let first = shift / DIGIT_BITS;
        (self.start, self.end) = (self.start.min(first), self.end.max(first + 3));
        for (index, digit) in self.digits[first..][..3].iter_mut().enumerate() {
            let part = i64::from((shifted >> (index * DIGIT_BITS)) as u32);
            *digit += if value.is_sign_negative() { -part } else { part };
        }
    }

    /// The sum, rounded to nearest, ties to even.
    pub fn into_f64(mut self) -> f64 {
        self.rounded(|Rounded { bits, exponent, .. }| {
            // Below the smallest normal number nothing is rounded: the sum is a multiple of the smallest number of all.
            let half = exponent / 2;
            bits as f64 * power_of_two(half) * power_of_two(exponent - half)
        })
    }

    /// The sum of numbers that float32 has, rounded once.
    pub fn into_f32(mut self) -> f32 {
        // The product is exact: it is a float32, or more than the largest.
        self.rounded(|Rounded { bits, exponent, .. }| f64::from(bits as f32) * power_of_two(exponent)) as f32
    }

    fn rounded(&mut self, round: impl Fn(Rounded) -> f64) -> f64 {
        match self.magnitude() {
            None if self.is_negative_zero => -0.0,
            None => 0.0,
            Some(sum) if sum.is_negative => -round(sum),
            Some(sum) => round(sum),
        }
    }

    /// The magnitude of the sum, unless that is 0.
    fn magnitude(&mut self) -> Option<Rounded> {
        let digits = self.digits.get_mut(self.start..self.end + 1)?;
        // What is left after all carries is the sign.
        let is_negative = carry(digits) < 0;
        if is_negative {
            digits.iter_mut().for_each(|digit| *digit = -*digit);
            carry(digits);
        }
        let first = digits.iter().rposition(|digit| *digit != 0)?;
        let digit = |below: usize| first.checked_sub(below).map_or(0, |index| digits[index] as u128);
        // From its first digit on, which is not 0, the sum has at least 65 bits here.
        let top = digit(0) << 64 | digit(1) << 32 | digit(2);
        let dropped = u128::BITS - top.leading_zeros() - u64::BITS;
        let rest = top & ((1 << dropped) - 1) != 0 || digits[..first.saturating_sub(2)].iter().any(|digit| *digit != 0);
        let exponent = MIN_EXPONENT + ((self.start + first) as i32 - 2) * DIGIT_BITS as i32 + dropped as i32;
        Some(Rounded { bits: (top >> dropped) as u64 | u64::from(rest), exponent, is_negative })
    }
}

/// Makes each digit one of 0 to 2^32 - 1. Returns what is carried out of the last one: 0 or -1.
fn carry(digits: &mut [i64]) -> i64 {
    let mut carried = 0;
    for digit in digits {
        let sum = *digit + carried;
        *digit = sum & ((1 << DIGIT_BITS) - 1);
        carried = sum >> DIGIT_BITS;
    }
    carried
}

/// 2 to the power `exponent`, which is one of a normal number.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << MANTISSA_BITS)
}
