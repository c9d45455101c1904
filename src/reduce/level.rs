//! The kernels for each level of CPU features, and the selection of a level.

use super::element::{Add, And, Bf16, Bool, Complex, F16, Max, Min, Mul, Op, Or, Quotient, Xor};
use super::exact::{self, Exact, Summand};
use super::fused::{self, Fused, Loop, PastCaches, Vectorised};
use super::mean::shares;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::stores::Stores;
#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{Divide, Kernel, Mean};
use crate::types::{DataType, ReduceOp};

/// The kernels for a set of CPU features; they may be called only if `available` returns true.
pub(super) struct Level {
    pub name: &'static str,
    /// Whether this CPU has the features. The standard library caches the result.
    pub available: fn() -> bool,
    pub kernel: fn(DataType, ReduceOp) -> Option<Kernel>,
    /// The sum of several inputs in one loop; `None` for `Bool`.
    pub sum: fn(DataType) -> Option<Fused>,
    pub divide: fn(DataType) -> Option<Divide>,
    /// The exact sum of several inputs; `None` where [`exact`](super::exact()) has none.
    pub exact: fn(DataType) -> Option<Exact>,
    /// The mean of float16.
    pub mean: Mean,
}

/// All levels of this architecture, best first.
pub(super) const LEVELS: &[Level] = &[
    #[cfg(target_arch = "x86_64")]
    Level {
        name: "avx512",
        // VBMI2 is required although it is not used: CPUs without it (Skylake and relatives) reduce their clock
        // frequency, also for the caller's code, when they execute 512-bit instructions.
        available: || {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi2")
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("f16c")
        },
        kernel: |dtype, op| x86::kernel(dtype, op).or_else(|| kernel::<Avx512>(dtype, op)),
        sum: |dtype| x86::sum(dtype).or_else(|| sum::<Avx512>(dtype)),
        divide: |dtype| x86::divide(dtype).or_else(|| divide::<Avx512>(dtype)),
        exact: exact::<Avx512>,
        mean: x86::MEAN,
    },
    #[cfg(target_arch = "x86_64")]
    Level {
        name: "avx2",
        available: || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
        kernel: |dtype, op| x86::kernel(dtype, op).or_else(|| kernel::<Avx2>(dtype, op)),
        sum: |dtype| x86::sum(dtype).or_else(|| sum::<Avx2>(dtype)),
        divide: |dtype| x86::divide(dtype).or_else(|| divide::<Avx2>(dtype)),
        exact: exact::<Avx2>,
        mean: x86::MEAN,
    },
    #[cfg(target_arch = "aarch64")]
    Level {
        name: "neon",
        available: || true,
        kernel: |dtype, op| neon::kernel(dtype, op).or_else(|| kernel::<Baseline>(dtype, op)),
        sum: |dtype| neon::sum(dtype).or_else(|| sum::<Baseline>(dtype)),
        divide: |dtype| neon::divide(dtype).or_else(|| divide::<Baseline>(dtype)),
        exact: exact::<Baseline>,
        mean: neon::MEAN,
    },
    Level {
        name: "baseline",
        available: || true,
        kernel: kernel::<Baseline>,
        sum: sum::<Baseline>,
        divide: divide::<Baseline>,
        exact: exact::<Baseline>,
        mean: mean_of_halves,
    },
];

/// The best level that this CPU supports.
pub(super) fn best() -> &'static Level {
    LEVELS.iter().find(|level| (level.available)()).expect("the baseline is always available")
}

/// Compiles the loops for a set of CPU features.
trait Compile {
    /// The kernel of `O` on elements that consist of `PARTS` independent values of type `T`.
    fn reduce<T: Copy, O: Op<T>, const PARTS: usize>() -> Kernel;

    /// The kernel that combines several inputs at once.
    fn fused<T: Copy, O: Op<T>, const PARTS: usize>() -> Fused;

    /// The division of elements that consist of `PARTS` independent values of type `T`.
    fn divide<T: Quotient, const PARTS: usize>() -> Divide;

    /// The exact sum of elements that consist of `PARTS` values of type `T`.
    fn exact<T: Summand, const PARTS: usize>() -> Exact;
}

macro_rules! compile {
    ($name:ident, $stream:ty $(, $features:literal)?) => {
        struct $name;

        impl Compile for $name {
            fn reduce<T: Copy, O: Op<T>, const PARTS: usize>() -> Kernel {
                $(#[target_feature(enable = $features)])?
                unsafe fn run<T: Copy, O: Op<T>, const PARTS: usize>(
                    into: *mut u8,
                    left: *const u8,
                    right: *const u8,
                    count: usize,
                ) {
                    // SAFETY: the caller fulfils the contract of [`Kernel`], that is, `count` elements of `PARTS`
                    // values of type `T` at each pointer.
                    unsafe { Vectorised::<T, O, $stream, PARTS>::run::<2, false>(into, [left, right], count) }
                }
                run::<T, O, PARTS>
            }

            fn fused<T: Copy, O: Op<T>, const PARTS: usize>() -> Fused {
                $(#[target_feature(enable = $features)])?
                unsafe fn run<T: Copy, O: Op<T>, const PARTS: usize>(
                    into: *mut u8,
                    inputs: &[*const u8],
                    count: usize,
                    stores: Stores,
                ) {
                    // SAFETY: the caller fulfils the contract of [`Fused`], that is, `count` elements of `PARTS` values
                    // of type `T` at each pointer.
                    unsafe { fused::run::<Vectorised<T, O, $stream, PARTS>>(into, inputs, count, stores) }
                }
                run::<T, O, PARTS>
            }

            fn divide<T: Quotient, const PARTS: usize>() -> Divide {
                $(#[target_feature(enable = $features)])?
                unsafe fn run<T: Quotient, const PARTS: usize>(data: *mut u8, count: usize, divisor: u64) {
                    // SAFETY: the caller fulfils the contract of [`Divide`], that is, `count` elements of `PARTS`
                    // values of type `T` at `data`.
                    unsafe { divide_by(data.cast::<T>(), count * PARTS, T::divisor(divisor)) }
                }
                run::<T, PARTS>
            }

            fn exact<T: Summand, const PARTS: usize>() -> Exact {
                $(#[target_feature(enable = $features)])?
                unsafe fn run<T: Summand, const PARTS: usize>(into: *mut u8, inputs: &[*const u8], count: usize) {
                    // SAFETY: the caller fulfils the contract of [`Exact`], that is, `count` elements of `PARTS` values
                    // of type `T` at each pointer.
                    unsafe { exact::add::<T, PARTS>(into, inputs, count) }
                }
                run::<T, PARTS>
            }
        }
    };
}

// The compiler does not fuse multiplications and additions, so all levels give the same results.
compile!(Baseline, PastCaches);
#[cfg(target_arch = "x86_64")]
compile!(Avx2, x86::PastCaches, "avx2,f16c");
#[cfg(target_arch = "x86_64")]
compile!(Avx512, x86::PastCaches, "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c");

/// `data[i] = data[i] / divisor`.
///
/// # Safety
/// `data` is valid for reads and writes of `count` values of type `T`, of any alignment.
#[inline(always)]
unsafe fn divide_by<T: Quotient>(data: *mut T, count: usize, divisor: T::Divisor) {
    for i in 0..count {
        // SAFETY: `i < count`, and the caller guarantees `count` values at `data`; the accesses are unaligned.
        unsafe {
            let value = data.add(i);
            value.write_unaligned(value.read_unaligned().divide(divisor));
        }
    }
}

/// A [`Mean`] by what every CPU of the architecture has.
unsafe fn mean_of_halves(into: *mut u8, left: *const u8, right: *const u8, count: usize, contributions: [u32; 2]) {
    let (into, left, right) = (into.cast::<F16>(), left.cast::<F16>(), right.cast::<F16>());
    let shares = shares(contributions);
    for i in 0..count {
        // SAFETY: `i < count`, and the caller guarantees `count` elements at each pointer; the accesses are unaligned.
        unsafe {
            let (left, right) = (left.add(i).read_unaligned(), right.add(i).read_unaligned());
            into.add(i).write_unaligned(left.weigh(right, shares));
        }
    }
}

fn kernel<C: Compile>(dtype: DataType, op: ReduceOp) -> Option<Kernel> {
    match dtype {
        DataType::Int8 => integer::<C, u8, i8>(op),
        DataType::Uint8 => integer::<C, u8, u8>(op),
        DataType::Int16 => integer::<C, u16, i16>(op),
        DataType::Uint16 => integer::<C, u16, u16>(op),
        DataType::Int32 => integer::<C, u32, i32>(op),
        DataType::Uint32 => integer::<C, u32, u32>(op),
        DataType::Int64 => integer::<C, u64, i64>(op),
        DataType::Uint64 => integer::<C, u64, u64>(op),
        DataType::Float16 => float::<C, F16>(op),
        DataType::Bfloat16 => float::<C, Bf16>(op),
        DataType::Float32 => float::<C, f32>(op),
        DataType::Float64 => float::<C, f64>(op),
        DataType::Complex64 => complex::<C, f32>(op),
        DataType::Complex128 => complex::<C, f64>(op),
        DataType::Bool => match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => Some(C::reduce::<Bool, Or, 1>()),
            ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => Some(C::reduce::<Bool, And, 1>()),
            ReduceOp::BitXor => Some(C::reduce::<Bool, Xor, 1>()),
            ReduceOp::Average => None,
        },
    }
}

/// Integers. Only comparisons depend on the signedness, so other operations use the unsigned type.
fn integer<C: Compile, T: Copy, Compared: Copy>(op: ReduceOp) -> Option<Kernel>
where
    Add: Op<T>,
    Mul: Op<T>,
    And: Op<T>,
    Or: Op<T>,
    Xor: Op<T>,
    Min: Op<Compared>,
    Max: Op<Compared>,
{
    match op {
        ReduceOp::Sum | ReduceOp::Product | ReduceOp::Average => arithmetic::<C, T>(op),
        ReduceOp::Min => Some(C::reduce::<Compared, Min, 1>()),
        ReduceOp::Max => Some(C::reduce::<Compared, Max, 1>()),
        ReduceOp::BitAnd => Some(C::reduce::<T, And, 1>()),
        ReduceOp::BitOr => Some(C::reduce::<T, Or, 1>()),
        ReduceOp::BitXor => Some(C::reduce::<T, Xor, 1>()),
    }
}

fn float<C: Compile, T: Copy>(op: ReduceOp) -> Option<Kernel>
where
    Add: Op<T>,
    Mul: Op<T>,
    Min: Op<T>,
    Max: Op<T>,
{
    match op {
        ReduceOp::Min => Some(C::reduce::<T, Min, 1>()),
        ReduceOp::Max => Some(C::reduce::<T, Max, 1>()),
        _ => arithmetic::<C, T>(op),
    }
}

fn arithmetic<C: Compile, T: Copy>(op: ReduceOp) -> Option<Kernel>
where
    Add: Op<T>,
    Mul: Op<T>,
{
    match op {
        ReduceOp::Sum | ReduceOp::Average => Some(C::reduce::<T, Add, 1>()),
        ReduceOp::Product => Some(C::reduce::<T, Mul, 1>()),
        _ => None,
    }
}

/// Complex numbers whose parts have type `T`.
fn complex<C: Compile, T: Copy>(op: ReduceOp) -> Option<Kernel>
where
    Add: Op<T>,
    Mul: Op<Complex<T>>,
{
    match op {
        ReduceOp::Sum | ReduceOp::Average => Some(C::reduce::<T, Add, 2>()),
        ReduceOp::Product => Some(C::reduce::<Complex<T>, Mul, 1>()),
        _ => None,
    }
}

/// Sums of integers do not depend on the signedness, those of complex numbers are those of their parts.
fn sum<C: Compile>(dtype: DataType) -> Option<Fused> {
    match dtype {
        DataType::Int8 | DataType::Uint8 => Some(C::fused::<u8, Add, 1>()),
        DataType::Int16 | DataType::Uint16 => Some(C::fused::<u16, Add, 1>()),
        DataType::Int32 | DataType::Uint32 => Some(C::fused::<u32, Add, 1>()),
        DataType::Int64 | DataType::Uint64 => Some(C::fused::<u64, Add, 1>()),
        DataType::Float16 => Some(C::fused::<F16, Add, 1>()),
        DataType::Bfloat16 => Some(C::fused::<Bf16, Add, 1>()),
        DataType::Float32 => Some(C::fused::<f32, Add, 1>()),
        DataType::Float64 => Some(C::fused::<f64, Add, 1>()),
        DataType::Complex64 => Some(C::fused::<f32, Add, 2>()),
        DataType::Complex128 => Some(C::fused::<f64, Add, 2>()),
        DataType::Bool => None,
    }
}

fn divide<C: Compile>(dtype: DataType) -> Option<Divide> {
    match dtype {
        DataType::Int8 => Some(C::divide::<i8, 1>()),
        DataType::Uint8 => Some(C::divide::<u8, 1>()),
        DataType::Int16 => Some(C::divide::<i16, 1>()),
        DataType::Uint16 => Some(C::divide::<u16, 1>()),
        DataType::Int32 => Some(C::divide::<i32, 1>()),
        DataType::Uint32 => Some(C::divide::<u32, 1>()),
        DataType::Int64 => Some(C::divide::<i64, 1>()),
        DataType::Uint64 => Some(C::divide::<u64, 1>()),
        DataType::Float16 => Some(C::divide::<F16, 1>()),
        DataType::Bfloat16 => Some(C::divide::<Bf16, 1>()),
        DataType::Float32 => Some(C::divide::<f32, 1>()),
        DataType::Float64 => Some(C::divide::<f64, 1>()),
        DataType::Complex64 => Some(C::divide::<f32, 2>()),
        DataType::Complex128 => Some(C::divide::<f64, 2>()),
        DataType::Bool => None,
    }
}

fn exact<C: Compile>(dtype: DataType) -> Option<Exact> {
    match dtype {
        DataType::Float32 => Some(C::exact::<f32, 1>()),
        DataType::Float64 => Some(C::exact::<f64, 1>()),
        DataType::Complex64 => Some(C::exact::<f32, 2>()),
        DataType::Complex128 => Some(C::exact::<f64, 2>()),
        _ => None,
    }
}
