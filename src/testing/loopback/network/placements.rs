//! Messages that are placed in the peer's memory.
//!
//! A message is written at a time of its own, late, from what its memory contains then. Memory that is taken back while
//! it is in use, or the end of a link, either breaks the link or ends the use at once, at random.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use super::{NodeState, NodeStatus, State, Stream};

/// What is placed in one direction of a link.
#[derive(Default)]
pub(in super::super) struct Placements {
    /// Memory that the receiver has exposed, by key.
    exposed: HashMap<u32, Exposure>,
    /// Keys of memory that was withdrawn although the sender may still place a message there.
    withdrawn: HashSet<u32>,
    /// The keys that the sender knows, with the lengths of their memory. It may know some that have been withdrawn.
    known: HashMap<u32, usize>,
    /// Messages that have not been written, in the order in which they will be.
    writes: VecDeque<Write>,
    /// Tickets of messages that have been written: when the sender learns of it, and whether the link was reported
    /// since.
    finished: VecDeque<(Instant, u32, bool)>,
}

/// Memory for one message.
struct Exposure {
    /// The receiver's memory, or null for a buffer of the link.
    into: *mut u8,
    own: Vec<u8>,
    bytes: usize,
    written: bool,
}

// SAFETY: the caller of `expose` guarantees that the memory stays valid for writes, from any thread, until it is
// withdrawn or the link ends.
unsafe impl Send for Exposure {}

/// The memory of a message.
#[derive(Clone, Copy)]
pub(in super::super) struct SentMemory {
    pub from: *const u8,
    pub bytes: usize,
}

// SAFETY: the caller of `place` guarantees that the memory stays valid for reads, from any thread, until the ticket is
// returned or cancelled or the link ends.
unsafe impl Send for SentMemory {}

struct Write {
    /// Pieces of the stream that were sent before it.
    sent: u64,
    at: Instant,
    /// When the sender learns of it.
    finishes: Instant,
    key: u32,
    memory: SentMemory,
    ticket: u32,
}

impl Placements {
    /// Messages for which memory is exposed, or may still be written.
    #[cfg(test)]
    pub fn exposed(&self) -> usize {
        self.exposed.len() + self.withdrawn.len()
    }

    /// When the last message will be written.
    pub fn last_write(&self) -> Option<Instant> {
        self.writes.back().map(|write| write.at)
    }

    /// When the next report of a finished ticket is due, of a message that is yet to be written included: the receiver
    /// may run no more.
    pub fn next_report(&self) -> Option<Instant> {
        let finished = self.finished.iter().find(|(_, _, reported)| !reported).map(|(at, ..)| *at);
        finished.or(self.writes.front().map(|write| write.finishes))
    }

    /// The link has been reported at `now`.
    pub fn reported(&mut self, now: Instant) {
        self.finished.iter_mut().filter(|(at, ..)| *at <= now).for_each(|(_, _, reported)| *reported = true);
    }

    /// The receiver ends the link at `now`: no memory is exposed any more. The sender learns at once what has been
    /// written.
    pub fn end_exposures(&mut self, now: Instant) {
        self.exposed.clear();
        self.withdrawn.clear();
        self.known.clear();
        self.writes.clear();
        self.finished.iter_mut().for_each(|(at, ..)| *at = now.min(*at));
    }

    /// Writes a message to the memory that is exposed for it. Returns whether there is any.
    fn write(&mut self, write: &Write) -> bool {
        let SentMemory { from, bytes } = write.memory;
        let Some(exposure) = self.exposed.get_mut(&write.key) else { return false };
        assert!(exposure.bytes == bytes && !exposure.written, "a key is for one message");
        exposure.written = true;
        let into = if exposure.into.is_null() { exposure.own.as_mut_ptr() } else { exposure.into };
        // SAFETY: the message has not been cancelled and the memory not withdrawn, so both are valid for `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(from, into, bytes) };
        true
    }
}

impl State {
    /// `node` exposes memory for a message of `peer`. Fails at random, and at random takes a buffer of its own.
    pub fn expose(&mut self, node: usize, peer: usize, key: u32, into: Option<*mut u8>, bytes: usize) -> bool {
        assert!(key != 0 && bytes > 0);
        if self.random.one_in(8) {
            return false;
        }
        let into = into.filter(|_| !self.random.one_in(4));
        let own = if into.is_none() { vec![0xdd; bytes] } else { Vec::new() };
        let index = self.stream(peer, node);
        let placements = &mut self.streams[index].placements;
        let into = into.unwrap_or(std::ptr::null_mut());
        let before = placements.exposed.insert(key, Exposure { into, own, bytes, written: false });
        assert!(before.is_none(), "two exposures have the key {key}");
        placements.known.insert(key, bytes);
        true
    }

    /// The message that `peer` has placed under `key`, if it is in a buffer of the link.
    pub fn placed(&mut self, node: usize, peer: usize, key: u32) -> Option<Vec<u8>> {
        let index = self.stream(peer, node);
        let exposure = self.streams[index].placements.exposed.get_mut(&key).expect("an exposed key");
        assert!(exposure.written, "the header of a message arrived before it was written");
        exposure.into.is_null().then(|| std::mem::take(&mut exposure.own))
    }

    /// Ends an exposure, or says that no message will be placed where one was ended.
    pub fn withdraw(&mut self, node: usize, peer: usize, key: u32, is_done: bool) {
        let (index, is_running) = (self.stream(peer, node), self.status(node) == NodeStatus::Running);
        let forgets = self.random.one_in(2);
        let placements = &mut self.streams[index].placements;
        let before = placements.exposed.remove(&key).is_some() || is_done && placements.withdrawn.remove(&key);
        assert!(before || !is_running, "nothing is exposed under the key {key}");
        if !is_done {
            placements.withdrawn.insert(key);
        }
        if forgets {
            placements.known.remove(&key);
        }
    }

    /// `node` will place no message under `key`.
    pub fn forget(&mut self, node: usize, peer: usize, key: u32) {
        let index = self.stream(node, peer);
        self.streams[index].placements.known.remove(&key);
    }

    /// Number of messages for which `node` exposes memory or that may still come, and of keys of `peer` that it knows.
    #[cfg(test)]
    pub fn in_use(&mut self, node: usize, peer: usize) -> (usize, usize) {
        let (here, there) = (self.stream(peer, node), self.stream(node, peer));
        (self.streams[here].placements.exposed(), self.streams[there].placements.known.len())
    }

    /// `node` starts to place a message. Fails at random.
    pub fn place(&mut self, node: usize, peer: usize, key: u32, memory: SentMemory, ticket: u32) -> bool {
        let (index, at) = (self.stream(node, peer), self.now + self.delay());
        let acknowledged = self.delay();
        let refuses = self.random.one_in(16);
        let is_running = self.status(node) == NodeStatus::Running;
        let stream = &mut self.streams[index];
        let known = stream.placements.known.remove(&key) == Some(memory.bytes);
        if refuses || !known || !is_running || stream.broken || stream.receiver_gone {
            return false;
        }
        let (sent, at) = (stream.sent, stream.not_before(at));
        let finishes = at + acknowledged;
        stream.placements.writes.push_back(Write { sent, at, finishes, key, memory, ticket });
        true
    }

    /// A ticket of `node` that has finished.
    pub fn finished(&mut self, node: usize, peer: usize) -> Option<u32> {
        let (index, now) = (self.stream(node, peer), self.now);
        let finished = &mut self.streams[index].placements.finished;
        finished.pop_front_if(|(at, ..)| *at <= now).map(|(_, ticket, _)| ticket)
    }

    /// `node` cancels a message that it places.
    pub fn cancel(&mut self, node: usize, peer: usize, ticket: u32) {
        let index = self.stream(node, peer);
        let placements = &mut self.streams[index].placements;
        placements.finished.retain(|(_, other, _)| *other != ticket);
        let Some(at) = placements.writes.iter().position(|write| write.ticket == ticket) else { return };
        if self.breaks && self.random.one_in(2) {
            self.break_at(index, at);
        } else if let Some(write) = self.streams[index].placements.writes.remove(at) {
            self.streams[index].placements.write(&write);
        }
    }

    /// Writes the messages that are due.
    pub fn write_due(&mut self) {
        for index in 0..self.streams.len() {
            let now = self.now;
            while let Some(write) = self.streams[index].placements.writes.pop_front_if(|write| write.at <= now) {
                let finished = write.finishes;
                let stream = &mut self.streams[index];
                if stream.placements.write(&write) || stream.receiver_gone || stream.receiver_closed {
                    stream.placements.finished.push_back((finished, write.ticket, false));
                } else if self.breaks && self.random.one_in(2) {
                    // The receiver's memory is protected by breaking the link.
                    self.streams[index].placements.writes.push_front(write);
                    self.break_at(index, 0);
                } else {
                    stream.placements.finished.push_back((finished, write.ticket, false));
                }
            }
        }
    }

    /// Writes all messages of the streams for which `of` holds, whether or not they are due.
    pub fn write_all(&mut self, of: impl Fn(&[NodeState], &Stream) -> bool) {
        for stream in self.streams.iter_mut().filter(|stream| of(&self.nodes, stream)) {
            while let Some(write) = stream.placements.writes.pop_front() {
                stream.placements.write(&write);
            }
        }
    }

    /// The link of `node` to `peer` ends: none of its messages is read any more.
    pub fn end_writes(&mut self, node: usize, peer: usize) {
        let index = self.stream(node, peer);
        if !self.streams[index].placements.writes.is_empty() && self.breaks && self.random.one_in(2) {
            self.break_at(index, 0);
        }
        self.write_all(|_, stream| (stream.from, stream.to) == (node, peer));
    }

    /// The link breaks at the message that is the next but `at` to be written: neither it nor anything sent later
    /// arrives. Its sender notices that at once; the other side when the sender ends the link.
    fn break_at(&mut self, index: usize, at: usize) {
        let stream = &mut self.streams[index];
        let (from, to) = (stream.from, stream.to);
        stream.cut(stream.placements.writes[at].sent);
        stream.placements.writes.truncate(at);
        stream.broken = true;
        // What comes from the other side arrives up to a random piece.
        self.write_all(|_, stream| (stream.from, stream.to) == (to, from));
        let back = self.stream(to, from);
        let lost = self.random.below(4) as u64;
        let stream = &mut self.streams[back];
        stream.cut(stream.sent.saturating_sub(lost));
        stream.broken = true;
        self.finish(back, false);
    }
}
