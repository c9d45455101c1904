//! A prepared call: all that is known of a collective call before it has buffers.

use std::ffi::c_void;
use std::sync::Arc;

use crate::collective::{Algorithm, Collective, Shape};
use crate::engine::plan::{OwnedShape, Plan};
use crate::engine::recorder::CallCounter;
use crate::engine::shared::quick_start::QuickStart;
use crate::error::Result;
use crate::memory;
use crate::reduce::{self, Divide, Exact, Kernel, Mean};
use crate::types::{DataType, ElementType, ReduceOp};
use crate::wire::fingerprint::kind;

/// Combines elements the caller's way: `into[i] = left[i] op right[i]`; returns 0, or anything else to fail the call.
/// `into` may equal `left` or `right`. Called only from the thread that made the collective call, or, for a call that
/// was started, from one that waits on its context; without any lock.
pub type UserFunction = unsafe extern "C" fn(
    into: *mut c_void,
    left: *const c_void,
    right: *const c_void,
    count: usize,
    user: *mut c_void,
) -> i32;

/// A function of the caller, and its `user` pointer.
pub type Function = (UserFunction, *mut c_void);

/// How elements are combined.
#[derive(Clone, Copy, Default)]
pub enum Combine {
    /// The collective does not reduce.
    #[default]
    Nothing,
    /// By a kernel of the library and, for averages, the division; with the type and the operation.
    Kernel(Kernel, Option<Divide>, (DataType, ReduceOp)),
    /// By an exact sum of all contributions and, for averages, the division of that.
    Exact(Exact, Option<Divide>),
    /// By the mean of operands, with the weights in the plan.
    Mean(Mean),
    /// By [`Binding::function`].
    User,
}

impl Combine {
    /// The division of averages.
    pub fn divide(&self) -> Option<Divide> {
        match self {
            Self::Kernel(_, divide, _) | Self::Exact(_, divide) => *divide,
            _ => None,
        }
    }

    /// The kernel, if that alone combines.
    pub fn kernel(&self) -> Option<Kernel> {
        match self {
            Self::Kernel(kernel, ..) => Some(*kernel),
            _ => None,
        }
    }
}

/// A call of which all is known but the buffers, the tag, and how long it may take. Valid for any number of runs.
pub struct Prepared {
    /// The call, with the fields that the algorithm reads.
    pub shape: OwnedShape,
    /// Type of the elements.
    pub dtype: ElementType,
    /// The reduction operation, as encoded in the digest.
    pub operation: u32,
    /// The selected algorithm.
    pub algorithm: &'static Algorithm,
    /// Bytes of one element; 1 for a barrier.
    pub element: usize,
    /// Elements of one segment; at least 1.
    pub segment: usize,
    /// Digest of the call; sender and receiver compare it.
    pub digest: u64,
    /// Whether the call is numbered. Only calls that all ranks run are.
    pub counted: bool,
    /// Elements of the call on this rank, for error messages.
    pub count: usize,
    /// Their bytes, for the recorder.
    pub bytes: usize,
    /// Counts its runs.
    pub counter: Arc<CallCounter>,
    /// What is executed.
    pub plan: Arc<Plan>,
    /// How elements are combined.
    pub combine: Combine,
    /// Type and operation, if results of single contributions are converted as those of several would be; see
    /// [`reduce::settle`].
    pub settles: Option<(DataType, ReduceOp)>,
    /// The arguments, if there are more than a [`Key`](super::cache::Key) holds.
    pub arguments: Option<Box<OwnedArguments>>,
    /// The addresses that its input and its output may have, if it has one each. With more, none is allowed.
    pub bounds: [Option<BufferBounds>; 2],
    /// What it needs to start in few steps on memory that all ranks share.
    pub quick_start: Option<QuickStart>,
}

/// The buffers of one run of a prepared call, and what else distinguishes it from others.
#[derive(Clone, Copy)]
pub struct Binding<'a> {
    /// The call.
    pub call: &'a Prepared,
    /// The caller's inputs.
    pub inputs: &'a [*const u8],
    /// The caller's outputs.
    pub outputs: &'a [*mut u8],
    /// The caller's function, if it combines by one.
    pub function: Option<Function>,
    /// The collective's tag.
    pub tag: u64,
    /// Whether others of its kind on its tag that are so, too, may run at the same time: ranks start them in one order.
    pub in_order: bool,
}

/// What identifies a run, to other ranks and in errors.
#[derive(Clone, Copy)]
pub struct Identity {
    /// Kind of the call.
    pub kind: u8,
    /// The collective's tag.
    pub tag: u64,
    /// Sender and receiver compare it; see [`crate::wire::fingerprint`].
    pub fingerprint: u64,
    /// Elements of the call.
    pub count: usize,
    /// Its index in the engine, the owner in the tokens of its messages and waits.
    pub index: u32,
}

impl Identity {
    /// The identity of a run of the call of `binding`. The index is set when it is known.
    pub fn new(binding: &Binding<'_>, fingerprint: u64) -> Self {
        let Binding { call, tag, .. } = *binding;
        Self { kind: call.kind(), tag, fingerprint, count: call.count, index: 0 }
    }
}

impl Binding<'_> {
    /// The first input and the first output; null if there is none.
    #[inline]
    pub fn first(&self) -> (*const u8, *mut u8) {
        let (input, output) = (self.inputs.first(), self.outputs.first());
        (input.copied().unwrap_or(std::ptr::null()), output.copied().unwrap_or(std::ptr::null_mut()))
    }
}

/// The addresses that a buffer may have.
#[derive(Clone, Copy, Debug)]
pub struct BufferBounds {
    /// Its length in bytes.
    bytes: usize,
    /// Bits that are 0 in its address.
    unaligned: usize,
    /// Largest accepted address minus one.
    max: usize,
}

/// All arguments on which preparing a call depends, borrowed from the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Arguments<'a> {
    /// The call, as the caller has described it.
    pub shape: Shape<'a>,
    /// Type of the elements.
    pub dtype: ElementType,
    /// The reduction operation, as encoded in the digest.
    pub operation: u32,
    /// Name of the algorithm.
    pub algorithm: Option<&'a str>,
    /// The caller's limit on segments.
    pub max_segment_bytes: Option<usize>,
}

/// [`Arguments`] in memory of their own.
#[derive(Debug)]
pub struct OwnedArguments {
    shape: OwnedShape,
    rest: Arguments<'static>,
}

impl OwnedArguments {
    /// A copy of `arguments`; `algorithm` is the name of their algorithm, if they have one, in static memory.
    pub fn new(arguments: &Arguments<'_>, algorithm: Option<&'static str>) -> Result<Self> {
        let Arguments { shape, dtype, operation, algorithm: _, max_segment_bytes } = *arguments;
        let none = Shape::new(shape.collective, shape.rank, shape.size, shape.count);
        let rest = Arguments { shape: none, dtype, operation, algorithm, max_segment_bytes };
        Ok(Self { shape: OwnedShape::new(&shape)?, rest })
    }

    /// Whether these are `arguments`.
    pub fn is(&self, arguments: &Arguments<'_>) -> bool {
        let Arguments { shape, dtype, operation, algorithm, max_segment_bytes } = *arguments;
        let own = &self.rest;
        (own.dtype, own.operation, own.algorithm) == (dtype, operation, algorithm)
            && own.max_segment_bytes == max_segment_bytes
            && self.shape.is(&shape)
    }
}

impl BufferBounds {
    /// Allows no address.
    pub const NONE: Self = Self { bytes: 0, unaligned: usize::MAX, max: 0 };

    /// The bounds of a buffer of `bytes` that is aligned to `align`.
    pub fn new(bytes: usize, align: usize) -> Self {
        match bytes {
            // Never accessed, so any address will do.
            0 => Self { bytes, unaligned: 0, max: usize::MAX },
            _ => Self { bytes, unaligned: align - 1, max: (isize::MAX as usize - bytes).wrapping_sub(1) },
        }
    }

    /// Whether the buffer can be at `pointer`.
    #[inline(always)] // On the path of small collectives.
    fn allows(&self, pointer: *const u8) -> bool {
        let address = pointer.addr();
        address & self.unaligned == 0
            && address.wrapping_sub(1) <= self.max
            && matches!(memory::is_device(pointer), Ok(false))
    }
}

impl Prepared {
    /// An exchange of the library's own by `plan`, that of `algorithm` for `shape`, with elements of `element` bytes
    /// that nothing combines. No list has its counter.
    pub fn internal(
        plan: Arc<Plan>,
        (shape, algorithm): (&Shape<'_>, &'static Algorithm),
        element: usize,
        digest: u64,
        counted: bool,
    ) -> Result<Self> {
        Ok(Self {
            shape: OwnedShape::new(shape)?,
            dtype: DataType::Uint8.into(),
            operation: 0,
            algorithm,
            element,
            segment: shape.count.max(1),
            digest,
            counted,
            count: shape.count,
            bytes: shape.count.saturating_mul(element),
            counter: Arc::default(),
            plan,
            combine: Combine::Nothing,
            settles: None,
            arguments: None,
            bounds: [Some(BufferBounds::NONE); 2],
            quick_start: None,
        })
    }

    /// This call by `plan`, whose runs `counter` counts.
    pub fn with_plan(&self, plan: Arc<Plan>, counter: Arc<CallCounter>) -> Result<Self> {
        let shape = OwnedShape::new(&self.shape.get())?;
        let Self { dtype, operation, algorithm, element, segment, digest, counted, count, bytes, .. } = *self;
        let Self { combine, settles, .. } = *self;
        let (arguments, bounds, quick_start) = (None, self.bounds, None);
        Ok(Self {
            shape,
            dtype,
            operation,
            algorithm,
            element,
            segment,
            digest,
            counted,
            count,
            bytes,
            counter,
            plan,
            combine,
            settles,
            arguments,
            bounds,
            quick_start,
        })
    }

    /// The collective.
    pub fn collective(&self) -> Collective {
        self.shape.collective()
    }

    /// Kind of the call.
    #[inline]
    pub fn kind(&self) -> u8 {
        kind(self.digest)
    }

    /// Whether these are buffers in host memory that the call may use.
    #[inline(always)] // On the path of small collectives.
    pub fn allows(&self, input: *const u8, output: *const u8) -> bool {
        let [input_bounds, output_bounds] = &self.bounds;
        output_bounds.is_none_or(|bounds| bounds.allows(output))
            && input_bounds.is_none_or(|bounds| {
                let is_disjoint = |other: BufferBounds| {
                    let (i, o) = (input.addr(), output.addr());
                    i.wrapping_add(bounds.bytes) <= o || o.wrapping_add(other.bytes) <= i
                };
                bounds.allows(input) && output_bounds.is_none_or(is_disjoint)
            })
    }

    /// Its buffers, of which it uses the first ones: at most one input and one output.
    #[inline]
    pub fn used<'a>(&self, input: &'a [*const u8; 1], output: &'a [*mut u8; 1]) -> (&'a [*const u8], &'a [*mut u8]) {
        let [has_input, has_output] = self.bounds.map(|bounds| bounds.is_some());
        (&input[..usize::from(has_input)], &output[..usize::from(has_output)])
    }

    /// Converts results of single contributions, if the call [settles](Prepared::settles) them.
    ///
    /// # Safety
    /// The outputs are valid for as many elements as the shape says.
    pub unsafe fn settle(&self, outputs: &[*mut u8]) {
        if let Some((dtype, op)) = self.settles {
            let shape = self.shape.get();
            for (index, output) in outputs.iter().enumerate() {
                // SAFETY: by the contract.
                unsafe { reduce::settle(dtype, op, *output, shape.output_len(index)) };
            }
        }
    }

    /// The call on `rank` with `tag`, for error messages.
    pub fn describe(&self, rank: usize, tag: u64) -> String {
        let (collective, count) = (self.collective(), self.count);
        let what = match collective {
            Collective::Barrier => String::new(),
            _ => format!(" of {count} {} ({} bytes)", self.dtype, count * self.dtype.size()),
        };
        format!("rank {rank}: {} {}{what}, tag {tag}", collective.name(), self.algorithm.name)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_within_the_address_space() {
        let cells = [0u64; 4];
        let (start, bytes) = (cells.as_ptr().cast::<u8>(), size_of_val(&cells));
        let allows = |bytes, address| BufferBounds::new(bytes, 8).allows(std::ptr::without_provenance(address));
        assert!(BufferBounds::new(bytes, 8).allows(start));
        assert!(!BufferBounds::new(bytes, 8).allows(start.wrapping_add(4)));
        assert!(!allows(8, 0));
        let max = isize::MAX as usize - 7;
        assert!(allows(7, max) && !allows(8, max) && !allows(8, 0usize.wrapping_sub(8)));
        assert!(allows(0, 0) && allows(0, 3), "never accessed");
        let none =
            [0, 1, 8, usize::MAX].map(|address| BufferBounds::NONE.allows(std::ptr::without_provenance(address)));
        assert_eq!(none, [false; 4]);
    }
}
