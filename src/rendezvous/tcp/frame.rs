//! How requests and replies are written into frames, and read from them.

use super::super::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::reserve::try_with_capacity;

/// The longest request or reply, without its length: a value of the maximum length fits, with its key.
pub(super) const MAX_FRAME_BYTES: usize = MAX_VALUE_BYTES + (64 << 10);

/// The most keys of one request.
pub(super) const MAX_FRAME_KEYS: usize = 1 << 16;

/// Writes a frame.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    /// Reserves space for the length.
    pub fn new() -> Self {
        Self(vec![0; 4])
    }

    /// Like [`Writer::new`], with room for `bytes` bytes in all.
    pub fn with_room(bytes: usize) -> Result<Self> {
        let mut out = try_with_capacity(bytes, "a request to the server")?;
        out.extend_from_slice(&[0; 4]);
        Ok(Self(out))
    }

    pub fn answer(status: u8) -> Self {
        let mut out = Self::new();
        out.u8(status);
        out
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Counts and lengths, which the callers' limits keep far below 2³².
    pub fn u32(&mut self, value: usize) {
        self.bytes(&(value as u32).to_le_bytes());
    }

    pub fn key(&mut self, key: &str) {
        self.bytes(&(key.len() as u16).to_le_bytes());
        self.bytes(key.as_bytes());
    }

    pub fn value(&mut self, value: &[u8]) {
        self.u32(value.len());
        self.bytes(value);
    }

    pub fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Splits `items` into runs that each fit into one request.
pub(super) fn batches<T>(items: &[T], bytes: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    const ROOM: usize = MAX_FRAME_BYTES - 64;
    let mut rest = items;
    std::iter::from_fn(move || {
        let mut sum = 0;
        let fitting = rest.iter().take(MAX_FRAME_KEYS).take_while(|item| {
            sum += bytes(item);
            sum <= ROOM
        });
        // Every single item fits, because keys and values are limited.
        let (batch, after) = rest.split_at_checked(fitting.count().max(1))?;
        rest = after;
        Some(batch)
    })
}

/// What violates the protocol: bytes are missing, or a limit is exceeded.
pub(super) fn invalid() -> Error {
    Error::new(ErrorKind::Mismatch, "the server's reply is invalid")
}

pub(super) fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| invalid())
}

/// Decodes a frame.
#[derive(Debug, PartialEq)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader of the bytes of a frame that follow its length.
    pub fn new(frame: &'a [u8]) -> Self {
        Self(frame)
    }

    /// Whether all was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or_else(invalid)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| invalid())
    }

    pub fn u8(&mut self) -> Result<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn key(&mut self) -> Result<&'a str> {
        let length = usize::from(self.u16()?);
        let key = text(self.take(length)?)?;
        let valid = !key.is_empty() && key.len() <= MAX_KEY_BYTES && !key.contains('\0');
        if valid { Ok(key) } else { Err(invalid()) }
    }

    pub fn value(&mut self) -> Result<&'a [u8]> {
        let length = self.u32()? as usize;
        if length > MAX_VALUE_BYTES { Err(invalid()) } else { self.take(length) }
    }

    /// A list whose elements have at least `min` bytes each: the count is checked before memory is allocated for it.
    pub fn list<T>(&mut self, min: usize, mut member: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u32()? as usize;
        if count > MAX_FRAME_KEYS || count > self.0.len() / min {
            return Err(invalid());
        }
        let mut list = try_with_capacity(count, "the list of a request or a reply")?;
        for _ in 0..count {
            list.push(member(self)?);
        }
        Ok(list)
    }

    pub fn values(&mut self) -> Result<Vec<&'a [u8]>> {
        self.list(4, Self::value)
    }
}
