//! Messages that the sender's link writes straight into memory that the receiver has exposed, on links that support this.
//!
//! The grant of a receive carries a key of exposed memory: the receive's own, or a buffer of the link if it reduces. The sender's
//! link writes the message there, and a header without payload, in order with other messages, says that it has been placed. If the
//! receiver's link exposes no memory, or the sender's link cannot write to it, the message is sent as on other links.
//!
//! So a grant is for one receive, and both sides must agree on its message:
//! - Large receives of collectives send grants when they are posted, and are not announced. The messages of one key (peer, space
//!   and slot) match in order and are as long as their receives, so the n-th grant is for the n-th large message. For this, large
//!   messages that were to be sent before the link was established wait for grants, too, and receives that were posted before send
//!   theirs when it is.
//! - A large message of an unbound buffer is announced with a number, and the receive that matches the announcement answers with a
//!   grant for this number. If the sender has cancelled the message meanwhile and sent a copy, it ignores the grant.
//!
//! A send is complete when its memory is not accessed any more and the header has left. Sends to one peer complete in order, as the
//! engine expects of the segments of a step: a message that is sent behind a placed one is reported after it.

use super::Messenger;
use super::matching::{Arrival, EAGER_BYTES, Exposed, refusal};
use super::operation::{Outcome, Send, Source};
use super::peer::{Peer, Sent};
use super::queues::Key;
use super::send::Queued;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Rank, Space};
use crate::wire::{Envelope, Message};

/// A message that is being placed in the receiver's memory.
pub(super) struct Placing {
    pub(super) send: Send,
    /// The link does not access its memory any more.
    finished: bool,
    /// It is a put or a get, of which no header tells the peer.
    is_alone: bool,
}

impl Placing {
    /// With a header that is about to be sent.
    pub(super) fn new(send: Send) -> Self {
        Self { send, finished: false, is_alone: false }
    }

    /// Of which the peer is not told.
    pub(super) fn alone(send: Send) -> Self {
        Self { is_alone: true, ..Self::new(send) }
    }
}

/// A grant that has arrived.
#[derive(Clone, Copy)]
pub(super) struct Grant {
    /// The messages among which it is for one.
    pub(super) order: Key,
    /// The announcement that it answers; 0 if it answers none.
    pub(super) announcement: u32,
    /// The key of exposed memory; 0 if there is none.
    pub(super) key: u32,
}

impl Messenger {
    /// The length above which a receive of this space from this source sends a grant when it is posted.
    pub(super) fn grants_above(&self, from: &Source, space: Space) -> usize {
        let Source::Rank(rank) = from else { return usize::MAX };
        match self.peers.get(*rank) {
            Some(peer) if peer.reads() || peer.places() && space.is_user() => usize::MAX,
            Some(peer) => peer.eager_bytes(),
            None => EAGER_BYTES,
        }
    }

    /// The link to `rank`, which places messages longer than `above`, is established.
    pub(super) fn begin_placing(&mut self, rank: Rank, above: usize) {
        self.least_eager = self.least_eager.min(above);
        for send in self.peer(rank).take_back(rank, above).into_iter().rev() {
            let index = self.queued_sends.insert(Queued { send, must_send: false, announced: None });
            self.queued.push_front(send.key(), index);
        }
        for op in self.receives.grant_again(rank, above) {
            self.grant(rank, op);
        }
    }

    /// Exposes memory for a message of `bytes` bytes that the receive `op` matches. Returns the key, or 0 if it is to be sent.
    pub(super) fn expose(&mut self, rank: Rank, peer: &mut Peer, op: u32, bytes: usize) -> u32 {
        let receive = self.receives.op_mut(op);
        let Some(placement) = peer.placement().filter(|_| receive.exposed.is_none()) else { return 0 };
        let into = receive.recv.reduce.is_none().then_some(receive.recv.into);
        let key = self.next_exposed;
        // SAFETY: the message fits into the receive, whose poster keeps the memory valid until the event or the cancellation; both
        // follow `withdraw` or the end of the link.
        if !unsafe { placement.expose(key, into, bytes) } {
            return 0;
        }
        // Keys are not used again soon, because the peer may still have an old grant.
        self.next_exposed = key.checked_add(1).unwrap_or(1);
        receive.exposed = Some(Exposed { from: rank, key, bytes });
        key
    }

    /// Withdraws the memory that is exposed for the receive `op`, if any: its message comes in the stream.
    pub(super) fn withdraw(&mut self, peer: &mut Peer, op: u32) {
        if let Some(exposed) = self.receives.op_mut(op).exposed.take() {
            peer.withdraw(exposed.key);
        }
    }

    /// Withdraws all memory that is exposed for receives of `owner`. Their messages can still come, and are discarded then.
    pub(super) fn cancel_exposures(&mut self, owner: u32) {
        for op in self.receives.ops_mut().filter(|op| op.recv.token.owner == owner && !op.cancelled) {
            if let Some(exposed) = op.exposed
                && let Some(placement) = self.peers.get_mut(exposed.from).and_then(Peer::placement)
            {
                placement.withdraw(exposed.key, false);
                // A receive that an announcement has matched stays until the message comes.
                if !op.recv.space.is_user() {
                    op.exposed = None;
                    self.withdrawn.push((exposed.from, exposed.key));
                }
            }
        }
    }

    /// As [`Messenger::answer`], for a receive that was just posted.
    pub(super) fn answer_later(&mut self, rank: Rank, op: u32, envelope: &Envelope, announcement: u32) {
        if let Some(mut peer) = self.peers.take(rank) {
            self.answer(rank, &mut peer, op, envelope, announcement);
            self.peers.put_back(rank, peer);
            self.mark_dirty(rank);
        }
    }

    /// Sends the grant for the message with `envelope`, which was announced with this number and matches the receive `op`.
    pub(super) fn answer(&mut self, rank: Rank, peer: &mut Peer, op: u32, envelope: &Envelope, announcement: u32) {
        let fits = || refusal(&self.receives.op(op).recv, rank, envelope, String::new).is_none();
        let key = if peer.places() && fits() { self.expose(rank, peer, op, envelope.bytes as usize) } else { 0 };
        let Envelope { space, slot, .. } = *envelope;
        peer.push_control(&Message::Grant { space, slot, announcement, key });
    }

    /// `rank` has placed a message under `key`.
    pub(super) fn begin_placed(
        &mut self,
        rank: Rank,
        peer: &mut Peer,
        envelope: &Envelope,
        announced: bool,
        key: u32,
    ) -> Result<()> {
        // Its receive was cancelled, and no other one is for it: as when a measurement of the link has taken too long.
        if !envelope.space.is_user()
            && let Some(index) = self.withdrawn.iter().position(|withdrawn| *withdrawn == (rank, key))
        {
            self.withdrawn.swap_remove(index);
            peer.withdraw(key);
            return Ok(());
        }
        let bytes = envelope.bytes as usize;
        let here = Some(Exposed { from: rank, key, bytes });
        let op = match self.receives.arrive_placed(rank, envelope, announced) {
            Some(Arrival::Op(op)) if self.receives.op(op).exposed == here => self.receives.finish(op),
            Some(Arrival::Discard(exposed)) if exposed == here => {
                peer.withdraw(key);
                return Ok(());
            }
            _ => None,
        };
        let (Some(op), Some(placement)) = (op, peer.placement()) else {
            let place = envelope.space.describe(envelope.slot);
            let text = format!(
                "{} has placed a message of {bytes} bytes {place} where no memory is exposed for it",
                self.peer_name(rank)
            );
            return Err(Error::new(ErrorKind::Mismatch, text));
        };
        match placement.placed(key) {
            Some(data) => self.deliver(&op, rank, envelope, &data[..bytes]),
            None => {
                let outcome = refusal(&op.recv, rank, envelope, || self.peer_name(rank));
                self.event(op.recv.token, outcome.unwrap_or(Outcome::Done { rank, bytes }));
            }
        }
        // Before the event is taken.
        placement.withdraw(key, true);
        Ok(())
    }

    /// Lets the link place a message under `key`, and queues the header that says so. Returns false if the link cannot do it.
    pub(super) fn place_message(&mut self, send: &Send, announced: bool, key: u32) -> bool {
        let ticket = self.placing.insert(Placing::new(*send));
        let peer = self.peer(send.to);
        // SAFETY: the poster keeps the memory valid until the event or the cancellation; both follow `finished`, `cancel` or the end
        // of the link.
        let places = peer.placement().is_some_and(|link| unsafe { link.place(key, send.from, send.bytes, ticket) });
        if !places {
            self.placing.remove(ticket);
            return false;
        }
        peer.push_placed(&send.message(announced, key), ticket);
        self.note_placing(send.to);
        true
    }

    /// The link to `rank` has begun what it tells of by a ticket.
    pub(super) fn note_placing(&mut self, rank: Rank) {
        let peer = self.peer(rank);
        peer.placing += 1;
        if peer.placing == 1 {
            self.placing_to.push(rank);
        }
        self.outgoing += 1;
        self.mark_dirty(rank);
    }

    /// Reports what has been sent to `rank`, in order, up to a placed message that has not finished.
    pub(super) fn report_sent(&mut self, rank: Rank) {
        while let Some(peer) = self.peers.get_mut(rank)
            && let Some(sent) = peer.unreported.pop_front()
        {
            match sent {
                Sent::Message(token, bytes) => self.event(token, Outcome::Done { rank, bytes }),
                Sent::Placed(ticket) if self.placing.get(ticket).is_some_and(|placing| !placing.finished) => {
                    return peer.unreported.push_front(sent);
                }
                Sent::Placed(ticket) => {
                    if let Some(Placing { send, .. }) = self.placing.remove(ticket) {
                        self.outgoing -= 1;
                        self.event(send.token, Outcome::Done { rank, bytes: send.bytes });
                    }
                }
            }
        }
    }

    /// Completes the messages that links have placed. Returns whether there are any.
    pub(super) fn finish_placements(&mut self) -> bool {
        let mut any = false;
        for index in (0..self.placing_to.len()).rev() {
            let rank = self.placing_to[index];
            while let Some(ticket) = self.peers.get_mut(rank).and_then(Peer::take_finished) {
                any = true;
                let Some(placing) = self.placing.get_mut(ticket) else { continue };
                placing.finished = true;
                if placing.is_alone
                    && let Some(Placing { send, .. }) = self.placing.remove(ticket)
                {
                    self.outgoing -= 1;
                    self.event(send.token, Outcome::Done { rank, bytes: send.bytes });
                }
            }
            self.report_sent(rank);
            if self.peers.get(rank).is_none_or(|peer| peer.placing == 0) {
                self.placing_to.swap_remove(index);
            }
        }
        any
    }

    /// Cancels the messages of `owner` that are being placed. The headers stay, since a receive may wait for them: they arrive only
    /// if the message has been written.
    pub(super) fn cancel_placements(&mut self, owner: u32) {
        let its = |(_, placing): &(u32, &Placing)| placing.send.token.owner == owner;
        let tickets: Vec<u32> = self.placing.iter().filter(its).map(|(ticket, _)| ticket).collect();
        for ticket in tickets {
            let Some(Placing { send, finished, .. }) = self.placing.remove(ticket) else { continue };
            self.outgoing -= 1;
            self.peer(send.to).cancel_placement(ticket, finished);
            // What was behind it.
            self.report_sent(send.to);
        }
    }

    /// The link to `rank` has ended: forgets the messages that were being placed, and returns them.
    pub(super) fn end_placements(&mut self, rank: Rank) -> Vec<Send> {
        self.placing_to.retain(|other| *other != rank);
        self.withdrawn.retain(|(other, _)| *other != rank);
        let its = |(_, placing): &(u32, &Placing)| placing.send.to == rank;
        let tickets: Vec<u32> = self.placing.iter().filter(its).map(|(ticket, _)| ticket).collect();
        self.outgoing -= tickets.len();
        tickets.into_iter().filter_map(|ticket| self.placing.remove(ticket)).map(|placing| placing.send).collect()
    }
}
