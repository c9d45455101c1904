//! The kernels that reduce in the memory of a GPU: which there are, what their names are, and how they are launched.
//!
//! `kernels.cu` is their source, and `kernels.ptx` what the driver compiles for its GPU (`cuModuleLoadData`);
//! `scripts/ptx.sh` makes one of the other, and `kernels.ptx.deflate`, which the library contains. Their results have
//! the bits of those of [`crate::reduce`].
//!
//! A launch (`cuLaunchKernel`) has [`blocks`] of [`BLOCK_THREADS`] threads, no shared memory, and one parameter,
//! [`Arguments`].

#[cfg(any(test, feature = "cuda"))]
use miniz_oxide::inflate::decompress_slice_iter_to_slice;

use crate::error::Result;
use crate::reduce;
#[cfg(any(test, feature = "cuda"))]
use crate::reserve::try_zeros;
use crate::types::{DataType, ReduceOp};

/// `kernels.ptx`, compressed as RFC 1951 says: a tenth of its length, in each of the library's files.
#[cfg(any(test, feature = "cuda"))]
const COMPRESSED: &[u8] = include_bytes!("kernels.ptx.deflate");

/// The kernels, for `cuModuleLoadData`, with the zero byte that ends a string in C. Drivers of CUDA 12.1 or newer take
/// it, for GPUs from compute capability 7.0 on.
#[cfg(any(test, feature = "cuda"))]
pub fn ptx() -> Result<Vec<u8>> {
    const BYTES: usize = include_bytes!("kernels.ptx").len();
    let mut text = try_zeros::<u8>(BYTES + 1, "the kernels for GPUs")?;
    match decompress_slice_iter_to_slice(&mut text[..BYTES], std::iter::once(COMPRESSED), false, true) {
        Ok(BYTES) => Ok(text),
        // The tests compare it with the text.
        _ => unreachable!("what is compiled into the library is complete"),
    }
}

/// A build without the feature finds no driver that could load them.
#[cfg(not(any(test, feature = "cuda")))]
pub fn ptx() -> Result<Vec<u8>> {
    Ok(vec![0])
}

/// The most inputs of a launch. More inputs are reduced by several launches, of which each but the first begins with
/// the result of the one before. Then the result must not be in the place of an input of a later launch.
pub const MAX_INPUTS: usize = 8;

/// Threads of a block; a kernel cannot be launched with more.
pub const BLOCK_THREADS: u32 = 256;

/// Bytes that a thread reads at once of each input.
const VECTOR_BYTES: usize = 16;

/// Blocks for each multiprocessor of a GPU that it has room for: 2048 threads.
const BLOCKS_OF_A_MULTIPROCESSOR: u32 = 8;

/// The number of blocks for a result of so many bytes, on a GPU with so many multiprocessors: a thread for each vector,
/// but no more than run at one time. A kernel's result does not depend on it.
pub fn blocks(bytes: usize, multiprocessors: u32) -> u32 {
    let wanted = bytes.div_ceil(VECTOR_BYTES * BLOCK_THREADS as usize);
    let most = multiprocessors.saturating_mul(BLOCKS_OF_A_MULTIPROCESSOR).max(1);
    u32::try_from(wanted).unwrap_or(u32::MAX).clamp(1, most)
}

/// One of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    task: Task,
    /// The type of the kernel's elements, of which `parts` are one of the caller's.
    dtype: DataType,
    parts: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    Reduce(ReduceOp),
    Divide,
    Mean,
}

impl Kernel {
    /// The kernel of `op` on `dtype`; `None` if [`ReduceOp::supports`] says no. That of `Average` is that of `Sum`.
    ///
    /// Pairs with the same results share a kernel: but for comparisons those of integers have the unsigned type, sums
    /// of complex numbers are those of their parts, and operations on bools are `and`, `or` and `xor`.
    pub fn reduction(dtype: DataType, op: ReduceOp) -> Option<Self> {
        use ReduceOp::{Average, BitAnd, BitOr, Max, Min, Product, Sum};
        if !op.supports(dtype) {
            return None;
        }
        let op = match (dtype, op) {
            (DataType::Bool, Sum | Max) => BitOr,
            (DataType::Bool, Product | Min) => BitAnd,
            (_, Average) => Sum,
            (_, op) => op,
        };
        let (dtype, parts) = match op {
            Min | Max => (dtype, 1),
            Sum => parts(unsigned(dtype)),
            _ => (unsigned(dtype), 1),
        };
        Some(Self { task: Task::Reduce(op), dtype, parts })
    }

    /// The division for averages; `None` for `Bool`. With 1 as the divisor, it is what [`reduce::settle`] does to
    /// floats; the `or` of an input and itself is what it does to bools.
    pub fn division(dtype: DataType) -> Option<Self> {
        let (dtype, parts) = parts(dtype);
        ReduceOp::Average.supports(dtype).then_some(Self { task: Task::Divide, dtype, parts })
    }

    /// The mean of float16.
    pub fn mean() -> Self {
        Self { task: Task::Mean, dtype: DataType::Float16, parts: 1 }
    }

    /// The name, for `cuModuleGetFunction`.
    pub fn name(self) -> String {
        match self.task {
            Task::Reduce(op) => format!("gloo_rs_reduce_{}_{op}", self.dtype),
            Task::Divide => format!("gloo_rs_divide_{}", self.dtype),
            Task::Mean => format!("gloo_rs_mean_{}", self.dtype),
        }
    }

    /// `into[i] = (inputs[0][i] op inputs[1][i]) op …` for `count` elements, in this order: 1 to [`MAX_INPUTS`] inputs,
    /// of which a single one is copied unchanged.
    ///
    /// The addresses are those of a device, and multiples of the elements' alignment ([`DataType::align`]). `into` may
    /// equal inputs, but must not overlap any of them partially. If all are equal modulo 16, threads read 16 bytes at
    /// once, else an element.
    pub fn reduce(self, into: u64, inputs: &[u64], count: usize) -> Arguments {
        let mut all = [0; MAX_INPUTS];
        all[..inputs.len()].copy_from_slice(inputs);
        Arguments {
            into,
            inputs: all,
            count: count as u64 * u64::from(self.parts),
            divisor: 1,
            shares: [[0.0; 2]; MAX_INPUTS],
            number: inputs.len() as u32,
            unused: 0,
        }
    }

    /// `into[i] = from[i] / divisor` for `count` elements, where `into` may equal `from`; see [`reduce::Divide`].
    pub fn divide(self, into: u64, from: u64, divisor: u64, count: usize) -> Arguments {
        Arguments { divisor, ..self.reduce(into, &[from], count) }
    }

    /// The mean of inputs that are means themselves, of so many contributions each; see [`reduce::mean_n`].
    pub fn average(self, into: u64, inputs: &[u64], contributions: &[u32], count: usize) -> Arguments {
        let mut arguments = self.reduce(into, inputs, count);
        let mut before = contributions[0];
        for (shares, &number) in arguments.shares.iter_mut().zip(contributions).skip(1) {
            *shares = reduce::shares([before, number]);
            before += number;
        }
        arguments
    }
}

/// The only parameter of every kernel: `Arguments` of `kernels.cu`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Arguments {
    into: u64,
    inputs: [u64; MAX_INPUTS],
    count: u64,
    divisor: u64,
    shares: [[f32; 2]; MAX_INPUTS],
    number: u32,
    unused: u32,
}

/// The unsigned type of as many bits; other types remain.
fn unsigned(dtype: DataType) -> DataType {
    match dtype {
        DataType::Int8 => DataType::Uint8,
        DataType::Int16 => DataType::Uint16,
        DataType::Int32 => DataType::Uint32,
        DataType::Int64 => DataType::Uint64,
        other => other,
    }
}

/// The type of the parts of a complex number, and that there are two; other types have one.
fn parts(dtype: DataType) -> (DataType, u8) {
    match dtype {
        DataType::Complex64 => (DataType::Float32, 2),
        DataType::Complex128 => (DataType::Float64, 2),
        other => (other, 1),
    }
}
