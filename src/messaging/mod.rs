//! The message protocol of one context, the same over any kind of link: matching, unexpected messages, announcements and grants,
//! one-sided operations, diagnostic queries, abort and goodbye, and a router with a link for each peer.
//!
//! It has no socket, no clock and no thread of its own: links and connectors move the bytes, and it is told what time it is.
//! Operations are posted, [`Messenger::progress`] moves them on, and every operation ends with exactly one [`Event`], unless
//! [`Messenger::cancel`] took it back.

mod diagnosis;
mod farewell;
#[cfg(any(test, fuzzing))]
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
pub(crate) mod fuzz;
mod inbox;
mod limits;
pub mod matching;
#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod memory_tests;
mod offers;
mod operation;
mod peer;
pub mod queues;
mod ranks;
mod receive;
mod remote;
mod router;
mod send;
#[cfg(any(test, fuzzing))]
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
pub(crate) mod testing;
#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests;

pub use diagnosis::Unmet;
pub use operation::{Event, Outcome, Recv, ReduceInto, Remote, Replies, Send, Source, Token};

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::time::Instant;

use crate::error::Error;
use crate::hash::QuickMap;
use crate::log::{Level, LogCallback};
use crate::slab::Slab;
use crate::transport::{Connector, ConnectorEvent};
use crate::types::Rank;
use inbox::{Finish, Target};
use matching::{EAGER_BYTES, Posting, Receives};
use peer::{Peer, Sent};
use queues::{Key, Queues};
use ranks::ByRank;
use remote::{Binding, FIRST_REGION_OWNER, Region, Request, UnexpectedWrite};
use send::Queued;

/// Events that there is room for from the beginning: how many come at once is a matter of chance, and the steady state is to
/// allocate nothing.
pub const EVENTS: usize = 256;

/// Bytes received at once that do not go straight to their place: small enough to stay in cache until they are reduced.
const STAGING_BYTES: usize = 128 << 10;
/// Payload from which on the rest is received straight into its place.
const DIRECT_BYTES: usize = 4 << 10;
/// Receives from one link before others get their turn.
const READS_PER_TURN: usize = 4;
/// Up to so many links are tried without asking the connector which are ready.
const DIRECT_LINKS: usize = 4;

/// The messages of one context.
pub struct Messenger {
    rank: Rank,
    size: usize,
    log: Option<LogCallback>,
    connector: Box<dyn Connector>,
    peers: ByRank<Peer>,
    /// Ranks to which links stand.
    linked: Vec<Rank>,
    /// Ranks to which something is to be sent.
    dirty: Vec<Rank>,
    receives: Receives,
    /// Messages that wait for a grant.
    queued: Queues<u32>,
    queued_sends: Slab<Queued>,
    /// Grants that no message has used.
    grants: QuickMap<Key, u32>,
    /// Grants that came during a receive.
    granted: Vec<Key>,
    /// Offered messages that have not been taken, by key.
    offers: QuickMap<u32, Send>,
    next_offer: u32,
    /// Orders in which an offer was taken during a receive.
    unblocked: Vec<Key>,
    /// Ranks whose offered messages are read here.
    reading: Vec<Rank>,
    requests: Slab<Request>,
    regions: HashMap<u32, Region>,
    next_region: u32,
    bindings: QuickMap<Key, Binding>,
    unexpected_writes: QuickMap<Key, Vec<UnexpectedWrite>>,
    /// Messages that have not left: in the peers' queues, or waiting for a grant.
    outgoing: usize,
    staging: Box<[u8]>,
    /// Limits on what is kept from one peer; see [`limits`].
    pause_bytes: usize,
    most_bytes: usize,
    /// Ranks whose links are not read, because too much is kept from them.
    paused: Vec<Rank>,
    events: Vec<Event>,
    sent: Vec<Sent>,
    connector_events: Vec<ConnectorEvent>,
    closed: Option<Error>,
    /// Peers that were asked what they are doing.
    queried: Vec<Rank>,
}

// SAFETY: the pointers are to memory of the posters', who vouch for it until the event or the cancellation, whichever thread
// drives the messenger.
unsafe impl std::marker::Send for Messenger {}

impl Messenger {
    /// For `rank` of `size`, whose links this connector makes.
    pub fn new(rank: Rank, size: usize, mut connector: Box<dyn Connector>, log: Option<LogCallback>) -> Self {
        connector.set_rank(rank, size);
        Self {
            rank,
            size,
            log,
            connector,
            peers: ByRank::default(),
            linked: Vec::new(),
            dirty: Vec::new(),
            receives: Receives::default(),
            queued: Queues::default(),
            queued_sends: Slab::default(),
            grants: QuickMap::default(),
            granted: Vec::new(),
            offers: QuickMap::default(),
            next_offer: 0,
            unblocked: Vec::new(),
            reading: Vec::new(),
            requests: Slab::default(),
            regions: HashMap::new(),
            next_region: 0,
            bindings: QuickMap::default(),
            unexpected_writes: QuickMap::default(),
            outgoing: 0,
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            pause_bytes: limits::PAUSE_BYTES,
            most_bytes: limits::MOST_BYTES,
            paused: Vec::new(),
            events: Vec::with_capacity(EVENTS),
            sent: Vec::with_capacity(EVENTS),
            connector_events: Vec::new(),
            closed: None,
            queried: Vec::new(),
        }
    }

    /// Posts a message.
    ///
    /// # Safety
    /// `send.from` is valid for `send.bytes` until the event or the cancellation.
    #[inline]
    pub unsafe fn send(&mut self, send: Send) {
        if send.to == self.rank && self.closed.is_none() {
            return self.send_to_self(&send);
        }
        if let Some(error) = self.lost(send.to) {
            return self.event(send.token, Outcome::Failed(error));
        }
        self.send_or_queue(send);
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// `recv.into` is valid for writes of `recv.bytes`, and `recv.reduce`'s operand for as many, until the event or the
    /// cancellation; nobody else touches `into` meanwhile.
    pub unsafe fn recv(&mut self, recv: Recv) {
        if let Some(error) = self.closed.clone() {
            return self.event(recv.token, Outcome::Failed(error));
        }
        let (space, slot, token, from) = (recv.space, recv.slot, recv.token, recv.from.clone());
        let grants = recv.bytes > EAGER_BYTES && !self.reads(&recv.from);
        match self.receives.post(recv, grants) {
            Posting::Message { op, from, envelope, data } => {
                self.deliver(&op, from, &envelope, &data);
                self.receives.recycle(data);
            }
            Posting::Granted { to } => self.grant(to, space, slot),
            Posting::Offered { op, from, envelope, key } => self.read_later(from, op, &envelope, key),
            Posting::Waits { op, grant } => {
                if let Some(error) = self.lost_all(&from) {
                    self.receives.withdraw(op);
                    return self.event(token, Outcome::Failed(error));
                }
                for rank in from.ranks() {
                    self.connect(*rank);
                }
                if let Some(rank) = grant {
                    self.grant(rank, space, slot);
                }
            }
        }
    }

    /// Takes back every operation of `owner`: no event for it follows, and its memory is no longer touched.
    pub fn cancel(&mut self, owner: u32) {
        let mut arriving = Vec::new();
        self.receives.cancel(owner, |op| arriving.push(op));
        self.bindings.retain(|_, binding| binding.token.owner != owner);
        let requests = &mut self.requests;
        requests.iter_mut().filter(|(_, r)| r.token.owner == owner).for_each(|(_, r)| r.cancelled = true);
        for peer in self.peers.iter_mut() {
            if let Some(incoming) = &mut peer.incoming {
                let its = match incoming.finish {
                    Finish::Recv(op) => arriving.contains(&op),
                    Finish::Written { token, .. } => token.owner == owner,
                    Finish::Answer { request, .. } => {
                        self.requests.get(request).is_some_and(|r| r.token.owner == owner)
                    }
                    _ => false,
                };
                if its {
                    incoming.target = Target::Discard;
                    if !matches!(incoming.finish, Finish::Answer { .. }) {
                        incoming.finish = Finish::Nothing;
                    }
                }
            }
            self.outgoing -= peer.cancel(owner);
        }
        self.cancel_queued(owner);
        self.cancel_offers(owner);
        self.cancel_readings(&arriving);
        self.events.retain(|e| e.token.owner != owner);
    }

    /// Moves what can be moved without waiting at `now`; pushes the ends. Whether anything moved.
    pub fn progress(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        if !self.paused.is_empty() {
            self.resume();
        }
        while let Some(rank) = self.dirty.pop() {
            moved |= self.flush_to(rank);
        }
        if self.linked.len() <= DIRECT_LINKS && !self.connector.is_busy() {
            for i in (0..self.linked.len()).rev() {
                let Some(rank) = self.linked.get(i).copied() else { continue };
                if self.peers.get(rank).is_some_and(|p| p.has_output()) {
                    moved |= self.flush_to(rank);
                }
                moved |= self.read(rank);
            }
        } else {
            moved |= self.progress_ready(now);
        }
        if !self.reading.is_empty() {
            moved |= self.read_offers();
        }
        moved |= !self.events.is_empty();
        events.append(&mut self.events);
        moved
    }

    /// Sends what was posted, as far as that goes without waiting; pushes the ends.
    pub fn flush(&mut self, events: &mut Vec<Event>) {
        if !self.paused.is_empty() {
            self.resume();
        }
        while let Some(rank) = self.dirty.pop() {
            self.flush_to(rank);
        }
        events.append(&mut self.events);
    }

    /// Adds the descriptors of which one becomes readable when [`Messenger::progress`] may have something to do.
    pub fn descriptors(&self, into: &mut Vec<RawFd>) {
        self.connector.descriptors(into);
    }

    /// When [`Messenger::progress`] must be called though no descriptor is readable.
    pub fn next_timer(&self) -> Option<Instant> {
        self.connector.next_timer()
    }

    /// Messages of this side that have not left.
    pub fn outgoing(&self) -> usize {
        self.outgoing
    }

    /// What is left of operations that have all ended well, in words.
    #[cfg(test)]
    pub(crate) fn left_behind(&self) -> Option<String> {
        let left = [
            (self.outgoing, "messages that have not left"),
            (self.receives.len(), "receives"),
            (self.receives.unmet().count(), "unexpected messages"),
            (self.queued_sends.len(), "messages without a grant"),
            (self.offers.len(), "messages that were offered"),
            (self.peers.iter().map(|(_, peer)| peer.readings.len()).sum(), "offers"),
            (self.requests.len(), "puts or gets"),
            (self.regions.len(), "regions"),
            (self.bindings.len(), "bound buffers"),
            (self.unexpected_writes.values().map(Vec::len).sum(), "unexpected writes"),
        ];
        let left: Vec<String> = left.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        (!left.is_empty()).then(|| left.join(", "))
    }

    /// How messages to the user call `rank`.
    pub fn peer_name(&self, rank: Rank) -> String {
        self.connector.peer_name(rank)
    }

    fn log(&self, level: Level, text: &str) {
        if let Some(log) = &self.log {
            log(level, text);
        }
    }

    fn peer(&mut self, rank: Rank) -> &mut Peer {
        self.peers.get_or_insert_with(rank, Peer::default)
    }

    fn event(&mut self, token: Token, outcome: Outcome) {
        if token.owner < FIRST_REGION_OWNER || token == Token::CONTEXT {
            self.events.push(Event { token, outcome });
        }
    }

    fn mark_dirty(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank)
            && peer.is_established()
            && !std::mem::replace(&mut peer.dirty, true)
        {
            self.dirty.push(rank);
        }
    }

    /// The error that operations with `rank` end with, once there is no way to it any more.
    fn lost(&self, rank: Rank) -> Option<Error> {
        self.closed.as_ref().or_else(|| self.peers.get(rank)?.over.as_ref()).cloned()
    }

    /// The error that a receive ends with, once there is no way to any rank that could serve it: one that was seen here, rather than
    /// one that a peer has told, which may have begun with this rank's own waiting.
    fn lost_all(&self, from: &Source) -> Option<Error> {
        let mut told = None;
        let mut seen = None;
        for rank in from.ranks() {
            let error = self.lost(*rank)?;
            let first = if error.is_told() { &mut told } else { &mut seen };
            first.get_or_insert(error);
        }
        seen.or(told)
    }
}
