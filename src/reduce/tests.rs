//! Compares every kernel of every level that this CPU supports with a reference that processes one element at a time by
//! other means.

mod exact;
mod factor;
mod several;

use half::{bf16, f16};
use proptest::prelude::*;

use super::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::level::{LEVELS, Level};
use super::{cpu_features, divide, kernel};
use crate::testing::reductions::{Random, quotient, reference, specials, supported};
use crate::testing::tier::Tier;
use crate::types::DataType::{self, *};
use crate::types::ReduceOp;

fn levels() -> impl Iterator<Item = &'static Level> {
    LEVELS.iter().filter(|level| (level.available)())
}

/// The buffers of a call that are identical.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Alias {
    None,
    Left,
    Right,
    Operands,
    All,
}

impl Alias {
    /// The operands of a call, of these three buffers.
    fn operands(self, into: *mut u8, left: *mut u8, right: *mut u8) -> (*mut u8, *mut u8) {
        match self {
            Self::None => (left, right),
            Self::Left => (into, right),
            Self::Right => (left, into),
            Self::Operands => (left, left),
            Self::All => (into, into),
        }
    }
}

const ALIASES: [Alias; 5] = [Alias::None, Alias::Left, Alias::Right, Alias::Operands, Alias::All];

/// Number of bytes around a buffer that must not change.
const GUARD: usize = 64;

/// A buffer at a chosen distance from a 64-byte boundary, with guard bytes on both sides.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    fn new(content: &[u8], offset: usize) -> Self {
        let mut bytes = vec![0xA5; content.len() + 4 * GUARD];
        let start = GUARD + bytes.as_ptr().align_offset(64) % 64 + offset;
        bytes[start..start + content.len()].copy_from_slice(content);
        Self { bytes, start, len: content.len() }
    }

    fn pointer(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    fn content(&self) -> &[u8] {
        let (before, rest) = self.bytes.split_at(self.start);
        let (content, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|&byte| byte == 0xA5), "written outside of {} bytes", self.len);
        content
    }
}

/// Runs a kernel on buffers at `offsets` (into, left, right), identical as specified by `alias`, and compares the
/// result with `expect`, which returns the result for one element.
fn check<R: AsRef<[u8]>>(
    level: &Level,
    (dtype, op): (DataType, ReduceOp),
    (left, right): (&[u8], &[u8]),
    offsets: [usize; 3],
    alias: Alias,
    expect: impl Fn(&[u8], &[u8]) -> R,
) {
    let size = dtype.size();
    let right = if matches!(alias, Alias::Operands | Alias::All) { left } else { right };
    let initial = match alias {
        Alias::Left | Alias::All => left.to_vec(),
        Alias::Right => right.to_vec(),
        Alias::None | Alias::Operands => vec![0x5A; left.len()],
    };
    let mut buffers =
        [Buffer::new(&initial, offsets[0]), Buffer::new(left, offsets[1]), Buffer::new(right, offsets[2])];
    let [into, l, r] = buffers.each_mut().map(Buffer::pointer);
    let (l, r) = alias.operands(into, l, r);
    let kernel = (level.kernel)(dtype, op).unwrap();
    // SAFETY: every buffer has `left.len()` bytes; they are identical or disjoint; `levels` returns only levels that
    // this CPU supports.
    unsafe { kernel(into, l, r, left.len() / size) };
    let result = buffers[0].content();
    for (i, ((got, a), b)) in result.chunks(size).zip(left.chunks(size)).zip(right.chunks(size)).enumerate() {
        let want = expect(a, b);
        assert_eq!(
            got,
            want.as_ref(),
            "{} {dtype} {op}, {alias:?}, offsets {offsets:?}, {} bytes: element {i} of {a:02X?} and {b:02X?}",
            level.name,
            left.len()
        );
    }
    assert_eq!((buffers[1].content(), buffers[2].content()), (left, right));
}

#[test]
fn kernels_exist_exactly_where_supported() {
    for level in LEVELS {
        for &dtype in DataType::ALL {
            for &op in ReduceOp::ALL {
                assert_eq!((level.kernel)(dtype, op).is_some(), op.supports(dtype), "{} {dtype} {op}", level.name);
            }
            assert_eq!((level.divide)(dtype).is_some(), ReduceOp::Average.supports(dtype), "{} {dtype}", level.name);
        }
    }
}

#[test]
fn the_best_level_is_chosen() {
    let best = levels().next().unwrap();
    assert_eq!(cpu_features(), best.name);
    assert!(divide(Float32).is_some() && divide(Bool).is_none());
    assert!(kernel(Float32, ReduceOp::Sum).is_some() && kernel(Float32, ReduceOp::BitAnd).is_none());
}

#[test]
fn every_length_alignment_and_alias() {
    let mut random = Random(1);
    for (dtype, op) in supported() {
        let specials = specials(dtype);
        for count in 0..=130 {
            let left = random.elements(dtype, &specials, count);
            let right = random.elements(dtype, &specials, count);
            let offsets = [0; 3].map(|_| random.below(16));
            for (i, level) in levels().enumerate() {
                let alias = ALIASES[(count + i) % ALIASES.len()];
                check(level, (dtype, op), (&left, &right), offsets, alias, |a, b| reference(dtype, op, a, b));
            }
        }
    }
}

#[test]
fn every_alignment_of_each_pointer() {
    let mut random = Random(2);
    for (dtype, op) in supported() {
        let specials = specials(dtype);
        let left = random.elements(dtype, &specials, 67);
        let right = random.elements(dtype, &specials, 67);
        for offset in 0..16 {
            for offsets in [[offset, 0, 0], [0, offset, 0], [0, 0, offset], [offset; 3]] {
                let alias = ALIASES[offset % ALIASES.len()];
                let level = levels().nth(offset % levels().count()).unwrap();
                check(level, (dtype, op), (&left, &right), offsets, alias, |a, b| reference(dtype, op, a, b));
            }
        }
    }
}

/// Two elements give the same bits at every index of buffers of any length, in the vectorised loop and in the
/// remainder.
#[test]
fn bits_do_not_depend_on_position() {
    for dtype in [Float16, Bfloat16, Float32, Float64, Complex64, Complex128] {
        let specials = specials(dtype);
        let step = if dtype.size() > 4 && dtype != Float64 { 5 } else { 1 } * Tier::from_environment().of(7, 1, 1);
        for op in [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
            if !op.supports(dtype) {
                continue;
            }
            for (a, b) in specials.iter().flat_map(|a| specials.iter().map(move |b| (a, b))).step_by(step) {
                let want = reference(dtype, op, a, b);
                for level in levels() {
                    for (count, alias) in [(1, Alias::None), (15, Alias::Left), (31, Alias::Right), (77, Alias::None)] {
                        let (left, right) = (a.repeat(count), b.repeat(count));
                        check(level, (dtype, op), (&left, &right), [0; 3], alias, |_, _| &want);
                    }
                }
            }
        }
    }
}

#[test]
fn all_16_bit_floats() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for dtype in [Float16, Bfloat16] {
        for op in [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
            for (i, special) in specials(dtype).iter().step_by(Tier::from_environment().of(7, 2, 2)).enumerate() {
                let level = levels().nth(i % levels().count()).unwrap();
                let other = special.repeat(1 << 16);
                check(level, (dtype, op), (&all, &other), [0; 3], Alias::None, |a, b| reference(dtype, op, a, b));
            }
        }
        for level in levels() {
            // Adding -0 preserves the bits of every value except NaNs, which become the single NaN.
            let zero = 0x8000u16.to_le_bytes().repeat(1 << 16);
            check(level, (dtype, ReduceOp::Sum), (&all, &zero), [0; 3], Alias::Left, |a, _| {
                let bits = u16::from_le_bytes([a[0], a[1]]);
                let (infinity, nan) = if dtype == Float16 { (0x7C00, 0x7E00u16) } else { (0x7F80, 0x7FC0) };
                (if bits & 0x7FFF > infinity { nan } else { bits }).to_le_bytes().to_vec()
            });
        }
    }
}

#[test]
fn conversions_of_16_bit_floats() {
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
        assert_eq!(ours.is_nan(), theirs.is_nan());
        assert_eq!(bf16_to_f32(bits).to_bits(), u32::from(bits) << 16);
    }
    let numbers = Tier::from_environment().of(1 << 20, 1 << 24, 1 << 24);
    // A stride that is coprime to 2^32, and the numbers around the midpoint between any two adjacent 16-bit floats.
    let sweep = (0..numbers).map(|i: u32| i.wrapping_mul(0x9E37_79B1));
    let ties = (0..=u16::MAX).flat_map(|bits| {
        let bf16 = (u32::from(bits) << 16) | 0x8000;
        let f16 = f16_to_f32(bits).to_bits() | 0x1000;
        [bf16 - 1, bf16, bf16 + 1, f16 - 1, f16, f16 + 1]
    });
    let subnormal_ties = (0..2048u32).flat_map(|i| {
        let tie = ((i as f32 + 0.5) / (1 << 24) as f32).to_bits();
        [tie - 1, tie, tie + 1, tie | 1 << 31]
    });
    for bits in sweep.chain(ties).chain(subnormal_ties) {
        let value = f32::from_bits(bits);
        let (f16_bits, bf16_bits) = match value.is_nan() {
            true => (0x7E00, 0x7FC0),
            false => (f16::from_f32(value).to_bits(), bf16::from_f32(value).to_bits()),
        };
        assert_eq!((f32_to_f16(value), f32_to_bf16(value)), (f16_bits, bf16_bits), "{bits:#x}");
    }
}

#[test]
fn division_truncates_towards_zero() {
    let divisors = [
        1,
        2,
        3,
        7,
        8,
        127,
        128,
        129,
        200,
        32768,
        65535,
        65537,
        (1 << 31) - 1,
        1 << 31,
        (1 << 53) + 1,
        1 << 63,
        u64::MAX,
    ];
    let mut random = Random(3);
    for &dtype in DataType::ALL.iter().filter(|&&dtype| ReduceOp::Average.supports(dtype)) {
        let elements = match dtype.size() {
            // A prime, so that every low byte occurs.
            1 | 2 => (0..=u16::MAX).step_by(Tier::from_environment().of(31, 1, 1)).flat_map(u16::to_le_bytes).collect(),
            _ => random.elements(dtype, &specials(dtype), 2000),
        };
        for divisor in divisors {
            for (i, level) in levels().enumerate() {
                for count in [elements.len() / dtype.size(), i + 1, 16, 29] {
                    let elements = &elements[..count * dtype.size()];
                    let mut buffer = Buffer::new(elements, i);
                    // SAFETY: the buffer holds `count` elements; `levels` returns only levels that this CPU supports.
                    unsafe { (level.divide)(dtype).unwrap()(buffer.pointer(), count, divisor) };
                    for (got, element) in buffer.content().chunks(dtype.size()).zip(elements.chunks(dtype.size())) {
                        let want = quotient(dtype, element, divisor);
                        assert_eq!(got, want, "{} {dtype} {element:02X?} / {divisor}", level.name);
                    }
                }
            }
        }
    }
}

/// The rules by example, independently of the reference.
#[test]
fn rules_by_example() {
    fn apply<const N: usize>(dtype: DataType, op: ReduceOp, left: [u8; N], right: [u8; N]) -> [u8; N] {
        let mut into = [0; N];
        // SAFETY: each array holds one element.
        unsafe { kernel(dtype, op).unwrap()(into.as_mut_ptr(), left.as_ptr(), right.as_ptr(), 1) };
        into
    }
    use ReduceOp::{Max, Min, Product, Sum};
    assert_eq!(apply(Int8, Sum, [127], [1]), [0x80]);
    assert_eq!(apply(Uint8, Product, [16], [17]), [16]);
    assert_eq!(apply(Int8, Min, [0xFF], [1]), [0xFF]);
    assert_eq!(apply(Uint8, Min, [0xFF], [1]), [1]);
    assert_eq!(apply(Bool, Sum, [0], [2]), [1]);
    assert_eq!(apply(Bool, ReduceOp::BitAnd, [1], [2]), [1]);
    assert_eq!(apply(Bool, ReduceOp::BitXor, [4], [2]), [0]);
    let f32s = |op, a: u32, b: u32| u32::from_le_bytes(apply(Float32, op, a.to_le_bytes(), b.to_le_bytes()));
    const NAN: u32 = 0xFFC1_2345;
    assert_eq!(f32s(Min, NAN, 1.0f32.to_bits()), NAN);
    assert_eq!(f32s(Max, f32::INFINITY.to_bits(), NAN), NAN);
    assert_eq!(f32s(Max, NAN, 0x7F80_0001), NAN);
    assert_eq!(f32s(Min, 0x7F80_0001, NAN), 0x7F80_0001);
    assert_eq!(f32s(Sum, NAN, 0), 0x7FC0_0000);
    assert_eq!(f32s(Sum, f32::INFINITY.to_bits(), f32::NEG_INFINITY.to_bits()), 0x7FC0_0000);
    assert_eq!(f32s(Min, 0, 1 << 31), 1 << 31);
    assert_eq!(f32s(Max, 1 << 31, 0), 0);
    // 2048 + 1 is half-way between two binary16s and rounds to the even one; 65504 is the largest finite one.
    let halves = |a: f32, b: f32| {
        let [a, b] = [a, b].map(|x| f16::from_f32(x).to_le_bytes());
        f16::from_le_bytes(apply(Float16, Sum, a, b)).to_f32()
    };
    assert_eq!((halves(2048.0, 1.0), halves(2050.0, 1.0), halves(65504.0, 16.0)), (2048.0, 2052.0, f32::INFINITY));
    // (1 + 2i)(3 + 4i) = -5 + 10i
    let complex = |re: f32, im: f32| -> [u8; 8] { [re.to_le_bytes(), im.to_le_bytes()].concat().try_into().unwrap() };
    assert_eq!(apply(Complex64, Product, complex(1.0, 2.0), complex(3.0, 4.0)), complex(-5.0, 10.0));
}

proptest! {
    #[test]
    fn random_bits(
        pair in prop::sample::select(supported().collect::<Vec<_>>()),
        alias in prop::sample::select(ALIASES.to_vec()),
        offsets in prop::array::uniform3(0usize..64),
        content in prop::collection::vec(any::<(u8, u8)>(), 0..2000),
    ) {
        let whole = content.len() / pair.0.size() * pair.0.size();
        let (left, right): (Vec<u8>, Vec<u8>) = content[..whole].iter().copied().unzip();
        for level in levels() {
            check(level, pair, (&left, &right), offsets, alias, |a, b| reference(pair.0, pair.1, a, b));
        }
    }
}

/// The mean of float16, by `half` and in float64.
#[test]
fn means_are_those_of_the_reference() {
    let mut random = Random(8);
    let specials = specials(Float16);
    for level in levels() {
        for contributions in [[1, 1], [1, 2], [2, 1], [5, 3], [1, 4095], [u32::MAX - 1, 1]] {
            let shares = super::mean::shares(contributions);
            for (count, offsets) in
                [(0, [0, 0, 0]), (1, [1, 2, 3]), (16, [0, 6, 1]), (97, [2, 0, 5]), (1000, [0, 0, 0])]
            {
                let (left, right) =
                    (random.elements(Float16, &specials, count), random.elements(Float16, &specials, count));
                for alias in ALIASES {
                    let right = if matches!(alias, Alias::Operands | Alias::All) { &left } else { &right };
                    let initial = if alias == Alias::Right { right } else { &left };
                    let mut buffers = [
                        Buffer::new(initial, offsets[0]),
                        Buffer::new(&left, offsets[1]),
                        Buffer::new(right, offsets[2]),
                    ];
                    let [into, l, r] = buffers.each_mut().map(Buffer::pointer);
                    let (l, r) = alias.operands(into, l, r);
                    // SAFETY: every buffer has `count` elements; they are identical or disjoint; the CPU supports the
                    // level.
                    unsafe { (level.mean)(into, l, r, count, contributions) };
                    let bits = |bytes: &[u8]| f16::from_le_bytes(bytes.try_into().unwrap());
                    for ((a, b), got) in left.chunks(2).zip(right.chunks(2)).zip(buffers[0].content().chunks(2)) {
                        let (a, b, got) = (bits(a), bits(b), bits(got));
                        let exact = a.to_f32() * shares[0] + b.to_f32() * shares[1];
                        let expected = if exact.is_nan() { 0x7E00 } else { f16::from_f32(exact).to_bits() };
                        assert_eq!(got.to_bits(), expected, "{}: {a} and {b}, {contributions:?}", level.name);
                        if a == b {
                            assert_eq!(got, a, "{contributions:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Means of several inputs are those of two, one after the other, wherever the result is.
#[test]
fn means_of_several_are_means_of_two() {
    let mut random = Random(9);
    let specials = specials(Float16);
    let mean = super::mean();
    for inputs in 2..6 {
        for count in [0, 1, 511, 512, 513, 2000] {
            let data: Vec<_> = (0..inputs).map(|_| random.elements(Float16, &specials, count)).collect();
            let contributions: Vec<u32> = (0..inputs as u32).map(|k| 1 + k * k % 3).collect();
            let mut expected = data[0].clone();
            let mut sum = contributions[0];
            for (input, number) in data.iter().zip(&contributions).skip(1) {
                // SAFETY: both have `count` elements of 16 bits.
                unsafe { mean(expected.as_mut_ptr(), expected.as_ptr(), input.as_ptr(), count, [sum, *number]) };
                sum += number;
            }
            for place in 0..=inputs {
                let mut buffers: Vec<_> = data.iter().chain(&data[..1]).map(|input| Buffer::new(input, 2)).collect();
                let pointers: Vec<_> = buffers.iter_mut().map(Buffer::pointer).collect();
                let all: Vec<_> = pointers[..inputs].iter().map(|pointer| pointer.cast_const()).collect();
                // SAFETY: all have `count` elements of 16 bits; the result is one of the inputs, or apart from them.
                unsafe { super::mean_n(mean, pointers[place], &all, &contributions, count) };
                assert_eq!(buffers[place].content(), expected, "{inputs} inputs of {count}, into {place}");
            }
        }
    }
}
