//! Speed of the reduction kernels in bytes of results per second, compared with memcpy.
//!
//! `cargo bench --bench reduce --no-default-features`. The buffers hold random numbers. `apart` reads two buffers and
//! writes a third; `in_place` writes one of the two, like a receive that reduces.

use std::fmt;

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use gloo_rs::reduce;
use gloo_rs::types::{DataType, ReduceOp};

/// Buffer sizes in bytes: one that fits in the second-level cache, one that does not.
const SIZES: [usize; 2] = [64 << 10, 32 << 20];

struct Case {
    dtype: DataType,
    op: ReduceOp,
    bytes: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, {} KiB", self.dtype, self.op, self.bytes >> 10)
    }
}

fn cases(kinds: &[(DataType, ReduceOp)]) -> Vec<Case> {
    let cases = SIZES.iter().flat_map(|&bytes| kinds.iter().map(move |&(dtype, op)| Case { dtype, op, bytes }));
    cases.collect()
}

fn sums() -> Vec<Case> {
    use DataType::*;
    cases(&[Float32, Float16, Bfloat16, Float64, Int8].map(|dtype| (dtype, ReduceOp::Sum)))
}

fn sums_and_more() -> Vec<Case> {
    let more = [(DataType::Complex64, ReduceOp::Product), (DataType::Float32, ReduceOp::Max)];
    sums().into_iter().chain(cases(&more)).collect()
}

/// Random elements; floats are between 0.5 and 1.
fn random(dtype: DataType, bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 11
    };
    let mut data = Vec::with_capacity(bytes);
    while data.len() < bytes {
        let bits = next();
        match dtype {
            DataType::Float16 => data.extend_from_slice(&(0x3800 | (bits as u16 & 0x03FF)).to_le_bytes()),
            DataType::Bfloat16 => data.extend_from_slice(&(0x3F00 | (bits as u16 & 0x007F)).to_le_bytes()),
            DataType::Float64 => data.extend_from_slice(&(0.5 + bits as f64 / (1u64 << 54) as f64).to_le_bytes()),
            DataType::Int8 => data.push(bits as u8),
            _ => data.extend_from_slice(&(0.5 + (bits >> 30) as f32 / (1 << 24) as f32).to_le_bytes()),
        }
    }
    data
}

#[divan::bench(args = sums_and_more())]
fn apart(bencher: Bencher, case: &Case) {
    let Case { dtype, op, bytes } = *case;
    let (left, right) = (random(dtype, bytes, 1), random(dtype, bytes, 2));
    let mut into = vec![1u8; bytes];
    let kernel = reduce::kernel(dtype, op).expect("the operation is defined on the type");
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        // SAFETY: the three buffers have `bytes` bytes each and are disjoint.
        unsafe { kernel(black_box(&mut into).as_mut_ptr(), left.as_ptr(), right.as_ptr(), bytes / dtype.size()) }
    });
}

/// Sums only: repeated in-place sums saturate, whereas products would become zeros or infinities.
#[divan::bench(args = sums())]
fn in_place(bencher: Bencher, case: &Case) {
    let Case { dtype, op, bytes } = *case;
    let (mut into, right) = (random(dtype, bytes, 1), random(dtype, bytes, 2));
    let kernel = reduce::kernel(dtype, op).expect("the operation is defined on the type");
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        let into = black_box(&mut into).as_mut_ptr();
        // SAFETY: the two buffers have `bytes` bytes each and are disjoint; `into` may also be an operand.
        unsafe { kernel(into, into, right.as_ptr(), bytes / dtype.size()) }
    });
}

#[divan::bench(args = SIZES)]
fn memcpy(bencher: Bencher, bytes: usize) {
    let from = random(DataType::Int8, bytes, 1);
    let mut into = vec![1u8; bytes];
    bencher.counter(BytesCount::new(bytes)).bench_local(|| black_box(&mut into).copy_from_slice(&from));
}

fn main() {
    println!("kernels: {}", reduce::cpu_features());
    divan::main();
}
