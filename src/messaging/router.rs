//! The way to each peer: how it comes about, and what follows when it ends.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use super::Messenger;
use super::farewell::last_words_for_latecomers;
use super::matching::Op;
use super::operation::{Outcome, Source, Token};
use super::peer::Peer;
use super::queues::Key;
use super::send::Queued;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Level;
use crate::net::address::Address;
use crate::transport::{Connector, ConnectorEvent, Link};
use crate::types::Rank;

impl Messenger {
    /// What peers must be told to reach this rank.
    pub fn address(&self) -> Vec<u8> {
        self.connector.address().serialize()
    }

    /// Where peers find this rank.
    pub fn sockets(&self) -> &[SocketAddr] {
        &self.connector.address().sockets
    }

    /// From now on peers find this rank there: at most one address of each family.
    pub fn set_sockets(&mut self, sockets: Vec<SocketAddr>) {
        self.connector.set_sockets(sockets);
    }

    /// The addresses of all ranks, if they are known.
    pub fn addresses(&self) -> Option<Vec<Address>> {
        let of = |rank| if rank == self.rank { Some(self.connector.address()) } else { self.connector.peer(rank) };
        (0..self.size).map(|rank| of(rank).cloned()).collect()
    }

    /// What makes the links of this context.
    pub fn connector(&self) -> &dyn Connector {
        self.connector.as_ref()
    }

    /// What `rank` gave as its address.
    pub fn set_peer(&mut self, rank: Rank, address: &[u8]) -> Result<()> {
        let address = Address::deserialize(address).map_err(|e| e.context(format_args!("address of rank {rank}")))?;
        if let Err(error) = self.connector.set_peer(rank, address) {
            self.lose(rank, error);
        }
        let waits = self.peers.get(rank).is_some_and(Peer::has_output)
            || self.receives.ops().any(|(_, op)| matches!(op.recv.from, Source::Rank(r) if r == rank));
        if waits {
            self.connect(rank);
        }
        Ok(())
    }

    /// Begins to connect to `rank`, if that has not begun.
    #[inline]
    pub fn connect(&mut self, rank: Rank) {
        if rank != self.rank && self.closed.is_none() && self.peers.get(rank).is_none_or(|p| p.link.is_none()) {
            self.connector.connect(rank);
        }
    }

    /// Whether messages to `rank` can flow; an error once they never will.
    pub fn is_connected(&self, rank: Rank) -> Result<bool> {
        match self.lost(rank) {
            Some(error) => Err(error),
            None => Ok(rank == self.rank || self.peers.get(rank).is_some_and(Peer::is_established)),
        }
    }

    /// Why `rank` is not connected, in words.
    pub fn why_not_connected(&self, rank: Rank) -> String {
        self.connector.why_not_connected(rank)
    }

    /// Whether nothing is known of any peer: the context was never connected.
    pub fn is_isolated(&self) -> bool {
        self.linked.is_empty() && !self.connector.knows_any_peer()
    }

    /// Whether `rank` runs on this host; `None` as long as its address is unknown.
    pub fn shares_host(&self, rank: Rank) -> Option<bool> {
        let own = self.connector.address().host;
        if rank == self.rank { Some(true) } else { Some(self.connector.peer(rank)?.host == own) }
    }

    /// Takes in what has come from peers that connect.
    pub fn arrived(&mut self, now: Instant) {
        self.progress_ready(now);
        // What can be read on was told just now, and is not again.
        self.read_offers();
    }

    /// Lets connections come about, and serves the links that are ready.
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
                    self.lose(rank, error.with_rank(rank));
                    moved = true;
                }
                ConnectorEvent::Ready { rank, of } => {
                    if of.writable {
                        moved |= self.flush_to(rank);
                    }
                    moved |= self.read(rank);
                }
            }
        }
        self.connector_events = connector_events;
        moved
    }

    /// The way to `rank` stands.
    pub(crate) fn established(&mut self, rank: Rank, link: Box<dyn Link>, connection: u32) {
        if self.lost(rank).is_some() {
            return;
        }
        self.peer(rank).establish(link, connection);
        self.linked.push(rank);
        self.mark_dirty(rank);
        if self.peer(rank).reads() {
            self.receives.take_back_grants(rank);
        }
        self.release_all(rank);
        self.log(Level::Detail, &format!("rank {}: connected to {}", self.rank, self.peer_name(rank)));
    }

    /// There is no way to `rank` any more: everything that depends on it fails with `error`.
    pub(super) fn lose(&mut self, rank: Rank, error: Error) {
        if self.peer(rank).over.is_some() {
            return;
        }
        self.log(Level::Notice, &format!("rank {}: {error}", self.rank));
        self.linked.retain(|r| *r != rank);
        self.paused.retain(|r| *r != rank);
        self.reading.retain(|r| *r != rank);
        self.connector.give_up(rank);
        let (unsent, mut tokens) = self.peer(rank).end(error.clone());
        self.outgoing -= unsent;
        let peers = &self.peers;
        let over = |r: Rank| peers.get(r).is_some_and(|peer| peer.over.is_some());
        let receives = self.receives.lose(rank, over);
        let queued: Vec<u32> = self.queued_sends.iter().filter(|(_, q)| q.send.to == rank).map(|(i, _)| i).collect();
        for index in queued {
            if let Some(Queued { send, .. }) = self.queued_sends.remove(index) {
                self.queued.remove(Key::new(rank, send.space, send.slot), index);
                self.outgoing -= 1;
                tokens.push(send.token);
            }
        }
        // The link has ended, and with it the peer's way to them.
        tokens.extend(self.offers.extract_if(|_, send| send.to == rank).map(|(_, send)| send.token));
        let requests: Vec<u32> = self.requests.iter().filter(|(_, r)| r.rank == rank).map(|(i, _)| i).collect();
        for index in requests {
            tokens.extend(self.requests.remove(index).filter(|r| !r.cancelled).map(|r| r.token));
        }
        tokens.extend(self.bindings.iter().filter(|(key, _)| key.rank() == rank).map(|(_, b)| b.token));
        for token in tokens {
            self.event(token, Outcome::Failed(error.clone()));
        }
        for (token, from) in receives {
            let error = self.lost_all(&from).unwrap_or_else(|| error.clone());
            self.event(token, Outcome::Failed(error));
        }
    }

    /// Ends the connection to `rank`; its operations fail with `error`.
    pub fn disconnect(&mut self, rank: Rank, error: &Error) {
        self.say_goodbye(rank, None);
        self.lose(rank, error.clone());
    }

    /// Ends everything; operations fail with `error`. With a `notice`, peers are told its reason.
    pub fn close(&mut self, error: &Error, notice: Option<&Error>) {
        if self.closed.is_some() {
            return;
        }
        // First, so that who is connecting hears the reason, too.
        let own = self.rank;
        self.connector.close(notice.cloned().map(|notice| last_words_for_latecomers(own, notice)));
        let met: Vec<Rank> = self.peers.iter().map(|(rank, _)| rank).collect();
        for rank in met {
            self.say_goodbye(rank, notice);
            self.lose(rank, error.clone());
        }
        // What ranks that were never connected to could have served.
        let server = |op: &Op| match (op.matched, &op.recv.from) {
            (Some(rank), _) | (None, &Source::Rank(rank)) => Some(rank),
            (None, Source::AnyOf(ranks)) => ranks.first().copied(),
        };
        let servers: BTreeSet<Rank> = self.receives.ops().filter_map(|(_, op)| server(op)).collect();
        let tokens: Vec<Token> =
            servers.into_iter().flat_map(|rank| self.receives.lose(rank, |_| true)).map(|(token, _)| token).collect();
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
