//! The messages of the launcher and its helper on another host, over the helper's standard input and output.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::job::Job;

/// The first bytes from a helper; output of the host's shell before them is skipped.
pub const MAGIC: &[u8] = b"\0gloo-rs node\0";
/// Upper bound for the length of frames with output: what one read completes is a line of 1 MiB, and 64 Ki lines with
/// the prefix of each.
const MAX_FRAME_BYTES: usize = 4 << 20;
/// Upper bound for a [`Task`], in which a byte of the command line takes up to four.
const MAX_TASK_BYTES: usize = 16 << 20;
/// Upper bound for the output of a shell when it starts.
const MAX_GREETING_BYTES: usize = 1 << 20;

/// Kinds of frames, by sender.
pub mod kind {
    /// Helper: [`super::Hello`].
    pub const HELLO: u8 = b'h';
    /// Helper: bytes for the launcher's standard output.
    pub const OUTPUT: u8 = b'o';
    /// Helper: bytes for the launcher's standard error.
    pub const ERROR: u8 = b'e';
    /// Helper: rank 0 has read this many bytes (u32, little-endian) of its input.
    pub const TAKEN: u8 = b't';
    /// Helper: all of its ranks have ended, with this status (one byte).
    pub const DONE: u8 = b'd';
    /// Launcher: [`super::Task`].
    pub const TASK: u8 = b'T';
    /// Launcher: a signal for the ranks (one byte).
    pub const SIGNAL: u8 = b'S';
    /// Launcher: the job has failed on another host; the ranks must end.
    pub const END: u8 = b'E';
    /// Launcher: input for rank 0; empty at its end.
    pub const INPUT: u8 = b'I';
    /// Launcher: keep-alive.
    pub const ALIVE: u8 = b'A';
}

/// Limit on rank 0's input that has been sent and not read yet.
pub const INPUT_WINDOW_BYTES: usize = 64 << 10;

#[derive(Serialize, Deserialize)]
pub struct Hello {
    pub version: String,
    /// A port that was free on that host just before.
    pub port: u16,
}

#[derive(Serialize, Deserialize)]
pub struct Task {
    pub job: Job,
    /// The directory in which the launcher was started.
    pub directory: OsString,
    /// Time without data after which the launcher counts as lost.
    pub lost_after: Duration,
}

/// Encodes a frame: kind, length, and that many bytes.
pub fn encode(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(5 + payload.len());
    frame.push(kind);
    frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Encodes a frame with a serialized value as the payload. Fails if it would be longer than the other side accepts.
pub fn encode_value(kind: u8, value: &impl Serialize) -> io::Result<Vec<u8>> {
    let payload = serde_json::to_vec(value)?;
    if payload.len() > longest(kind) {
        return Err(io::Error::new(
            io::ErrorKind::ArgumentListTooLong,
            format!(
                "the command line, its variables and the directory need {} bytes; other hosts accept {}",
                payload.len(),
                longest(kind)
            ),
        ));
    }
    Ok(encode(kind, &payload))
}

/// The most bytes of a frame of this kind.
fn longest(kind: u8) -> usize {
    if kind == kind::TASK { MAX_TASK_BYTES } else { MAX_FRAME_BYTES }
}

/// Decodes frames from pieces of any size.
#[derive(Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// What must come before the first frame.
    greeting: Option<&'static [u8]>,
}

impl Decoder {
    /// A decoder that skips everything up to the end of `greeting`.
    pub fn after(greeting: &'static [u8]) -> Self {
        Self { bytes: Vec::new(), greeting: Some(greeting) }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete frame.
    pub fn next(&mut self) -> io::Result<Option<(u8, Vec<u8>)>> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        if let Some(greeting) = self.greeting {
            let Some(at) = self.bytes.windows(greeting.len()).position(|window| window == greeting) else {
                let long = self.bytes.len() > MAX_GREETING_BYTES;
                return if long { Err(wrong("no gloo-rs speaks there")) } else { Ok(None) };
            };
            self.bytes.drain(..at + greeting.len());
            self.greeting = None;
        }
        let [kind, a, b, c, d, ..] = self.bytes[..] else { return Ok(None) };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > longest(kind) {
            return Err(wrong("a message is longer than any can be"));
        }
        if self.bytes.len() < 5 + length {
            return Ok(None);
        }
        let payload = self.bytes[5..5 + length].to_vec();
        self.bytes.drain(..5 + length);
        Ok(Some((kind, payload)))
    }

    /// The kind of the next frame, if any of it has come.
    pub fn next_kind(&self) -> Option<u8> {
        self.bytes.first().copied().filter(|_| self.greeting.is_none())
    }

    /// The text that was received instead of the greeting.
    pub fn before_greeting(&self) -> Option<String> {
        self.greeting.map(|_| String::from_utf8_lossy(&self.bytes).trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_whole_from_any_pieces() {
        let mut stream = b"Welcome to node1!\0gloo\n".to_vec();
        stream.extend_from_slice(MAGIC);
        let frames = [(b'o', b"x\0y".to_vec()), (b'd', vec![]), (b'e', vec![7; 100_000])];
        frames.iter().for_each(|(kind, payload)| stream.extend(encode(*kind, payload)));
        for piece in [1, 2, 7, 1000, stream.len()] {
            let mut decoder = Decoder::after(MAGIC);
            let mut found = Vec::new();
            for piece in stream.chunks(piece) {
                decoder.push(piece);
                while let Some(frame) = decoder.next().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames);
        }
    }

    #[test]
    fn a_command_line_may_be_long_and_one_that_is_too_long_is_named() {
        let text = |bytes: usize| OsString::from("x".repeat(bytes));
        // Linux's limit for arguments and variables together, unless somebody raises that of the stack.
        let frame = encode_value(kind::TASK, &text(2 << 20)).unwrap();
        let mut decoder = Decoder::default();
        decoder.push(&frame);
        assert_eq!(decoder.next().unwrap().unwrap().0, kind::TASK);
        let error = encode_value(kind::TASK, &text(5 << 20)).unwrap_err().to_string();
        assert!(error.contains("the command line") && error.contains("other hosts accept 16777216"), "{error}");
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let mut decoder = Decoder::default();
        decoder.push(b"o\xff\xff\xff\xff");
        assert!(decoder.next().is_err());
        let mut decoder = Decoder::after(MAGIC);
        decoder.push(b"no such command\n");
        assert!(decoder.next().unwrap().is_none());
        assert_eq!(decoder.before_greeting().unwrap(), "no such command");
        decoder.push(&vec![b'x'; MAX_GREETING_BYTES]);
        assert!(decoder.next().is_err());
    }
}
