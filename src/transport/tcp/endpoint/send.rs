//! What leaves: queues, credits, announcements.

use super::Endpoint;
use crate::sys;
use crate::transport::frame::{FLAG_ANNOUNCED, Header, Kind};
use crate::transport::matching::{Arrival, EAGER_BYTES};
use crate::transport::queues::Key;
use crate::transport::{Outcome, Send, Space};
use crate::types::Rank;

/// A message without credit.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) send: Send,
    announced: bool,
}

impl Endpoint {
    /// A message leaves now if it is small or has a credit, and nothing stands before it.
    pub(super) fn send_or_hold(&mut self, send: Send) {
        self.begin_connect(send.to);
        self.outgoing += 1;
        let key = Key::new(send.to, send.space, send.slot);
        let behind = !self.held.is_empty() && self.held.front(key).is_some();
        if !behind && (send.bytes <= EAGER_BYTES || self.take_credit(key)) {
            return self.push_message(&send, false);
        }
        let announced = !behind && send.space == Space::User;
        // The peer that has the message to lose, even if its address is not known yet.
        self.peer(send.to);
        let index = self.held_sends.insert(Held { send, announced });
        self.held.push(key, index);
        if announced {
            self.announce(&send);
        }
    }

    pub(super) fn flush_to(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get_mut(rank) else { return false };
        peer.dirty = false;
        if !peer.is_established() {
            return false;
        }
        let mut sent = std::mem::take(&mut self.sent);
        let before = peer.data.len();
        let result = peer.flush(&mut sent);
        self.outgoing -= before - peer.data.len();
        let want_write = peer.has_output();
        if result.is_ok() && want_write != peer.write_armed {
            peer.write_armed = want_write;
            let interest = if want_write { sys::READ | sys::WRITE } else { sys::READ };
            let _ = self.epoll.modify(peer.fd(), interest, rank as u64);
        }
        for (token, bytes) in sent.drain(..) {
            self.event(token, Outcome::Done { rank, bytes });
        }
        self.sent = sent;
        match result {
            Ok(moved) => moved,
            Err(e) => {
                let error = self.broke_while(rank, "sending", &e);
                // A broken pipe only says that the peer has left; reading tells how.
                self.peer(rank).broke = (e.raw_os_error() != Some(libc::EPIPE)).then(|| error.clone());
                // What the peer sent before it left still counts.
                while self.read(rank) {}
                self.lose(rank, error);
                true
            }
        }
    }

    fn push_message(&mut self, send: &Send, announced: bool) {
        let header = Header {
            space: send.space,
            flags: if announced { FLAG_ANNOUNCED } else { 0 },
            check: send.check,
            ..Header::new(Kind::Data, send.slot, send.bytes as u64)
        };
        self.peer(send.to).push_data(&header, send.from, Some(send.token), true);
        self.mark_dirty(send.to);
    }

    fn announce(&mut self, send: &Send) {
        let header = Header {
            space: send.space,
            check: send.check,
            ..Header::new(Kind::ReadyToSend, send.slot, send.bytes as u64)
        };
        self.outgoing += 1;
        // In order with the messages, and without payload.
        self.peer(send.to).push_data(&header, std::ptr::null(), None, false);
        self.mark_dirty(send.to);
    }

    fn take_credit(&mut self, key: Key) -> bool {
        match self.credits.get_mut(&key) {
            Some(1) => self.credits.remove(&key).is_some(),
            Some(n) => {
                *n -= 1;
                true
            }
            None => false,
        }
    }

    /// The receiver is ready for a large message.
    pub(super) fn clear_to_send(&mut self, key: Key) {
        let Some(index) = self.held.pop(key) else {
            *self.credits.entry(key).or_insert(0) += 1;
            return;
        };
        if let Some(Held { send, announced }) = self.held_sends.remove(index) {
            self.push_message(&send, announced);
        }
        self.release(key);
    }

    /// What stood behind a message that is no longer held goes, or is announced.
    fn release(&mut self, key: Key) {
        while let Some(index) = self.held.front(key) {
            let Held { send, announced } = self.held_sends[index];
            if announced {
                return;
            }
            if send.bytes <= EAGER_BYTES || self.take_credit(key) {
                self.held.pop(key);
                self.held_sends.remove(index);
                self.push_message(&send, false);
            } else {
                if send.space == Space::User {
                    self.held_sends[index].announced = true;
                    self.announce(&send);
                }
                return;
            }
        }
    }

    pub(super) fn send_to_self(&mut self, send: &Send) {
        let header =
            Header { space: send.space, check: send.check, ..Header::new(Kind::Data, send.slot, send.bytes as u64) };
        let bytes = if send.bytes == 0 {
            &[][..]
        } else {
            // SAFETY: the poster vouches for the memory.
            unsafe { std::slice::from_raw_parts(send.from, send.bytes) }
        };
        match self.receives.arrive(self.rank, &header) {
            Arrival::Early(early) => {
                if let Some((op, from, header, data)) = self.receives.keep(early, bytes) {
                    self.deliver(&op, from, &header, &data);
                    self.receives.recycle(data);
                }
            }
            Arrival::Op(index) => {
                if let Some(op) = self.receives.finish(index) {
                    self.deliver(&op, self.rank, &header, bytes);
                }
            }
            Arrival::Discard => {}
        }
        self.event(send.token, Outcome::Done { rank: self.rank, bytes: send.bytes });
    }

    /// Sends the rest of an announced message whose poster is gone, as our own.
    fn orphans(&mut self, send: Send, owned: Vec<u8>) {
        let header = Header {
            space: send.space,
            flags: FLAG_ANNOUNCED,
            check: send.check,
            ..Header::new(Kind::Data, send.slot, send.bytes as u64)
        };
        self.outgoing += 1;
        self.peer(send.to).push_owned(&header, owned);
        self.mark_dirty(send.to);
    }

    /// Takes back what is held of `owner`.
    pub(super) fn cancel_held(&mut self, owner: u32) {
        let held: Vec<u32> =
            self.held_sends.iter().filter(|(_, h)| h.send.token.owner == owner).map(|(i, _)| i).collect();
        let mut keys = Vec::new();
        for index in held {
            let Some(Held { send, announced }) = self.held_sends.remove(index) else { continue };
            let key = Key::new(send.to, send.space, send.slot);
            self.held.remove(key, index);
            keys.push(key);
            self.outgoing -= 1;
            if announced {
                // It was promised: it goes as an orphan, so that the receiver's order stays whole.
                let mut owned = Vec::new();
                // SAFETY: until this call returns the memory is the poster's and valid.
                owned.extend_from_slice(unsafe { std::slice::from_raw_parts(send.from, send.bytes) });
                self.orphans(send, owned);
            }
        }
        keys.into_iter().for_each(|key| self.release(key));
    }
}
