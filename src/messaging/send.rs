//! Sends messages: queues, grants, announcements.

use super::Messenger;
use super::matching::Arrival;
use super::operation::{Outcome, Recv, Send};
use super::peer::{Peer, Sent};
use super::placements::Grant;
use super::queues::Key;
use crate::reserve::{SMALL_BYTES, check_room, try_copy};
use crate::transport::Interest;
use crate::types::Rank;
use crate::wire::{Envelope, Message};

/// A message that waits for a grant, or behind one that does.
#[derive(Clone, Copy)]
pub(super) struct Queued {
    pub(super) send: Send,
    /// The receiver knows of it, or will when the link is established. It is sent even if its buffer is cancelled.
    pub(super) must_send: bool,
    /// The number of its announcement, which may be 0, if it was announced.
    pub(super) announced: Option<u32>,
}

impl Send {
    pub(super) fn key(&self) -> Key {
        Key::new(self.to, self.space, self.slot)
    }

    pub(super) fn envelope(&self) -> Envelope {
        let &Self { space, slot, fingerprint, bytes, more, .. } = self;
        Envelope { space, slot, fingerprint, bytes: bytes as u64, more }
    }

    /// The payload.
    ///
    /// # Safety
    /// The operation has not ended, so `from` is still valid for `bytes`.
    unsafe fn payload(&self) -> &[u8] {
        // `from` may be null if there are no bytes.
        // SAFETY: the caller guarantees that `from` is valid for `bytes`.
        if self.bytes == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.from, self.bytes) } }
    }

    /// The header; `placed` is the key under which the message is placed, or 0.
    pub(super) fn message(&self, announced: bool, placed: u32) -> Message {
        Message::Data { envelope: self.envelope(), announced, placed }
    }
}

impl Messenger {
    /// Sends a message now if it is small or granted, and no other waits before it; otherwise queues it.
    #[inline]
    pub(super) fn send_or_queue(&mut self, send: Send) {
        if self.queued.is_empty()
            && self.offers.is_empty()
            && let Some(peer) = self.peers.get_mut(send.to)
            && send.bytes <= peer.eager_bytes()
            && peer.is_idle()
        {
            // Sent at once, without waiting until the rest of the call is posted.
            self.outgoing += 1;
            peer.push(&send.message(false, 0), send.from, Some(send.token), true);
            self.flush_to(send.to);
            return;
        }
        self.connect(send.to);
        self.outgoing += 1;
        let key = send.key();
        let behind = !self.queued.is_empty() && self.queued.front(key).is_some();
        // This creates the peer's entry even if its address is not known yet, so that `close` fails the message.
        if !behind && self.send_or_offer(&send) {
            return;
        }
        let announced = (!behind && self.must_announce(&send)).then(|| self.announce(&send));
        let must_send = !behind && send.space.is_user();
        let index = self.queued_sends.insert(Queued { send, must_send, announced });
        self.queued.push(key, index);
    }

    /// Sends or offers a message that is first in its queue, unless it must wait for a grant. Returns whether it did.
    fn send_or_offer(&mut self, send: &Send) -> bool {
        let follows_offer = self.has_offers(send.key());
        let peer = self.peer(send.to);
        if follows_offer || send.bytes > peer.eager_bytes() {
            if peer.reads() {
                return self.offer(send);
            }
            if peer.places() && send.space.is_user() {
                return false;
            }
            let Some(key) = self.grants.pop(send.key()) else { return false };
            self.send_granted(send, false, key);
            return true;
        }
        self.push(send, false);
        true
    }

    /// Sends a message that has been granted, or lets the link place it under `key`, if that is not 0.
    fn send_granted(&mut self, send: &Send, announced: bool, key: u32) {
        if key == 0 || !self.place_message(send, announced, key) {
            self.push(send, announced);
        }
    }

    /// Whether to announce a message that waits for a grant. Receives of collectives send grants without an announcement; but not
    /// on a link that reads memory, where the message waits because it could not be registered.
    fn must_announce(&self, send: &Send) -> bool {
        let peer = self.peers.get(send.to).filter(|peer| peer.is_established());
        peer.is_some_and(|peer| send.space.is_user() || peer.reads()) && !self.has_offers(send.key())
    }

    pub(super) fn flush_to(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get_mut(rank) else { return false };
        peer.dirty = false;
        if !peer.is_established() {
            return false;
        }
        let mut sent = std::mem::take(&mut self.sent);
        let before = peer.outgoing();
        let result = peer.flush(&mut sent);
        self.outgoing -= before - peer.outgoing();
        let mut waits = !peer.unreported.is_empty();
        let awaits_room = peer.has_output();
        if result.is_ok() && awaits_room != peer.awaits_room && !self.paused.contains(&rank) {
            peer.awaits_room = awaits_room;
            if let Some(link) = &mut peer.link {
                // If this fails, the link is broken, and the next receive returns the error.
                let _ = link.watch(Interest { readable: true, writable: awaits_room });
            }
        }
        for sent in sent.drain(..) {
            match sent {
                Sent::Message(token, bytes) if !waits => self.event(token, Outcome::Done { rank, bytes }),
                _ => {
                    waits = true;
                    self.peer(rank).unreported.push_back(sent);
                }
            }
        }
        if waits {
            self.report_sent(rank);
        }
        self.sent = sent;
        match result {
            Ok(moved) => moved,
            Err(e) => {
                let error = self.broke_while(rank, "sending", &e);
                // EPIPE only says that the peer has closed the connection; a receive returns the reason.
                self.peer(rank).send_error = (e.kind() != std::io::ErrorKind::BrokenPipe).then(|| error.clone());
                // Messages that the peer sent before are still delivered.
                while self.read(rank) {}
                self.peer_disconnected(rank, error);
                true
            }
        }
    }

    #[inline]
    fn push(&mut self, send: &Send, announced: bool) {
        self.peer(send.to).push(&send.message(announced, 0), send.from, Some(send.token), true);
        self.mark_dirty(send.to);
    }

    /// Announces a message. Returns the number of the announcement, 0 on a link that does not place messages.
    fn announce(&mut self, send: &Send) -> u32 {
        self.outgoing += 1;
        let next = self.next_announcement;
        let peer = self.peer(send.to);
        let number = if peer.places() { next } else { 0 };
        // In order with messages, because it has a position in their order.
        peer.push(&Message::Announce { envelope: send.envelope(), number }, std::ptr::null(), None, false);
        if number != 0 {
            self.next_announcement = number.checked_add(1).unwrap_or(1);
        }
        self.mark_dirty(send.to);
        number
    }

    /// Sends `to` a grant for the large message that the receive `op` waits for.
    pub(super) fn grant(&mut self, to: Rank, op: u32) {
        if to == self.rank {
            return;
        }
        // Creates the peer's entry.
        self.peer(to);
        let Some(mut peer) = self.peers.take(to) else { return };
        let Recv { space, slot, bytes, .. } = self.receives.op(op).recv;
        let key = self.expose(to, &mut peer, op, bytes);
        peer.push_control(&Message::Grant { space, slot, announcement: 0, key });
        self.peers.put_back(to, peer);
        self.mark_dirty(to);
    }

    /// Handles a grant from the receiver.
    pub(super) fn granted(&mut self, grant: Grant) {
        let Grant { order, announcement, key } = grant;
        let front = self.queued.front(order);
        if order.space().is_user() && self.peers.get(order.rank()).is_some_and(Peer::places) {
            // If another message waits now, this one was cancelled, and a copy was sent.
            let waits = |index: u32| self.queued_sends[index].announced == Some(announcement);
            if !front.is_some_and(waits) {
                if let Some(placement) = self.peer(order.rank()).placement().filter(|_| key != 0) {
                    placement.forget(key);
                }
                return;
            }
        }
        let Some(index) = self.queued.pop(order) else {
            self.grants.push(order, key);
            return;
        };
        if let Some(Queued { send, announced, .. }) = self.queued_sends.remove(index) {
            self.send_granted(&send, announced.is_some(), key);
        }
        self.release(order);
    }

    /// Sends, offers or announces messages that waited behind one that has been sent.
    pub(super) fn release(&mut self, key: Key) {
        while let Some(index) = self.queued.front(key) {
            let Queued { send, announced, .. } = self.queued_sends[index];
            if announced.is_some() {
                return;
            }
            if self.send_or_offer(&send) {
                self.queued.pop(key);
                self.queued_sends.remove(index);
            } else {
                self.queued_sends[index].must_send |= send.space.is_user();
                if self.must_announce(&send) {
                    self.queued_sends[index].announced = Some(self.announce(&send));
                }
                return;
            }
        }
    }

    /// The link to `rank` is established: offers or announces the messages that wait.
    pub(super) fn release_all(&mut self, rank: Rank) {
        let waiting = self.queued_sends.iter().filter(|(_, queued)| queued.send.to == rank);
        let mut keys: Vec<Key> = Vec::new();
        for (_, queued) in waiting {
            if !keys.contains(&queued.send.key()) {
                keys.push(queued.send.key());
            }
        }
        keys.into_iter().for_each(|key| self.release(key));
    }

    pub(super) fn send_to_self(&mut self, send: &Send) {
        let envelope = send.envelope();
        // SAFETY: the poster keeps the memory valid until the event, which is pushed below.
        let bytes = unsafe { send.payload() };
        if bytes.len() > SMALL_BYTES
            && let Err(error) = check_room(bytes.len(), "a message of this rank to itself")
        {
            return self.event(send.token, Outcome::Failed(error));
        }
        match self.receives.arrive(self.rank, &envelope, false) {
            Arrival::Unexpected(message) => {
                if let Some((op, from, envelope, data)) = self.receives.append(message, bytes) {
                    self.deliver(&op, from, &envelope, &data);
                    self.receives.recycle(data);
                }
            }
            Arrival::Op(index) => {
                if let Some(op) = self.receives.finish(index) {
                    self.deliver(&op, self.rank, &envelope, bytes);
                }
            }
            Arrival::Discard(_) => {}
        }
        self.event(send.token, Outcome::Done { rank: self.rank, bytes: send.bytes });
    }

    /// Sends a copy of a cancelled message, as `message`, because the receiver waits for it.
    ///
    /// # Safety
    /// `send.from` is still valid for `send.bytes`.
    pub(super) unsafe fn push_copy(&mut self, send: &Send, message: &Message) {
        // SAFETY: the caller guarantees that the memory is valid.
        let owned = match try_copy(unsafe { send.payload() }, "a copy of a message whose buffer is destroyed") {
            Ok(owned) => owned,
            // Nothing else would tell the receiver that its message does not come.
            Err(error) => return self.disconnect(send.to, &error.with_rank(send.to)),
        };
        self.outgoing += 1;
        self.peer(send.to).push_owned(message, owned);
        self.mark_dirty(send.to);
    }

    /// Cancels the queued messages of `owner`.
    pub(super) fn cancel_queued(&mut self, owner: u32) {
        let queued: Vec<u32> =
            self.queued_sends.iter().filter(|(_, q)| q.send.token.owner == owner).map(|(i, _)| i).collect();
        let mut keys = Vec::new();
        for index in queued {
            let Some(Queued { send, must_send, announced }) = self.queued_sends.remove(index) else { continue };
            let key = send.key();
            self.queued.remove(key, index);
            keys.push(key);
            self.outgoing -= 1;
            if must_send {
                // SAFETY: the poster keeps the memory valid until `cancel`, which calls this, returns.
                unsafe { self.push_copy(&send, &send.message(announced.is_some(), 0)) };
            }
        }
        keys.into_iter().for_each(|key| self.release(key));
    }
}
