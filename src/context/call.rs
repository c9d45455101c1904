//! A collective call, as a caller describes it.

use std::ffi::c_void;
use std::time::Duration;

use crate::collective::mean::MAX_MEAN_RANKS;
use crate::collective::{Collective, Order, Shape};
use crate::engine::prepared::Function;
use crate::engine::{Binding, Combine, Prepared, UserFunction};
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::reduce::{self, Factor};
use crate::types::{DataType, ElementType, ReduceOp};

/// How a collective combines elements.
#[derive(Clone, Copy)]
pub enum Reduction {
    /// A reduction operation of the library.
    Op(ReduceOp),
    /// A function of the caller; must be associative, and also commutative except for scan and exscan.
    User {
        /// Called only on the thread that made the call.
        function: UserFunction,
        /// Passed to `function`.
        user: *mut c_void,
    },
}

/// A collective call.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The collective, counts and root; `rank` and `size` must be those of the context.
    pub shape: Shape<'a>,
    /// Algorithm by name; with `None` or `auto` the library selects one.
    pub algorithm: Option<&'a str>,
    /// Type of the elements.
    pub dtype: ElementType,
    /// How elements are combined; ignored by collectives that do not reduce.
    pub reduction: Reduction,
    /// One pointer for each input of the shape.
    pub inputs: &'a [*const u8],
    /// One pointer for each output of the shape.
    pub outputs: &'a [*mut u8],
    /// Where the buffers are.
    pub memory: Memory,
    /// Whether the only output is a part of the only input, which no other call allows.
    pub own_block: bool,
    /// What each element of this rank's inputs is multiplied by before it is combined, which is a sum then. Ranks need
    /// not agree.
    pub factor: Option<Factor>,
    /// Distinguishes concurrent calls of one collective on one context. The same on all ranks.
    pub tag: u64,
    /// Replaces the context's timeout.
    pub timeout: Option<Duration>,
    /// Lowers the context's largest segment; a larger value has no effect. The same on all ranks.
    pub max_segment_bytes: Option<usize>,
}

impl<'a> Call<'a> {
    /// A call without buffers, with sum as the operation, automatic selection of the algorithm, tag 0, and the
    /// context's timeout and segment size. For `Call { …, ..Call::new(…) }`.
    pub const fn new(shape: Shape<'a>, dtype: DataType) -> Self {
        Self {
            shape,
            algorithm: None,
            dtype: ElementType::Known(dtype),
            reduction: Reduction::Op(ReduceOp::Sum),
            inputs: &[],
            outputs: &[],
            memory: Memory::Auto,
            own_block: false,
            factor: None,
            tag: 0,
            timeout: None,
            max_segment_bytes: None,
        }
    }
}

impl Call<'_> {
    /// The order in which the call must be combined; `usual` is the context's. Any will do where the result does not
    /// depend on it. Fails if the call cannot be made in that order.
    pub(super) fn order(&self, usual: Order) -> Result<Order> {
        use DataType::{Bfloat16, Complex64, Complex128, Float16, Float32, Float64};
        let shape = &self.shape;
        let order = match shape.order {
            Order::Any if shape.collective.has_order() => usual,
            order => order,
        };
        let by = match (order, self.reduction, self.dtype) {
            (Order::Any | Order::Ranks, ..) => return Ok(order),
            (_, Reduction::User { .. }, _) => "a function of the caller".into(),
            (_, Reduction::Op(op), ElementType::Opaque(_)) => format!("{op}"),
            (_, Reduction::Op(op), ElementType::Known(dtype)) => match (dtype, op) {
                (_, ReduceOp::Min | ReduceOp::Max) => return Ok(Order::Any),
                // The sum of two is rounded once, whoever adds them.
                (Float32 | Float64 | Complex64 | Complex128, ReduceOp::Sum | ReduceOp::Average)
                    if shape.size.saturating_mul(shape.contributions()) > 2 =>
                {
                    return Ok(Order::Reproducible);
                }
                (Float32 | Float64 | Complex64 | Complex128, ReduceOp::Sum | ReduceOp::Average) => {
                    return Ok(Order::Any);
                }
                (Float16 | Bfloat16 | Float32 | Float64 | Complex64 | Complex128, _) => format!("{op}"),
                _ => return Ok(Order::Any),
            },
        };
        Err(shape.refuse(format!(
            "order is \"reproducible\", but not the {by} of {}; reproducible are the sum and average of float32, float64, \
             complex64 and complex128, minima and maxima, and all operations on integers and bool",
            self.dtype
        )))
    }

    pub(super) fn combine(&self) -> Result<Combine> {
        if !self.shape.collective.reduces() {
            return Ok(Combine::Nothing);
        }
        match self.reduction {
            Reduction::User { .. } => Ok(Combine::User),
            Reduction::Op(op) => {
                if self.is_mean() {
                    return Ok(Combine::Mean(reduce::mean()));
                }
                let undefined = || Error::invalid(format!("the operation {op} is not defined on {}", self.dtype));
                let ElementType::Known(dtype) = self.dtype else { return Err(undefined()) };
                let kernel = reduce::kernel(dtype, op).filter(|_| op.supports(dtype)).ok_or_else(undefined)?;
                let divide = (op == ReduceOp::Average).then(|| reduce::divide(dtype)).flatten();
                if self.shape.order == Order::Reproducible {
                    return reduce::exact(dtype).map(|exact| Combine::Exact(exact, divide)).ok_or_else(undefined);
                }
                Ok(Combine::Kernel(kernel, divide, (dtype, op)))
            }
        }
    }

    /// Whether an average is computed as a mean of means: that of float16, whose sum may overflow although the average
    /// does not.
    fn is_mean(&self) -> bool {
        matches!(self.reduction, Reduction::Op(ReduceOp::Average))
            && self.dtype == ElementType::Known(DataType::Float16)
            && self.shape.average
            && self.shape.size <= MAX_MEAN_RANKS
    }

    /// Refuses lists of buffers of other lengths than the shape says.
    #[inline]
    pub(super) fn check_buffers(&self) -> Result<()> {
        let (shape, inputs, outputs) = (&self.shape, self.inputs.len(), self.outputs.len());
        let (expected_inputs, expected_outputs) = shape.buffers();
        if (inputs, outputs) == (expected_inputs, expected_outputs) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{inputs} inputs and {outputs} outputs are given for a shape of {expected_inputs} and {expected_outputs}"
        )))
    }

    /// The caller's function, if it combines by one.
    pub(super) fn function(&self) -> Option<Function> {
        match self.reduction {
            Reduction::User { function, user } if self.shape.collective.reduces() => Some((function, user)),
            _ => None,
        }
    }

    /// Elements of the call on `rank`, for error messages.
    pub(super) fn count(&self, rank: usize) -> usize {
        let shape = &self.shape;
        let total = |counts: &[usize]| counts.iter().sum::<usize>();
        match shape.collective {
            // Blocks of `count` elements each, where it was called with one number.
            Collective::ReduceScatter if shape.recv_counts.is_empty() => shape.count.saturating_mul(shape.size),
            Collective::ReduceScatter | Collective::Allgatherv => total(shape.recv_counts),
            Collective::Alltoallv => total(shape.send_counts),
            Collective::Gatherv if rank == shape.root => total(shape.recv_counts),
            Collective::Scatterv if rank == shape.root => total(shape.send_counts),
            _ => shape.count,
        }
    }

    /// Bytes of one element.
    pub(super) fn element(&self) -> usize {
        if self.shape.collective == Collective::Barrier { 1 } else { self.dtype.size() }
    }

    /// The buffers of a run of `prepared`, which is this call.
    pub(super) fn binding<'a>(&'a self, prepared: &'a Prepared) -> Binding<'a> {
        let Call { inputs, outputs, tag, .. } = *self;
        Binding { call: prepared, inputs, outputs, function: self.function(), tag, in_order: false }
    }
}
