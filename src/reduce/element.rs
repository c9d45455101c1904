//! The operations on a pair of elements.
//!
//! All functions are `inline(always)`, so that they are compiled for the CPU features of the kernel that uses them, and
//! free of branches, so that the kernel's loop is vectorised.

use super::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// An operation on elements of type `T`.
pub(super) trait Op<T> {
    /// `left op right`.
    fn apply(left: T, right: T) -> T;

    /// `left op right` as an operand of a further `apply`, which makes the single NaN of any NaN.
    #[inline(always)]
    fn partial(left: T, right: T) -> T {
        Self::apply(left, right)
    }
}

/// An element type with averages.
pub(super) trait Quotient: Copy {
    /// The divisor, converted for the division.
    type Divisor: Copy;

    /// Converts a divisor, which must not be zero.
    fn divisor(divisor: u64) -> Self::Divisor;

    /// `self / divisor`.
    fn divide(self, divisor: Self::Divisor) -> Self;
}

pub(super) struct Add;
pub(super) struct Mul;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct And;
pub(super) struct Or;
pub(super) struct Xor;

/// A binary16, represented by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F16(pub u16);

/// A bfloat16, represented by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16(pub u16);

/// A byte; zero means false.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bool(u8);

/// A complex number.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Complex<T> {
    real: T,
    imaginary: T,
}

/// Implements an operation for a type.
macro_rules! op {
    ($op:ident, $type:ty, |$left:ident, $right:ident| $result:expr) => {
        impl Op<$type> for $op {
            #[inline(always)]
            fn apply($left: $type, $right: $type) -> $type {
                $result
            }
        }
    };
}

/// Implements the division for a type.
macro_rules! quotient {
    ($type:ty, $divisor:ty, |$value:ident, $by:ident| $result:expr) => {
        impl Quotient for $type {
            type Divisor = $divisor;

            #[inline(always)]
            fn divisor(divisor: u64) -> $divisor {
                divisor as $divisor
            }

            #[inline(always)]
            fn divide(self, $by: $divisor) -> $type {
                let $value = self;
                $result
            }
        }
    };
}

macro_rules! integers {
    ($($type:ident)*) => {$(
        op!(Add, $type, |a, b| a.wrapping_add(b));
        op!(Mul, $type, |a, b| a.wrapping_mul(b));
        op!(Min, $type, |a, b| a.min(b));
        op!(Max, $type, |a, b| a.max(b));
        op!(And, $type, |a, b| a & b);
        op!(Or, $type, |a, b| a | b);
        op!(Xor, $type, |a, b| a ^ b);
    )*};
}
integers! { i8 u8 i16 u16 i32 u32 i64 u64 }

op!(And, Bool, |a, b| Bool(u8::from((a.0 != 0) & (b.0 != 0))));
op!(Or, Bool, |a, b| Bool(u8::from((a.0 != 0) | (b.0 != 0))));
op!(Xor, Bool, |a, b| Bool(u8::from((a.0 != 0) ^ (b.0 != 0))));

/// Integers are divided as floats, for which vector instructions exist. The float type has enough bits for the
/// truncated quotient to be exact: the distance of a non-integer quotient from the next integer is larger than the
/// rounding error.
macro_rules! quotients_by_float {
    ($($type:ident $float:ident $truncated:ident)*) => {$(
        quotient!($type, $float, |a, by| {
            // SAFETY: the divisor is at least 1, so the quotient is finite and its magnitude is at most that of the
            // element, which fits the target type.
            let quotient = unsafe { ($float::from(a) / by).to_int_unchecked::<$truncated>() };
            quotient as $type
        });
    )*};
}
quotients_by_float! { i8 f32 i32 u8 f32 i32 i16 f32 i32 u16 f32 i32 i32 f64 i32 u32 f64 u32 }

quotient!(u64, u64, |a, by| a / by);
quotient!(i64, u64, |a, by| {
    // Divides magnitudes, because the divisor may exceed the range of the signed type.
    let quotient = (a.unsigned_abs() / by) as i64;
    if a < 0 { quotient.wrapping_neg() } else { quotient }
});

/// Minimum and maximum of floats by comparing their bits as integers, independent of the CPU's rules for NaN and of its
/// flush-to-zero mode. The order of the keys is that of the numbers, -0 below +0, with all NaNs at the end that wins.
macro_rules! extrema {
    ($($type:ident $int:ident $infinity:literal |$value:ident| $bits:expr;)*) => {$(
        op!(Min, $type, |left, right| {
            const NANS: $int = $int::MAX - $infinity;
            let key = |$value: $type| extrema!(@order $int $bits).wrapping_add(NANS);
            let left_is_number = key(left) >= $int::MIN + 2 * NANS;
            if left_is_number & (key(right) < key(left)) { right } else { left }
        });
        op!(Max, $type, |left, right| {
            const NANS: $int = $int::MAX - $infinity;
            let key = |$value: $type| extrema!(@order $int $bits).wrapping_sub(NANS);
            let left_is_number = key(left) <= $int::MAX - 2 * NANS;
            if left_is_number & (key(right) > key(left)) { right } else { left }
        });
    )*};
    // Converts sign and magnitude to two's complement. NaNs are then at both ends; the caller's wrapping addition joins
    // them.
    (@order $int:ident $bits:expr) => {{
        let bits = $bits as $int;
        bits ^ ((bits >> ($int::BITS - 1)) & $int::MAX)
    }};
}
extrema! {
    F16 i16 0x7C00 |value| value.0;
    Bf16 i16 0x7F80 |value| value.0;
    f32 i32 0x7F80_0000 |value| value.to_bits();
    f64 i64 0x7FF0_0000_0000_0000 |value| value.to_bits();
}

macro_rules! floats {
    ($($type:ident $one_nan:ident $nan:literal)*) => {$(
        /// Replaces any NaN by a single one: otherwise the CPU and the order of operands chosen by the compiler would
        /// determine which of two NaNs an addition returns.
        #[inline(always)]
        fn $one_nan(value: $type) -> $type {
            if value.is_nan() { $type::from_bits($nan) } else { value }
        }

        impl Op<$type> for Add {
            #[inline(always)]
            fn apply(left: $type, right: $type) -> $type {
                $one_nan(left + right)
            }

            #[inline(always)]
            fn partial(left: $type, right: $type) -> $type {
                left + right
            }
        }

        op!(Mul, $type, |a, b| $one_nan(a * b));
        quotient!($type, $type, |a, by| $one_nan(a / by));

        op!(Mul, Complex<$type>, |a, b| Complex {
            real: $one_nan(a.real * b.real - a.imaginary * b.imaginary),
            imaginary: $one_nan(a.real * b.imaginary + a.imaginary * b.real),
        });
    )*};
}
floats! { f32 one_nan_f32 0x7FC0_0000 f64 one_nan_f64 0x7FF8_0000_0000_0000 }

/// Arithmetic on 16-bit floats is done in `f32`, then rounded.
macro_rules! halves {
    ($($type:ident $widen:ident $narrow:ident)*) => {$(
        op!(Add, $type, |a, b| $type($narrow($widen(a.0) + $widen(b.0))));
        op!(Mul, $type, |a, b| $type($narrow($widen(a.0) * $widen(b.0))));
        quotient!($type, f32, |a, by| $type($narrow($widen(a.0) / by)));
    )*};
}
halves! { F16 f16_to_f32 f32_to_f16 Bf16 bf16_to_f32 f32_to_bf16 }

impl F16 {
    /// `self * shares[0] + right * shares[1]`.
    #[inline(always)]
    pub(super) fn weigh(self, right: Self, shares: [f32; 2]) -> Self {
        Self(f32_to_f16(f16_to_f32(self.0) * shares[0] + f16_to_f32(right.0) * shares[1]))
    }
}
