//! Reductions of any number of inputs in one pass over memory.

use std::mem::MaybeUninit;
use std::ptr::null;

use super::Kernel;
use super::fused::Fused;
use super::level::Level;
use super::stores::{LINE_BYTES, STREAMS, Stores, copy, fence, stream};
use crate::types::{DataType, ReduceOp};

/// The most inputs of a [`Fused`].
const MAX_INPUTS: usize = 8;

/// Bytes of a result that are kept in the first-level cache between one group of inputs and the next.
const CHUNK_BYTES: usize = 1024;

#[repr(align(64))]
struct Chunk(MaybeUninit<[u8; CHUNK_BYTES]>);

/// Reduces any number of inputs; see [`super::kernel_n`].
#[derive(Clone, Copy, Debug)]
pub struct KernelN {
    pair: Kernel,
    fused: Option<Fused>,
    /// Bytes per element.
    size: usize,
}

impl KernelN {
    pub(super) fn new(level: &Level, dtype: DataType, op: ReduceOp) -> Option<Self> {
        let is_sum = matches!(op, ReduceOp::Sum | ReduceOp::Average);
        let fused = is_sum.then(|| (level.sum)(dtype)).flatten();
        Some(Self { pair: (level.kernel)(dtype, op)?, fused, size: dtype.size() })
    }

    /// `into[i] = ((inputs[0][i] op inputs[1][i]) op inputs[2][i]) op …` for `count` elements: in this order, and with
    /// the bits that a chain of calls of the two-input [`Kernel`] gives. In particular, 16-bit floats are rounded after
    /// each operation. A single input is copied as it is; without inputs nothing is written.
    ///
    /// `into` is best a multiple of an element's size: otherwise nothing is stored past the caches.
    ///
    /// # Safety
    /// Each input is valid for reads and `into` for writes of `count` elements, of any alignment. `into` may equal
    /// inputs, but must not overlap any of them partially. No other thread accesses the elements in a conflicting way
    /// during the call.
    pub unsafe fn run(&self, into: *mut u8, inputs: &[*const u8], count: usize, stores: Stores) {
        let streams = STREAMS && stores == Stores::Streaming && !inputs.contains(&into.cast_const());
        let head = into.align_offset(LINE_BYTES) / self.size;
        // SAFETY: the caller guarantees `count` elements at each pointer; `head <= count` of them are the first part,
        // the others the second, which begins at a multiple of a line if `into` is a multiple of an element's size.
        unsafe {
            match *inputs {
                [] => {}
                [input] => copy(into, input, count * self.size, stores),
                _ if streams && into.align_offset(LINE_BYTES) == head * self.size && head < count => {
                    self.part(into, inputs, 0, head, Stores::Cached);
                    self.part(into, inputs, head, count - head, Stores::Streaming);
                    fence();
                }
                _ => self.part(into, inputs, 0, count, Stores::Cached),
            }
        }
    }

    /// The number of inputs, at most `inputs`, that are reduced together.
    fn width(&self, inputs: usize) -> usize {
        match inputs {
            8.. if self.fused.is_some() => 8,
            4.. if self.fused.is_some() => 4,
            3.. if self.fused.is_some() => 3,
            _ => inputs.min(2),
        }
    }

    /// Reduces as many inputs as [`KernelN::width`] says.
    ///
    /// # Safety
    /// That of [`Fused`]; the result is not stored past the caches unless there is a fused kernel.
    unsafe fn group(&self, into: *mut u8, inputs: &[*const u8], count: usize, stores: Stores) {
        // SAFETY: the caller fulfils the contract of both, and without a fused kernel, there are two inputs.
        unsafe {
            match self.fused {
                Some(fused) if inputs.len() > 2 || stores == Stores::Streaming => fused(into, inputs, count, stores),
                _ => (self.pair)(into, inputs[0], inputs[1], count),
            }
        }
    }

    /// Reduces elements `start..start + count` of two or more inputs.
    ///
    /// # Safety
    /// That of [`KernelN::run`]. If stored past the caches, `into + start` is a multiple of [`LINE_BYTES`], no input
    /// equals `into`, and [`fence`] must follow.
    unsafe fn part(&self, into: *mut u8, inputs: &[*const u8], start: usize, count: usize, stores: Stores) {
        let stores_directly = stores == Stores::Cached || self.fused.is_some();
        let first = self.width(inputs.len());
        let step = if first == inputs.len() && stores_directly { count.max(1) } else { CHUNK_BYTES / self.size };
        let mut chunk = Chunk(MaybeUninit::uninit());
        let chunk = chunk.0.as_mut_ptr().cast::<u8>();
        let mut operands = [null(); MAX_INPUTS];
        for at in (start..start + count).step_by(step) {
            let len = step.min(start + count - at);
            let offset = at * self.size;
            // SAFETY: the elements `at..at + len` are within the `count` elements from `start` on that the caller
            // guarantees at each pointer. The chunk has room for `len` of them unless one group is all, which writes to
            // `into`. `into` is written by the last group only, when the chunk's elements of all other inputs have been
            // read, and the chunk is filled by the first group before any other reads it. Chunks are multiples of a
            // line.
            unsafe {
                let target = into.add(offset);
                let mut done = 0;
                while done < inputs.len() {
                    // From the second group on, the first operand is what the groups before have left.
                    let kept = usize::from(done > 0);
                    let width = self.width(kept + inputs.len() - done);
                    operands[0] = chunk.cast_const();
                    for (operand, input) in operands[kept..width].iter_mut().zip(&inputs[done..]) {
                        *operand = input.add(offset);
                    }
                    done += width - kept;
                    let last = done == inputs.len();
                    let (result, stores) =
                        if last && stores_directly { (target, stores) } else { (chunk, Stores::Cached) };
                    self.group(result, &operands[..width], len, stores);
                }
                if !stores_directly {
                    stream(target, chunk, len * self.size);
                }
            }
        }
    }
}
