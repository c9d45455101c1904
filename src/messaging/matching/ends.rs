//! Receives that are taken back, or lose their sender.

use super::{Receives, UNEXPECTED_OVERHEAD};
use crate::messaging::operation::{Source, Token};
use crate::messaging::queues::Key;
use crate::types::Rank;

impl Receives {
    /// Takes back the receives of `owner`; those that messages are arriving for are given to `arriving`, which must no
    /// longer write to them.
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

    /// Takes back one receive that was just posted and waits.
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

    /// The connection to `lost` is gone: takes out every receive that only ranks of `is_lost` could serve; whose they are, and from
    /// whom. What has come whole stays; what came in part, or was announced, is dropped.
    pub fn lose(&mut self, lost: Rank, is_lost: impl Fn(Rank) -> bool) -> Vec<(Token, Source)> {
        let mut ended = Vec::new();
        let ops: Vec<u32> = self
            .ops
            .iter()
            .filter(|(_, op)| match (&op.matched, &op.recv.from) {
                (Some(rank), _) => *rank == lost,
                (None, Source::Rank(rank)) => *rank == lost,
                (None, Source::AnyOf(ranks)) => ranks.contains(&lost) && ranks.iter().all(|r| is_lost(*r)),
            })
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
                let from = if op.matched.is_some() { Source::Rank(lost) } else { op.recv.from };
                ended.push((op.recv.token, from));
            }
        }
        let partial: Vec<u32> = self
            .unexpected
            .iter()
            .filter(|(_, e)| e.from == lost && e.data.as_ref().is_none_or(|d| d.len() < e.envelope.bytes as usize))
            .map(|(i, _)| i)
            .collect();
        for index in partial {
            if let Some(message) = self.unexpected.remove(index) {
                if message.op.is_none() {
                    self.refund(lost, UNEXPECTED_OVERHEAD + message.data.as_ref().map_or(0, Vec::len));
                }
                let key = Key::new(lost, message.envelope.space, message.envelope.slot);
                self.unexpected_order.remove(key, index);
                self.end_turn(key, false);
            }
        }
        ended
    }
}
