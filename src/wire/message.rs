//! What ranks tell each other over a connection: one type for each kind of message.

use crate::error::ErrorKind;
use crate::types::{Slot, Space};

/// Longest message of an agreement, in bytes: the records of all ranks of the largest context.
pub const MAX_AGREEMENT_BYTES: usize = 64 << 20;

/// Longest text of an abort or a reply, in bytes.
pub const MAX_TEXT_BYTES: usize = 4096;

/// By what a message is matched to its receive, in addition to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The namespace of the slot.
    pub space: Space,
    /// The slot: identifies the receive.
    pub slot: Slot,
    /// On what sender and receiver must agree; see [`super::fingerprint`].
    pub fingerprint: u64,
    /// Length of the message in bytes.
    pub bytes: u64,
    /// Whether more segments of the same step of a collective follow.
    pub more: bool,
}

/// The kind of failure that an abort message reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// A rank is lost, or has failed for a reason of its own.
    Failure,
    /// Ranks disagree about a call.
    Mismatch,
    /// A program has aborted the context.
    Abort,
}

impl Cause {
    /// The cause of an error of this kind.
    pub fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Mismatch => Self::Mismatch,
            ErrorKind::Aborted => Self::Abort,
            _ => Self::Failure,
        }
    }

    /// The kind of the error on the ranks that are told.
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::Failure => ErrorKind::ConnectionLost,
            Self::Mismatch => ErrorKind::Mismatch,
            Self::Abort => ErrorKind::Aborted,
        }
    }
}

/// The header of one message, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A message of a collective or an unbound buffer; the payload follows, unless it was placed.
    Data {
        /// The message's envelope.
        envelope: Envelope,
        /// Whether a [`Message::Announce`] came before it.
        announced: bool,
        /// The key under which the link has placed the payload; 0 if it follows.
        placed: u32,
    },
    /// Announces a large message, which is sent after a grant.
    Announce {
        /// The message's envelope.
        envelope: Envelope,
        /// The number of the announcement, which the grant names; 0 on links that do not place messages.
        number: u32,
    },
    /// Offers a large message, which the receiver reads out of the sender's memory.
    Offer {
        /// The message's envelope.
        envelope: Envelope,
        /// The key of the registered memory.
        key: u32,
    },
    /// The receiver has read an offered message, or does not want it; the sender may reuse the memory.
    Taken {
        /// The key of the offer.
        key: u32,
    },
    /// A copy of an offered message whose memory the sender has taken back before it was read; the payload follows.
    Replacement {
        /// The message's envelope.
        envelope: Envelope,
        /// The key of the offer.
        key: u32,
    },
    /// Allows the sender to send one large message on this slot.
    Grant {
        /// The namespace of the slot.
        space: Space,
        /// The slot of the receive.
        slot: Slot,
        /// The number of the announcement that it answers; 0 if the receive was not announced to, or on links that do
        /// not place messages.
        announcement: u32,
        /// The key under which memory is exposed for the message; 0 if it is to be sent.
        key: u32,
    },
    /// Bytes for the buffer that is bound to the slot; they follow.
    Write {
        /// The slot of the buffer.
        slot: Slot,
        /// Offset in the buffer, in bytes.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// A [`Message::Write`] whose bytes are there already: the link has put them into the region of the buffer.
    Written {
        /// The slot of the buffer.
        slot: Slot,
        /// Where in the buffer.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// The sender has bound a buffer to this slot, for writes of the receiver.
    Bound {
        /// The slot.
        slot: Slot,
        /// One more than the region by which the link reaches the buffer; 0 if writes must be sent.
        region: u32,
    },
    /// Bytes for a registered region; they follow.
    Put {
        /// The sender's number for the reply.
        request: u32,
        /// Number of the region.
        region: u32,
        /// Offset in the region, in bytes.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// The reply to a put.
    PutDone {
        /// The number of the put.
        request: u32,
        /// Whether the region does not exist, or is too short.
        refused: bool,
    },
    /// Requests bytes of a registered region.
    Get {
        /// The sender's number for the reply.
        request: u32,
        /// Number of the region.
        region: u32,
        /// Offset in the region, in bytes.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// The reply to a get.
    GetDone {
        /// The number of the get.
        request: u32,
        /// Whether the region does not exist, or is too short.
        refused: bool,
        /// Number of bytes that follow.
        bytes: u64,
    },
    /// The sender's context has failed, for the reason in the text that follows.
    Abort {
        /// The kind of failure.
        cause: Cause,
        /// The rank with which the failure began.
        culprit: u32,
        /// Length of the text in bytes.
        bytes: u64,
    },
    /// The sender closes this connection in an orderly way.
    Goodbye,
    /// Diagnostic query: an operation of the sender has timed out, and it asks for the state of the receiver.
    Query {
        /// The tag of the sender's call.
        slot: Slot,
        /// The fingerprint of its call; 0 if it is in no collective.
        fingerprint: u64,
    },
    /// Diagnostic reply: the state as text, which follows.
    Reply {
        /// Whether a collective of the replying rank waits for other ranks itself.
        waiting: bool,
        /// The fingerprint of a call with the query's tag in which the replying rank is, or was last, in place of the
        /// query's; 0 if there is none. Of a rank that agrees: one more than the rank for which it waits.
        instead: u64,
        /// Length of the text in bytes.
        bytes: u64,
    },
    /// What ranks tell each other to agree on who is left, which follows.
    Agreement {
        /// Its length in bytes.
        bytes: u64,
    },
}

impl Message {
    /// Number of bytes that follow the header.
    #[inline]
    pub fn payload(&self) -> usize {
        match *self {
            Self::Data { envelope: Envelope { bytes, .. }, placed: 0, .. }
            | Self::Replacement { envelope: Envelope { bytes, .. }, .. }
            | Self::Write { bytes, .. }
            | Self::Put { bytes, .. }
            | Self::GetDone { bytes, .. }
            | Self::Abort { bytes, .. }
            | Self::Reply { bytes, .. }
            | Self::Agreement { bytes } => bytes as usize,
            Self::Data { .. }
            | Self::Announce { .. }
            | Self::Offer { .. }
            | Self::Taken { .. }
            | Self::Grant { .. }
            | Self::PutDone { .. }
            | Self::Get { .. }
            | Self::Goodbye
            | Self::Query { .. }
            | Self::Written { .. }
            | Self::Bound { .. } => 0,
        }
    }
}
