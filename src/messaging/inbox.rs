//! A message whose payload is coming in: where the bytes go, and what follows when they are all here.

use crate::messaging::operation::{ReduceInto, Token};
use crate::reduce::Side;
use crate::types::Slot;

/// Where payload goes.
#[derive(Debug)]
pub enum Target {
    /// To memory.
    Memory(*mut u8),
    /// Combined with memory.
    Reduce(*mut u8, ReduceInto),
    /// To a message that is kept for a later receive.
    Unexpected(u32),
    /// To memory of our own.
    Own(Vec<u8>),
    /// Nowhere.
    Discard,
}

/// What happens when the payload is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// This receive is done.
    Recv(u32),
    /// A bound buffer was written at this offset.
    Written { token: Token, offset: u64 },
    /// Bytes for a buffer that was not bound when they began to arrive.
    UnexpectedWrite { slot: Slot, offset: u64 },
    /// The peer wants to hear that its put to this region is done, or was refused.
    PutDone { request: u32, region: u32, refused: bool },
    /// This request of ours is answered.
    Answer { request: u32, refused: bool },
    /// The peer's context gives up, for the reason in the text.
    Abort { mismatch: bool, culprit: u32 },
    /// The peer says what it is doing.
    Reply { held_up: bool },
    /// Nothing.
    Nothing,
}

/// A message whose payload is coming in.
#[derive(Debug)]
pub struct Incoming {
    /// Where the payload goes.
    pub target: Target,
    /// What follows.
    pub finish: Finish,
    /// Length of the payload.
    pub bytes: usize,
    /// Bytes that have come.
    pub done: usize,
    /// The beginning of an element whose rest has not come; for `Target::Reduce`.
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

    /// Combines `bytes`, which follow what has come already, with the target.
    ///
    /// # Safety
    /// Target and operand are valid for the whole payload, which is a whole number of elements.
    pub unsafe fn reduce(&mut self, into: *mut u8, reduce: ReduceInto, mut bytes: &[u8]) {
        let apply = |at: usize, data: &[u8]| {
            let count = data.len() / reduce.element;
            // SAFETY: `at` counts whole elements below the payload's length; the caller vouches for the memory.
            unsafe {
                let (into, with) = (into.add(at), reduce.with.add(at));
                match reduce.incoming {
                    Side::Left => (reduce.kernel)(into, data.as_ptr(), with, count),
                    Side::Right => (reduce.kernel)(into, with, data.as_ptr(), count),
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
