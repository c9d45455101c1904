//! The link to each peer: connecting, and failing its operations when it is disconnected.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::Messenger;
use super::operation::{Outcome, Source, Token};
use super::peer::{Peer, Traffic};
use super::send_queue::Sent;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Level;
use crate::net::address::Address;
use crate::transport::{CloseNotice, Connections, ConnectorEvent, Interest, Link};
use crate::types::Rank;
use crate::wire::Message;
use crate::wire::message::{Cause, MAX_TEXT_BYTES};

/// The longest prefix of `text` that fits into a message.
pub(super) fn clip(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

/// The message that ends a connection of rank `own`: with a `notice` an abort for that reason, else a goodbye.
fn last_message(own: Rank, notice: Option<&Error>, connection: u32) -> Vec<u8> {
    let Some(notice) = notice else { return Message::Goodbye.encode(connection).to_vec() };
    let text = clip(notice.reason());
    let cause = Cause::of(notice.kind());
    // If the error names no rank, the failure began here.
    let culprit = notice.details().rank.unwrap_or(own) as u32;
    [&Message::Abort { cause, culprit, bytes: text.len() as u64 }.encode(connection), text].concat()
}

/// [`last_message`] for peers that were not connected when the context of rank `own` was closed.
fn close_notice(own: Rank, notice: Option<Error>) -> CloseNotice {
    Arc::new(move |connection| last_message(own, notice.as_ref(), connection))
}

impl Messenger {
    /// The serialized address of this rank, for peers to connect to.
    pub fn address(&self) -> Vec<u8> {
        self.ep.connections.address().serialize()
    }

    /// The addresses of all ranks, if they are known.
    pub fn addresses(&self) -> Option<Vec<Address>> {
        let peers = self.ep.connections.peers();
        let of = |rank| if rank == self.ep.rank { Some(&peers.own) } else { peers.get(rank) };
        (0..self.ep.size).map(|rank| of(rank).cloned()).collect()
    }

    /// What was exchanged with each rank that this one has met.
    pub fn traffic(&self) -> impl Iterator<Item = (Rank, Traffic)> {
        self.ep.peers.iter().map(|(rank, peer)| (rank, peer.traffic))
    }

    /// The connections of this context.
    pub fn connections(&self) -> &Connections {
        &self.ep.connections
    }

    /// The connections, for all but what the messenger does itself: it connects, progresses and closes.
    pub fn connections_mut(&mut self) -> &mut Connections {
        &mut self.ep.connections
    }

    /// Sets the address of `rank`, as serialized by it.
    pub fn set_peer(&mut self, rank: Rank, address: &[u8]) -> Result<()> {
        let address = Address::deserialize(address).map_err(|e| e.context(format_args!("address of rank {rank}")))?;
        if let Err(error) = self.ep.connections.set_peer(rank, address) {
            self.peer_disconnected(rank, error);
        }
        let waits = self.ep.peers.get(rank).is_some_and(Peer::has_output)
            || self.ep.receives.ops().any(|(_, op)| matches!(op.recv.from, Source::Rank(r) if r == rank));
        if waits {
            self.connect(rank);
        }
        Ok(())
    }

    /// Starts to connect to `rank`, unless this was done before.
    pub fn connect(&mut self, rank: Rank) {
        self.ep.connect(rank);
    }

    /// Whether a link to `rank` is established; an error if it is disconnected.
    pub fn is_connected(&self, rank: Rank) -> Result<bool> {
        self.ep.is_connected(rank)
    }

    /// Whether a link to `rank` is or was established; an error if it is disconnected without a goodbye.
    pub fn has_been_connected(&self, rank: Rank) -> Result<bool> {
        if self.ep.peers.get(rank).is_some_and(|peer| peer.goodbye) { Ok(true) } else { self.is_connected(rank) }
    }

    /// Describes why `rank` is not connected.
    pub fn why_not_connected(&self, rank: Rank) -> String {
        self.ep.connections.why_not_connected(rank)
    }

    /// Whether no peer's address is known and there is no link: the context was never connected.
    pub fn is_isolated(&self) -> bool {
        self.ep.linked.is_empty() && self.ep.connections.peers().known().next().is_none()
    }

    /// Whether `rank` runs on this host; `None` as long as its address is unknown.
    pub fn shares_host(&self, rank: Rank) -> Option<bool> {
        let peers = self.ep.connections.peers();
        if rank == self.ep.rank { Some(true) } else { Some(peers.get(rank)?.host == peers.own.host) }
    }

    /// The name of `rank` in messages to the user.
    pub fn peer_name(&self, rank: Rank) -> String {
        self.ep.peer_name(rank)
    }

    /// Handles connections that peers have made.
    pub fn arrived(&mut self, now: Instant) {
        self.ep.connections.arrived();
        self.progress_ready(now);
        // The connector reports only once that a link is readable.
        self.read_offers();
        self.rendezvous.accesses.finish(&mut self.ep);
    }

    /// Progresses the connector, and serves the links that are ready.
    pub(super) fn progress_ready(&mut self, now: Instant) -> bool {
        let mut connector_events = std::mem::take(&mut self.connector_events);
        self.ep.connections.progress(now, &mut connector_events);
        let mut moved = false;
        for event in connector_events.drain(..) {
            match event {
                ConnectorEvent::Established { rank, link, connection } => {
                    self.established(rank, link, connection);
                    moved = true;
                }
                ConnectorEvent::Unreachable { rank, error } => {
                    self.peer_disconnected(rank, error.with_rank(rank));
                    moved = true;
                }
                ConnectorEvent::Failed { error } if self.ep.closed.is_none() => {
                    self.ep.event(Token::CONTEXT, Outcome::Failed(error.clone()));
                    self.close(&error, Some(&error));
                    moved = true;
                }
                ConnectorEvent::Failed { .. } => {}
                ConnectorEvent::Ready { rank, of } => {
                    if of.writable {
                        if let Some(link) = self.ep.peers.get_mut(rank).and_then(|peer| peer.link.as_mut()) {
                            link.flush();
                        }
                        moved |= self.flush_to(rank);
                    }
                    moved |= self.read(rank);
                }
            }
        }
        self.connector_events = connector_events;
        moved
    }

    /// The link to `rank` is established.
    pub(crate) fn established(&mut self, rank: Rank, link: Box<dyn Link>, connection: u32) {
        if self.ep.disconnect_error(rank).is_some() {
            return;
        }
        self.ep.peer(rank).establish(link, connection);
        self.ep.linked.push(rank);
        self.ep.mark_dirty(rank);
        self.rendezvous.establish(rank, &mut self.ep);
        self.one_sided.establish(rank, &mut self.ep, &mut self.rendezvous.accesses);
        let name = self.ep.peer_name(rank);
        self.ep.log(Level::Detail, &format!("rank {}: connected to {name}", self.ep.rank));
    }

    /// `rank` is disconnected: everything that depends on it fails with `error`.
    pub(super) fn peer_disconnected(&mut self, rank: Rank, error: Error) {
        if self.ep.peer(rank).disconnected.is_some() {
            return;
        }
        // The peer may have ended the link because it has received what was placed.
        self.rendezvous.accesses.finish(&mut self.ep);
        self.ep.log(Level::Notice, &format!("rank {}: {error}", self.ep.rank));
        self.ep.linked.retain(|other| *other != rank);
        self.limits.disconnect(rank);
        self.ep.connections.give_up(rank);
        let (unsent, mut tokens) = self.ep.peer(rank).end(error.clone());
        self.ep.outgoing -= unsent;
        let peers = &self.ep.peers;
        let disconnected = |r: Rank| peers.get(r).is_some_and(|peer| peer.disconnected.is_some());
        let receives = self.ep.receives.disconnect(rank, disconnected);
        tokens.extend(self.rendezvous.disconnect(rank));
        tokens.extend(self.one_sided.disconnect(rank));
        tokens.extend(self.publications.extract_if(.., |(_, peer, _)| *peer == rank).map(|(token, ..)| token));
        for token in tokens {
            self.ep.event(token, Outcome::Failed(error.clone()));
        }
        for (token, from) in receives {
            let error = self.ep.disconnect_error_of(&from).unwrap_or_else(|| error.clone());
            self.ep.event(token, Outcome::Failed(error));
        }
        if self.ep.tells_of_ends {
            self.ep.event(Token::CONTEXT, Outcome::Disconnected { rank });
        }
    }

    /// From now on, there is an event for each peer that is disconnected.
    pub fn tell_of_ends(&mut self) {
        self.ep.tells_of_ends = true;
    }

    /// Sends `rank`, unless it is disconnected, an encoded message of an agreement.
    pub fn send_agreement(&mut self, rank: Rank, message: Vec<u8>) {
        if self.ep.disconnect_error(rank).is_none() {
            self.ep.connect(rank);
            self.ep.push_owned(rank, &Message::Agreement { bytes: message.len() as u64 }, message);
        }
    }

    /// The first message of an agreement that was received and not taken, and its sender. There is an event for each.
    pub fn take_agreement(&mut self) -> Option<(Rank, Vec<u8>)> {
        self.ep.agreements.pop_front()
    }

    /// Ends the link to `rank` as one that has failed with `error`, which the peer is sent.
    pub fn expel(&mut self, rank: Rank, error: &Error) {
        self.end_link(rank, Some(error));
        self.peer_disconnected(rank, error.clone());
    }

    /// Closes the connection to `rank`; its operations fail with `error`.
    pub fn disconnect(&mut self, rank: Rank, error: &Error) {
        self.end_link(rank, None);
        self.peer_disconnected(rank, error.clone());
    }

    /// Closes all connections; all operations fail with `error`. With a `notice`, peers are sent its reason.
    pub fn close(&mut self, error: &Error, notice: Option<&Error>) {
        if self.ep.closed.is_some() {
            return;
        }
        // The connector comes first, so that peers that are connecting also get the reason.
        self.ep.connections.close(&close_notice(self.ep.rank, notice.cloned()), notice.is_some());
        let met: Vec<Rank> = self.ep.peers.iter().map(|(rank, _)| rank).collect();
        for rank in met {
            self.end_link(rank, notice);
            self.peer_disconnected(rank, error.clone());
        }
        // Fails the receives from ranks that were never connected.
        let servers = self.ep.receives.ops().filter_map(|(_, op)| op.servers().first().copied());
        let servers: BTreeSet<Rank> = servers.collect();
        let waits = self.publications.drain(..).map(|(token, ..)| token);
        let receives = servers.into_iter().flat_map(|rank| self.ep.receives.disconnect(rank, |_| true));
        let tokens: Vec<Token> = waits.chain(receives.map(|(token, _)| token)).collect();
        for token in tokens {
            self.ep.event(token, Outcome::Failed(error.clone()));
        }
        self.ep.closed = Some(error.clone());
    }

    /// A closed messenger refuses what is asked of it with `error` from now on.
    pub fn outdate(&mut self, error: &Error) {
        if let Some(closed) = &mut self.ep.closed {
            *closed = error.clone();
        }
    }

    /// Ends a connection that failed with `error`. A peer that violated the protocol is sent the error; otherwise it
    /// could only assume that this process has ended.
    pub(super) fn fail_connection(&mut self, rank: Rank, error: Error) {
        let error = error.with_rank(rank);
        if error.kind() == ErrorKind::Mismatch && !error.is_reported_by_peer() {
            self.end_link(rank, Some(&error));
        }
        self.peer_disconnected(rank, error);
    }

    /// Ends the link to `rank` after sending an abort with the reason of `notice`, or else a goodbye.
    fn end_link(&mut self, rank: Rank, notice: Option<&Error>) {
        self.flush_to(rank);
        let own = self.ep.rank;
        let Some(peer) = self.ep.peers.get_mut(rank) else { return };
        let Some(link) = peer.link.take() else { return };
        // A message that is partly sent is completed first, since otherwise the peer could not parse what follows.
        let words = peer.queue.rest_of_begun().map(|rest| (rest, last_message(own, notice, peer.queue.connection)));
        let (rest, close_notice) = words.unwrap_or_default();
        link.end(rest, close_notice);
    }

    /// Sends what is queued to `rank` as far as the link takes it, and reports what has been sent. Returns whether
    /// anything moved.
    pub(super) fn flush_to(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.ep.peers.get_mut(rank) else { return false };
        peer.dirty = false;
        if !peer.is_established() {
            return false;
        }
        let before = peer.queue.len();
        let result = peer.flush(&mut self.sent);
        self.ep.outgoing -= before - peer.queue.len();
        let mut waits = !peer.queue.unreported.is_empty();
        let awaits_room = peer.has_output();
        if result.is_ok() && awaits_room != peer.awaits_room && !self.limits.paused.contains(&rank) {
            peer.awaits_room = awaits_room;
            if let Some(link) = &mut peer.link {
                // If this fails, the link is broken, and the next receive returns the error.
                let _ = link.watch(Interest { readable: true, writable: awaits_room });
            }
        }
        for sent in self.sent.drain(..) {
            match sent {
                Sent::Message(token, bytes) if !waits => self.ep.event(token, Outcome::Done { rank, bytes }),
                _ => {
                    waits = true;
                    self.ep.peer(rank).queue.unreported.push_back(sent);
                }
            }
        }
        if waits {
            self.rendezvous.accesses.report_sent(rank, &mut self.ep);
        }
        match result {
            Ok(moved) => moved,
            Err(e) => {
                let error = self.ep.broke_while(rank, "sending", &e);
                // EPIPE only says that the peer has closed the connection; a receive returns the reason.
                self.ep.peer(rank).send_error = (e.kind() != io::ErrorKind::BrokenPipe).then(|| error.clone());
                // Messages that the peer sent before are still delivered.
                while self.read(rank) {}
                self.peer_disconnected(rank, error);
                true
            }
        }
    }
}
