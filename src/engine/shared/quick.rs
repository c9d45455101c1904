//! A cache of plain calls: what a call with the same arguments, but for the buffers, needs to start.

use std::sync::Arc;

use crate::engine::execution::Combine;
use crate::engine::plan::Plan;
use crate::memory;
use crate::transport::board::Members;

/// The arguments of a plain call, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The collective's number.
    pub collective: u32,
    /// The data type's number.
    pub dtype: u32,
    /// The operation's number.
    pub op: u32,
    /// The root.
    pub root: i32,
    /// Number of elements.
    pub count: usize,
    /// The input.
    pub input: Input,
}

/// The input of a plain call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// NULL.
    Null,
    /// The same address as the output.
    Output,
    /// Another address.
    Other,
}

/// A call of which all is known but the buffers.
pub struct Known {
    /// The plan, which has a program.
    pub plan: Arc<Plan>,
    /// The name of the algorithm.
    pub algorithm: &'static str,
    /// How elements are combined.
    pub combine: Combine,
    /// Digest of the call.
    pub digest: u64,
    /// Bytes of one element.
    pub element: usize,
    /// Elements of the call, for error messages.
    pub count: usize,
    /// Bytes of the input, and of the output, if the call uses them.
    pub input: Option<usize>,
    /// See `input`.
    pub output: Option<usize>,
    /// Bytes that the publications take on the board.
    pub room: usize,
    /// Who reads this rank's publications.
    pub readers: Members,
    /// The alignment of the buffers.
    pub align: usize,
}

// SAFETY: `combine` is a kernel of the library.
unsafe impl Send for Known {}
// SAFETY: as above.
unsafe impl Sync for Known {}

/// The last plain calls.
#[derive(Default)]
pub struct Quick([Option<(Key, Arc<Known>)>; ENTRIES]);

const ENTRIES: usize = 32;

impl Key {
    fn position(&self) -> usize {
        let mixed = (self.count as u64 ^ u64::from(self.collective) << 40 ^ u64::from(self.dtype) << 48)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 59) as usize % ENTRIES
    }
}

impl Quick {
    /// The call with these arguments, if it is in the cache.
    #[inline]
    pub fn get(&self, key: &Key) -> Option<&Arc<Known>> {
        self.0[key.position()].as_ref().filter(|(own, _)| own == key).map(|(_, known)| known)
    }

    /// Adds a call, and removes another one.
    pub fn set(&mut self, key: Key, known: Known) {
        self.0[key.position()] = Some((key, Arc::new(known)));
    }
}

impl Known {
    /// Whether these are buffers in host memory that the call may use.
    #[inline]
    pub fn fits(&self, input: *const u8, output: *const u8) -> bool {
        let ok = |pointer: *const u8, bytes: usize| {
            bytes == 0
                || (!pointer.is_null()
                    && pointer.addr() & (self.align - 1) == 0
                    && pointer.addr().checked_add(bytes).is_some_and(|end| end <= isize::MAX as usize)
                    && memory::check_host(pointer, String::new).is_ok())
        };
        let apart = match (self.input, self.output) {
            (Some(i), Some(o)) => input.addr() + i <= output.addr() || output.addr() + o <= input.addr(),
            _ => true,
        };
        self.input.is_none_or(|bytes| ok(input, bytes)) && self.output.is_none_or(|bytes| ok(output, bytes)) && apart
    }
}
