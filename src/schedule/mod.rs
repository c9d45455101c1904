//! Schedules: the algorithm of a collective as data.
//!
//! A [`Schedule`] is the list of one rank's steps over named buffers. Offsets and lengths are in elements, so a
//! schedule applies to every element type. All spans of a step have the same length, and the step processes them from
//! the front; its progress is a number of elements. A [`Dependency`] therefore does not wait for a whole step: it
//! states how many elements the earlier step must have finished before the later one may process its first `p`
//! elements. Chains, trees and rings are thereby pipelined.
//!
//! [`Builder`] writes schedules and derives the dependencies. [`verify()`] checks the schedules of all ranks together.
//! [`cost`] is the cost model, and [`simulate`] runs schedules on that model.

mod block_lists;
mod builder;
pub mod compiled;
pub mod cost;
pub mod fold;
mod functions;
pub mod simulate;
pub mod verify;
pub mod weights;

pub use builder::Builder;
pub use verify::verify;

use crate::types::Rank;

/// The memory that a [`Span`] is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The caller's input with this index; never written.
    Input(u32),
    /// The caller's output with this index.
    Output(u32),
    /// Memory that the engine allocates for the duration of the call.
    Scratch,
}

/// A range of elements in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The buffer.
    pub buffer: Buffer,
    /// First element.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
}

pub use crate::reduce::Side;

/// The ranks that fetch a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Readers {
    /// All other ranks on the publishing rank's host.
    All,
    /// The rank with this number, which is on the same host.
    One(u32),
    /// Several ranks of the same host, each less than 64: bit `n` is for rank `n`.
    Set(u64),
}

impl Readers {
    /// The ranks `of`, each less than 64.
    pub fn set(of: impl IntoIterator<Item = Rank>) -> Self {
        Self::Set(of.into_iter().fold(0, |set, rank| set | 1 << rank))
    }
}

/// The operation of a step.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sends `from` to rank `to`.
    Send { to: u32, from: Span },
    /// Receives from rank `from`.
    Recv { from: u32, into: Span },
    /// `into = with op incoming` for [`Side::Right`], `incoming op with` for [`Side::Left`]. `with` may equal `into`.
    RecvReduce { from: u32, into: Span, with: Span, incoming: Side },
    /// `into = from`.
    Copy { from: Span, into: Span },
    /// `into = left op right`; `into` may equal either of them.
    Reduce { left: Span, right: Span, into: Span },
    /// `span = span / by`: the last step of an average.
    Divide { span: Span, by: u32 },
    /// Makes `from` readable for other ranks on this host. The publications of a rank are numbered in the order of its
    /// steps; the number is the step's channel. Every rank of `to` fetches from this publication, and no other rank
    /// does. What is fetched must not be written before that. An empty publication is a signal.
    Publish { to: Readers, from: Span },
    /// `into` = the elements of rank `from`'s publication with this number from element `at` on. Waits until it is
    /// published.
    Fetch { from: u32, publication: u32, at: usize, into: Span },
    /// Fetches and reduces: `into = with op fetched` for [`Side::Right`], `fetched op with` for [`Side::Left`]. `with`
    /// may equal `into`.
    FetchReduce { from: u32, publication: u32, at: usize, into: Span, with: Span, incoming: Side },
    /// Waits until all fetches of this rank's publications in this call are done. Every schedule that publishes has
    /// this step after its last publication.
    AwaitReaders,
}

/// Before a step processes its first `p` elements, `step` must have finished its first `p + shift`, clamped to its
/// length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dependency {
    /// Index of the earlier step.
    pub step: u32,
    /// Shift in elements; may be negative.
    pub shift: isize,
}

/// A step of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The operation.
    pub action: Action,
    /// A send or receive has the number of earlier steps of this schedule that send to (or receive from) the same peer:
    /// the n-th send from rank a to rank b matches the n-th receive of b from a. A publication has the number of
    /// earlier publications of this schedule. A fetch has its round, see [`Builder::next_round`].
    pub channel: u32,
    /// The steps that must make progress first.
    pub after: Vec<Dependency>,
}

/// The steps of one rank in a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The steps, in an order in which they could be executed one at a time.
    pub steps: Vec<Step>,
    /// Size of [`Buffer::Scratch`] in elements.
    pub scratch: usize,
}

/// Offset and length of part `index` if `len` elements are cut into `parts`. Lengths differ by at most one; the longer
/// parts come first.
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

    /// `len` elements starting at element `offset` of this span; they must be inside it.
    pub const fn slice(self, offset: usize, len: usize) -> Self {
        debug_assert!(offset + len <= self.len);
        Self { buffer: self.buffer, offset: self.offset + offset, len }
    }

    /// Part `index` of this span, cut into `parts` by [`split`].
    pub const fn part(self, parts: usize, index: usize) -> Self {
        let (offset, len) = split(self.len, parts, index);
        self.slice(offset, len)
    }

    /// Whether the two spans have an element in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.buffer == other.buffer && self.offset < other.end() && other.offset < self.end()
    }
}

impl Action {
    /// The step's progress when it is done: the number of its elements, but 1 if a shared-memory step has none.
    pub const fn progress(&self) -> usize {
        if self.is_shared() && self.elements() == 0 { 1 } else { self.elements() }
    }

    /// Whether this is a step on shared memory. Such a step is executed whole, not in segments.
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Publish { .. } | Self::Fetch { .. } | Self::FetchReduce { .. } | Self::AwaitReaders)
    }

    /// Whether this step sends or receives a message.
    pub const fn is_message(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Recv { .. } | Self::RecvReduce { .. })
    }

    /// Whether this step combines two operands.
    pub const fn reduces(&self) -> bool {
        matches!(self, Self::Reduce { .. } | Self::RecvReduce { .. } | Self::FetchReduce { .. })
    }

    /// Number of elements that the step processes.
    pub const fn elements(&self) -> usize {
        match *self {
            Self::Send { from: span, .. }
            | Self::Recv { into: span, .. }
            | Self::RecvReduce { into: span, .. }
            | Self::Copy { into: span, .. }
            | Self::Reduce { into: span, .. }
            | Self::Publish { from: span, .. }
            | Self::Fetch { into: span, .. }
            | Self::FetchReduce { into: span, .. }
            | Self::Divide { span, .. } => span.len,
            Self::AwaitReaders => 0,
        }
    }

    /// The spans of this rank that the step reads.
    pub const fn reads(&self) -> [Option<Span>; 2] {
        match *self {
            Self::Send { from, .. } | Self::Copy { from, .. } | Self::Publish { from, .. } => [Some(from), None],
            Self::Recv { .. } | Self::Fetch { .. } | Self::AwaitReaders => [None, None],
            Self::RecvReduce { with, .. } | Self::FetchReduce { with, .. } => [Some(with), None],
            Self::Reduce { left, right, .. } => [Some(left), Some(right)],
            Self::Divide { span, .. } => [Some(span), None],
        }
    }

    /// The span that the step writes.
    pub const fn writes(&self) -> Option<Span> {
        match *self {
            Self::Send { .. } | Self::Publish { .. } | Self::AwaitReaders => None,
            Self::Recv { into, .. }
            | Self::RecvReduce { into, .. }
            | Self::Fetch { into, .. }
            | Self::FetchReduce { into, .. }
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

    /// The rank from which the step receives.
    pub const fn source(&self) -> Option<Rank> {
        match *self {
            Self::Recv { from, .. } | Self::RecvReduce { from, .. } => Some(from as Rank),
            _ => None,
        }
    }

    /// The rank and the number of the publication that the step fetches, and its first element there.
    pub const fn publication(&self) -> Option<(Rank, u32, usize)> {
        match *self {
            Self::Fetch { from, publication, at, .. } | Self::FetchReduce { from, publication, at, .. } => {
                Some((from as Rank, publication, at))
            }
            _ => None,
        }
    }
}

impl Schedule {
    /// Number of messages that this rank sends if every step is one segment.
    pub fn messages_sent(&self) -> usize {
        self.steps.iter().filter(|step| step.action.destination().is_some()).count()
    }

    /// Number of elements that this rank sends.
    pub fn elements_sent(&self) -> usize {
        let sends = self.steps.iter().filter(|step| step.action.destination().is_some());
        sends.map(|step| step.action.elements()).sum()
    }
}
