//! A message whose payload is being received: its destination, and what to do when it is complete.

use crate::messaging::operation::{ReduceInto, Token};
use crate::messaging::queues::Key;
use crate::reduce::Side;
use crate::types::Slot;
use crate::wire::message::Cause;

/// From this length on, the rest of a payload is received directly into its destination, without staging.
pub const DIRECT_BYTES: usize = 4 << 10;

/// The destination of payload.
#[derive(Debug)]
pub enum Target {
    /// Memory.
    Memory(*mut u8),
    /// Memory with which it is reduced.
    Reduce(*mut u8, ReduceInto),
    /// A queued unexpected message.
    Unexpected(u32),
    /// Memory of the messenger.
    Own(Vec<u8>),
    /// The payload has no destination: it is discarded.
    Discard,
}

/// What to do when the payload is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Complete this receive.
    Recv(u32),
    /// Report a write into a bound buffer at this offset.
    Written { token: Token, offset: u64 },
    /// Queue a write into a buffer that was not bound when its header arrived.
    UnexpectedWrite { slot: Slot, offset: u64 },
    /// Tell the peer that its put into this region is done, or was refused.
    PutDone { request: u32, region: u32, refused: bool },
    /// Complete this request, a put or a get of this rank.
    Answer { request: u32, refused: bool },
    /// Fail: the peer's context has failed, for the reason in the text.
    Abort { cause: Cause, culprit: u32 },
    /// Store the peer's reply to a query.
    Reply { waiting: bool, instead: u64 },
    /// Pass on a message of an agreement.
    Agreement,
    /// Nothing.
    Nothing,
}

/// A message whose payload is being received.
#[derive(Debug)]
pub struct Incoming {
    /// Destination of the payload.
    pub target: Target,
    /// What to do when it is complete.
    pub finish: Finish,
    /// Length of the payload.
    pub bytes: usize,
    /// Bytes received.
    pub done: usize,
    /// The received part of an incomplete element; for `Target::Reduce`.
    carry: [u8; 16],
    carried: usize,
}

impl Incoming {
    pub fn new(bytes: usize, target: Target, finish: Finish) -> Self {
        Self { target, finish, bytes, done: 0, carry: [0; 16], carried: 0 }
    }

    pub fn remaining(&self) -> usize {
        self.bytes - self.done
    }

    /// Stores the next `bytes` of the payload in the poster's memory, if that is the target; else only counts them.
    pub fn store(&mut self, bytes: &[u8]) {
        match self.target {
            // SAFETY: the length was checked against the target when the header arrived, and `bytes` does not exceed
            // what is missing of it. The poster keeps the memory valid; a cancellation changes the target.
            Target::Memory(into) if !bytes.is_empty() => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.add(self.done), bytes.len());
            },
            // SAFETY: as above; a receive that reduces has the exact length of its message, a whole number of elements.
            Target::Reduce(into, reduce) => return unsafe { self.reduce(into, reduce, bytes) },
            _ => {}
        }
        self.done += bytes.len();
    }

    /// Reduces the next `bytes` of the payload with the target.
    ///
    /// # Safety
    /// `into` and the operand are valid for the whole payload, which is a whole number of elements.
    pub unsafe fn reduce(&mut self, into: *mut u8, reduce: ReduceInto, mut bytes: &[u8]) {
        let apply = |at: usize, data: &[u8]| {
            let count = data.len() / reduce.element;
            // SAFETY: `at` and `data` are whole elements inside the payload, for whose length the caller guarantees
            // that the memory is valid.
            unsafe {
                let (into, with) = (into.add(at), reduce.with.add(at));
                match reduce.incoming {
                    Side::Left => reduce.kernel.run(into, data.as_ptr(), with, count),
                    Side::Right => reduce.kernel.run(into, with, data.as_ptr(), count),
                }
            }
        };
        let mut at = self.done - self.carried;
        self.done += bytes.len();
        if self.carried > 0 {
            let n = bytes.len().min(reduce.element - self.carried);
            self.carry[self.carried..self.carried + n].copy_from_slice(&bytes[..n]);
            self.carried += n;
            bytes = &bytes[n..];
            if self.carried < reduce.element {
                return;
            }
            apply(at, &self.carry[..reduce.element]);
            at += reduce.element;
            self.carried = 0;
        }
        let whole = bytes.len() - bytes.len() % reduce.element;
        if whole > 0 {
            apply(at, &bytes[..whole]);
        }
        self.carried = bytes.len() - whole;
        self.carry[..self.carried].copy_from_slice(&bytes[whole..]);
    }
}

/// An offered message that is being read out of the sender's memory.
#[derive(Debug)]
pub struct Reading {
    /// The offer's key.
    pub key: u32,
    /// The messages among which it is one.
    pub order: Key,
    /// The destination and progress of the message.
    pub incoming: Incoming,
    /// Whether the sender has unregistered the message's memory: a replacement follows, or the connection ends.
    pub revoked: bool,
}
