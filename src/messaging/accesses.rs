//! What links access without the peer's processor, each under a ticket: messages that they place in the peer's memory,
//! puts and gets.
//!
//! A send is complete when its memory is not accessed any more and the header has left. Sends to one peer complete in
//! order, as the engine expects of the segments of a step: a message that is sent behind a placed one is reported after
//! it.

use crate::messaging::endpoint::Endpoint;
use crate::messaging::operation::{Outcome, Send, Token};
use crate::messaging::peer::Peer;
use crate::messaging::send_queue::Sent;
use crate::slab::Slab;
use crate::types::{Rank, Slot, Space};
use crate::wire::Message;

/// An access by a link.
struct Access {
    /// The operation, in terms of a message.
    send: Send,
    /// The link does not access its memory any more.
    finished: bool,
    /// Whether the access is a put or a get, of which no header tells the peer.
    is_alone: bool,
}

/// A put, get or write in terms of a message.
pub fn operation(to: Rank, slot: Slot, from: *const u8, bytes: usize, token: Token) -> Send {
    Send { to, space: Space::USER, slot, fingerprint: 0, from, bytes, more: false, token }
}

/// The accesses by links that have not ended.
#[derive(Default)]
pub struct Accesses {
    by_ticket: Slab<Access>,
    /// Ranks whose memory is being accessed.
    ranks: Vec<Rank>,
}

impl Accesses {
    /// The number of accesses that have not ended.
    pub fn len(&self) -> usize {
        self.by_ticket.len()
    }

    /// Whether a link may have finished an access.
    #[inline]
    pub fn are_open(&self) -> bool {
        !self.ranks.is_empty()
    }

    /// The operations whose accesses have not ended.
    pub fn sends(&self) -> impl Iterator<Item = &Send> {
        self.by_ticket.iter().map(|(_, access)| &access.send)
    }

    /// Lets a link access the memory of `send`, and queues the `header`, if any, that tells the peer of it. `start` is
    /// called with the peer and a ticket. Returns false if the link cannot do it.
    pub fn begin(
        &mut self,
        send: Send,
        header: Option<Message>,
        ep: &mut Endpoint,
        start: impl FnOnce(&mut Peer, u32) -> bool,
    ) -> bool {
        let ticket = self.by_ticket.insert(Access { send, finished: false, is_alone: header.is_none() });
        let peer = ep.peer(send.to);
        if !start(peer, ticket) {
            self.by_ticket.remove(ticket);
            return false;
        }
        peer.accesses += 1;
        if peer.accesses == 1 {
            self.ranks.push(send.to);
        }
        if let Some(header) = header {
            peer.queue.push_placed(&header, ticket);
            peer.traffic.add(false, send.bytes as u64);
            ep.outgoing += 1;
        }
        ep.mark_dirty(send.to);
        true
    }

    /// Reports what has been sent to `rank`, in order, up to a placed message that has not finished.
    pub fn report_sent(&mut self, rank: Rank, ep: &mut Endpoint) {
        while let Some(peer) = ep.peers.get_mut(rank)
            && let Some(sent) = peer.queue.unreported.pop_front()
        {
            match sent {
                Sent::Message(token, bytes) => ep.event(token, Outcome::Done { rank, bytes }),
                Sent::Placed(ticket) if self.by_ticket.get(ticket).is_some_and(|access| !access.finished) => {
                    return peer.queue.unreported.push_front(sent);
                }
                Sent::Placed(ticket) => self.complete(ticket, ep),
            }
        }
    }

    fn complete(&mut self, ticket: u32, ep: &mut Endpoint) {
        if let Some(Access { send, .. }) = self.by_ticket.remove(ticket) {
            ep.event(send.token, Outcome::Done { rank: send.to, bytes: send.bytes });
        }
    }

    /// Completes the accesses that links have finished. Returns whether there are any.
    pub fn finish(&mut self, ep: &mut Endpoint) -> bool {
        let mut any = false;
        for index in (0..self.ranks.len()).rev() {
            let rank = self.ranks[index];
            while let Some(ticket) = ep.peers.get_mut(rank).and_then(Peer::take_finished) {
                any = true;
                let Some(access) = self.by_ticket.get_mut(ticket) else { continue };
                access.finished = true;
                if access.is_alone {
                    self.complete(ticket, ep);
                }
            }
            self.report_sent(rank, ep);
            if ep.peers.get(rank).is_none_or(|peer| peer.accesses == 0) {
                self.ranks.swap_remove(index);
            }
        }
        any
    }

    /// Cancels the accesses of `owner`. The headers stay, since a receive may wait for them: they arrive only if the
    /// message has been written.
    pub fn cancel(&mut self, owner: u32, ep: &mut Endpoint) {
        for (ticket, to) in self.tickets(|send| send.token.owner == owner) {
            let finished = self.by_ticket.remove(ticket).is_some_and(|access| access.finished);
            ep.peer(to).cancel_access(ticket, finished);
            // What is behind it may be complete.
            self.report_sent(to, ep);
        }
    }

    /// The link to `rank` has ended: forgets its accesses, and returns their tokens.
    pub fn disconnect(&mut self, rank: Rank) -> Vec<Token> {
        self.ranks.retain(|other| *other != rank);
        let tickets = self.tickets(|send| send.to == rank).into_iter();
        tickets.filter_map(|(ticket, _)| self.by_ticket.remove(ticket)).map(|access| access.send.token).collect()
    }

    /// The tickets and peers of the operations for which `of` holds.
    fn tickets(&self, of: impl Fn(&Send) -> bool) -> Vec<(u32, Rank)> {
        let all = self.by_ticket.iter().map(|(ticket, access)| (ticket, &access.send));
        all.filter(|(_, send)| of(send)).map(|(ticket, send)| (ticket, send.to)).collect()
    }
}
