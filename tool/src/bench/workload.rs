//! One rank's part of one measurement: the shape of its call, and the contents of its buffers before and after it.

mod builder;
mod piece;

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::types::{DataType, ReduceOp};

use self::builder::Builder;
use self::piece::end;
pub use self::piece::{Piece, fill, verify};
use super::pattern::Pattern;

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Collective(Collective),
    /// Each rank sends a message to the next rank and receives one from the previous rank, by unbound buffers.
    SendRecv,
}

impl Subject {
    /// Whether it has no data.
    pub fn is_barrier(self) -> bool {
        self == Self::Collective(Collective::Barrier)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Collective(collective) => collective.name(),
            Self::SendRecv => "sendrecv",
        }
    }
}

/// The arguments of a benchmark, without the size.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub subject: Subject,
    pub dtype: DataType,
    pub op: ReduceOp,
    pub ranks: usize,
    pub root: usize,
    /// Number of buffers on each rank: inputs, or outputs if the collective has one input (broadcast) or works in
    /// place.
    pub buffers: usize,
    pub in_place: bool,
}

/// One rank's part of one measurement.
#[derive(Debug)]
pub struct Workload {
    pub dtype: DataType,
    /// The size in bytes as defined by nccl-tests: that of the [`Request`], rounded to one that the collective
    /// supports.
    pub bytes: usize,
    /// The contents of the inputs, by input.
    pub inputs: Vec<Vec<Piece>>,
    /// The contents of the outputs before the call, by output; elements outside of all pieces hold no pattern.
    pub before: Vec<Vec<Piece>>,
    /// The contents of the outputs after the call; elements outside of all pieces are undefined.
    pub after: Vec<Vec<Piece>>,
    collective: Option<Collective>,
    rank: usize,
    ranks: usize,
    root: usize,
    count: usize,
    send_counts: Vec<usize>,
    recv_counts: Vec<usize>,
    average: bool,
    destinations: usize,
    /// The values of [`Shape::groups`] and [`Shape::dims`].
    pub groups: Vec<u32>,
    pub dims: Vec<usize>,
}

impl Request {
    /// Checks what does not depend on the rank.
    pub fn check(&self) -> Result<(), String> {
        let Self { ranks, root, .. } = *self;
        if root >= ranks {
            return Err(format!("--root is {root}, but the number of ranks is {ranks}"));
        }
        let Subject::Collective(collective) = self.subject else { return self.check_sendrecv() };
        self.check_operation(collective)?;
        self.check_buffers(collective)?;
        if collective == Collective::PairwiseExchange && (ranks < 2 || !ranks.is_power_of_two()) {
            return Err(format!("{} needs a power of two of ranks, at least 2, not {ranks}", collective.name()));
        }
        self.pattern(0).map(drop)
    }

    fn check_sendrecv(&self) -> Result<(), String> {
        let name = self.subject.name();
        if self.ranks < 2 {
            return Err(format!("{name} needs at least 2 ranks"));
        }
        if self.buffers != 1 || self.in_place {
            return Err(format!("{name} has one buffer to send and one to receive: no --inputs, no --in-place"));
        }
        Ok(())
    }

    fn check_operation(&self, collective: Collective) -> Result<(), String> {
        let Self { dtype, op, .. } = *self;
        if collective.reduces() && !op.supports(dtype) {
            return Err(format!("there is no {op} of {dtype}"));
        }
        if collective.reduces() && !collective.reduces_by(op) {
            return Err(format!("{} has no {op}", collective.name()));
        }
        Ok(())
    }

    fn check_buffers(&self, collective: Collective) -> Result<(), String> {
        use Collective::*;
        let (name, buffers, in_place) = (collective.name(), self.buffers, self.in_place);
        let several = match collective {
            Allreduce | Broadcast => true,
            Reduce | ReduceScatter | Allgather => !in_place,
            _ => false,
        };
        if buffers == 0 || (buffers > 1 && !several) {
            let suffix = if in_place { " in place" } else { "" };
            let takes = if several { "1 or more" } else { "1" };
            return Err(format!("--inputs is {buffers}; {name}{suffix} takes {takes}"));
        }
        if in_place && matches!(collective, Alltoallv | Barrier | PairwiseExchange) {
            return Err(format!("{name} does not work in place"));
        }
        Ok(())
    }

    /// The operation, if there is one.
    pub fn reduction(&self) -> Option<ReduceOp> {
        matches!(self.subject, Subject::Collective(collective) if collective.reduces()).then_some(self.op)
    }

    fn pattern(&self, seed: u64) -> Result<Pattern, String> {
        Pattern::new(self.dtype, self.reduction(), self.ranks * self.buffers, seed)
    }

    /// The part of `rank` in a measurement with `bytes` bytes. `seed` is the same on all ranks.
    pub fn workload(&self, rank: usize, bytes: usize, seed: u64) -> Result<Workload, String> {
        let pattern = self.pattern(seed)?;
        let elements = (bytes / self.dtype.size()).max(1);
        Ok(Builder::new(self, rank, pattern, elements).build())
    }
}

impl Workload {
    /// The call's shape; `None` for sendrecv.
    pub fn shape(&self) -> Option<Shape<'_>> {
        Some(Shape {
            root: self.root,
            send_counts: &self.send_counts,
            recv_counts: &self.recv_counts,
            inputs: self.inputs.len(),
            outputs: self.before.len(),
            average: self.average,
            destinations: self.destinations,
            groups: &self.groups,
            dims: &self.dims,
            ..Shape::new(self.collective?, self.rank, self.ranks, self.count)
        })
    }

    /// Number of elements of input `index`.
    pub fn input_len(&self, index: usize) -> usize {
        end(&self.inputs[index])
    }

    /// Number of elements of output `index`, before and after the call.
    pub fn output_len(&self, index: usize) -> usize {
        match self.shape() {
            Some(shape) => shape.output_len(index),
            None => end(&self.after[index]),
        }
    }
}
