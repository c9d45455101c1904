//! The header of every message on a connection: how it is encoded.
//!
//! A header has [`HEADER_BYTES`] bytes. The first eight are the same for every kind: kind, [`VERSION`], two bytes that
//! depend on the kind, and the connection's number (4), which both sides derived in the handshake. Numbers are
//! little-endian; bytes that a kind does not use are zero, and a header with other values there is refused.
//!
//! | kind | bytes 2, 3 | 8..12 | 12..16 | 16..24 | 24..32 | 32..36 | 36..40 | payload |
//! |---|---|---|---|---|---|---|---|---|
//! | data | space, flags | fingerprint | fingerprint | slot | length | key, if placed | channel | the message, unless placed |
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

use super::message::{Cause, Envelope, MAX_AGREEMENT_BYTES, MAX_TEXT_BYTES, Message};
use crate::error::{Error, ErrorKind, Result};
use crate::types::Space;
use crate::wire::VERSION;
use crate::wire::fingerprint::{LAST_KIND, number};

/// Length of a header on the wire.
pub const HEADER_BYTES: usize = 40;

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
            ABORT => Message::Abort { cause: cause(self.flag)?, culprit: first, bytes },
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

fn cause(number: u8) -> Result<Cause> {
    match number {
        0 => Ok(Cause::Failure),
        1 => Ok(Cause::Mismatch),
        2 => Ok(Cause::Abort),
        other => malformed(format_args!("cause {other}")),
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
}

/// Writes the number of the connection into a header that was encoded before the number was known.
pub fn set_connection(header: &mut [u8; HEADER_BYTES], connection: u32) {
    header[4..8].copy_from_slice(&connection.to_le_bytes());
}

#[cfg(test)]
#[path = "header_tests.rs"]
pub(crate) mod tests;
