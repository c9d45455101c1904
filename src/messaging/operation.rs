//! Operations as posted, and their results.

use std::sync::Arc;

use crate::error::Error;
use crate::messaging::queues::Key;
use crate::reduce::{Pairwise, Side};
use crate::types::{Rank, Slot, Space};
use crate::wire::{Envelope, Message};

/// Identifies an operation. All operations of one `owner` are cancelled together; the owner assigns `detail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The collective or buffer that posted it.
    pub owner: u32,
    /// Distinguishes the owner's operations.
    pub detail: u32,
}

impl Token {
    /// The token of events that concern the whole context: a peer has failed, has sent a query, or has replied to one.
    pub const CONTEXT: Self = Self { owner: u32::MAX, detail: 0 };
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Send {
    /// Receiver.
    pub to: Rank,
    /// Matched, together with `slot`, with the receive's.
    pub space: Space,
    /// Matched, together with `space`, with the receive's.
    pub slot: Slot,
    /// Compared with the receive's; see [`Recv::fingerprint`].
    pub fingerprint: u64,
    /// The payload; valid until the event or the cancellation.
    pub from: *const u8,
    /// Length of the payload.
    pub bytes: usize,
    /// Compared with the receive's; see [`Recv::more`].
    pub more: bool,
    /// Returned in the event.
    pub token: Token,
}

impl Send {
    pub(super) fn key(&self) -> Key {
        Key::new(self.to, self.space, self.slot)
    }

    pub(super) fn envelope(&self) -> Envelope {
        let &Self { space, slot, fingerprint, bytes, more, .. } = self;
        Envelope { space, slot, fingerprint, bytes: bytes as u64, more }
    }

    /// The payload.
    ///
    /// # Safety
    /// The operation has not ended, so `from` is still valid for `bytes`.
    pub(super) unsafe fn payload(&self) -> &[u8] {
        // `from` may be null if there are no bytes.
        // SAFETY: the caller guarantees that `from` is valid for `bytes`.
        if self.bytes == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.from, self.bytes) } }
    }

    /// The header; `placed` is the key under which the message is placed, or 0.
    pub(super) fn message(&self, announced: bool, placed: u32) -> Message {
        Message::Data { envelope: self.envelope(), announced, placed }
    }
}

/// The source of a receive.
#[derive(Clone, Debug)]
pub enum Source {
    /// This rank.
    Rank(Rank),
    /// Any of these ranks: the first that sends. If several have sent, they take turns.
    AnyOf(Arc<[Rank]>),
}

impl Source {
    /// All ranks that can serve it.
    pub fn ranks(&self) -> &[Rank] {
        match self {
            Self::Rank(rank) => std::slice::from_ref(rank),
            Self::AnyOf(ranks) => ranks,
        }
    }
}

/// Reduces received bytes instead of storing them: `into = with op incoming`.
#[derive(Clone, Copy, Debug)]
pub struct ReduceInto {
    /// How two operands are combined.
    pub kernel: Pairwise,
    /// The local operand, as long as the receive; may be `into`.
    pub with: *const u8,
    /// Whether the received bytes are the left or the right operand.
    pub incoming: Side,
    /// Bytes of one element.
    pub element: usize,
}

/// A message to receive.
#[derive(Clone, Debug)]
pub struct Recv {
    /// The source.
    pub from: Source,
    /// Matched, together with `slot`, with the send's.
    pub space: Space,
    /// Matched, together with `space`, with the send's.
    pub slot: Slot,
    /// Identifies the call. A message whose fingerprint [differs](crate::wire::fingerprint::differs) is refused.
    pub fingerprint: u64,
    /// The destination; valid until the event or the cancellation.
    pub into: *mut u8,
    /// The largest number of bytes to receive.
    pub bytes: usize,
    /// Whether a shorter message is refused.
    pub exact: bool,
    /// Whether more segments of the same step follow this one. With `exact`, a message with another value is refused.
    pub more: bool,
    /// How it reduces, if it does.
    pub reduce: Option<ReduceInto>,
    /// Returned in the event.
    pub token: Token,
}

/// A range of another rank's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The rank that registered it.
    pub rank: Rank,
    /// The key that [`super::Messenger::register`] returned there.
    pub region: u32,
    /// Offset of the first byte.
    pub offset: u64,
}

/// The result of an operation.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Completed, with this rank and so many bytes.
    Done {
        /// The peer.
        rank: Rank,
        /// Length of the message.
        bytes: usize,
    },
    /// The peer has written so many bytes into a bound buffer at this offset. The operation goes on.
    Written {
        /// Offset of the first byte.
        offset: usize,
        /// Length of the write.
        bytes: usize,
    },
    /// The fingerprints of message and receive differ.
    Mismatch {
        /// The sender.
        rank: Rank,
        /// The message's fingerprint.
        theirs: u64,
    },
    /// Failed.
    Failed(Error),
    /// An event of [`Token::CONTEXT`]: a peer waits for this rank, and queries what it is doing.
    Queried {
        /// The peer.
        rank: Rank,
        /// The tag of its call.
        slot: Slot,
        /// The fingerprint of its call; 0 if it is in no collective.
        fingerprint: u64,
    },
    /// An event of [`Token::CONTEXT`]: a peer has replied to a query.
    Replied,
    /// An event of [`Token::CONTEXT`]: [`Messenger::take_agreement`](super::Messenger::take_agreement) has a message.
    /// It is not here, since outcomes of calls are moved and dropped often.
    Agreement,
    /// An event of [`Token::CONTEXT`]: a peer is disconnected. Only if the messenger is to tell of that.
    Disconnected {
        /// The peer.
        rank: Rank,
    },
}

/// The replies of queried peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// Some have not replied.
    Missing,
    /// All wait for other ranks, so the cause lies with those.
    AllWaiting,
    /// At least one does not wait for others, or no peer was queried.
    Cause,
}

/// The end of an operation, or another event.
#[derive(Clone, Debug)]
pub struct Event {
    /// The token that was posted.
    pub token: Token,
    /// What happened.
    pub outcome: Outcome,
}
