//! Reductions of several inputs, compared with the chain of the reference, and copies.

use super::super::several::KernelN;
use super::super::stores::last_level;
use super::super::{Stores, copy, kernel_n, last_level_cache};
use super::*;

const NUMBERS: [usize; 8] = [1, 2, 3, 4, 5, 8, 9, 17];

/// Inputs of a type, and the results of an operation on the first 1, 2, 3, … of them.
struct Case {
    dtype: DataType,
    op: ReduceOp,
    inputs: Vec<Vec<u8>>,
    results: Vec<Vec<u8>>,
}

impl Case {
    fn new(random: &mut Random, (dtype, op): (DataType, ReduceOp), inputs: usize, count: usize) -> Self {
        let specials = specials(dtype);
        let inputs: Vec<_> = (0..inputs).map(|_| random.elements(dtype, &specials, count)).collect();
        let mut results = vec![inputs[0].clone()];
        for input in &inputs[1..] {
            let pairs = results[results.len() - 1].chunks(dtype.size()).zip(input.chunks(dtype.size()));
            results.push(pairs.flat_map(|(left, right)| reference(dtype, op, left, right)).collect());
        }
        Self { dtype, op, inputs, results }
    }

    /// Reduces `count` elements of the first `number` inputs, which lie at `offsets[1..]`, into a buffer at
    /// `offsets[0]`, or into the buffers of input `alias`.
    fn check(
        &self,
        level: &Level,
        number: usize,
        count: usize,
        offsets: &[usize],
        alias: Option<usize>,
        stores: Stores,
    ) {
        let bytes = count * self.dtype.size();
        let mut buffers = vec![Buffer::new(&vec![0x5A; bytes], offsets[0])];
        let inputs = self.inputs[..number].iter().zip(&offsets[1..]);
        buffers.extend(inputs.map(|(input, &offset)| Buffer::new(&input[..bytes], offset)));
        let target = alias.map_or(0, |input| input + 1);
        let pointers: Vec<_> = buffers.iter_mut().map(|buffer| buffer.pointer()).collect();
        let inputs: Vec<_> = pointers[1..].iter().map(|pointer| pointer.cast_const()).collect();
        let kernel = KernelN::new(level, self.dtype, self.op).unwrap();
        // SAFETY: every buffer has `count` elements, and they are disjoint; `levels` returns only levels that this CPU
        // supports.
        unsafe { kernel.run(pointers[target], &inputs, count, stores) };
        for (i, buffer) in buffers.iter().enumerate() {
            let want = match i {
                _ if i == target => &self.results[number - 1][..bytes],
                0 => &vec![0x5A; bytes],
                _ => &self.inputs[i - 1][..bytes],
            };
            assert!(
                buffer.content() == want,
                "{} {} {}: {number} inputs of {count} elements at {offsets:?} into {alias:?}, {stores:?}: buffer {i}",
                level.name,
                self.dtype,
                self.op
            );
        }
    }
}

fn offsets(random: &mut Random, number: usize) -> Vec<usize> {
    (0..=number).map(|_| random.below(64)).collect()
}

/// Lengths around those of the loops: vectors, blocks, chunks.
#[test]
fn every_number_of_inputs_gives_the_bits_of_the_chain() {
    let mut random = Random(4);
    // Under Miri a sample, in a quarter of a minute: without elements of one byte, which are the most, and take longer
    // than all others.
    let (first, step, numbers) = if cfg!(miri) { (29, 58, &NUMBERS[4..5]) } else { (0, 1, &NUMBERS[..]) };
    for pair in supported().skip(first).step_by(step) {
        let size = pair.0.size();
        let chunk = 1024 / size;
        let mut counts = vec![0, 1, 3, 15, 16, 17, 64, 67, chunk - 1, chunk, chunk + 1, 2 * chunk + 17];
        if cfg!(miri) {
            counts = vec![chunk + 1];
        } else if Tier::from_environment() == Tier::Check {
            counts = vec![0, 17, chunk + 1, 67.max(chunk + 3)];
        }
        let case = Case::new(&mut random, pair, numbers[numbers.len() - 1], counts[counts.len() - 1]);
        for (i, &count) in counts.iter().enumerate() {
            for &number in numbers {
                for level in levels() {
                    let mut offsets = offsets(&mut random, number);
                    case.check(level, number, count, &offsets, None, Stores::Cached);
                    case.check(level, number, count, &offsets, Some((i + number) % number), Stores::Cached);
                    offsets[0] -= offsets[0] % size;
                    case.check(level, number, count, &offsets, None, Stores::Streaming);
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes; the test above does the same with fewer lengths")]
fn the_result_may_replace_any_input() {
    let mut random = Random(5);
    for pair in supported() {
        let case = Case::new(&mut random, pair, 17, 1024 / pair.0.size() + 5);
        for number in NUMBERS {
            for alias in 0..number {
                let level = levels().nth(alias % levels().count()).unwrap();
                let stores = [Stores::Cached, Stores::Streaming][alias / 2 % 2];
                let count = case.inputs[0].len() / pair.0.size();
                case.check(level, number, count, &offsets(&mut random, number), Some(alias), stores);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn the_result_may_replace_all_inputs() {
    let mut random = Random(6);
    for (dtype, op) in supported() {
        let elements = random.elements(dtype, &specials(dtype), 300);
        for (number, level) in NUMBERS.into_iter().flat_map(|number| levels().map(move |level| (number, level))) {
            let mut buffer = Buffer::new(&elements, 3);
            let into = buffer.pointer();
            let inputs = vec![into.cast_const(); number];
            // SAFETY: the buffer has 300 elements; `levels` returns only levels that this CPU supports.
            unsafe { KernelN::new(level, dtype, op).unwrap().run(into, &inputs, 300, Stores::Cached) };
            for (got, element) in buffer.content().chunks(dtype.size()).zip(elements.chunks(dtype.size())) {
                let want = (1..number).fold(element.to_vec(), |left, _| reference(dtype, op, &left, element));
                assert_eq!(got, want, "{} {dtype} {op}: {element:02X?}, {number} times", level.name);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn streamed_results_at_every_alignment() {
    let mut random = Random(7);
    for dtype in [Int8, Float16, Float32, Complex128] {
        for op in [ReduceOp::Sum, ReduceOp::Product] {
            let count = 3000 / dtype.size();
            let case = Case::new(&mut random, (dtype, op), 5, count);
            for offset in 0..64 {
                for number in [1, 2, 5] {
                    let level = levels().nth(offset / 2 % levels().count()).unwrap();
                    case.check(level, number, count, &[offset, 0, 1, 2, 3, 4], None, Stores::Streaming);
                }
            }
        }
    }
}

/// Rounded after each operation: 2048 + 1 is half-way between two binary16s and rounds to the even one, twice; the sum
/// rounded once were 2050. A sum that overflows does not come back.
#[test]
fn order_and_rounding_by_example() {
    let sum = |dtype, values: &[u16]| {
        let mut into = [0; 2];
        let inputs: Vec<_> = values.iter().map(|value| std::ptr::from_ref(value).cast()).collect();
        // SAFETY: each pointer is that of one element.
        unsafe { kernel_n(dtype, ReduceOp::Sum).unwrap().run(into.as_mut_ptr(), &inputs, 1, Stores::Cached) };
        u16::from_le_bytes(into)
    };
    let f16s = |values: &[f32]| {
        let values: Vec<_> = values.iter().map(|&value| f16::from_f32(value).to_bits()).collect();
        f16::from_bits(sum(Float16, &values)).to_f32()
    };
    let bf16s = |values: &[f32]| {
        let values: Vec<_> = values.iter().map(|&value| bf16::from_f32(value).to_bits()).collect();
        bf16::from_bits(sum(Bfloat16, &values)).to_f32()
    };
    assert_eq!((f16s(&[2048.0, 1.0, 1.0]), f16s(&[1.0, 1.0, 2048.0])), (2048.0, 2050.0));
    assert_eq!((bf16s(&[256.0, 1.0, 1.0, 1.0]), bf16s(&[1.0, 1.0, 256.0, 0.0])), (256.0, 258.0));
    assert_eq!(f16s(&[65504.0, 65504.0, -65504.0, -65504.0]), f32::INFINITY);
    assert_eq!(sum(Float16, &[0x7C00, 0xFC00, 0, 0]), 0x7E00);
    assert_eq!(sum(Bfloat16, &[0xFFC1, 0, 0, 0]), 0x7FC0);
}

#[test]
fn no_input_and_unsupported_operations() {
    let mut into = [7];
    // SAFETY: the pointer is that of one element, and there are no inputs.
    unsafe { kernel_n(Uint8, ReduceOp::Sum).unwrap().run(into.as_mut_ptr(), &[], 1, Stores::Streaming) };
    assert_eq!(into, [7]);
    for (dtype, op) in DataType::ALL.iter().flat_map(|&dtype| ReduceOp::ALL.iter().map(move |&op| (dtype, op))) {
        assert_eq!(kernel_n(dtype, op).is_some(), op.supports(dtype), "{dtype} {op}");
    }
}

#[test]
fn copies() {
    let mut random = Random(8);
    let step = if cfg!(miri) { 19 } else { 1 };
    for bytes in (0..200).step_by(step).chain([255, 256, 257, 4099]) {
        let content: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
        for stores in [Stores::Cached, Stores::Streaming] {
            let mut into = Buffer::new(&vec![0x5A; bytes], random.below(64));
            let mut from = Buffer::new(&content, random.below(64));
            let (target, source) = (into.pointer(), from.pointer());
            // SAFETY: both buffers have `bytes` bytes, and they are disjoint; then source and target are equal.
            unsafe {
                copy(target, source, bytes, stores);
                copy(source, source, bytes, stores);
            }
            assert!(into.content() == content && from.content() == content, "{bytes} bytes, {stores:?}");
        }
    }
}

#[test]
fn the_last_level_cache_is_that_of_the_highest_level() {
    let caches = |caches: &[(&str, &str)]| {
        last_level(caches.iter().map(|&(level, size)| (level.to_string() + "\n", size.to_string() + "\n")))
    };
    assert_eq!(caches(&[("1", "32K"), ("3", "16384K"), ("2", "1024K")]), Some(16 << 20));
    assert_eq!(caches(&[("1", "48K"), ("2", "0K"), ("3", "?")]), Some(48 << 10));
    assert_eq!(caches(&[("3", "99999999999999999999K")]), None);
    assert_eq!(caches(&[]), None);
}

#[test]
#[cfg_attr(miri, ignore = "reads files of this machine")]
fn results_beyond_the_cache_are_stored_past_it() {
    let cache = last_level_cache();
    assert!((64 << 10..1 << 40).contains(&cache), "{cache}");
    assert_eq!(Stores::for_working_set(cache, cache), Stores::Cached);
    assert_eq!(Stores::for_working_set(cache + 1, cache), Stores::Streaming);
}
