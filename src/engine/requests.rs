//! The ends of the operations that buffers post, until somebody waits for them.

use std::collections::VecDeque;

use crate::engine::FIRST_BUFFER;
use crate::error::{Error, ErrorKind};
use crate::messaging::{Outcome, Token};
use crate::slab::Slab;
use crate::types::Rank;

/// Which of a buffer's waits an operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Side {
    /// `wait_send`.
    Send = 0,
    /// `wait_recv`.
    Recv = 1,
}

impl Side {
    /// What errors call the operations.
    pub fn operation(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Recv => "recv",
        }
    }
}

/// What a wait found.
#[derive(Clone, Debug)]
pub enum Ended {
    /// An operation with this rank, of so many bytes.
    Message(Rank, usize),
    /// A write into a bound buffer.
    Written {
        /// First byte.
        offset: usize,
        /// Length of the write.
        bytes: usize,
    },
    /// An operation that failed.
    Failed(Error),
    /// Nothing: the wait was aborted.
    Aborted,
}

#[derive(Debug, Default)]
struct Buffer {
    ended: [VecDeque<Ended>; 2],
    aborted: [bool; 2],
    closed: bool,
}

/// The buffers of one context.
#[derive(Debug, Default)]
pub struct Requests {
    buffers: Slab<Buffer>,
}

impl Requests {
    /// A number for a new buffer: the owner of its operations.
    pub fn enter(&mut self) -> u32 {
        FIRST_BUFFER + self.buffers.insert(Buffer::default())
    }

    /// The buffer is gone.
    pub fn leave(&mut self, owner: u32) {
        self.buffers.remove(owner - FIRST_BUFFER);
    }

    /// The token for an operation of the buffer `owner`.
    pub fn token(owner: u32, side: Side) -> Token {
        Token { owner, detail: side as u32 }
    }

    /// An operation has ended.
    pub fn ended(&mut self, token: Token, outcome: Outcome) {
        let Some(buffer) = self.buffers.get_mut(token.owner - FIRST_BUFFER) else { return };
        let ended = match outcome {
            Outcome::Done { rank, bytes } => Ended::Message(rank, bytes),
            Outcome::Written { offset, bytes } => Ended::Written { offset, bytes },
            Outcome::Failed(error) => Ended::Failed(error),
            Outcome::Queried { .. } | Outcome::Replied => return,
            Outcome::Mismatch { rank, .. } => {
                let text = format!("rank {rank} sent what no buffer sends");
                Ended::Failed(Error::new(ErrorKind::Mismatch, text).with_rank(rank))
            }
        };
        buffer.ended[token.detail as usize & 1].push_back(ended);
    }

    /// Ends the current or next wait on that side.
    pub fn abort(&mut self, owner: u32, side: Side) {
        if let Some(buffer) = self.buffers.get_mut(owner - FIRST_BUFFER) {
            buffer.aborted[side as usize] = true;
        }
    }

    /// Ends the current waits and all later ones.
    pub fn close(&mut self, owner: u32) {
        if let Some(buffer) = self.buffers.get_mut(owner - FIRST_BUFFER) {
            buffer.closed = true;
        }
    }

    /// The next end on that side, if there is one; an abort only once.
    pub fn take(&mut self, owner: u32, side: Side) -> Option<Ended> {
        let buffer = self.buffers.get_mut(owner - FIRST_BUFFER)?;
        if let Some(ended) = buffer.ended[side as usize].pop_front() {
            return Some(ended);
        }
        if buffer.closed {
            return Some(Ended::Failed(Error::new(ErrorKind::Closed, "the buffer was destroyed meanwhile")));
        }
        std::mem::take(&mut buffer.aborted[side as usize]).then_some(Ended::Aborted)
    }
}
