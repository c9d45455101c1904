//! The messages of client and server, without I/O.
//!
//! Numbers are little-endian. Both sides begin with a hello, whose layout is the same in every version:
//!
//! | from | bytes |
//! |---|---|
//! | client | magic (8), version (u32) |
//! | server | magic (8), version (u32), instance (u64: random, distinguishes the servers that have used an address) |
//!
//! The client sends requests after the handshake, each after the reply to the one before. A request and a reply are a
//! length (u32) and that many bytes. A key is a length (u16) and UTF-8; a value is a length (u32) and bytes; a list is
//! a count (u32) and its elements.
//!
//! | request | first byte | then | reply, after a zero byte |
//! |---|---|---|---|
//! | set | 1 | list of (key, value) | |
//! | get | 2 | timeout (u64 µs; all ones: none), list of keys | list of values: of the first keys, as many as fit into a frame |
//! | wait | 3 | timeout, list of keys | |
//! | add | 4 | key, amount (i64) | sum (i64) |
//! | append | 5 | key, value | |
//! | delete | 6 | key | 1 if it existed, else 0 |
//! | claim | 7 | key, value | |
//! | keep | 8 | | |
//!
//! A claim is an append that the server takes back if the connection on which it was made ends before the key
//! [`GATHERED`] has a value, and without a keep before: the client's process has died while others gather, and another
//! one may take its place.
//!
//! A reply that begins with 1 is a timeout: the number of missing keys (u32), and a list of the positions (u32 each) of
//! the first ones in the request. A reply that begins with 2 is a refusal: 1 for an invalid argument, 2 for an invalid
//! operation, 3 if the server has no memory for it, then the message (u16 length, UTF-8).

use std::sync::Arc;
use std::time::Duration;

use super::super::support::NAMED_KEYS;
use super::frame::{MAX_FRAME_BYTES, Reader, Writer, invalid, text};
use crate::error::{Error, ErrorKind, Result};
use crate::reserve::{try_reserve, try_with_capacity};

pub(super) const MAGIC: [u8; 8] = *b"gloo_rsS";
pub(super) const VERSION: u32 = 1;
pub(super) const CLIENT_HELLO_BYTES: usize = 12;
pub(super) const SERVER_HELLO_BYTES: usize = 20;

/// The key whose value says that all ranks are there: claims last from then on.
pub(super) const GATHERED: &str = "gloo_rs/gathered";

pub(super) fn client_hello() -> [u8; CLIENT_HELLO_BYTES] {
    let mut hello = [0; CLIENT_HELLO_BYTES];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..].copy_from_slice(&VERSION.to_le_bytes());
    hello
}

pub(super) fn server_hello(instance: u64) -> [u8; SERVER_HELLO_BYTES] {
    let mut hello = [0; SERVER_HELLO_BYTES];
    hello[..12].copy_from_slice(&client_hello());
    hello[12..].copy_from_slice(&instance.to_le_bytes());
    hello
}

/// A request; borrows from its frame.
#[derive(Debug, PartialEq)]
pub(super) enum Request<'a> {
    Set(Vec<(&'a str, &'a [u8])>),
    Get { timeout: Duration, keys: Vec<&'a str> },
    Wait { timeout: Duration, keys: Vec<&'a str> },
    Add { key: &'a str, amount: i64 },
    Append { key: &'a str, value: &'a [u8] },
    Delete { key: &'a str },
    Claim { key: &'a str, value: &'a [u8] },
    Keep,
}

impl<'a> Request<'a> {
    /// Bytes of the encoded request, at most.
    fn bytes(&self) -> usize {
        let body = match self {
            Self::Set(pairs) => pairs.iter().map(|(key, value)| 6 + key.len() + value.len()).sum(),
            Self::Get { keys, .. } | Self::Wait { keys, .. } => keys.iter().map(|key| 2 + key.len()).sum(),
            Self::Append { key, value } | Self::Claim { key, value } => 6 + key.len() + value.len(),
            Self::Add { key, .. } | Self::Delete { key } => 2 + key.len(),
            Self::Keep => 0,
        };
        // The frame's length, the first byte, and a timeout and a count, or an amount.
        4 + 1 + 12 + body
    }

    /// The encoded request, with its length.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Writer::with_room(self.bytes())?;
        match self {
            Self::Set(pairs) => {
                out.u8(1);
                out.u32(pairs.len());
                for (key, value) in pairs {
                    out.key(key);
                    out.value(value);
                }
            }
            Self::Get { timeout, keys } | Self::Wait { timeout, keys } => {
                out.u8(if matches!(self, Self::Get { .. }) { 2 } else { 3 });
                let micros = timeout.as_nanos().div_ceil(1000);
                out.bytes(&u64::try_from(micros).unwrap_or(u64::MAX).to_le_bytes());
                out.u32(keys.len());
                keys.iter().for_each(|key| out.key(key));
            }
            Self::Add { key, amount } => {
                out.u8(4);
                out.key(key);
                out.bytes(&amount.to_le_bytes());
            }
            Self::Append { key, value } | Self::Claim { key, value } => {
                out.u8(if matches!(self, Self::Append { .. }) { 5 } else { 7 });
                out.key(key);
                out.value(value);
            }
            Self::Delete { key } => {
                out.u8(6);
                out.key(key);
            }
            Self::Keep => out.u8(8),
        }
        Ok(out.finish())
    }

    /// Decodes a frame without its length. `ResourceExhausted` if there is no memory for that, else it violates the
    /// protocol.
    pub(super) fn decode(frame: &'a [u8]) -> Result<Self> {
        let mut input = Reader::new(frame);
        let request = match input.u8()? {
            1 => Self::Set(input.list(6, |input| Ok((input.key()?, input.value()?)))?),
            which @ (2 | 3) => {
                let micros = input.u64()?;
                let timeout = if micros == u64::MAX { Duration::MAX } else { Duration::from_micros(micros) };
                let keys = input.list(2, Reader::key)?;
                if which == 2 { Self::Get { timeout, keys } } else { Self::Wait { timeout, keys } }
            }
            4 => Self::Add { key: input.key()?, amount: input.u64()? as i64 },
            5 => Self::Append { key: input.key()?, value: input.value()? },
            6 => Self::Delete { key: input.key()? },
            7 => Self::Claim { key: input.key()?, value: input.value()? },
            8 => Self::Keep,
            _ => return Err(invalid()),
        };
        if input.is_empty() { Ok(request) } else { Err(invalid()) }
    }
}

/// A part of the bytes for a client: owned, or a value shared with the table.
pub(super) enum Chunk {
    Own(Vec<u8>),
    Shared(Arc<Vec<u8>>),
}

impl Chunk {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(value) => value,
        }
    }
}

/// Values of at least this length are sent without copying.
const SHARED_BYTES: usize = 16 << 10;

/// The reply to set, wait, append, claim and keep.
pub(super) fn reply_done() -> Vec<u8> {
    Writer::answer(0).finish()
}

/// The reply to add.
pub(super) fn reply_sum(sum: i64) -> Vec<u8> {
    let mut out = Writer::answer(0);
    out.bytes(&sum.to_le_bytes());
    out.finish()
}

/// The reply to delete.
pub(super) fn reply_deleted(was_there: bool) -> Vec<u8> {
    let mut out = Writer::answer(0);
    out.u8(u8::from(was_there));
    out.finish()
}

/// The reply to get: the first of `values`, as many as fit, but at least one if there is one.
pub(super) fn reply_values(values: &[Arc<Vec<u8>>]) -> Result<Vec<Chunk>> {
    const WHAT: &str = "the values of a reply";
    let mut bytes = 5;
    let fitting = values.iter().take_while(|value| {
        bytes += 4 + value.len();
        bytes <= MAX_FRAME_BYTES
    });
    let count = fitting.count();
    let values = &values[..count];
    let total = 5 + values.iter().map(|value| 4 + value.len()).sum::<usize>();

    let shared = values.iter().filter(|value| value.len() >= SHARED_BYTES);
    let mut chunks = try_with_capacity(2 * shared.count() + 1, WHAT)?;
    let mut own = Vec::new();
    own.extend_from_slice(&(total as u32).to_le_bytes());
    own.push(0);
    own.extend_from_slice(&(count as u32).to_le_bytes());
    for value in values {
        try_reserve(&mut own, 4 + SHARED_BYTES, WHAT)?;
        own.extend_from_slice(&(value.len() as u32).to_le_bytes());
        if value.len() < SHARED_BYTES {
            own.extend_from_slice(value);
        } else {
            chunks.push(Chunk::Own(std::mem::take(&mut own)));
            chunks.push(Chunk::Shared(Arc::clone(value)));
        }
    }
    if !own.is_empty() {
        chunks.push(Chunk::Own(own));
    }
    Ok(chunks)
}

/// The reply to get and wait after a timeout: `missing` are positions in the request's keys.
pub(super) fn reply_missing(mut missing: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut out = Writer::answer(1);
    let shown: Vec<usize> = missing.by_ref().take(NAMED_KEYS).collect();
    out.u32(shown.len() + missing.count());
    out.u32(shown.len());
    shown.iter().for_each(|&position| out.u32(position));
    out.finish()
}

/// The reply to an invalid request.
pub(super) fn reply_refused(error: &Error) -> Vec<u8> {
    let mut out = Writer::answer(2);
    out.u8(match error.kind() {
        ErrorKind::InvalidArgument => 1,
        ErrorKind::ResourceExhausted => 3,
        _ => 2,
    });
    let message = error.message();
    let cut = message.floor_char_boundary(usize::from(u16::MAX));
    out.bytes(&(cut as u16).to_le_bytes());
    out.bytes(&message.as_bytes()[..cut]);
    out.finish()
}

/// A reply; borrows from its frame.
#[derive(Debug, PartialEq)]
pub(super) enum Reply<'a> {
    /// Success; the contents depend on the request.
    Done(Reader<'a>),
    /// Timeout: the number of missing keys, and the positions of the first ones.
    Missing { count: usize, positions: Vec<usize> },
    /// The server's reason, without the name of the store.
    Refused { kind: ErrorKind, message: &'a str },
}

impl<'a> Reply<'a> {
    /// Decodes a frame without its length. `ResourceExhausted` if there is no memory for that, else it violates the
    /// protocol.
    pub(super) fn decode(frame: &'a [u8]) -> Result<Self> {
        let mut input = Reader::new(frame);
        match input.u8()? {
            0 => Ok(Self::Done(input)),
            1 => {
                let count = input.u32()? as usize;
                let positions = input.list(4, |input| Ok(input.u32()? as usize))?;
                Ok(Self::Missing { count, positions })
            }
            2 => {
                let kind = match input.u8()? {
                    1 => ErrorKind::InvalidArgument,
                    3 => ErrorKind::ResourceExhausted,
                    _ => ErrorKind::InvalidOperation,
                };
                let length = input.u16()?;
                Ok(Self::Refused { kind, message: text(input.take(usize::from(length))?)? })
            }
            _ => Err(invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
    use super::super::frame::MAX_FRAME_KEYS;
    use super::*;
    use proptest::prelude::*;

    fn all_requests() -> Vec<Request<'static>> {
        let timeout = Duration::from_millis(1500);
        vec![
            Request::Set(vec![("a", b"1"), ("ключ", b"")]),
            Request::Get { timeout, keys: vec!["a", "b"] },
            Request::Wait { timeout: Duration::MAX, keys: vec![] },
            Request::Add { key: "n", amount: i64::MIN },
            Request::Append { key: "a", value: &[0, 255] },
            Request::Delete { key: "a" },
            Request::Claim { key: "a", value: b"1" },
            Request::Keep,
        ]
    }

    #[test]
    fn requests_survive_the_way_and_every_cut_or_longer_one_is_refused() {
        for request in all_requests() {
            let frame = request.encode().unwrap();
            assert_eq!(u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize, frame.len() - 4);
            assert_eq!(Request::decode(&frame[4..]).unwrap(), request);
            for cut in 4..frame.len() {
                assert!(Request::decode(&frame[4..cut]).is_err(), "cut at {cut}");
            }
            let longer = [&frame[4..], &[0]].concat();
            assert!(Request::decode(&longer).is_err());
        }
    }

    #[test]
    fn limits_hold() {
        let long = "k".repeat(MAX_KEY_BYTES + 1);
        for key in [&long[..], "", "a\0b"] {
            assert!(Request::decode(&Request::Delete { key }.encode().unwrap()[4..]).is_err());
        }
        let long = &long[..MAX_KEY_BYTES];
        assert!(Request::decode(&Request::Delete { key: long }.encode().unwrap()[4..]).is_ok());
        // A count of 2³²-1 without elements.
        assert!(Request::decode(&[1, 255, 255, 255, 255]).is_err());
        let keys = vec!["k"; MAX_FRAME_KEYS + 1];
        assert!(Request::decode(&Request::Wait { timeout: Duration::ZERO, keys }.encode().unwrap()[4..]).is_err());
    }

    #[test]
    fn an_answer_holds_as_many_values_as_fit() {
        let big = Arc::new(vec![7; MAX_VALUE_BYTES]);
        let small = Arc::new(vec![1, 2]);
        let half = Arc::new(vec![9; MAX_VALUE_BYTES / 2]);
        for (values, fitting) in [
            (vec![], 0),
            (vec![small.clone()], 1),
            (vec![small.clone(), big.clone(), small.clone()], 3),
            (vec![big.clone(), big.clone()], 1),
            (vec![half.clone(), half.clone(), half.clone()], 2),
        ] {
            let frame = reply_values(&values).unwrap().iter().map(|chunk| chunk.bytes()).collect::<Vec<_>>().concat();
            assert_eq!(u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize, frame.len() - 4);
            assert!(frame.len() - 4 <= MAX_FRAME_BYTES);
            let Ok(Reply::Done(mut rest)) = Reply::decode(&frame[4..]) else { panic!("no answer") };
            let got = rest.values().unwrap();
            assert_eq!(got.len(), fitting);
            assert!(got.iter().zip(&values).all(|(got, value)| *got == value.as_slice()));
        }
    }

    #[test]
    fn refusals_and_timeouts_survive_the_way() {
        let missing: Vec<usize> = (3..300).collect();
        let frame = reply_missing(missing.into_iter());
        let positions = (3..3 + NAMED_KEYS).collect();
        assert_eq!(Reply::decode(&frame[4..]).unwrap(), Reply::Missing { count: 297, positions });
        let frame = reply_refused(&Error::new(ErrorKind::InvalidOperation, "é".repeat(50_000)));
        let Ok(Reply::Refused { kind, message }) = Reply::decode(&frame[4..]) else { panic!("no answer") };
        assert_eq!((kind, message.len()), (ErrorKind::InvalidOperation, 65_534));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_understood(bytes in proptest::collection::vec(any::<u8>(), 0..200), first in 0u8..10) {
            let frame = [&[first], &bytes[..]].concat();
            if let Ok(request) = Request::decode(&frame) {
                prop_assert_eq!(&request.encode().unwrap()[4..], &frame[..]);
            }
            if let Ok(Reply::Done(mut rest)) = Reply::decode(&frame) {
                let _ = rest.values();
            }
        }
    }
}
