//! Schedules: a collective's algorithm as data.
//!
//! A [`Schedule`] is one rank's steps over named buffers. Offsets and lengths are in elements, so a schedule serves every
//! element type. All spans of one step have one length and the step works through them from the front; its progress is a
//! number of elements. A [`Dependency`] therefore need not wait for a whole step: it says how far the earlier step must be
//! before the later one may work on its first `p` elements, and so chains, trees and rings pipeline by themselves.
//!
//! [`Builder`] writes schedules and finds the dependencies; [`verify()`] proves the schedules of all ranks together; [`cost`]
//! is the model by which they are priced, and [`simulate`] plays them on it.

mod builder;
pub mod cost;
pub mod simulate;
pub mod verify;

pub use builder::Builder;
pub use verify::verify;

use crate::types::Rank;

/// Which memory a [`Span`] lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The caller's n-th input; never written.
    Input(u32),
    /// The caller's n-th output.
    Output(u32),
    /// Memory of the engine's that lives as long as the call.
    Scratch,
}

/// A range of elements in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The memory.
    pub buffer: Buffer,
    /// First element.
    pub offset: usize,
    /// Elements.
    pub len: usize,
}

pub use crate::reduce::Side;

/// What a step does.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sends `from` to rank `to`.
    Send { to: u32, from: Span },
    /// Receives from rank `from`.
    Recv { from: u32, into: Span },
    /// `into = with op incoming`, or `incoming op with`, as `incoming` says. `with` may be `into` itself.
    RecvReduce { from: u32, into: Span, with: Span, incoming: Side },
    /// `into = from`.
    Copy { from: Span, into: Span },
    /// `into = left op right`; `into` may be either of them.
    Reduce { left: Span, right: Span, into: Span },
    /// `span = span / by`: ends an average.
    Divide { span: Span, by: u32 },
}

/// Before a step works on its first `p` elements, `step` must have finished its first `p + shift`, clamped to its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dependency {
    /// Index of the earlier step.
    pub step: u32,
    /// Elements.
    pub shift: isize,
}

/// One step and its place in the two lists that all steps share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// For steps with a peer: how many earlier steps of this schedule send to (or receive from) the same peer. The n-th
    /// send from rank a to rank b meets the n-th receive of b from a.
    pub channel: u32,
    /// What must happen first.
    pub after: Vec<Dependency>,
}

/// One rank's part in a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// In an order in which they could be executed one by one.
    pub steps: Vec<Step>,
    /// Elements of [`Buffer::Scratch`].
    pub scratch: usize,
}

/// Where part `index` of `len` elements cut into `parts` lies: offset and length. Lengths differ by at most one, the longer
/// parts come first, and every rank computes the same.
pub const fn split(len: usize, parts: usize, index: usize) -> (usize, usize) {
    let (each, longer) = (len / parts, len % parts);
    if index < longer { (index * (each + 1), each + 1) } else { (index * each + longer, each) }
}

impl Span {
    /// `len` elements of `buffer` from `offset`.
    pub const fn new(buffer: Buffer, offset: usize, len: usize) -> Self {
        Self { buffer, offset, len }
    }

    /// One past the last element.
    pub const fn end(self) -> usize {
        self.offset + self.len
    }

    /// `len` elements from the `offset`-th of this span; they lie inside it.
    pub const fn slice(self, offset: usize, len: usize) -> Self {
        debug_assert!(offset + len <= self.len);
        Self { buffer: self.buffer, offset: self.offset + offset, len }
    }

    /// Part `index` of this span cut into `parts`, as [`split`] does it.
    pub const fn part(self, parts: usize, index: usize) -> Self {
        let (offset, len) = split(self.len, parts, index);
        self.slice(offset, len)
    }

    /// Whether the two have an element in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.buffer == other.buffer && self.offset < other.end() && other.offset < self.end()
    }
}

impl Action {
    /// Elements that the step works through.
    pub const fn elements(&self) -> usize {
        match *self {
            Self::Send { from: span, .. }
            | Self::Recv { into: span, .. }
            | Self::RecvReduce { into: span, .. }
            | Self::Copy { into: span, .. }
            | Self::Reduce { into: span, .. }
            | Self::Divide { span, .. } => span.len,
        }
    }

    /// What the step reads.
    pub const fn reads(&self) -> [Option<Span>; 2] {
        match *self {
            Self::Send { from, .. } | Self::Copy { from, .. } => [Some(from), None],
            Self::Recv { .. } => [None, None],
            Self::RecvReduce { with, .. } => [Some(with), None],
            Self::Reduce { left, right, .. } => [Some(left), Some(right)],
            Self::Divide { span, .. } => [Some(span), None],
        }
    }

    /// What the step writes.
    pub const fn writes(&self) -> Option<Span> {
        match *self {
            Self::Send { .. } => None,
            Self::Recv { into, .. }
            | Self::RecvReduce { into, .. }
            | Self::Copy { into, .. }
            | Self::Reduce { into, .. }
            | Self::Divide { span: into, .. } => Some(into),
        }
    }

    /// The rank that the step sends to.
    pub const fn destination(&self) -> Option<Rank> {
        match *self {
            Self::Send { to, .. } => Some(to as Rank),
            _ => None,
        }
    }

    /// The rank that the step receives from.
    pub const fn source(&self) -> Option<Rank> {
        match *self {
            Self::Recv { from, .. } | Self::RecvReduce { from, .. } => Some(from as Rank),
            _ => None,
        }
    }
}

impl Schedule {
    /// Messages that this rank sends, if no step is cut into segments.
    pub fn messages_sent(&self) -> usize {
        self.steps.iter().filter(|step| step.action.destination().is_some()).count()
    }

    /// Elements that this rank sends. The bytes are these times the size of an element.
    pub fn elements_sent(&self) -> usize {
        let sends = self.steps.iter().filter(|step| step.action.destination().is_some());
        sends.map(|step| step.action.elements()).sum()
    }
}
