//! What tests of reductions share: a reference implementation, one element at a time, on bytes, by other means than the
//! kernels; and elements to reduce.

use half::{bf16, f16};

use crate::types::DataType::{self, *};
use crate::types::ReduceOp;

fn is_signed(dtype: DataType) -> bool {
    matches!(dtype, Int8 | Int16 | Int32 | Int64)
}

fn integer(dtype: DataType, element: &[u8]) -> i128 {
    let negative = is_signed(dtype) && element[element.len() - 1] >= 0x80;
    let mut bytes = [if negative { 0xFF } else { 0 }; 16];
    bytes[..element.len()].copy_from_slice(element);
    i128::from_le_bytes(bytes)
}

/// `left op right` as bytes.
pub fn reference(dtype: DataType, op: ReduceOp, left: &[u8], right: &[u8]) -> Vec<u8> {
    macro_rules! float {
        ($type:ident, $nan:literal, |$x:ident, $y:ident| $sum:expr, $product:expr) => {{
            let $x = $type::from_le_bytes(left.try_into().unwrap());
            let $y = $type::from_le_bytes(right.try_into().unwrap());
            let first = if $x == $y { $x.is_sign_negative() || $y.is_sign_positive() } else { $x < $y };
            let result = match op {
                ReduceOp::Sum | ReduceOp::Average => $sum,
                ReduceOp::Product => $product,
                _ if $x.is_nan() => return left.to_vec(),
                _ if $y.is_nan() => return right.to_vec(),
                ReduceOp::Min => {
                    if first {
                        $x
                    } else {
                        $y
                    }
                }
                ReduceOp::Max => {
                    if first {
                        $y
                    } else {
                        $x
                    }
                }
                _ => unreachable!(),
            };
            (if result.is_nan() { $type::from_bits($nan) } else { result }).to_le_bytes().to_vec()
        }};
    }
    macro_rules! complex {
        ($type:ident) => {{
            let half = size_of::<$type>();
            let parts = |bytes: &[u8]| {
                let part = |bytes: &[u8]| $type::from_le_bytes(bytes.try_into().unwrap());
                (part(&bytes[..half]), part(&bytes[half..]))
            };
            let ((a, b), (c, d)) = (parts(left), parts(right));
            let result = match op {
                ReduceOp::Sum | ReduceOp::Average => [a + c, b + d],
                _ => [a * c - b * d, a * d + b * c],
            };
            let one_nan = |x: $type| if x.is_nan() { $type::NAN } else { x };
            result.iter().flat_map(|&x| one_nan(x).to_le_bytes()).collect()
        }};
    }
    match dtype {
        // The sum and the product of two 16-bit floats are exact in f64 and therefore rounded once, to the same bits as
        // via f32.
        Float16 => {
            float!(f16, 0x7E00, |x, y| f16::from_f64(x.to_f64() + y.to_f64()), f16::from_f64(x.to_f64() * y.to_f64()))
        }
        Bfloat16 => float!(
            bf16,
            0x7FC0,
            |x, y| bf16::from_f64(x.to_f64() + y.to_f64()),
            bf16::from_f64(x.to_f64() * y.to_f64())
        ),
        Float32 => float!(f32, 0x7FC0_0000, |x, y| x + y, x * y),
        Float64 => float!(f64, 0x7FF8_0000_0000_0000, |x, y| x + y, x * y),
        Complex64 => complex!(f32),
        Complex128 => complex!(f64),
        Bool => {
            let (x, y) = (left[0] != 0, right[0] != 0);
            vec![u8::from(match op {
                ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => x || y,
                ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => x && y,
                _ => x != y,
            })]
        }
        _ => {
            let (x, y) = (integer(dtype, left), integer(dtype, right));
            let result = match op {
                ReduceOp::Sum | ReduceOp::Average => x + y,
                ReduceOp::Product => x.wrapping_mul(y),
                ReduceOp::Min => x.min(y),
                ReduceOp::Max => x.max(y),
                ReduceOp::BitAnd => x & y,
                ReduceOp::BitOr => x | y,
                ReduceOp::BitXor => x ^ y,
            };
            result.to_le_bytes()[..dtype.size()].to_vec()
        }
    }
}

/// `element / divisor` as bytes.
pub fn quotient(dtype: DataType, element: &[u8], divisor: u64) -> Vec<u8> {
    macro_rules! float {
        ($type:ident) => {{
            let x = $type::from_le_bytes(element.try_into().unwrap()) / divisor as $type;
            (if x.is_nan() { $type::NAN } else { x }).to_le_bytes().to_vec()
        }};
    }
    macro_rules! half {
        ($type:ident) => {{
            let x = $type::from_f32($type::from_le_bytes(element.try_into().unwrap()).to_f32() / divisor as f32);
            (if x.is_nan() { $type::NAN } else { x }).to_le_bytes().to_vec()
        }};
    }
    match dtype {
        Float16 => half!(f16),
        Bfloat16 => half!(bf16),
        Float32 => float!(f32),
        Float64 => float!(f64),
        Complex64 => element.chunks(4).flat_map(|part| quotient(Float32, part, divisor)).collect(),
        Complex128 => element.chunks(8).flat_map(|part| quotient(Float64, part, divisor)).collect(),
        _ => (integer(dtype, element) / i128::from(divisor)).to_le_bytes()[..dtype.size()].to_vec(),
    }
}

/// Boundary values of `dtype`.
pub fn specials(dtype: DataType) -> Vec<Vec<u8>> {
    let bits = dtype.size() as u32 * 8;
    // Width of the mantissa field in bits.
    let float = |mantissa: u32| -> Vec<Vec<u8>> {
        let infinity = (1u64 << (bits - 1)) - (1 << mantissa);
        let one = (infinity >> (mantissa + 1)) << mantissa;
        let quiet = 1 << (mantissa - 1);
        let magnitudes = [
            0,
            1,
            (1 << mantissa) - 1,
            1 << mantissa,
            one,
            one + 1,
            one + quiet,
            infinity - 1,
            infinity,
            infinity + 1,
            infinity | quiet,
            infinity | quiet | 5,
            infinity | ((1 << mantissa) - 1),
        ];
        let both_signs = magnitudes.iter().flat_map(|&m| [m, m | 1 << (bits - 1)]);
        both_signs.map(|bits| bits.to_le_bytes()[..dtype.size()].to_vec()).collect()
    };
    let complex = |part: DataType| -> Vec<Vec<u8>> {
        let parts = specials(part);
        let pairs = parts.iter().enumerate().flat_map(|(i, x)| [x, &parts[(i * 7 + 3) % parts.len()]].map(|y| (x, y)));
        pairs.map(|(x, y)| [x.as_slice(), y].concat()).collect()
    };
    match dtype {
        Float16 => float(10),
        Bfloat16 => float(7),
        Float32 => float(23),
        Float64 => float(52),
        Complex64 => complex(Float32),
        Complex128 => complex(Float64),
        Bool => [0, 1, 2, 0x7F, 0x80, 0xFF].iter().map(|&byte| vec![byte]).collect(),
        _ => {
            let highest = i128::MAX >> (128 - bits);
            let values = [0, 1, 2, 3, 7, -1, -2, -3, highest, highest - 1, -highest, -highest - 1];
            values.iter().map(|value| value.to_le_bytes()[..dtype.size()].to_vec()).collect()
        }
    }
}

/// All pairs of a type and an operation that it supports.
pub fn supported() -> impl Iterator<Item = (DataType, ReduceOp)> {
    let pairs = DataType::ALL.iter().flat_map(|&dtype| ReduceOp::ALL.iter().map(move |&op| (dtype, op)));
    pairs.filter(|(dtype, op)| op.supports(*dtype))
}

/// Splitmix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// `count` elements, half of them special values, the others random bits.
    pub fn elements(&mut self, dtype: DataType, specials: &[Vec<u8>], count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..count {
            if self.next() & 1 == 0 {
                bytes.extend_from_slice(&specials[self.below(specials.len())]);
            } else {
                let random = [self.next().to_le_bytes(), self.next().to_le_bytes()].concat();
                bytes.extend_from_slice(&random[..dtype.size()]);
            }
        }
        bytes
    }
}
