//! The header of every message on a connection, with one type for each kind of message.
//!
//! A header has [`HEADER_BYTES`] bytes. The first eight are the same for every kind: kind, [`VERSION`], two bytes that
//! depend on the kind, and the connection's number (4), which both sides derived in the handshake. Numbers are
//! little-endian; bytes that a kind does not use are zero, and a header with other values there is refused.
//!
//! | kind | bytes 2, 3 | 8..12 | 12..16 | 16..24 | 24..32 | 32..36 | 36..40 | payload |
//! |---|---|---|---|---|---|---|---|---|
//! | data | space, flags | fingerprint | fingerprint | slot | length | key, if placed | channel | the message, unless
//! placed |
//! | announce | space, flags | fingerprint | fingerprint | slot | length | number | channel | |
//! | offer | space, flags | fingerprint | fingerprint | slot | length | key | channel | |
//! | taken | | | key | | | | | |
//! | replacement | space, flags | fingerprint | fingerprint | slot | length | key | channel | the message |
//! | grant | space, 0 | announcement | key | slot | | | channel | |
//! | write | | | | slot | length | offset | offset | the bytes |
//! | written | | | | slot | length | offset | offset | |
//! | bound | | region | | slot | | | | |
//! | put | | region | request | | length | offset | offset | the bytes |
//! | put done | 0, 1 if refused | | request | | | | | |
//! | get | | region | request | | length | offset | offset | |
//! | get done | 0, 1 if refused | | request | | length | | | the bytes |
//! | abort | 0, [cause](Cause) | culprit | | | length | | | text |
//! | goodbye | | | | | | | | |
//! | query | | | | | | | | |
//! | reply | 0, 1 if waiting | | | | length | | | text |
//! | agreement | | | | | length | | | a [message of an agreement](crate::agreement::Message) |
//!
//! The byte of a [space](Space) is 0 for messages of unbound buffers, which have no channel, or the kind of a
//! collective, whose slot is its tag. Only the [fingerprints](super::fingerprint) of collectives' messages contain a
//! call number. Flag 1: the message was announced. Flag 2, only for collectives: more segments of the same step follow.
//! The keys of grants and placed messages, and the numbers of announcements, are not 0 only on links that place
//! messages.

use crate::error::{Error, ErrorKind, Result};
use crate::types::{Slot, Space};
use crate::wire::VERSION;
use crate::wire::fingerprint::{LAST_KIND, number};

/// Length of a header on the wire.
pub const HEADER_BYTES: usize = 40;

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

    fn of_number(number: u8) -> Result<Self> {
        match number {
            0 => Ok(Self::Failure),
            1 => Ok(Self::Mismatch),
            2 => Ok(Self::Abort),
            other => malformed(format_args!("cause {other}")),
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

const DATA: u8 = 1;
const ANNOUNCE: u8 = 2;
const GRANT: u8 = 3;
const WRITE: u8 = 4;
const PUT: u8 = 5;
const PUT_DONE: u8 = 6;
const GET: u8 = 7;
const GET_DONE: u8 = 8;
const ABORT: u8 = 9;
const GOODBYE: u8 = 10;
const QUERY: u8 = 11;
const REPLY: u8 = 12;
const OFFER: u8 = 13;
const TAKEN: u8 = 14;
const REPLACEMENT: u8 = 15;
const WRITTEN: u8 = 16;
const BOUND: u8 = 17;
const AGREEMENT: u8 = 18;

/// Flag bits.
const ANNOUNCED: u8 = 1;
const MORE: u8 = 2;

/// The fields of a header, with names independent of the kind.
struct Fields {
    kind: u8,
    space: Space,
    flag: u8,
    first: u32,
    second: u32,
    slot: u64,
    bytes: u64,
    offset: u64,
}

impl Fields {
    #[inline]
    fn of(message: &Message) -> Self {
        let zero = Self { kind: 0, space: Space::USER, flag: 0, first: 0, second: 0, slot: 0, bytes: 0, offset: 0 };
        let named = |kind, e: &Envelope, flag: bool| Self {
            kind,
            space: e.space,
            flag: if flag { ANNOUNCED } else { 0 } | if e.more { MORE } else { 0 },
            first: e.fingerprint as u32,
            second: (e.fingerprint >> 32) as u32,
            slot: e.slot,
            bytes: e.bytes,
            offset: 0,
        };
        match *message {
            Message::Data { ref envelope, announced, placed } => {
                Self { offset: placed.into(), ..named(DATA, envelope, announced) }
            }
            Message::Announce { ref envelope, number } => {
                Self { offset: number.into(), ..named(ANNOUNCE, envelope, false) }
            }
            Message::Offer { ref envelope, key } => Self { offset: key.into(), ..named(OFFER, envelope, false) },
            Message::Taken { key } => Self { kind: TAKEN, second: key, ..zero },
            Message::Replacement { ref envelope, key } => {
                Self { offset: key.into(), ..named(REPLACEMENT, envelope, false) }
            }
            Message::Grant { space, slot, announcement, key } => {
                Self { kind: GRANT, space, slot, first: announcement, second: key, ..zero }
            }
            Message::Write { slot, offset, bytes } => Self { kind: WRITE, slot, offset, bytes, ..zero },
            Message::Written { slot, offset, bytes } => Self { kind: WRITTEN, slot, offset, bytes, ..zero },
            Message::Bound { slot, region } => Self { kind: BOUND, first: region, slot, ..zero },
            Message::Put { request, region, offset, bytes } => {
                Self { kind: PUT, first: region, second: request, offset, bytes, ..zero }
            }
            Message::PutDone { request, refused } => {
                Self { kind: PUT_DONE, flag: u8::from(refused), second: request, ..zero }
            }
            Message::Get { request, region, offset, bytes } => {
                Self { kind: GET, first: region, second: request, offset, bytes, ..zero }
            }
            Message::GetDone { request, refused, bytes } => {
                Self { kind: GET_DONE, flag: u8::from(refused), second: request, bytes, ..zero }
            }
            Message::Abort { cause, culprit, bytes } => {
                Self { kind: ABORT, flag: cause as u8, first: culprit, bytes, ..zero }
            }
            Message::Goodbye => Self { kind: GOODBYE, ..zero },
            Message::Query { slot, fingerprint } => {
                Self { kind: QUERY, slot, first: fingerprint as u32, second: (fingerprint >> 32) as u32, ..zero }
            }
            Message::Reply { waiting, instead, bytes } => {
                let (first, second) = (instead as u32, (instead >> 32) as u32);
                Self { kind: REPLY, flag: u8::from(waiting), first, second, bytes, ..zero }
            }
            Message::Agreement { bytes } => Self { kind: AGREEMENT, bytes, ..zero },
        }
    }

    /// Decodes the fields; values of fields that the kind does not use are lost.
    #[inline]
    fn message(&self) -> Result<Message> {
        if self.flag > ANNOUNCED | MORE {
            return malformed(format_args!("flag {}", self.flag));
        }
        // Other kinds use the same bit as their only flag.
        let flag = self.flag & ANNOUNCED != 0;
        let &Self { space, slot, bytes, offset, first, second: request, .. } = self;
        let fingerprint = u64::from(self.second) << 32 | u64::from(first);
        let envelope = Envelope { space, slot, fingerprint, bytes, more: self.flag & MORE != 0 };
        if space.is_user() && matches!(self.kind, DATA | ANNOUNCE | OFFER | REPLACEMENT) {
            if number(fingerprint) != 0 {
                return malformed(format_args!("a call number where there is no collective: {}", number(fingerprint)));
            }
            if envelope.more {
                return malformed(format_args!("the flag for more segments where there is no collective"));
            }
        }
        Ok(match self.kind {
            // If a number is truncated here, the header is not equal when it is encoded again.
            DATA => Message::Data { envelope, announced: flag, placed: offset as u32 },
            ANNOUNCE => Message::Announce { envelope, number: offset as u32 },
            OFFER => Message::Offer { envelope, key: offset as u32 },
            TAKEN => Message::Taken { key: request },
            REPLACEMENT => Message::Replacement { envelope, key: offset as u32 },
            GRANT => Message::Grant { space, slot, announcement: first, key: request },
            WRITE => Message::Write { slot, offset, bytes },
            WRITTEN => Message::Written { slot, offset, bytes },
            BOUND => Message::Bound { slot, region: first },
            PUT => Message::Put { request, region: first, offset, bytes },
            PUT_DONE => Message::PutDone { request, refused: flag },
            GET => Message::Get { request, region: first, offset, bytes },
            GET_DONE => Message::GetDone { request, refused: flag, bytes },
            ABORT => Message::Abort { cause: Cause::of_number(self.flag)?, culprit: first, bytes },
            GOODBYE => Message::Goodbye,
            QUERY => Message::Query { slot, fingerprint },
            REPLY => Message::Reply { waiting: flag, instead: fingerprint, bytes },
            AGREEMENT => Message::Agreement { bytes },
            other => return malformed(format_args!("kind {other}")),
        })
    }

    fn encode(&self, connection: u32) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&[self.kind, VERSION, self.space.kind(), self.flag]);
        out[4..8].copy_from_slice(&connection.to_le_bytes());
        out[8..12].copy_from_slice(&self.first.to_le_bytes());
        out[12..16].copy_from_slice(&self.second.to_le_bytes());
        out[16..24].copy_from_slice(&self.slot.to_le_bytes());
        out[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        // An offset is alone there.
        out[32..40].copy_from_slice(&(self.offset | u64::from(self.space.channel()) << 32).to_le_bytes());
        out
    }
}

#[cold]
fn malformed<T>(what: std::fmt::Arguments<'_>) -> Result<T> {
    Err(Error::new(ErrorKind::Mismatch, format!("malformed header: {what}")))
}

impl Message {
    /// Encodes the header for the connection with this number.
    #[inline]
    pub fn encode(&self, connection: u32) -> [u8; HEADER_BYTES] {
        Fields::of(self).encode(connection)
    }

    /// Decodes a header; fails for one that a peer of this version and connection does not send.
    pub fn decode(wire: &[u8; HEADER_BYTES], connection: u32) -> Result<Self> {
        let u32_at = |at: usize| u32::from_le_bytes(wire[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(wire[at..at + 8].try_into().expect("8 bytes"));
        if wire[1] != VERSION {
            return malformed(format_args!("version {} instead of {VERSION}", wire[1]));
        }
        if u32_at(4) != connection {
            return malformed(format_args!("connection {:#010x} instead of {connection:#010x}", u32_at(4)));
        }
        // What does not belong there is lost, and missing below.
        let (space, offset) = match wire[2] {
            0 => (Space::USER, u64_at(32)),
            other if other > LAST_KIND => return malformed(format_args!("space {other}")),
            kind => (Space::collective(kind, u32_at(36)), u32_at(32).into()),
        };
        let fields = Fields {
            kind: wire[0],
            space,
            flag: wire[3],
            first: u32_at(8),
            second: u32_at(12),
            slot: u64_at(16),
            bytes: u64_at(24),
            offset,
        };
        if fields.bytes > isize::MAX as u64 {
            return malformed(format_args!("{} bytes", fields.bytes));
        }
        let message = fields.message()?;
        if matches!(message, Self::Abort { bytes, .. } | Self::Reply { bytes, .. } if bytes > MAX_TEXT_BYTES as u64) {
            return malformed(format_args!("a text of {} bytes", fields.bytes));
        }
        if matches!(message, Self::Agreement { bytes } if bytes > MAX_AGREEMENT_BYTES as u64) {
            return malformed(format_args!("{} bytes of an agreement", fields.bytes));
        }
        if message.encode(connection) != *wire {
            return malformed(format_args!("{message:?} with unused bytes that are not zero"));
        }
        Ok(message)
    }

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

/// Writes the number of the connection into a header that was encoded before the number was known.
pub fn set_connection(header: &mut [u8; HEADER_BYTES], connection: u32) {
    header[4..8].copy_from_slice(&connection.to_le_bytes());
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any message, with a text of at most [`MAX_TEXT_BYTES`] bytes.
    pub(crate) fn any_message() -> impl Strategy<Value = Message> {
        let numbers =
            (any::<bool>(), any::<u32>(), any::<u32>(), any::<u64>(), 0..=MAX_TEXT_BYTES as u64, any::<u64>());
        (0..18u8, prop_oneof![Just(0u8), 1..=LAST_KIND], any::<bool>(), numbers).prop_map(
            |(kind, space, more, (flag, first, request, slot, bytes, offset))| {
                let collective = space != 0;
                let space = if collective { Space::collective(space, offset as u32 >> 8) } else { Space::USER };
                let fingerprint = if collective { u64::from(request) << 32 | u64::from(first) } else { first.into() };
                let envelope = Envelope { space, slot, fingerprint, bytes, more: collective && more };
                match kind {
                    0 => Message::Data { envelope, announced: flag, placed: offset as u32 },
                    1 => Message::Announce { envelope, number: offset as u32 },
                    2 => Message::Grant { space, slot, announcement: first, key: request },
                    3 => Message::Write { slot, offset, bytes },
                    15 => Message::Written { slot, offset, bytes },
                    16 => Message::Bound { slot, region: first },
                    4 => Message::Put { request, region: first, offset, bytes },
                    5 => Message::PutDone { request, refused: flag },
                    6 => Message::Get { request, region: first, offset, bytes },
                    7 => Message::GetDone { request, refused: flag, bytes },
                    8 => {
                        let cause = [Cause::Failure, Cause::Mismatch, Cause::Abort][request as usize % 3];
                        Message::Abort { cause, culprit: first, bytes }
                    }
                    9 => Message::Goodbye,
                    10 => Message::Query { slot, fingerprint: u64::from(request) << 32 | u64::from(first) },
                    11 => Message::Offer { envelope, key: request },
                    12 => Message::Taken { key: request },
                    13 => Message::Replacement { envelope, key: request },
                    17 => Message::Agreement { bytes },
                    _ => Message::Reply { waiting: flag, instead: u64::from(request) << 32 | u64::from(first), bytes },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn any_message_survives_encoding(message in any_message(), connection: u32) {
            prop_assert_eq!(Message::decode(&message.encode(connection), connection).unwrap(), message);
            prop_assert!(Message::decode(&message.encode(connection), connection ^ 1).is_err());
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(kind in 0..20u8, bits: [u8; 32], flags in 0..10u8, rest: [u8; 5], zeros: [bool; 5]) {
            let mut wire = [0; HEADER_BYTES];
            wire[..4].copy_from_slice(&[kind, VERSION, flags & 1, flags >> 1]);
            wire[8..].copy_from_slice(&bits);
            wire[4..8].copy_from_slice(&rest[..4]);
            for (range, _) in [8..16, 16..24, 24..32, 32..36, 36..40].into_iter().zip(zeros).filter(|(_, zero)| *zero) {
                wire[range].fill(0);
            }
            wire[39] &= if rest[4] & 1 == 0 { 0 } else { 0xff };
            let connection = u32::from_le_bytes(wire[4..8].try_into().unwrap());
            if let Ok(message) = Message::decode(&wire, connection) {
                prop_assert_eq!(message.encode(connection), wire);
                prop_assert!(message.payload() <= isize::MAX as usize);
            }
        }
    }

    #[test]
    fn invalid_headers_are_refused() {
        let refused = |change: &dyn Fn(&mut [u8; HEADER_BYTES]), message: Message| {
            let mut wire = message.encode(7);
            change(&mut wire);
            Message::decode(&wire, 7).unwrap_err().message().to_owned()
        };
        let envelope = Envelope { space: Space::USER, slot: 1, fingerprint: 0, bytes: 2, more: false };
        let text = refused(&|wire| wire[1] = VERSION + 1, Message::Announce { envelope, number: 0 });
        assert!(text.contains(&format!("version {} instead of {VERSION}", VERSION + 1)), "{text}");
        let text = refused(&|wire| wire[31] = 0x80, Message::Announce { envelope, number: 0 });
        assert!(text.contains("9223372036854775810 bytes"), "{text}");
        let text = refused(&|wire| wire[25] = 0x20, Message::Abort { cause: Cause::Mismatch, culprit: 7, bytes: 0 });
        assert!(text.contains("a text of 8192 bytes"), "{text}");
        let text = refused(&|wire| wire[3] = 3, Message::Abort { cause: Cause::Abort, culprit: 7, bytes: 0 });
        assert!(text.contains("cause 3"), "{text}");
        let text = refused(&|wire| wire[39] = 1, Message::Goodbye);
        assert!(text.contains("Goodbye with unused bytes that are not zero"), "{text}");
        assert!(refused(&|wire| wire[0] = 19, Message::Goodbye).contains("kind 19"));
        // Messages of unbound buffers have no channel, a channel has 24 bits, and a query has no space.
        let zeros = "unused bytes that are not zero";
        let collective = Envelope { space: Space::collective(LAST_KIND, 0xff_ffff), ..envelope };
        assert!(
            refused(&|wire| wire[2] = LAST_KIND + 1, Message::Announce { envelope: collective, number: 0 })
                .contains("space 36")
        );
        assert!(refused(&|wire| wire[36] = 1, Message::Announce { envelope, number: 0 }).contains(zeros));
        assert!(refused(&|wire| wire[39] = 1, Message::Announce { envelope: collective, number: 0 }).contains(zeros));
        assert!(refused(&|wire| wire[2] = 1, Message::Query { slot: 1, fingerprint: 2 }).contains(zeros));
        assert!(refused(&|wire| wire[3] = 4, Message::Announce { envelope, number: 0 }).contains("flag 4"));
        assert!(
            refused(&|wire| wire[3] = 2, Message::Announce { envelope, number: 0 })
                .contains("the flag for more segments where there is no collective")
        );
        assert!(refused(&|wire| wire[3] = 2, Message::Goodbye).contains("Goodbye with unused bytes that are not zero"));
        // Only a data message can have been announced.
        assert!(
            refused(&|wire| wire[3] = 1, Message::Announce { envelope, number: 0 })
                .contains("unused bytes that are not zero")
        );
    }
}
