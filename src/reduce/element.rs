//! What each operation does to one pair of elements.
//!
//! Everything here is `inline(always)`, so that it is compiled for the CPU features of the kernel it ends up in, and free
//! of branches, so that the kernel's loop is vectorised.

use super::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// An operation on elements of type `T`.
pub(super) trait Op<T> {
    /// `left op right`.
    fn apply(left: T, right: T) -> T;
}

/// An element that averages can be taken of.
pub(super) trait Quotient: Copy {
    /// The divisor in the form that the division wants.
    type Divisor: Copy;

    /// Prepares a divisor, which is not zero.
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

/// A binary16, by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F16(pub u16);

/// A bfloat16, by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16(pub u16);

/// A byte that is false if zero.
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

/// Implements an operation.
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

/// Implements a division.
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

/// Integers are divided as floats, for which there are vector instructions. The floats have so many bits that the
/// truncated quotient is exact: one that is not an integer is further from the next than rounding can move it.
macro_rules! quotients_by_float {
    ($($type:ident $float:ident $truncated:ident)*) => {$(
        quotient!($type, $float, |a, by| {
            // SAFETY: the divisor is at least 1, so the quotient is finite and no larger than the element.
            let quotient = unsafe { ($float::from(a) / by).to_int_unchecked::<$truncated>() };
            quotient as $type
        });
    )*};
}
quotients_by_float! { i8 f32 i32 u8 f32 i32 i16 f32 i32 u16 f32 i32 i32 f64 i32 u32 f64 u32 }

quotient!(u64, u64, |a, by| a / by);
quotient!(i64, u64, |a, by| {
    // By magnitude, since the divisor may be too large for the signed type.
    let quotient = (a.unsigned_abs() / by) as i64;
    if a < 0 { quotient.wrapping_neg() } else { quotient }
});

/// Minimum and maximum of floats by their bits, so that neither the CPU's rules for NaN nor its flush-to-zero mode have a
/// say. A key orders as the number does, -0 below +0, with all NaNs at the end that wins.
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
    // From sign and magnitude to two's complement. NaNs come to lie at both ends; by wrapping, the caller joins them.
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
        /// One NaN for all: which of two an addition returns depends on the CPU, and on the order in which the compiler
        /// puts the operands.
        #[inline(always)]
        fn $one_nan(value: $type) -> $type {
            if value.is_nan() { $type::from_bits($nan) } else { value }
        }

        op!(Add, $type, |a, b| $one_nan(a + b));
        op!(Mul, $type, |a, b| $one_nan(a * b));
        quotient!($type, $type, |a, by| $one_nan(a / by));

        op!(Mul, Complex<$type>, |a, b| Complex {
            real: $one_nan(a.real * b.real - a.imaginary * b.imaginary),
            imaginary: $one_nan(a.real * b.imaginary + a.imaginary * b.real),
        });
    )*};
}
floats! { f32 one_nan_f32 0x7FC0_0000 f64 one_nan_f64 0x7FF8_0000_0000_0000 }

/// Arithmetic on 16-bit floats is that on `f32`, rounded.
macro_rules! halves {
    ($($type:ident $widen:ident $narrow:ident)*) => {$(
        op!(Add, $type, |a, b| $type($narrow($widen(a.0) + $widen(b.0))));
        op!(Mul, $type, |a, b| $type($narrow($widen(a.0) * $widen(b.0))));
        quotient!($type, f32, |a, by| $type($narrow($widen(a.0) / by)));
    )*};
}
halves! { F16 f16_to_f32 f32_to_f16 Bf16 bf16_to_f32 f32_to_bf16 }
