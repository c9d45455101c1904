//! Cancelled receives, and those whose sender is disconnected.

use super::{Receives, UNEXPECTED_OVERHEAD_BYTES};
use crate::messaging::operation::{Source, Token};
use crate::messaging::queues::Key;
use crate::types::Rank;

impl Receives {
    /// Cancels the receives of `owner`. Calls `arriving` for those whose message is arriving; it must stop writing to
    /// their memory.
    pub fn cancel(&mut self, owner: u32, mut arriving: impl FnMut(u32)) {
        let ops: Vec<u32> = self.ops.iter().filter(|(_, op)| op.recv.token.owner == owner).map(|(i, _)| i).collect();
        for op in ops {
            match self.ops[op].matched {
                None => {
                    self.unpost(op);
                    self.ops.remove(op);
                }
                Some(from) => {
                    self.ops[op].cancelled = true;
                    let key = Key::new(from, self.ops[op].recv.space, self.ops[op].recv.slot);
                    let expected = self.granted.iter(key).any(|g| g == op);
                    if !expected && !self.unexpected.iter().any(|(_, e)| e.op == Some(op)) {
                        arriving(op);
                        self.ops.remove(op);
                    }
                }
            }
        }
    }

    /// Removes a receive that was just posted and is not matched.
    pub fn withdraw(&mut self, op: u32) {
        self.unpost(op);
        self.ops.remove(op);
    }

    fn unpost(&mut self, op: u32) {
        let recv = &self.ops[op].recv;
        let key = match recv.from {
            Source::Rank(rank) => Key::new(rank, recv.space, recv.slot),
            Source::AnyOf(_) => Key::any(recv.space, recv.slot),
        };
        self.posted.remove(key, op);
    }

    /// The connection to `rank` has ended: removes every receive that only disconnected ranks could serve, and returns
    /// their tokens and sources. Complete unexpected messages stay; partial and announced ones are dropped.
    pub fn disconnect(&mut self, peer: Rank, is_disconnected: impl Fn(Rank) -> bool) -> Vec<(Token, Source)> {
        let mut ended = Vec::new();
        let ops: Vec<u32> = self
            .ops
            .iter()
            .filter(|(_, op)| op.servers().contains(&peer) && op.servers().iter().all(|rank| is_disconnected(*rank)))
            .map(|(i, _)| i)
            .collect();
        for op in ops {
            match self.ops[op].matched {
                None => self.unpost(op),
                Some(from) => {
                    let key = Key::new(from, self.ops[op].recv.space, self.ops[op].recv.slot);
                    self.granted.remove(key, op);
                }
            }
            if let Some(op) = self.ops.remove(op)
                && !op.cancelled
            {
                let from = if op.matched.is_some() { Source::Rank(peer) } else { op.recv.from };
                ended.push((op.recv.token, from));
            }
        }
        let partial: Vec<u32> = self
            .unexpected
            .iter()
            .filter(|(_, e)| e.from == peer && e.data.as_ref().is_none_or(|d| d.len() < e.envelope.bytes as usize))
            .map(|(i, _)| i)
            .collect();
        for index in partial {
            if let Some(message) = self.unexpected.remove(index) {
                if message.op.is_none() {
                    self.refund(peer, UNEXPECTED_OVERHEAD_BYTES + message.data.as_ref().map_or(0, Vec::len));
                }
                let key = Key::new(peer, message.envelope.space, message.envelope.slot);
                self.unexpected_order.remove(key, index);
                self.end_turn(key, false);
            }
        }
        ended
    }
}
