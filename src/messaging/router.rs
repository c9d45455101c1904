//! The link to each peer: connecting, and failing its operations when it is disconnected.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::Messenger;
use super::closing::close_notice;
use super::matching::Op;
use super::operation::{Outcome, Source, Token};
use super::peer::Peer;
use super::queues::Key;
use super::send::Queued;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Level;
use crate::net::address::Address;
use crate::transport::shm::{HostGroup, Sharing};
use crate::transport::{Connector, ConnectorEvent, Link};
use crate::types::Rank;

impl Messenger {
    /// The serialized address of this rank, for peers to connect to.
    pub fn address(&self) -> Vec<u8> {
        self.connector.address().serialize()
    }

    /// The socket addresses at which this rank listens.
    pub fn sockets(&self) -> &[SocketAddr] {
        &self.connector.address().sockets
    }

    /// Sets the socket addresses at which this rank listens: at most one of each family.
    pub fn set_sockets(&mut self, sockets: Vec<SocketAddr>) {
        self.connector.set_sockets(sockets);
    }

    /// The addresses of all ranks, if they are known.
    pub fn addresses(&self) -> Option<Vec<Address>> {
        let of = |rank| if rank == self.rank { Some(self.connector.address()) } else { self.connector.peer(rank) };
        (0..self.size).map(|rank| of(rank).cloned()).collect()
    }

    /// The connector, which makes the links of this context.
    pub fn connector(&self) -> &dyn Connector {
        self.connector.as_ref()
    }

    /// Tries to open the memory of the ranks of this host; see [`Connector::open_memory`].
    pub fn open_memory(&mut self, addresses: &[Address]) -> Sharing {
        self.connector.open_memory(addresses)
    }

    /// Shares memory if all ranks of this host can; `found` is what each rank has found.
    pub fn share_memory(&mut self, found: &[Sharing]) -> Result<()> {
        self.connector.share_memory(found)
    }

    /// The ranks of this host, if they share memory.
    pub fn host_group(&self) -> Option<&Arc<HostGroup>> {
        self.connector.host_group()
    }

    /// Sets the address of `rank`, as serialized by it.
    pub fn set_peer(&mut self, rank: Rank, address: &[u8]) -> Result<()> {
        let address = Address::deserialize(address).map_err(|e| e.context(format_args!("address of rank {rank}")))?;
        if let Err(error) = self.connector.set_peer(rank, address) {
            self.peer_disconnected(rank, error);
        }
        let waits = self.peers.get(rank).is_some_and(Peer::has_output)
            || self.receives.ops().any(|(_, op)| matches!(op.recv.from, Source::Rank(r) if r == rank));
        if waits {
            self.connect(rank);
        }
        Ok(())
    }

    /// Starts to connect to `rank`, unless this was done before.
    #[inline]
    pub fn connect(&mut self, rank: Rank) {
        if rank != self.rank && self.closed.is_none() && self.peers.get(rank).is_none_or(|p| p.link.is_none()) {
            self.connector.connect(rank);
        }
    }

    /// Whether a link to `rank` is established; an error if it is disconnected.
    pub fn is_connected(&self, rank: Rank) -> Result<bool> {
        match self.disconnect_error(rank) {
            Some(error) => Err(error),
            None => Ok(rank == self.rank || self.peers.get(rank).is_some_and(Peer::is_established)),
        }
    }

    /// As [`Messenger::is_connected`], but a peer that has ended the link with a goodbye counts, since it was connected.
    pub fn has_been_connected(&self, rank: Rank) -> Result<bool> {
        if self.peers.get(rank).is_some_and(|peer| peer.goodbye) { Ok(true) } else { self.is_connected(rank) }
    }

    /// Describes why `rank` is not connected.
    pub fn why_not_connected(&self, rank: Rank) -> String {
        self.connector.why_not_connected(rank)
    }

    /// Whether no peer's address is known and there is no link: the context was never connected.
    pub fn is_isolated(&self) -> bool {
        self.linked.is_empty() && !self.connector.knows_any_peer()
    }

    /// Whether `rank` runs on this host; `None` as long as its address is unknown.
    pub fn shares_host(&self, rank: Rank) -> Option<bool> {
        let own = self.connector.address().host;
        if rank == self.rank { Some(true) } else { Some(self.connector.peer(rank)?.host == own) }
    }

    /// Handles connections that peers have made.
    pub fn arrived(&mut self, now: Instant) {
        self.progress_ready(now);
        // The connector reports only once that a link is readable.
        self.read_offers();
        self.finish_placements();
    }

    /// Progresses the connector, and serves the links that are ready.
    pub(super) fn progress_ready(&mut self, now: Instant) -> bool {
        let mut connector_events = std::mem::take(&mut self.connector_events);
        self.connector.progress(now, &mut connector_events);
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
                ConnectorEvent::Failed { error } if self.closed.is_none() => {
                    self.event(Token::CONTEXT, Outcome::Failed(error.clone()));
                    self.close(&error, Some(&error));
                    moved = true;
                }
                ConnectorEvent::Failed { .. } => {}
                ConnectorEvent::Ready { rank, of } => {
                    if of.writable {
                        if let Some(link) = self.peers.get_mut(rank).and_then(|peer| peer.link.as_mut()) {
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
        if self.disconnect_error(rank).is_some() {
            return;
        }
        self.peer(rank).establish(link, connection);
        self.linked.push(rank);
        self.mark_dirty(rank);
        let (reads, places, above) = {
            let peer = self.peer(rank);
            (peer.reads(), peer.places(), peer.eager_bytes())
        };
        if reads || places {
            self.receives.take_back_grants(rank);
        }
        if places {
            self.begin_placing(rank, above);
        }
        self.release_all(rank);
        self.begin_one_sided(rank);
        self.log(Level::Detail, &format!("rank {}: connected to {}", self.rank, self.peer_name(rank)));
    }

    /// `rank` is disconnected: everything that depends on it fails with `error`.
    pub(super) fn peer_disconnected(&mut self, rank: Rank, error: Error) {
        if self.peer(rank).disconnected.is_some() {
            return;
        }
        // The peer may have ended the link because it has received what was placed.
        self.finish_placements();
        self.log(Level::Notice, &format!("rank {}: {error}", self.rank));
        self.linked.retain(|r| *r != rank);
        self.paused.retain(|r| *r != rank);
        self.reading.retain(|r| *r != rank);
        self.connector.give_up(rank);
        let (unsent, mut tokens) = self.peer(rank).end(error.clone());
        self.outgoing -= unsent;
        let peers = &self.peers;
        let disconnected = |r: Rank| peers.get(r).is_some_and(|peer| peer.disconnected.is_some());
        let receives = self.receives.disconnect(rank, disconnected);
        let queued: Vec<u32> = self.queued_sends.iter().filter(|(_, q)| q.send.to == rank).map(|(i, _)| i).collect();
        for index in queued {
            if let Some(Queued { send, .. }) = self.queued_sends.remove(index) {
                self.queued.remove(Key::new(rank, send.space, send.slot), index);
                self.outgoing -= 1;
                tokens.push(send.token);
            }
        }
        tokens.extend(self.end_placements(rank).into_iter().map(|send| send.token));
        // The peer cannot read the offered memory any more, because the link has ended.
        tokens.extend(self.offers.extract_if(|_, send| send.to == rank).map(|(_, send)| send.token));
        let requests: Vec<u32> = self.requests.iter().filter(|(_, r)| r.rank == rank).map(|(i, _)| i).collect();
        for index in requests {
            tokens.extend(self.requests.remove(index).filter(|r| !r.cancelled).map(|r| r.token));
        }
        tokens.extend(self.end_writes(rank));
        tokens.extend(self.bindings.iter().filter(|(key, _)| key.rank() == rank).map(|(_, b)| b.token));
        tokens.extend(self.shared_waits.extract_if(.., |(_, peer, _)| *peer == rank).map(|(token, ..)| token));
        for token in tokens {
            self.event(token, Outcome::Failed(error.clone()));
        }
        for (token, from) in receives {
            let error = self.disconnect_error_of(&from).unwrap_or_else(|| error.clone());
            self.event(token, Outcome::Failed(error));
        }
    }

    /// Closes the connection to `rank`; its operations fail with `error`.
    pub fn disconnect(&mut self, rank: Rank, error: &Error) {
        self.end_link(rank, None);
        self.peer_disconnected(rank, error.clone());
    }

    /// Closes all connections; all operations fail with `error`. With a `notice`, peers are sent its reason.
    pub fn close(&mut self, error: &Error, notice: Option<&Error>) {
        if self.closed.is_some() {
            return;
        }
        // First, so that peers that are connecting also get the reason.
        self.connector.close(close_notice(self.rank, notice.cloned()), notice.is_some());
        let met: Vec<Rank> = self.peers.iter().map(|(rank, _)| rank).collect();
        for rank in met {
            self.end_link(rank, notice);
            self.peer_disconnected(rank, error.clone());
        }
        // Fails the receives from ranks that were never connected.
        let server = |op: &Op| match (op.matched, &op.recv.from) {
            (Some(rank), _) | (None, &Source::Rank(rank)) => Some(rank),
            (None, Source::AnyOf(ranks)) => ranks.first().copied(),
        };
        let servers: BTreeSet<Rank> = self.receives.ops().filter_map(|(_, op)| server(op)).collect();
        let waits = self.shared_waits.drain(..).map(|(token, ..)| token);
        let receives = servers.into_iter().flat_map(|rank| self.receives.disconnect(rank, |_| true));
        let tokens: Vec<Token> = waits.chain(receives.map(|(token, _)| token)).collect();
        for token in tokens {
            self.event(token, Outcome::Failed(error.clone()));
        }
        self.closed = Some(error.clone());
    }

    pub(super) fn broke_while(&self, rank: Rank, doing: &str, e: &io::Error) -> Error {
        let text = format!("the connection to {} broke while {doing}: {e}", self.peer_name(rank));
        Error::new(ErrorKind::ConnectionLost, text).with_rank(rank).with_errno(e.raw_os_error())
    }
}
