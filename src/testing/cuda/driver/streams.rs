//! Streams and what they have to do.

use std::collections::{BTreeMap, VecDeque};

use crate::testing::cuda::ptx::Geometry;

/// Something that a stream does.
pub enum Operation {
    /// Copies bytes.
    Copy { into: u64, from: Source, bytes: usize },
    /// Runs a kernel.
    Launch { kernel: String, geometry: Geometry, parameters: Vec<u8> },
    /// Reaches an event, recorded for the time with this number.
    Record { event: usize, number: u64 },
    /// Goes on when another stream has reached an event so often.
    Wait { event: usize, number: u64 },
}

/// Where the bytes of a copy come from.
pub enum Source {
    /// An address, read when the copy is made.
    Address(u64),
    /// The driver's own memory, to which it has copied the pageable memory of the host in the call.
    Staged(Vec<u8>),
}

/// A stream.
pub struct Stream {
    /// Whose it is.
    pub context: usize,
    /// What it has not done.
    pub queue: VecDeque<Operation>,
}

/// An event.
pub struct Event {
    /// Whose it is.
    pub context: usize,
    /// How often it was recorded.
    pub recorded: u64,
    /// How many of these a stream has reached.
    pub reached: u64,
}

/// All streams and events, by their handles.
#[derive(Default)]
pub struct Streams {
    pub streams: BTreeMap<usize, Stream>,
    pub events: BTreeMap<usize, Event>,
}

impl Streams {
    /// The streams whose next operation can be done.
    pub fn ready(&self) -> Vec<usize> {
        let is_ready = |stream: &Stream| match stream.queue.front() {
            None => false,
            Some(Operation::Wait { event, number }) => self.events.get(event).is_none_or(|it| it.reached >= *number),
            Some(_) => true,
        };
        self.streams.iter().filter(|(_, stream)| is_ready(stream)).map(|(handle, _)| *handle).collect()
    }

    /// What the operations that were not done read and write: the addresses, for each whether it is written.
    pub fn pending(&self) -> impl Iterator<Item = (u64, bool)> {
        self.streams.values().flat_map(|stream| &stream.queue).flat_map(Operation::accesses)
    }
}

impl Operation {
    /// The addresses that it may access, for each whether it writes there. Of a kernel, all that its parameters have.
    fn accesses(&self) -> Vec<(u64, bool)> {
        match self {
            Self::Copy { into, from: Source::Address(from), .. } => vec![(*into, true), (*from, false)],
            Self::Copy { into, .. } => vec![(*into, true)],
            Self::Launch { parameters, .. } => {
                let words = parameters.chunks_exact(8);
                words.map(|word| (u64::from_ne_bytes(word.try_into().expect("a word")), true)).collect()
            }
            Self::Record { .. } | Self::Wait { .. } => Vec::new(),
        }
    }
}
