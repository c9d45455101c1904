//! Schedules: a collective's algorithm as data.
//!
//! A [`Schedule`] is one rank's steps over named buffers. Offsets and lengths are in elements, so a schedule serves every
//! element type. All spans of one step have one length and the step works through them from the front; its progress is a
//! number of elements. A [`Dependency`] therefore need not wait for a whole step: it says how far the earlier step must be
//! before the later one may work on its first `p` elements, and so chains, trees and rings pipeline by themselves.

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
