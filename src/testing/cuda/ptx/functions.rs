//! What each instruction computes.

use half::f16;

use super::Function;

/// A type of operands and results.
trait Value {
    /// The value in the lowest bits; the others may be anything.
    fn of(bits: u64) -> Self;

    /// The value in the lowest bits; the others are 0.
    fn bits(self) -> u64;
}

macro_rules! integers {
    ($($type:ident $unsigned:ident)*) => {$(
        impl Value for $type {
            fn of(bits: u64) -> Self {
                bits as Self
            }

            fn bits(self) -> u64 {
                u64::from(self as $unsigned)
            }
        }
    )*};
}
integers! { i8 u8 i16 u16 u16 u16 i32 u32 u32 u32 i64 u64 u64 u64 }

impl Value for bool {
    fn of(bits: u64) -> Self {
        bits != 0
    }

    fn bits(self) -> u64 {
        u64::from(self)
    }
}

/// The only NaN that operations on float32 return.
const NAN_F32: u32 = 0x7FFF_FFFF;
/// The only NaN that operations on float16 return.
const NAN_F16: u16 = 0x7FFF;
/// What an operation on float64 returns if no operand is NaN.
const NAN_F64: u64 = 0xFFF8_0000_0000_0000;
const QUIET_F64: u64 = 1 << 51;

impl Value for f32 {
    fn of(bits: u64) -> Self {
        Self::from_bits(bits as u32)
    }

    fn bits(self) -> u64 {
        u64::from(if self.is_nan() { NAN_F32 } else { self.to_bits() })
    }
}

impl Value for f16 {
    fn of(bits: u64) -> Self {
        Self::from_bits(bits as u16)
    }

    fn bits(self) -> u64 {
        u64::from(if self.is_nan() { NAN_F16 } else { self.to_bits() })
    }
}

impl Value for f64 {
    fn of(bits: u64) -> Self {
        Self::from_bits(bits)
    }

    fn bits(self) -> u64 {
        self.to_bits()
    }
}

/// The result of an operation on float64. An operand that is NaN keeps its payload; NVIDIA does not say which one's, if
/// both are.
fn float64(operands: [f64; 2], result: f64) -> f64 {
    let nan = operands.into_iter().find(|operand| operand.is_nan());
    match nan {
        Some(nan) => f64::from_bits(nan.to_bits() | QUIET_F64),
        None if result.is_nan() => f64::from_bits(NAN_F64),
        None => result,
    }
}

/// What a division by zero returns, on which no result may depend.
const OF_DIVISION_BY_ZERO: u64 = 0xDEAD_BEEF_DEAD_BEEF;

macro_rules! one {
    (|$a:ident: $A:ty| $result:expr) => {
        Function::One(|a| {
            let $a = <$A>::of(a);
            Value::bits($result)
        })
    };
}

macro_rules! two {
    (|$a:ident: $A:ty, $b:ident: $B:ty| $result:expr) => {
        Function::Two(|a, b| {
            let ($a, $b) = (<$A>::of(a), <$B>::of(b));
            Value::bits($result)
        })
    };
}

macro_rules! select {
    ($type:ty) => {
        Function::Three(|a, b, predicate| (if bool::of(predicate) { <$type>::of(a) } else { <$type>::of(b) }).bits())
    };
}

/// The instructions that compute, as [`function`] finds them.
pub(super) const FUNCTIONS: &[(&str, Function)] = &[
    ("abs.s32", one!(|a: i32| a.wrapping_abs())),
    ("abs.s64", one!(|a: i64| a.wrapping_abs())),
    ("add.rn.f32", two!(|a: f32, b: f32| a + b)),
    ("add.rn.f64", two!(|a: f64, b: f64| float64([a, b], a + b))),
    ("add.s16", two!(|a: i16, b: i16| a.wrapping_add(b))),
    ("add.s32", two!(|a: i32, b: i32| a.wrapping_add(b))),
    ("add.s64", two!(|a: i64, b: i64| a.wrapping_add(b))),
    ("and.b16", two!(|a: u16, b: u16| a & b)),
    ("and.b32", two!(|a: u32, b: u32| a & b)),
    ("and.b64", two!(|a: u64, b: u64| a & b)),
    ("and.pred", two!(|a: bool, b: bool| a & b)),
    ("bfi.b32", Function::Four(insert_bits)),
    ("cvt.f32.f16", one!(|a: f16| a.to_f32())),
    ("cvt.rn.f16.f32", one!(|a: f32| f16::from_f32(a))),
    ("cvt.rn.f32.u64", one!(|a: u64| a as f32)),
    ("cvt.rn.f64.u64", one!(|a: u64| a as f64)),
    ("cvt.s16.s8", one!(|a: i8| i16::from(a))),
    ("cvt.s32.s16", one!(|a: i16| i32::from(a))),
    ("cvt.s32.s8", one!(|a: i8| i32::from(a))),
    ("cvt.u16.u32", one!(|a: u32| a as u16)),
    ("cvt.u16.u64", one!(|a: u64| a as u16)),
    ("cvt.u32.u16", one!(|a: u16| u32::from(a))),
    ("cvt.u32.u64", one!(|a: u64| a as u32)),
    ("cvt.u64.u32", one!(|a: u32| u64::from(a))),
    // Generic addresses of global memory are its own.
    ("cvta.to.global.u64", one!(|a: u64| a)),
    ("div.rn.f32", two!(|a: f32, b: f32| a / b)),
    ("div.rn.f64", two!(|a: f64, b: f64| float64([a, b], a / b))),
    ("div.u32", two!(|a: u32, b: u32| a.checked_div(b).unwrap_or(OF_DIVISION_BY_ZERO as u32))),
    ("div.u64", two!(|a: u64, b: u64| a.checked_div(b).unwrap_or(OF_DIVISION_BY_ZERO))),
    ("max.s16", two!(|a: i16, b: i16| a.max(b))),
    ("max.s32", two!(|a: i32, b: i32| a.max(b))),
    ("max.s64", two!(|a: i64, b: i64| a.max(b))),
    ("max.u16", two!(|a: u16, b: u16| a.max(b))),
    ("max.u32", two!(|a: u32, b: u32| a.max(b))),
    ("max.u64", two!(|a: u64, b: u64| a.max(b))),
    ("min.s16", two!(|a: i16, b: i16| a.min(b))),
    ("min.s32", two!(|a: i32, b: i32| a.min(b))),
    ("min.s64", two!(|a: i64, b: i64| a.min(b))),
    ("min.u16", two!(|a: u16, b: u16| a.min(b))),
    ("min.u32", two!(|a: u32, b: u32| a.min(b))),
    ("min.u64", two!(|a: u64, b: u64| a.min(b))),
    // These two move floats to registers of integers and back, unchanged.
    ("mov.b32", one!(|a: u32| a)),
    ("mov.b64", one!(|a: u64| a)),
    ("mov.pred", one!(|a: bool| a)),
    ("mov.u16", one!(|a: u16| a)),
    ("mov.u32", one!(|a: u32| a)),
    ("mov.u64", one!(|a: u64| a)),
    ("mul.lo.s16", two!(|a: i16, b: i16| a.wrapping_mul(b))),
    ("mul.lo.s32", two!(|a: i32, b: i32| a.wrapping_mul(b))),
    ("mul.lo.s64", two!(|a: i64, b: i64| a.wrapping_mul(b))),
    ("mul.rn.f32", two!(|a: f32, b: f32| a * b)),
    ("mul.rn.f64", two!(|a: f64, b: f64| float64([a, b], a * b))),
    ("mul.wide.u32", two!(|a: u32, b: u32| u64::from(a) * u64::from(b))),
    ("neg.s32", one!(|a: i32| a.wrapping_neg())),
    ("neg.s64", one!(|a: i64| a.wrapping_neg())),
    ("not.pred", one!(|a: bool| !a)),
    ("or.b16", two!(|a: u16, b: u16| a | b)),
    ("or.b32", two!(|a: u32, b: u32| a | b)),
    ("or.b64", two!(|a: u64, b: u64| a | b)),
    ("prmt.b32", Function::Three(permute_bytes)),
    ("selp.b16", select!(u16)),
    ("selp.b32", select!(u32)),
    ("selp.b64", select!(u64)),
    ("selp.u16", select!(u16)),
    ("selp.u32", select!(u32)),
    ("setp.eq.b32", two!(|a: u32, b: u32| a == b)),
    ("setp.eq.s32", two!(|a: i32, b: i32| a == b)),
    ("setp.eq.s64", two!(|a: i64, b: i64| a == b)),
    ("setp.ge.u64", two!(|a: u64, b: u64| a >= b)),
    ("setp.gt.s16", two!(|a: i16, b: i16| a > b)),
    ("setp.gt.s32", two!(|a: i32, b: i32| a > b)),
    ("setp.gt.s64", two!(|a: i64, b: i64| a > b)),
    ("setp.gt.u16", two!(|a: u16, b: u16| a > b)),
    ("setp.gt.u64", two!(|a: u64, b: u64| a > b)),
    ("setp.lt.s16", two!(|a: i16, b: i16| a < b)),
    ("setp.lt.s32", two!(|a: i32, b: i32| a < b)),
    ("setp.lt.s64", two!(|a: i64, b: i64| a < b)),
    ("setp.lt.u16", two!(|a: u16, b: u16| a < b)),
    ("setp.lt.u32", two!(|a: u32, b: u32| a < b)),
    ("setp.lt.u64", two!(|a: u64, b: u64| a < b)),
    ("setp.nan.f32", two!(|a: f32, b: f32| a.is_nan() | b.is_nan())),
    ("setp.nan.f64", two!(|a: f64, b: f64| a.is_nan() | b.is_nan())),
    ("setp.ne.s16", two!(|a: i16, b: i16| a != b)),
    ("setp.ne.s32", two!(|a: i32, b: i32| a != b)),
    ("setp.ne.s64", two!(|a: i64, b: i64| a != b)),
    // Shifts by more bits than there are shift by all of them.
    ("shl.b32", two!(|a: u32, by: u32| a.checked_shl(by).unwrap_or(0))),
    ("shl.b64", two!(|a: u64, by: u32| a.checked_shl(by).unwrap_or(0))),
    ("shr.s32", two!(|a: i32, by: u32| a >> by.min(31))),
    ("shr.s64", two!(|a: i64, by: u32| a >> by.min(63))),
    ("shr.u32", two!(|a: u32, by: u32| a.checked_shr(by).unwrap_or(0))),
    ("shr.u64", two!(|a: u64, by: u32| a.checked_shr(by).unwrap_or(0))),
    ("sub.rn.f32", two!(|a: f32, b: f32| a - b)),
    ("sub.rn.f64", two!(|a: f64, b: f64| float64([a, b], a - b))),
    ("sub.s64", two!(|a: i64, b: i64| a.wrapping_sub(b))),
    ("xor.b16", two!(|a: u16, b: u16| a ^ b)),
    ("xor.b32", two!(|a: u32, b: u32| a ^ b)),
    ("xor.b64", two!(|a: u64, b: u64| a ^ b)),
    ("xor.pred", two!(|a: bool, b: bool| a ^ b)),
];

/// Two halves of 16 bits as one value of 32, the lower half first: `mov.b32 %r1, {%rs1, %rs2}`.
pub(super) const JOIN_HALVES: Function = two!(|low: u16, high: u16| u32::from(low) | u32::from(high) << 16);

/// The halves of a value of 32 bits, the lower one first: `mov.b32 {%rs1, %rs2}, %r1`.
pub(super) const HALVES: [Function; 2] = [one!(|a: u32| a as u16), one!(|a: u32| (a >> 16) as u16)];

/// The function of an instruction, by its name.
pub(super) fn function(name: &str) -> Option<Function> {
    let found = FUNCTIONS.binary_search_by_key(&name, |&(name, _)| name);
    found.ok().map(|at| FUNCTIONS[at].1)
}

/// `into` with the lowest `bits` bits of `from` at `position`.
fn insert_bits(from: u64, into: u64, position: u64, bits: u64) -> u64 {
    // PTX uses the lowest 8 bits of both operands.
    let (position, bits) = (position & 0xFF, bits & 0xFF);
    let mask = if position < 32 { ((1u64 << bits.min(32)) - 1) << position } else { 0 };
    (into & !mask | (from << position.min(32)) & mask) & 0xFFFF_FFFF
}

/// Each byte of the result is one of the eight bytes of `a` and `b`, of which those of `a` have the numbers 0 to 3, or
/// its sign in all bits. The four lowest digits of the selector say which.
fn permute_bytes(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = [(a as u32).to_le_bytes(), (b as u32).to_le_bytes()].concat();
    let byte = |digit: u32| {
        let selected = (selector >> (4 * digit)) as usize & 0xF;
        let byte = bytes[selected & 7];
        if selected & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
    };
    u64::from(u32::from_le_bytes([0, 1, 2, 3].map(byte)))
}
