//! The operations of buffers: their completions are queued until a thread waits for them.

use std::collections::VecDeque;

use crate::engine::FIRST_BUFFER;
use crate::engine::ready::Entry;
use crate::error::{Error, ErrorKind};
use crate::messaging::{Outcome, Token};
use crate::slab::Slab;
use crate::types::Rank;

/// The one of a buffer's waits an operation completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Side {
    /// `wait_send`.
    Send = 0,
    /// `wait_recv`.
    Recv = 1,
}

impl Side {
    /// The name of the operations in errors.
    pub fn operation(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Recv => "recv",
        }
    }
}

/// The result of a wait.
#[derive(Clone, Debug)]
pub enum Ended {
    /// An operation with this rank, of so many bytes, has completed.
    Message(Rank, usize),
    /// A write into a bound buffer.
    Written {
        /// Offset of the first byte.
        offset: usize,
        /// Length of the write.
        bytes: usize,
    },
    /// An operation has failed.
    Failed(Error),
    /// The wait was aborted.
    Aborted,
}

#[derive(Default)]
struct Buffer {
    sides: [Operations; 2],
    closed: bool,
}

/// The operations of one buffer that complete the same kind of wait.
#[derive(Default)]
struct Operations {
    ended: VecDeque<Ended>,
    aborted: bool,
    /// Operations started with [`Requests::begin`] that have not completed.
    under_way: usize,
    /// The peer of all operations started since `under_way` was last 0; `None` if they have several.
    peer: Option<Rank>,
    /// Where each end is noted, if a completion queue reports them.
    entry: Option<Entry>,
}

/// The buffers of one context.
#[derive(Default)]
pub struct Requests {
    buffers: Slab<Buffer>,
}

impl Requests {
    /// Adds a buffer, and returns the owner number for its operations.
    pub fn enter(&mut self) -> u32 {
        FIRST_BUFFER + self.buffers.insert(Buffer::default())
    }

    /// Removes a buffer.
    pub fn leave(&mut self, owner: u32) {
        self.buffers.remove(owner - FIRST_BUFFER);
    }

    /// Whether an operation of a buffer has not completed.
    pub fn are_under_way(&self) -> bool {
        self.buffers.iter().any(|(_, buffer)| buffer.sides.iter().any(|side| side.under_way > 0))
    }

    /// The token for an operation of the buffer `owner`.
    pub fn token(owner: u32, side: Side) -> Token {
        Token { owner, detail: side as u32 }
    }

    /// Starts an operation with one of `ranks`, and returns its token.
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

    /// The only peer that a wait on that side can be waiting for; `None` if there are several, or no operation is in
    /// progress.
    pub fn peer(&self, owner: u32, side: Side) -> Option<Rank> {
        let operations = &self.buffers.get(owner - FIRST_BUFFER)?.sides[side as usize];
        operations.peer.filter(|_| operations.under_way > 0)
    }

    /// An operation has completed or failed.
    pub fn ended(&mut self, token: Token, outcome: Outcome) {
        let Some(buffer) = self.buffers.get_mut(token.owner - FIRST_BUFFER) else { return };
        let ended = match outcome {
            Outcome::Done { rank, bytes } => Ended::Message(rank, bytes),
            Outcome::Written { offset, bytes } => Ended::Written { offset, bytes },
            Outcome::Failed(error) => Ended::Failed(error),
            Outcome::Queried { .. } | Outcome::Replied | Outcome::Agreement | Outcome::Disconnected { .. } => {
                return;
            }
            Outcome::Mismatch { rank, .. } => {
                let text = format!("rank {rank} sent what no buffer sends");
                Ended::Failed(Error::new(ErrorKind::Mismatch, text).with_rank(rank))
            }
        };
        let operations = &mut buffer.sides[token.detail as usize & 1];
        // Operations of bound buffers, which have one peer, are not counted by `begin`.
        operations.under_way = operations.under_way.saturating_sub(1);
        operations.ended.push_back(ended);
        operations.entry.iter().for_each(Entry::note);
    }

    /// Has a completion queue told of each end on that side, or no more. Returns how many operations are in progress
    /// there, and how many have ended that no wait has reported.
    pub fn attach(&mut self, owner: u32, side: Side, entry: Option<Entry>) -> (usize, usize) {
        let Some(buffer) = self.buffers.get_mut(owner - FIRST_BUFFER) else { return (0, 0) };
        let operations = &mut buffer.sides[side as usize];
        operations.entry = entry;
        (operations.under_way, operations.ended.len())
    }

    /// The next result for that side, if it is attached as this `number`; and whether there are more.
    pub fn take_attached(&mut self, owner: u32, side: Side, number: usize) -> (Option<Ended>, bool) {
        let Some(buffer) = self.buffers.get_mut(owner - FIRST_BUFFER) else { return (None, false) };
        let operations = &mut buffer.sides[side as usize];
        if operations.entry.as_ref().is_none_or(|entry| entry.number != number) {
            return (None, false);
        }
        (operations.ended.pop_front(), !operations.ended.is_empty())
    }

    /// Aborts the current or next wait on that side.
    pub fn abort(&mut self, owner: u32, side: Side) {
        if let Some(buffer) = self.buffers.get_mut(owner - FIRST_BUFFER) {
            buffer.sides[side as usize].aborted = true;
        }
    }

    /// Fails all current and later waits.
    pub fn close(&mut self, owner: u32) {
        if let Some(buffer) = self.buffers.get_mut(owner - FIRST_BUFFER) {
            buffer.closed = true;
        }
    }

    /// The next result for that side, if there is one. An abort is returned once.
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
