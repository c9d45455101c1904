//! What is posted, and how it ends.

use std::sync::Arc;

use crate::error::Error;
use crate::reduce::{Kernel, Side};
use crate::types::{Rank, Slot, Space};

/// Who posted an operation. `owner` names what can be cancelled as a whole; `detail` is the owner's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// A collective or a buffer.
    pub owner: u32,
    /// Which of its operations.
    pub detail: u32,
}

impl Token {
    /// Of the events that concern the whole context: a peer has given it up, asks, or replies.
    pub const CONTEXT: Self = Self { owner: u32::MAX, detail: 0 };
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Send {
    /// Receiver.
    pub to: Rank,
    /// With `slot`: what the receive must name.
    pub space: Space,
    /// With `space`: what the receive must name.
    pub slot: Slot,
    /// Compared with the receive's; see [`Recv::fingerprint`].
    pub fingerprint: u64,
    /// The bytes; valid until the event or the cancellation.
    pub from: *const u8,
    /// How many.
    pub bytes: usize,
    /// Compared with the receive's; see [`Recv::more`].
    pub more: bool,
    /// Comes back in the event.
    pub token: Token,
}

/// From whom a receive takes its message.
#[derive(Clone, Debug)]
pub enum Source {
    /// This rank.
    Rank(Rank),
    /// Whichever of these sends first; when several have, they take turns.
    AnyOf(Arc<[Rank]>),
}

impl Source {
    /// All that can serve it.
    pub fn ranks(&self) -> &[Rank] {
        match self {
            Self::Rank(rank) => std::slice::from_ref(rank),
            Self::AnyOf(ranks) => ranks,
        }
    }
}

/// What to do with received bytes instead of storing them: `into = with op incoming`.
#[derive(Clone, Copy, Debug)]
pub struct ReduceInto {
    /// Combines.
    pub kernel: Kernel,
    /// The local operand, as long as the receive; may be `into`.
    pub with: *const u8,
    /// Which operand the received bytes are.
    pub incoming: Side,
    /// Bytes of one element.
    pub element: usize,
}

/// A message to receive.
#[derive(Clone, Debug)]
pub struct Recv {
    /// Sender.
    pub from: Source,
    /// With `slot`: which message.
    pub space: Space,
    /// With `space`: which message.
    pub slot: Slot,
    /// What the poster believes the message to be about. A message that [differs](crate::wire::fingerprint::differs) is
    /// refused.
    pub fingerprint: u64,
    /// Where the bytes go; valid until the event or the cancellation.
    pub into: *mut u8,
    /// How many at most.
    pub bytes: usize,
    /// Whether a shorter message is refused.
    pub exact: bool,
    /// Whether more segments of the same step follow this one. With `exact`, a message that says otherwise is refused, too.
    pub more: bool,
    /// Receive-and-reduce.
    pub reduce: Option<ReduceInto>,
    /// Comes back in the event.
    pub token: Token,
}

/// A range of another rank's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Whose.
    pub rank: Rank,
    /// The key that [`super::Messenger::register`] returned there.
    pub region: u32,
    /// First byte.
    pub offset: u64,
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Done, with this rank, so many bytes.
    Done {
        /// The peer.
        rank: Rank,
        /// Length of the message.
        bytes: usize,
    },
    /// A bound receive buffer was written: so many bytes at this offset. Not an end: more may come.
    Written {
        /// First byte.
        offset: usize,
        /// Length of the write.
        bytes: usize,
    },
    /// The message that came was about something else: the sender's [`Send::fingerprint`].
    Mismatch {
        /// The peer.
        rank: Rank,
        /// Its fingerprint.
        theirs: u64,
    },
    /// It cannot be done.
    Failed(Error),
    /// For [`Token::CONTEXT`]: this rank has waited in vain, and asks what this one is doing.
    Queried {
        /// The peer.
        rank: Rank,
    },
    /// For [`Token::CONTEXT`]: a peer that was asked has replied.
    Replied,
}

/// What peers have replied that were asked why they keep others waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// Some have not replied.
    Missing,
    /// All wait for others themselves, who know more.
    HeldUp,
    /// One does not, or nothing is to be expected.
    Cause,
}

/// The end of an operation.
#[derive(Clone, Debug)]
pub struct Event {
    /// The poster's.
    pub token: Token,
    /// How it ended.
    pub outcome: Outcome,
}
