//! A collective call: from names and pointers to a plan that runs.

use std::ffi::c_void;
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use crate::collective::{Algorithm, Collective, Shape};
use crate::context::Context;
use crate::engine::{Binding, Combine, UserFunction};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickHasher;
use crate::reduce;
use crate::transport::Transport;
use crate::tuner;
use crate::types::{DataType, ReduceOp};

/// How a collective combines elements.
#[derive(Clone, Copy)]
pub enum Reduction {
    /// One of the library's.
    Op(ReduceOp),
    /// The caller's; must be associative, and commutative but for scan and exscan.
    User {
        /// Called only from the thread that made the call.
        function: UserFunction,
        /// Handed to it.
        user: *mut c_void,
    },
}

/// A collective call.
pub struct Call<'a> {
    /// What is asked, with `rank` and `size` of the context.
    pub shape: Shape<'a>,
    /// Algorithm by name; `None` or `auto` lets the library choose.
    pub algorithm: Option<&'a str>,
    /// Type of the elements.
    pub dtype: DataType,
    /// How they are combined; ignored by collectives that do not reduce.
    pub reduction: Reduction,
    /// One pointer for each input of the shape.
    pub inputs: &'a [*const u8],
    /// One pointer for each output of the shape.
    pub outputs: &'a [*mut u8],
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Instead of the context's.
    pub timeout: Option<Duration>,
    /// Instead of the context's. The same on all ranks.
    pub max_segment_bytes: Option<usize>,
}

impl Call<'_> {
    fn algorithm(&self) -> Result<&'static Algorithm> {
        match self.algorithm {
            None | Some("auto") => Ok(tuner::choose(&self.shape, self.dtype.size())),
            Some(name) => self.shape.collective.algorithm(name),
        }
    }

    fn combine(&self) -> Result<Combine> {
        if !self.shape.collective.reduces() {
            return Ok(Combine::Nothing);
        }
        match self.reduction {
            Reduction::User { function, user } => Ok(Combine::User(function, user)),
            Reduction::Op(op) => {
                let kernel = reduce::kernel(self.dtype, op).filter(|_| op.supports(self.dtype));
                let kernel = kernel
                    .ok_or_else(|| Error::invalid(format!("the operation {op} is not defined on {}", self.dtype)))?;
                Ok(Combine::Kernel(kernel, (op == ReduceOp::Average).then(|| reduce::divide(self.dtype)).flatten()))
            }
        }
    }

    /// What every message says of the call it belongs to, so that ranks that are in different calls notice.
    fn check(&self, algorithm: &Algorithm, segment: usize) -> u32 {
        let shape = &self.shape;
        let position = shape.collective.algorithms().iter().position(|a| std::ptr::eq(a, algorithm)).unwrap_or(0);
        let op = match self.reduction {
            _ if !shape.collective.reduces() => NO_OP,
            Reduction::Op(op) => op as u32,
            Reduction::User { .. } => USER_OP,
        };
        // Only what all ranks know.
        let mut hasher = QuickHasher::default();
        (shape.root, segment, shape.size).hash(&mut hasher);
        match shape.collective {
            Collective::ReduceScatter | Collective::Allgatherv => shape.recv_counts.hash(&mut hasher),
            Collective::Gatherv | Collective::Scatterv | Collective::Alltoallv => {}
            _ => shape.count.hash(&mut hasher),
        }
        let digest = hasher.finish() as u32 & 0x7fff;
        (shape.collective as u32) << 27 | (position as u32 & 15) << 23 | (self.dtype as u32) << 19 | op << 15 | digest
    }

    fn describe(&self, rank: usize, algorithm: &str) -> String {
        let shape = &self.shape;
        let total = |counts: &[usize]| counts.iter().sum::<usize>();
        let count = match shape.collective {
            Collective::ReduceScatter | Collective::Allgatherv => total(shape.recv_counts),
            Collective::Alltoallv => total(shape.send_counts),
            Collective::Gatherv if rank == shape.root => total(shape.recv_counts),
            Collective::Scatterv if rank == shape.root => total(shape.send_counts),
            _ => shape.count,
        };
        let what = match shape.collective {
            Collective::Barrier => String::new(),
            _ => format!(" of {count} {} ({} bytes)", self.dtype, count * self.dtype.size()),
        };
        format!("rank {rank}: {} {algorithm}{what}, tag {}", shape.collective.name(), self.tag)
    }
}

const USER_OP: u32 = 8;
const NO_OP: u32 = 9;

/// The reverse of [`Call::check`], for errors.
pub(super) fn explain(check: u32) -> String {
    let Some(collective) = Collective::ALL.iter().find(|c| **c as u32 == check >> 27) else {
        return "one that this version does not know".into();
    };
    let algorithm = collective.algorithms().get((check >> 23 & 15) as usize).map_or("?", |a| a.name);
    let dtype = DataType::try_from(check >> 19 & 15).map_or("?", DataType::name);
    let op = match check >> 15 & 15 {
        USER_OP => "a caller's function",
        op => ReduceOp::try_from(op).map_or("", ReduceOp::name),
    };
    let space = if op.is_empty() { "" } else { " by " };
    let name = collective.name();
    format!("{name} {algorithm} of {dtype}{space}{op}, or there counts, root or segment size differ from those here")
}

impl Context {
    /// The algorithm that `run` would choose for `shape` and `dtype` when asked for `auto`.
    pub fn choose(&self, shape: &Shape<'_>, dtype: DataType) -> &'static str {
        tuner::choose(shape, dtype.size()).name
    }

    /// Runs a collective and returns when this rank's part is done.
    ///
    /// A call that is wrong in itself is refused before anything is sent. A call that fails later leaves the ranks in states
    /// that no one knows: the context is broken from then on, the peers that are connected are told, and every later
    /// collective on it fails; see [`Context::broken`].
    ///
    /// # Safety
    /// Every pointer of `call` is valid for the elements that the shape says ([`Shape::input_len`],
    /// [`Shape::output_len`]) until this returns; outputs overlap nothing.
    pub unsafe fn run(&self, call: &Call<'_>) -> Result<()> {
        call.shape.check()?;
        // SAFETY: the same contract, and the shape was just checked.
        unsafe { self.run_checked(call) }
    }

    /// [`Context::run`] for a shape that has passed [`Shape::check`].
    ///
    /// # Safety
    /// As for `run`; the shape has passed its check.
    pub(crate) unsafe fn run_checked(&self, call: &Call<'_>) -> Result<()> {
        let started = Instant::now();
        let shape = &call.shape;
        if (shape.rank, shape.size) != (self.rank, self.size) {
            return Err(Error::invalid(format!(
                "a call for rank {} of {} on a context of rank {} of {}",
                shape.rank, shape.size, self.rank, self.size
            )));
        }
        if (call.inputs.len(), call.outputs.len()) != (shape.inputs, shape.outputs) {
            return Err(Error::invalid(format!(
                "{} inputs and {} outputs are given for a shape of {} and {}",
                call.inputs.len(),
                call.outputs.len(),
                shape.inputs,
                shape.outputs
            )));
        }
        let algorithm = call.algorithm()?;
        let combine = call.combine()?;
        let element = if shape.collective == Collective::Barrier { 1 } else { call.dtype.size() };
        let max = call.max_segment_bytes.unwrap_or(self.options.max_segment_bytes);
        let segment = (tuner::segment_bytes(shape, element, max) / element).max(1);
        let binding = Binding {
            inputs: call.inputs,
            outputs: call.outputs,
            element,
            segment,
            combine,
            check: call.check(algorithm, segment),
            tag: call.tag,
        };
        let is_user = matches!(combine, Combine::User(..));
        let (deadline, timeout) = self.deadline(call.timeout);
        let mut guard = self.lock()?;
        let described = |e: &Error| e.context(call.describe(self.rank, algorithm.name));
        if self.size > 1 && guard.transport.is_isolated() && guard.broken.is_none() {
            let text = "the context is not connected: connect it first, over a store or by its pairs";
            return Err(described(&Error::new(ErrorKind::InvalidOperation, text)));
        }
        let plan = guard.plans.get(shape, algorithm, is_user)?;
        let run = guard.start(plan, &binding).map_err(|e| described(&e))?;
        let (mut guard, over) = self.engine().wait(guard, deadline, |core| core.is_over(run).then_some(()));
        let error = match over {
            Some(()) => guard.end(run),
            None => {
                let waits = guard.transport.describe(run);
                guard.end(run);
                Some(Error::new(ErrorKind::Timeout, format!("timed out after {timeout:?}, waiting {waits}")))
            }
        };
        let Some(error) = error else {
            self.engine().hand_over(guard);
            return Ok(());
        };
        let error = described(&error.context(format_args!("after {:.3} s", started.elapsed().as_secs_f64())));
        guard.break_with(&error, Some(error.message()));
        self.finish_closing(guard);
        Err(error)
    }
}
