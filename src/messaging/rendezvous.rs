//! Large messages, of which the receiver is to be ready before the bytes move: one state machine for each message, with
//! three ways to move its bytes, of which the link has one ([`Way`](super::peer::Way)).
//!
//! - The receiver grants the message (also: CTS, clear to send), and the sender sends it. Where no receive grants it
//!   unasked, the sender announces it first (RTS, request to send).
//! - The receiver reads the message out of the sender's memory: the sender offers it (RTS with a key), and the receiver
//!   says when it has read it (FIN): [`offers`].
//! - The sender's link places the message in memory of the receiver: the grant has a key (CTS with a key), and a header
//!   behind the bytes says that they are there (FIN): [`placements`].
//!
//! A message of the sender waits in its queue, until a grant or its turn; is offered or placed, until the receiver or
//! the link has done with its memory; or has gone to the send queue. Messages with the same key (peer, space and slot)
//! go in order: a message behind one that waits waits too, however short it is.

pub mod offers;
pub mod placements;

use crate::error::Error;
use crate::messaging::accesses::Accesses;
use crate::messaging::endpoint::{EVENTS, Endpoint};
use crate::messaging::matching::EAGER_BYTES;
use crate::messaging::operation::{Recv, Send, Source, Token};
use crate::messaging::peer::Peer;
use crate::messaging::queues::{Key, Queues};
use crate::slab::Slab;
use crate::types::Rank;
use crate::wire::Message;
use offers::Offers;
use placements::Exposures;

/// A message that waits for a grant, or behind one that does.
#[derive(Clone, Copy)]
struct Queued {
    send: Send,
    /// The receiver knows of it, or will when the link is established. It is sent even if its buffer is cancelled.
    must_send: bool,
    /// The number of its announcement, which may be 0, if it was announced.
    announced: Option<u32>,
}

/// A grant that has arrived.
#[derive(Clone, Copy)]
pub struct Grant {
    /// The messages among which it is for one.
    pub order: Key,
    /// The announcement that it answers; 0 if it answers none.
    pub announcement: u32,
    /// The key of exposed memory; 0 if there is none.
    pub key: u32,
}

/// The messages of one context that are granted, offered or placed.
pub struct Rendezvous {
    /// Messages that wait for a grant, or behind one that does; indices into `waiting`.
    queued: Queues<u32>,
    waiting: Slab<Queued>,
    /// Received grants that no message has used: their keys of exposed memory, or 0.
    grants: Queues<u32>,
    /// The number of the next announcement on a link that places messages.
    next_announcement: u32,
    /// No link has a lower limit for messages that need no grant.
    min_eager_bytes: usize,
    pub offers: Offers,
    pub exposures: Exposures,
    pub accesses: Accesses,
    /// Grants received while a link was read, to be handled afterwards, in order.
    pub granted: Vec<Grant>,
    /// Keys for which a peer has read an offered message while its link was read; messages queued behind are sent
    /// afterwards.
    unblocked: Vec<Key>,
}

impl Default for Rendezvous {
    fn default() -> Self {
        Self {
            queued: Queues::default(),
            waiting: Slab::default(),
            grants: Queues::default(),
            next_announcement: 1,
            min_eager_bytes: EAGER_BYTES,
            offers: Offers::default(),
            exposures: Exposures::default(),
            accesses: Accesses::default(),
            granted: Vec::with_capacity(EVENTS),
            unblocked: Vec::with_capacity(EVENTS),
        }
    }
}

impl Rendezvous {
    /// Whether no message is queued or offered, so that another one need not be sent behind it.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.offers.is_empty()
    }

    /// The messages that wait for a grant, or behind one that does.
    pub fn queued(&self) -> impl Iterator<Item = &Send> {
        self.waiting.iter().map(|(_, queued)| &queued.send)
    }

    /// Messages whose memory is in use, or that are not in a send queue yet.
    pub fn outgoing(&self) -> usize {
        self.waiting.len() + self.accesses.len()
    }

    /// The keys of grants that no message has used.
    pub fn unused_grants(&self) -> impl Iterator<Item = &Key> {
        self.grants.keys()
    }

    /// Sends or offers a message, or queues it if it must wait.
    pub fn send(&mut self, send: Send, ep: &mut Endpoint) {
        let key = send.key();
        let behind = !self.queued.is_empty() && self.queued.front(key).is_some();
        if !behind && self.send_or_offer(&send, ep) {
            return;
        }
        let announced = (!behind && self.must_announce(&send, ep)).then(|| self.announce(&send, ep));
        let must_send = !behind && send.space.is_user();
        let index = self.waiting.insert(Queued { send, must_send, announced });
        self.queued.push(key, index);
    }

    /// Sends or offers a message that is first in its queue, unless it must wait for a grant. Returns whether it did.
    fn send_or_offer(&mut self, send: &Send, ep: &mut Endpoint) -> bool {
        let follows_offer = self.offers.has(send.key());
        let peer = ep.peer(send.to);
        if follows_offer || send.bytes > peer.eager_bytes() {
            if peer.reads() {
                return self.offers.offer(send, ep);
            }
            if peer.places() && send.space.is_user() {
                return false;
            }
            let Some(key) = self.grants.pop(send.key()) else { return false };
            self.send_granted(send, false, key, ep);
            return true;
        }
        ep.push(send.to, &send.message(false, 0), send.from, Some(send.token), true);
        true
    }

    /// Sends a message that has been granted, or lets the link place it under `key`, if that is not 0.
    fn send_granted(&mut self, send: &Send, announced: bool, key: u32, ep: &mut Endpoint) {
        // SAFETY: the poster keeps the memory valid until the event or the cancellation; both follow `finished`,
        // `cancel` or the end of the link.
        let place = |peer: &mut Peer, ticket| unsafe {
            peer.placement().is_some_and(|link| link.place(key, send.from, send.bytes, ticket))
        };
        if key == 0 || !self.accesses.begin(*send, Some(send.message(announced, key)), ep, place) {
            ep.push(send.to, &send.message(announced, 0), send.from, Some(send.token), true);
        }
    }

    /// Whether to announce a message that waits for a grant. Receives of collectives send grants without an
    /// announcement; but not on a link that reads memory, where the message waits because it could not be registered.
    fn must_announce(&self, send: &Send, ep: &Endpoint) -> bool {
        let peer = ep.peers.get(send.to).filter(|peer| peer.is_established());
        peer.is_some_and(|peer| send.space.is_user() || peer.reads()) && !self.offers.has(send.key())
    }

    /// Announces a message. Returns the number of the announcement, 0 on a link that does not place messages.
    fn announce(&mut self, send: &Send, ep: &mut Endpoint) -> u32 {
        let number = if ep.peer(send.to).places() { self.next_announcement } else { 0 };
        // The announcement is in order with messages, because it has a position in their order.
        ep.push_header(send.to, &Message::Announce { envelope: send.envelope(), number });
        if number != 0 {
            self.next_announcement = number.checked_add(1).unwrap_or(1);
        }
        number
    }

    /// `rank` has read the message that was offered under `key` while the link was read.
    pub fn taken(&mut self, rank: Rank, peer: &mut Peer, key: u32, ep: &mut Endpoint) {
        self.unblocked.extend(self.offers.taken(rank, peer, key, ep));
    }

    /// Goes on with the messages for which a grant has come, or behind which one has left, while a link was read.
    #[inline]
    pub fn progress(&mut self, ep: &mut Endpoint) {
        if !self.granted.is_empty() {
            let mut granted = std::mem::take(&mut self.granted);
            granted.drain(..).for_each(|grant| self.use_grant(grant, ep));
            self.granted = granted;
        }
        while let Some(key) = self.unblocked.pop() {
            self.release(key, ep);
        }
    }

    /// Sends the message for which a grant is, or keeps the grant for one that is not posted yet.
    fn use_grant(&mut self, Grant { order, announcement, key }: Grant, ep: &mut Endpoint) {
        let front = self.queued.front(order);
        if order.space().is_user() && ep.peers.get(order.rank()).is_some_and(Peer::places) {
            // If another message waits now, this one was cancelled, and a copy was sent.
            let waits = |index: u32| self.waiting[index].announced == Some(announcement);
            if !front.is_some_and(waits) {
                if let Some(placement) = ep.peer(order.rank()).placement().filter(|_| key != 0) {
                    placement.forget(key);
                }
                return;
            }
        }
        let Some(index) = self.queued.pop(order) else { return self.grants.push(order, key) };
        if let Some(Queued { send, announced, .. }) = self.waiting.remove(index) {
            self.send_granted(&send, announced.is_some(), key, ep);
        }
        self.release(order, ep);
    }

    /// Sends, offers or announces messages that waited behind one that has been sent.
    fn release(&mut self, key: Key, ep: &mut Endpoint) {
        while let Some(index) = self.queued.front(key) {
            let Queued { send, announced, .. } = self.waiting[index];
            if announced.is_some() {
                return;
            }
            if self.send_or_offer(&send, ep) {
                self.queued.pop(key);
                self.waiting.remove(index);
            } else {
                self.waiting[index].must_send |= send.space.is_user();
                if self.must_announce(&send, ep) {
                    self.waiting[index].announced = Some(self.announce(&send, ep));
                }
                return;
            }
        }
    }

    /// The link to `rank` is established: grants, offers or announces what waits, in the way of the link.
    pub fn establish(&mut self, rank: Rank, ep: &mut Endpoint) {
        let peer = ep.peer(rank);
        let (places, above) = (peer.places(), peer.eager_bytes());
        if peer.reads() || places {
            ep.receives.take_back_grants(rank);
        }
        if places {
            self.min_eager_bytes = self.min_eager_bytes.min(above);
            let taken = ep.peer(rank).queue.take_back(rank, above);
            ep.outgoing -= taken.len();
            for send in taken.into_iter().rev() {
                let index = self.waiting.insert(Queued { send, must_send: false, announced: None });
                self.queued.push_front(send.key(), index);
            }
            for op in ep.receives.grant_again(rank, above) {
                self.grant(rank, op, ep);
            }
        }
        let mut keys: Vec<Key> = Vec::new();
        for send in self.queued().filter(|send| send.to == rank) {
            if !keys.contains(&send.key()) {
                keys.push(send.key());
            }
        }
        keys.into_iter().for_each(|key| self.release(key, ep));
    }

    /// The length above which a receive of `bytes` bytes of this space from this source sends a grant when it is
    /// posted.
    #[inline]
    pub fn grants_above(&self, recv: &Recv, ep: &Endpoint) -> usize {
        match &recv.from {
            Source::Rank(rank) if recv.bytes > self.min_eager_bytes => match ep.peers.get(*rank) {
                Some(peer) if peer.reads() || peer.places() && recv.space.is_user() => usize::MAX,
                Some(peer) => peer.eager_bytes(),
                None => EAGER_BYTES,
            },
            _ => usize::MAX,
        }
    }

    /// Sends `to` a grant for the large message that the receive `op` waits for.
    pub fn grant(&mut self, to: Rank, op: u32, ep: &mut Endpoint) {
        if to == ep.rank {
            return;
        }
        let Recv { space, slot, bytes, .. } = ep.receives.op(op).recv;
        let Endpoint { peers, receives, .. } = ep;
        let peer = peers.get_or_insert_with(to, Peer::default);
        let key = self.exposures.expose(to, peer, receives.op_mut(op), bytes);
        ep.push_control(to, &Message::Grant { space, slot, announcement: 0, key });
    }

    /// Cancels the messages of `owner`. Copies of those that receivers wait for are sent; see [`Endpoint::push_copy`]
    /// on `starved`.
    pub fn cancel(&mut self, owner: u32, ep: &mut Endpoint, starved: &mut Vec<(Rank, Error)>) {
        self.accesses.cancel(owner, ep);
        let mut keys = Vec::new();
        for Queued { send, must_send, announced } in self.remove(|send| send.token.owner == owner) {
            keys.push(send.key());
            if must_send {
                // SAFETY: the poster keeps the memory valid until `Messenger::cancel`, which calls this, returns.
                unsafe { ep.push_copy(&send, &send.message(announced.is_some(), 0), starved) };
            }
        }
        keys.into_iter().for_each(|key| self.release(key, ep));
        // SAFETY: as above.
        let keys = unsafe { self.offers.cancel(owner, ep, starved) };
        keys.into_iter().for_each(|key| self.release(key, ep));
    }

    /// The link to `rank` has ended: forgets its messages, and returns their tokens.
    pub fn disconnect(&mut self, rank: Rank) -> Vec<Token> {
        let mut tokens: Vec<Token> =
            self.remove(|send| send.to == rank).iter().map(|queued| queued.send.token).collect();
        tokens.extend(self.accesses.disconnect(rank));
        tokens.extend(self.offers.disconnect(rank));
        self.exposures.disconnect(rank);
        tokens
    }

    /// Removes the messages that wait and for which `of` holds.
    fn remove(&mut self, of: impl Fn(&Send) -> bool) -> Vec<Queued> {
        let indices: Vec<u32> = self.waiting.iter().filter(|(_, q)| of(&q.send)).map(|(index, _)| index).collect();
        let remove = |index| {
            let queued = self.waiting.remove(index)?;
            self.queued.remove(queued.send.key(), index);
            Some(queued)
        };
        indices.into_iter().filter_map(remove).collect()
    }
}
