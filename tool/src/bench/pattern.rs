//! The data of a benchmark: values that change with every kind of error, and whose reduction is exact.
//!
//! Every contribution (one input of one rank) is a sequence of [`PERIOD`] values, repeated. The period is a prime, so
//! that elements that are displaced by a block, a segment or a power of two have wrong values. The values of one
//! contribution are pseudo-random; they depend on the contribution, the position and a seed. Floating-point values are
//! chosen so that every intermediate result is exact in every order, so results are compared bit by bit.

use gloo_rs::types::{DataType, ReduceOp};
use half::{bf16, f16};

/// Number of values after which a sequence repeats; a prime.
pub const PERIOD: usize = 8191;

/// The data type, the operation, and the seed.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    dtype: DataType,
    /// `None` for collectives that only move data.
    op: Option<ReduceOp>,
    /// Number of inputs that are combined, of all ranks together.
    contributions: usize,
    /// Distinguishes data of calls that run at the same time.
    seed: u64,
}

/// The exact value of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Int(i128),
    Float(f64),
    Complex(f64, f64),
}

impl Pattern {
    /// Fails with a message if this number of contributions cannot be combined exactly.
    pub fn new(dtype: DataType, op: Option<ReduceOp>, contributions: usize, seed: u64) -> Result<Self, String> {
        let pattern = Self { dtype, op, contributions, seed };
        if pattern.is_bounded() && pattern.largest() < 1 {
            return Err(format!(
                "the {} of {contributions} values of type {dtype} is not always exact, so it cannot be verified",
                op.map_or("", ReduceOp::name)
            ));
        }
        Ok(pattern)
    }

    /// The bytes of one contribution: [`PERIOD`] elements.
    pub fn contribution(&self, contribution: usize) -> Vec<u8> {
        self.tile(|index| self.value(contribution, index))
    }

    /// The bytes of the reduction of `contributions`, at least one: [`PERIOD`] elements.
    pub fn reduced(&self, contributions: std::ops::Range<usize>) -> Vec<u8> {
        let count = contributions.len();
        self.tile(|index| {
            let values = contributions.clone().map(|contribution| self.value(contribution, index));
            let combined = values.reduce(|left, right| self.combine(left, right)).unwrap_or(Value::Int(0));
            if self.op == Some(ReduceOp::Average) { self.divide(combined, count) } else { combined }
        })
    }

    fn tile(&self, value: impl Fn(usize) -> Value) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PERIOD * self.dtype.size());
        (0..PERIOD).for_each(|index| encode(value(index), self.dtype, &mut bytes));
        bytes
    }

    fn value(&self, contribution: usize, index: usize) -> Value {
        let random = mix(mix(mix(self.seed) ^ contribution as u64) ^ index as u64);
        match self.dtype {
            DataType::Bool => Value::Int(self.bool(random).into()),
            DataType::Float16 | DataType::Bfloat16 | DataType::Float32 | DataType::Float64 => {
                Value::Float(self.float(random, contribution, index))
            }
            DataType::Complex64 | DataType::Complex128 if self.op == Some(ReduceOp::Product) => {
                let value = self.float(random, contribution, index);
                if mix(random) & 1 == 0 { Value::Complex(value, 0.0) } else { Value::Complex(0.0, value) }
            }
            DataType::Complex64 | DataType::Complex128 => {
                Value::Complex(self.float(random, contribution, index), self.float(mix(random), contribution, index))
            }
            _ => Value::Int(self.int(random)),
        }
    }

    /// Each contribution determines some results: with half probability there is one contribution that differs from the
    /// others.
    fn bool(&self, random: u64) -> bool {
        let odd = random.is_multiple_of(2 * self.contributions as u64);
        match self.op {
            Some(ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr) => odd,
            Some(ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd) => !odd,
            _ => random & 1 == 1,
        }
    }

    fn int(&self, random: u64) -> i128 {
        let bits = 8 * self.dtype.size() as u32;
        // Few bits are set (or clear) in few contributions; otherwise the result would have them all.
        let one_bit = 1u64 << (mix(random) % u64::from(bits));
        let takes_part = random % (2 * self.contributions as u64) < u64::from(bits);
        let value = match self.op {
            Some(ReduceOp::Average) => return self.bounded(random),
            // Products of even numbers would soon be zero.
            Some(ReduceOp::Product) => random | 1,
            Some(ReduceOp::BitAnd) => !if takes_part { one_bit } else { 0 },
            Some(ReduceOp::BitOr) => {
                if takes_part {
                    one_bit
                } else {
                    0
                }
            }
            _ => random.max(1),
        };
        wrap(i128::from(value), self.dtype)
    }

    fn float(&self, random: u64, contribution: usize, index: usize) -> f64 {
        match self.op {
            // One contribution doubles each result, whichever it is; all contribute to its sign.
            Some(ReduceOp::Product) => {
                let doubles = index % self.contributions == contribution;
                (if doubles { 2.0 } else { 1.0 }) * (if random & 1 == 0 { 1.0 } else { -1.0 })
            }
            _ => self.bounded(random) as f64,
        }
    }

    /// An integer that is not zero, with an absolute value of at most [`Self::largest`].
    fn bounded(&self, random: u64) -> i128 {
        let magnitude = 1 + i128::from((random >> 1) % self.largest());
        let negative = random & 1 == 1 && !matches!(limit(self.dtype), Limit::Unsigned(_));
        if negative { -magnitude } else { magnitude }
    }

    /// Whether the values must be small for their sums to be exact.
    fn is_bounded(&self) -> bool {
        match self.op {
            Some(ReduceOp::Sum) => matches!(limit(self.dtype), Limit::Float(_)),
            Some(ReduceOp::Average) => true,
            _ => false,
        }
    }

    /// The largest number to send: the sum of this many contributions is still exact.
    fn largest(&self) -> u64 {
        let (Limit::Float(limit) | Limit::Signed(limit) | Limit::Unsigned(limit)) = limit(self.dtype);
        if self.is_bounded() { limit / self.contributions as u64 } else { limit }
    }

    fn combine(&self, left: Value, right: Value) -> Value {
        use ReduceOp::*;
        match (left, right, self.op) {
            (Value::Int(a), Value::Int(b), Some(op)) => {
                let bool = self.dtype == DataType::Bool;
                let result = match op {
                    Sum | Average if bool => a | b,
                    Product if bool => a & b,
                    Sum | Average => a + b,
                    Product => a.wrapping_mul(b),
                    Min => a.min(b),
                    Max => a.max(b),
                    BitAnd => a & b,
                    BitOr => a | b,
                    BitXor => a ^ b,
                };
                Value::Int(wrap(result, self.dtype))
            }
            (Value::Float(a), Value::Float(b), Some(op)) => Value::Float(match op {
                Product => a * b,
                Min => a.min(b),
                Max => a.max(b),
                _ => a + b,
            }),
            (Value::Complex(a, b), Value::Complex(c, d), Some(Product)) => Value::Complex(a * c - b * d, a * d + b * c),
            (Value::Complex(a, b), Value::Complex(c, d), Some(_)) => Value::Complex(a + c, b + d),
            (left, _, _) => left,
        }
    }

    /// The division of an average. The types narrower than 64 bits are divided as binary32, which rounds quotients as
    /// the types themselves would, because it has more than twice the digits of the 16-bit types.
    fn divide(&self, value: Value, by: usize) -> Value {
        let double = matches!(self.dtype, DataType::Float64 | DataType::Complex128);
        let quotient = |value: f64| if double { value / by as f64 } else { f64::from(value as f32 / by as f32) };
        match value {
            Value::Int(value) => Value::Int(value / by as i128),
            Value::Float(value) => Value::Float(quotient(value)),
            Value::Complex(re, im) => Value::Complex(quotient(re), quotient(im)),
        }
    }
}

/// Up to this number a type represents all integers.
enum Limit {
    Float(u64),
    Signed(u64),
    Unsigned(u64),
}

fn limit(dtype: DataType) -> Limit {
    use DataType::*;
    match dtype {
        Bfloat16 => Limit::Float(1 << 8),
        Float16 => Limit::Float(1 << 11),
        Float32 | Complex64 => Limit::Float(1 << 24),
        Float64 | Complex128 => Limit::Float(1 << 53),
        Int8 | Int16 | Int32 | Int64 => Limit::Signed((1u64 << (8 * dtype.size() - 1)) - 1),
        Uint8 | Uint16 | Uint32 | Uint64 | Bool => Limit::Unsigned(u64::MAX >> (64 - 8 * dtype.size())),
    }
}

/// `value` truncated to the integer type `dtype`.
fn wrap(value: i128, dtype: DataType) -> i128 {
    use DataType::*;
    match dtype {
        Int8 => (value as i8).into(),
        Uint8 | Bool => (value as u8).into(),
        Int16 => (value as i16).into(),
        Uint16 => (value as u16).into(),
        Int32 => (value as i32).into(),
        Uint32 => (value as u32).into(),
        Int64 => (value as i64).into(),
        Uint64 => (value as u64).into(),
        Float16 | Bfloat16 | Float32 | Float64 | Complex64 | Complex128 => value,
    }
}

/// A bijection of the 64-bit numbers that mixes their bits: the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn encode(value: Value, dtype: DataType, out: &mut Vec<u8>) {
    match (value, dtype) {
        (Value::Int(value), _) => match dtype.size() {
            1 => out.extend((value as u8).to_ne_bytes()),
            2 => out.extend((value as u16).to_ne_bytes()),
            4 => out.extend((value as u32).to_ne_bytes()),
            _ => out.extend((value as u64).to_ne_bytes()),
        },
        (Value::Float(value), DataType::Float16) => out.extend(f16::from_f32(value as f32).to_ne_bytes()),
        (Value::Float(value), DataType::Bfloat16) => out.extend(bf16::from_f32(value as f32).to_ne_bytes()),
        (Value::Float(value), DataType::Float64) => out.extend(value.to_ne_bytes()),
        (Value::Float(value), _) => out.extend((value as f32).to_ne_bytes()),
        (Value::Complex(re, im), DataType::Complex128) => {
            [re, im].iter().for_each(|part| out.extend(part.to_ne_bytes()))
        }
        (Value::Complex(re, im), _) => [re, im].iter().for_each(|part| out.extend((*part as f32).to_ne_bytes())),
    }
}

/// The element in the first bytes of `bytes`, which must be long enough.
pub fn decode(bytes: &[u8], dtype: DataType) -> Value {
    use DataType::*;
    macro_rules! read {
        ($kind:ty, $at:expr) => {{
            let mut raw = [0; size_of::<$kind>()];
            raw.copy_from_slice(&bytes[$at..$at + size_of::<$kind>()]);
            <$kind>::from_ne_bytes(raw)
        }};
    }
    match dtype {
        Int8 => Value::Int(read!(i8, 0).into()),
        Uint8 | Bool => Value::Int(read!(u8, 0).into()),
        Int16 => Value::Int(read!(i16, 0).into()),
        Uint16 => Value::Int(read!(u16, 0).into()),
        Int32 => Value::Int(read!(i32, 0).into()),
        Uint32 => Value::Int(read!(u32, 0).into()),
        Int64 => Value::Int(read!(i64, 0).into()),
        Uint64 => Value::Int(read!(u64, 0).into()),
        Float16 => Value::Float(read!(f16, 0).to_f64()),
        Bfloat16 => Value::Float(read!(bf16, 0).to_f64()),
        Float32 => Value::Float(read!(f32, 0).into()),
        Float64 => Value::Float(read!(f64, 0)),
        Complex64 => Value::Complex(read!(f32, 0).into(), read!(f32, 4).into()),
        Complex128 => Value::Complex(read!(f64, 0), read!(f64, 8)),
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Complex(re, im) => write!(f, "{re}{im:+}i"),
        }
    }
}
