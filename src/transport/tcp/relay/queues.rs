//! Bytes on their way between a link and the thread that encrypts for one of its connections.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::STRIPE_BYTES;
use super::super::buffered::BufferedLinks;
use crate::types::Rank;

/// Bytes of a chunk: as many as the link sends by one connection before it is the next one's turn.
pub(super) const CHUNK_BYTES: usize = STRIPE_BYTES;
/// The maximum number of chunks in a queue.
pub(super) const MAX_CHUNKS: usize = 4;

/// Bytes on their way.
pub(super) struct Chunk {
    pub bytes: Box<[u8]>,
    pub begin: usize,
    pub end: usize,
}

impl Chunk {
    /// Those that were not taken.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }
}

/// What the link and the thread share of a connection.
#[derive(Default)]
pub(super) struct Queues {
    pub outgoing: VecDeque<Chunk>,
    pub incoming: VecDeque<Chunk>,
    /// Chunks that can be filled.
    pub free: Vec<Chunk>,
    /// The link waits for room in `outgoing`, or the thread for room in `incoming`.
    pub link_waits: bool,
    pub thread_waits: bool,
    /// The link has ended: nothing is added to `outgoing`.
    pub link_ended: bool,
    /// The peer has ended the stream after what is in `incoming`.
    pub peer_ended: bool,
    /// Why nothing more comes, and why nothing can be sent any more.
    pub broken: Option<io::Error>,
    pub cut: Option<io::Error>,
}

impl Queues {
    /// A chunk to be filled.
    pub fn fresh(&mut self) -> Chunk {
        self.free.pop().unwrap_or_else(|| Chunk { bytes: vec![0; CHUNK_BYTES].into(), begin: 0, end: 0 })
    }
}

/// Returns a copy of `error`, which cannot be cloned.
pub(super) fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// What the link and the thread have in common.
pub(super) struct Common {
    queues: Mutex<Queues>,
    buffered_links: Arc<BufferedLinks>,
    rank: Rank,
}

impl Common {
    /// That of a connection of the link to `rank`.
    pub fn new(buffered_links: Arc<BufferedLinks>, rank: Rank) -> Self {
        Self { queues: Mutex::default(), buffered_links, rank }
    }

    /// The queues, locked.
    pub fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link can go on.
    pub fn tell_link(&self) {
        self.buffered_links.tell(self.rank);
    }
}
