//! Loops over several inputs that the compiler vectorises.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::element::Op;
use super::stores::{STREAMS, Stores};
#[cfg(doc)]
use super::{KernelN, stores::LINE_BYTES, stores::fence};

/// `into[i] = (inputs[0][i] op inputs[1][i]) op …` for `count` elements, of 3, 4 or 8 inputs, or of 2 if stored past
/// the caches.
///
/// # Safety
/// That of [`KernelN::run`]. If stored past the caches, `into` is a multiple of [`LINE_BYTES`], and [`fence`] must
/// follow.
pub(super) type Fused = unsafe fn(into: *mut u8, inputs: &[*const u8], count: usize, stores: Stores);

/// A piece of a result before it is stored. In the compiled code it is in registers: eight of AVX2's.
#[repr(align(64))]
pub(super) struct Block(MaybeUninit<[u8; BLOCK_BYTES]>);

pub(super) const BLOCK_BYTES: usize = 256;

/// Bytes of the pieces that are left at the end.
const SHORT_BYTES: usize = 32;

impl Block {
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }
}

/// How a block is stored past the caches.
pub(super) trait Store {
    /// # Safety
    /// The block is filled. `into` is valid for writes of a block, and a multiple of [`LINE_BYTES`]. The
    /// CPU has the features that the type is for.
    unsafe fn store(block: &Block, into: *mut u8);
}

/// By the instructions that every CPU of the architecture has.
pub(super) struct PastCaches;

impl Store for PastCaches {
    #[inline(always)]
    unsafe fn store(block: &Block, into: *mut u8) {
        // SAFETY: the caller guarantees room for a block at `into`, and its alignment.
        unsafe { super::stores::stream(into, block.as_ptr(), BLOCK_BYTES) };
    }
}

/// In a loop over blocks: keeps the compiler from unrolling the inner loop, and then computing several blocks at once,
/// with one element of each in a register. It does that to elements of 8 bytes for AVX2 and AVX-512, whose gathers and
/// scatters take four to eight times as long.
#[inline(always)]
fn one_block_at_a_time() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: there is no instruction.
    unsafe {
        std::arch::asm!("", options(nomem, nostack, preserves_flags));
    }
}

/// A loop over `N` inputs.
pub(super) trait Loop {
    /// # Safety
    /// That of [`Fused`], and the CPU has the features that the type is for.
    unsafe fn run<const N: usize, const STREAM: bool>(into: *mut u8, inputs: [*const u8; N], count: usize);
}

/// A [`Fused`].
///
/// # Safety
/// That of [`Loop::run`].
#[inline(always)]
pub(super) unsafe fn run<L: Loop>(into: *mut u8, inputs: &[*const u8], count: usize, stores: Stores) {
    // Elsewhere the loops are the same, so half of them are left out.
    let stores = if STREAMS { stores } else { Stores::Cached };
    // SAFETY: the caller fulfils the contract.
    unsafe {
        match (inputs, stores) {
            (&[a, b], Stores::Streaming) => L::run::<2, true>(into, [a, b], count),
            (&[a, b, c], Stores::Cached) => L::run::<3, false>(into, [a, b, c], count),
            (&[a, b, c], Stores::Streaming) => L::run::<3, true>(into, [a, b, c], count),
            (&[a, b, c, d], Stores::Cached) => L::run::<4, false>(into, [a, b, c, d], count),
            (&[a, b, c, d], Stores::Streaming) => L::run::<4, true>(into, [a, b, c, d], count),
            (&[a, b, c, d, e, f, g, h], Stores::Cached) => L::run::<8, false>(into, [a, b, c, d, e, f, g, h], count),
            (&[a, b, c, d, e, f, g, h], Stores::Streaming) => L::run::<8, true>(into, [a, b, c, d, e, f, g, h], count),
            _ => unreachable!("no loop over {} inputs", inputs.len()),
        }
    }
}

/// `O` on elements that consist of `PARTS` values of type `T`, stored past the caches by `S`, as a loop that the
/// compiler vectorises.
pub(super) struct Vectorised<T, O, S, const PARTS: usize>(PhantomData<(T, O, S)>);

impl<T: Copy, O: Op<T>, S: Store, const PARTS: usize> Loop for Vectorised<T, O, S, PARTS> {
    #[inline(always)]
    unsafe fn run<const N: usize, const STREAM: bool>(into: *mut u8, inputs: [*const u8; N], count: usize) {
        let into = into.cast::<T>();
        let count = count * PARTS;
        // A block apart from `into`, so that the loops are vectorised whichever input `into` is: no input overlaps it.
        let mut block = Block(MaybeUninit::uninit());
        let results = block.0.as_mut_ptr().cast::<T>();
        let (long, short) = (BLOCK_BYTES / size_of::<T>(), SHORT_BYTES / size_of::<T>());
        let rest = count % short;
        let whole = count - rest;
        let in_long = whole - whole % long;
        // SAFETY: the caller guarantees `count` values at each pointer, of which `result` reads the one at `i < count`;
        // a block has room for `long` of them. Reads of inputs are unaligned. All of a block's inputs are read before
        // it is written to `into`.
        unsafe {
            let result = |i: usize| {
                let input = |k: usize| inputs[k].cast::<T>().add(i).read_unaligned();
                let mut value = input(0);
                for k in 1..N - 1 {
                    value = O::partial(value, input(k));
                }
                O::apply(value, input(N - 1))
            };
            for at in (0..in_long).step_by(long) {
                one_block_at_a_time();
                for j in 0..long {
                    results.add(j).write(result(at + j));
                }
                if STREAM {
                    S::store(&block, into.add(at).cast());
                } else {
                    block.as_ptr().copy_to_nonoverlapping(into.add(at).cast(), BLOCK_BYTES);
                }
            }
            for at in (in_long..whole).step_by(short) {
                for j in 0..short {
                    results.add(j).write(result(at + j));
                }
                block.as_ptr().copy_to_nonoverlapping(into.add(at).cast(), SHORT_BYTES);
            }
            for i in whole..count {
                into.add(i).write_unaligned(result(i));
            }
        }
    }
}
