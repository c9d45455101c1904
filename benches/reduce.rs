//! Speed of the reduction kernels in bytes of results per second, compared with memcpy.
//!
//! `cargo bench --bench reduce --no-default-features`. The buffers hold random numbers. `out_of_place` reads two
//! buffers and writes a third; `in_place` writes one of the two, like a receive that reduces; `several` reads 2 to 17.
//! Results that are `read` are summed up afterwards, as by a caller that uses them.

use std::fmt;

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use gloo_rs::reduce::{self, Stores};
use gloo_rs::types::{DataType, ReduceOp};

/// Buffer sizes in bytes: one that fits in the second-level cache, one that exceeds all caches.
const SIZES: [usize; 2] = [64 << 10, 64 << 20];

/// Sizes around that of the last-level cache, where storing past the caches begins to pay.
const STORED: [usize; 5] = [4 << 20, 8 << 20, 16 << 20, 32 << 20, 64 << 20];

const STORES: [Stores; 2] = [Stores::Cached, Stores::Streaming];

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
fn out_of_place(bencher: Bencher, case: &Case) {
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

struct Several {
    case: Case,
    inputs: usize,
    stores: Stores,
}

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} inputs, {:?}", self.case, self.inputs, self.stores)
    }
}

fn inputs() -> Vec<Several> {
    use DataType::*;
    let mut all = Vec::new();
    for inputs in [2, 3, 4, 8, 17] {
        for case in cases(&[Float32, Float16, Bfloat16].map(|dtype| (dtype, ReduceOp::Sum))) {
            if case.bytes == SIZES[1] {
                all.push(Several { case: Case { ..case }, inputs, stores: Stores::Streaming });
            }
            all.push(Several { case, inputs, stores: Stores::Cached });
        }
    }
    for case in cases(&[(Float32, ReduceOp::Max)]) {
        all.push(Several { case, inputs: 4, stores: Stores::Cached });
    }
    all
}

/// Per byte of the result, of which each of the inputs has as many.
#[divan::bench(args = inputs())]
fn several(bencher: Bencher, several: &Several) {
    let Several { case: Case { dtype, op, bytes }, inputs, stores } = *several;
    let inputs: Vec<_> = (0..inputs).map(|seed| random(dtype, bytes, seed as u64)).collect();
    let pointers: Vec<_> = inputs.iter().map(|input| input.as_ptr()).collect();
    let mut into = vec![1u8; bytes];
    let kernel = reduce::kernel_n(dtype, op).expect("the operation is defined on the type");
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        let into = black_box(&mut into).as_mut_ptr();
        // SAFETY: the buffers have `bytes` bytes each and are disjoint.
        unsafe { kernel.run(into, &pointers, bytes / dtype.size(), stores) };
    });
}

/// A sum of two, with what follows.
struct Stored {
    bytes: usize,
    stores: Stores,
    is_read: bool,
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB, {:?}{}", self.bytes >> 10, self.stores, if self.is_read { ", read" } else { "" })
    }
}

fn stored() -> Vec<Stored> {
    let kinds = [false, true].iter().flat_map(|&is_read| STORES.map(|stores| (stores, is_read)));
    kinds.flat_map(|(stores, is_read)| STORED.map(|bytes| Stored { bytes, stores, is_read })).collect()
}

#[divan::bench(args = stored())]
fn add(bencher: Bencher, stored: &Stored) {
    let Stored { bytes, stores, is_read } = *stored;
    let (left, right) = (random(DataType::Float32, bytes, 1), random(DataType::Float32, bytes, 2));
    let mut into = vec![1u8; bytes];
    let kernel = reduce::kernel_n(DataType::Float32, ReduceOp::Sum).expect("floats have sums");
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        let pointer = black_box(&mut into).as_mut_ptr();
        // SAFETY: the three buffers have `bytes` bytes each and are disjoint.
        unsafe { kernel.run(pointer, &[left.as_ptr(), right.as_ptr()], bytes / 4, stores) };
        if is_read { sum_up(&into) } else { 0 }
    });
}

fn sum_up(bytes: &[u8]) -> u64 {
    bytes
        .chunks_exact(8)
        .map(|chunk| u64::from_ne_bytes(chunk.try_into().expect("eight bytes")))
        .fold(0, u64::wrapping_add)
}

#[divan::bench(args = stored())]
fn copy(bencher: Bencher, stored: &Stored) {
    let Stored { bytes, stores, is_read } = *stored;
    let from = random(DataType::Int8, bytes, 1);
    let mut into = vec![1u8; bytes];
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        // SAFETY: both buffers have `bytes` bytes and are disjoint.
        unsafe { reduce::copy(black_box(&mut into).as_mut_ptr(), from.as_ptr(), bytes, stores) };
        if is_read { sum_up(&into) } else { 0 }
    });
}

#[divan::bench(args = SIZES)]
fn memcpy(bencher: Bencher, bytes: usize) {
    let from = random(DataType::Int8, bytes, 1);
    let mut into = vec![1u8; bytes];
    bencher.counter(BytesCount::new(bytes)).bench_local(|| black_box(&mut into).copy_from_slice(&from));
}

fn main() {
    println!("kernels: {}; last-level cache: {} bytes", reduce::cpu_features(), reduce::last_level_cache());
    divan::main();
}
