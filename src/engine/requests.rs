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
    sides: [Operations; 2],
    closed: bool,
}

/// The operations of one buffer that end one kind of its waits.
#[derive(Debug, Default)]
struct Operations {
    ended: VecDeque<Ended>,
    aborted: bool,
    /// How many have begun, by [`Requests::begin`], and not ended.
    under_way: usize,
    /// The peer that all are with that have begun since none was under way, if it is one.
    peer: Option<Rank>,
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

    /// The same for one that begins now, with whichever of `ranks`.
    pub fn begin(&mut self, owner: u32, side: Side, ranks: &[Rank]) -> Token {
        if let Some(buffer) = self.buffers.get_mut(owner - FIRST_BUFFER) {
            let operations = &mut buffer.sides[side as usize];
            let one = ranks.first().copied().filter(|first| ranks.iter().all(|rank| rank == first));
            if operations.under_way == 0 {
                operations.peer = one;
            } else if operations.peer != one {
                operations.peer = None;
            }
            operations.under_way += 1;
        }
        Self::token(owner, side)
    }

    /// The peer with which all operations are that are under way, and that have begun beside them, if it is one: all that a wait
    /// on that side waits for.
    pub fn peer(&self, owner: u32, side: Side) -> Option<Rank> {
        let operations = &self.buffers.get(owner - FIRST_BUFFER)?.sides[side as usize];
        operations.peer.filter(|_| operations.under_way > 0)
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
        let operations = &mut buffer.sides[token.detail as usize & 1];
        // Bound buffers, which have one peer, do not say when one begins.
        operations.under_way = operations.under_way.saturating_sub(1);
        operations.ended.push_back(ended);
    }

    /// Ends the current or next wait on that side.
    pub fn abort(&mut self, owner: u32, side: Side) {
        if let Some(buffer) = self.buffers.get_mut(owner - FIRST_BUFFER) {
            buffer.sides[side as usize].aborted = true;
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
        let operations = &mut buffer.sides[side as usize];
        if let Some(ended) = operations.ended.pop_front() {
            return Some(ended);
        }
        if buffer.closed {
            return Some(Ended::Failed(Error::new(ErrorKind::Closed, "the buffer was destroyed meanwhile")));
        }
        std::mem::take(&mut operations.aborted).then_some(Ended::Aborted)
    }
}
