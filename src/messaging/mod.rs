//! The message protocol of one context, the same over any kind of link: matching, unexpected messages, announcements and grants,
//! one-sided operations, diagnostic queries, abort and goodbye, and a router with a link for each peer.
//!
//! It has no sockets, clock or threads: links and connectors move the bytes, and callers pass the time. Operations are posted,
//! and [`Messenger::progress`] progresses them. Every operation ends with exactly one [`Event`], unless it is cancelled with
//! [`Messenger::cancel`].

mod closing;
mod diagnosis;
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
mod one_sided;
mod operation;
mod peer;
mod placements;
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

pub use diagnosis::Unmatched;
pub use operation::{Event, Outcome, Recv, ReduceInto, Remote, Replies, Send, Source, Token};

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::error::Error;
use crate::hash::QuickMap;
use crate::log::{Level, LogCallback};
use crate::slab::Slab;
use crate::sys::Pollable;
use crate::transport::{Connector, ConnectorEvent, Counters};
use crate::types::Rank;
use inbox::{Finish, Target};
use matching::{EAGER_BYTES, Posting, Receives};
use one_sided::WaitingWrite;
use peer::{Peer, Sent};
use placements::{Grant, Placing};
use queues::{Key, Queues};
use ranks::ByRank;
use remote::{Binding, FIRST_REGION_OWNER, Region, Request, UnexpectedWrite};
use send::Queued;

/// Events, and other entries of lists, for which memory is reserved. How many are pushed at once varies, and the steady state must
/// not allocate.
pub const EVENTS: usize = 256;

/// Size of the staging buffer for received bytes: small enough to stay in cache until they are reduced.
const STAGING_BYTES: usize = 128 << 10;
/// From this length on, the rest of a payload is received directly into its destination, without staging.
const DIRECT_BYTES: usize = 4 << 10;
/// Receives from one link before other links are read.
const READS_PER_TURN: usize = 4;
/// With up to so many links, all are tried without asking the connector which are ready.
const DIRECT_LINKS: usize = 4;

/// The operations, messages and links of one context.
pub struct Messenger {
    rank: Rank,
    size: usize,
    log: Option<LogCallback>,
    connector: Box<dyn Connector>,
    peers: ByRank<Peer>,
    /// Ranks with an established link.
    linked: Vec<Rank>,
    /// Ranks with output to flush.
    dirty: Vec<Rank>,
    receives: Receives,
    /// Messages that wait for a grant, or behind one that does; indices into `queued_sends`.
    queued: Queues<u32>,
    queued_sends: Slab<Queued>,
    /// Received grants that no message has used: their keys of exposed memory, or 0.
    grants: Queues<u32>,
    /// Grants received while a link was read, to be handled afterwards, in order.
    granted: Vec<Grant>,
    /// Messages that were offered and not yet read by the receiver, by key.
    offers: QuickMap<u32, Send>,
    next_offer: u32,
    /// Keys for which a peer has read an offered message while its link was read; messages queued behind are sent afterwards.
    unblocked: Vec<Key>,
    /// Ranks whose offered messages are being read.
    reading: Vec<Rank>,
    /// Messages that links place in the receivers' memory, by ticket.
    placing: Slab<Placing>,
    /// Ranks in whose memory a message is being written.
    placing_to: Vec<Rank>,
    /// Memory that was exposed to a rank for receives that were cancelled, by its key: a message may still be placed there.
    withdrawn: Vec<(Rank, u32)>,
    /// The next key of exposed memory.
    next_exposed: u32,
    /// The number of the next announcement on a link that places messages.
    next_announcement: u32,
    /// No link has a lower limit for messages that need no grant.
    least_eager: usize,
    requests: Slab<Request>,
    regions: HashMap<u32, Region>,
    next_region: u32,
    bindings: QuickMap<Key, Binding>,
    unexpected_writes: QuickMap<Key, Vec<UnexpectedWrite>>,
    /// Writes into bound buffers of peers of which it is not known by which way.
    writes: QuickMap<Key, VecDeque<WaitingWrite>>,
    /// The regions of bound buffers of peers, on links that access memory; `None` if writes are sent.
    bound: QuickMap<Key, Option<u32>>,
    /// Keys of waiting writes whose way has become known while a link was read; they are started afterwards.
    granted_writes: Vec<Key>,
    /// Messages not completely sent: in the peers' queues, or waiting for a grant.
    outgoing: usize,
    staging: Box<[u8]>,
    /// Limits on the bytes of unexpected messages queued from one peer; see [`limits`].
    pause_bytes: usize,
    most_bytes: usize,
    /// Ranks whose links are not read, because too many unexpected bytes from them are queued.
    paused: Vec<Rank>,
    events: Vec<Event>,
    sent: Vec<Sent>,
    connector_events: Vec<ConnectorEvent>,
    closed: Option<Error>,
    /// Peers to which a query was sent.
    queried: Vec<Rank>,
    /// Waits for what peers do in shared memory: the operation, the peer, and the bytes that it publishes.
    shared_waits: Vec<(Token, Rank, usize)>,
}

// SAFETY: the posters keep the memory behind all pointers valid until the event or the cancellation, on whichever thread the
// messenger is progressed.
unsafe impl std::marker::Send for Messenger {}

impl Messenger {
    /// A messenger for `rank` of `size`, whose links `connector` makes.
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
            grants: Queues::default(),
            granted: Vec::with_capacity(EVENTS),
            offers: QuickMap::default(),
            next_offer: 0,
            unblocked: Vec::with_capacity(EVENTS),
            reading: Vec::new(),
            placing: Slab::default(),
            placing_to: Vec::new(),
            withdrawn: Vec::new(),
            next_exposed: 1,
            next_announcement: 1,
            least_eager: EAGER_BYTES,
            requests: Slab::default(),
            regions: HashMap::new(),
            next_region: 0,
            bindings: QuickMap::default(),
            unexpected_writes: QuickMap::default(),
            writes: QuickMap::default(),
            bound: QuickMap::default(),
            granted_writes: Vec::new(),
            outgoing: 0,
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            pause_bytes: limits::PAUSE_BYTES,
            most_bytes: limits::MOST_BYTES,
            paused: Vec::new(),
            events: Vec::with_capacity(EVENTS),
            sent: Vec::with_capacity(EVENTS),
            connector_events: Vec::with_capacity(EVENTS),
            closed: None,
            queried: Vec::new(),
            shared_waits: Vec::with_capacity(EVENTS),
        }
    }

    /// Posts a send.
    ///
    /// # Safety
    /// `send.from` is valid for `send.bytes` until the event or the cancellation.
    #[inline]
    pub unsafe fn send(&mut self, send: Send) {
        if send.to == self.rank && self.closed.is_none() {
            return self.send_to_self(&send);
        }
        if let Some(error) = self.disconnect_error(send.to) {
            return self.event(send.token, Outcome::Failed(error));
        }
        self.send_or_queue(send);
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// `recv.into` is valid for writes of `recv.bytes`, and the operand of `recv.reduce` for reads of as many, until the event or
    /// the cancellation. Nothing else accesses `into` meanwhile.
    pub unsafe fn recv(&mut self, recv: Recv) {
        if let Some(error) = self.closed.clone() {
            return self.event(recv.token, Outcome::Failed(error));
        }
        let (token, from) = (recv.token, recv.from.clone());
        let grants_above =
            if recv.bytes <= self.least_eager { usize::MAX } else { self.grants_above(&from, recv.space) };
        match self.receives.post(recv, grants_above) {
            Posting::Message { op, from, envelope, data } => {
                self.deliver(&op, from, &envelope, &data);
                self.receives.recycle(data);
            }
            Posting::Granted { op, to, envelope, announcement } => self.answer_later(to, op, &envelope, announcement),
            Posting::Offered { op, from, envelope, key } => self.read_later(from, op, &envelope, key),
            Posting::Waits { op, grant } => {
                if let Some(error) = self.disconnect_error_of(&from) {
                    self.receives.withdraw(op);
                    return self.event(token, Outcome::Failed(error));
                }
                for rank in from.ranks() {
                    self.connect(*rank);
                }
                if let Some(rank) = grant {
                    self.grant(rank, op);
                }
            }
        }
    }

    /// Starts a wait for `bytes` bytes that `rank` publishes in shared memory, where the caller looks for them. It ends by
    /// [`Messenger::end_wait_for_publication`] or [`Messenger::cancel`], or fails when the peer is disconnected.
    pub fn wait_for_publication(&mut self, rank: Rank, bytes: usize, token: Token) {
        if let Some(error) = self.disconnect_error(rank) {
            return self.event(token, Outcome::Failed(error));
        }
        self.connect(rank);
        self.shared_waits.push((token, rank, bytes));
    }

    /// Ends the wait for a publication with this token.
    pub fn end_wait_for_publication(&mut self, token: Token) {
        self.shared_waits.retain(|(its, ..)| *its != token);
        self.events.retain(|event| event.token != token);
    }

    /// Whether anything waits for a publication.
    pub fn waits_for_publication(&self) -> bool {
        !self.shared_waits.is_empty()
    }

    /// Cancels all operations of `owner`: no event follows for them, and their memory is not accessed any more.
    pub fn cancel(&mut self, owner: u32) {
        let (mut arriving, mut starved) = (Vec::new(), Vec::new());
        self.cancel_exposures(owner);
        self.receives.cancel(owner, |op| arriving.push(op));
        self.cancel_writes(owner);
        self.bindings.retain(|_, binding| binding.token.owner != owner);
        let requests = &mut self.requests;
        requests.iter_mut().filter(|(_, r)| r.token.owner == owner).for_each(|(_, r)| r.cancelled = true);
        for (rank, peer) in self.peers.iter_mut() {
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
            let (removed, copied) = peer.cancel(owner);
            self.outgoing -= removed;
            starved.extend(copied.err().map(|error| (rank, error.with_rank(rank))));
        }
        for (rank, error) in starved {
            // Their memory is valid until this function returns.
            self.disconnect(rank, &error);
        }
        self.cancel_placements(owner);
        self.cancel_queued(owner);
        self.shared_waits.retain(|(token, ..)| token.owner != owner);
        self.cancel_offers(owner);
        self.cancel_readings(&arriving);
        self.events.retain(|e| e.token.owner != owner);
    }

    /// Moves data as far as possible without blocking, at the time `now`, and appends to `events`. Returns whether anything was
    /// moved.
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
        if !self.placing_to.is_empty() {
            moved |= self.finish_placements();
        }
        moved |= !self.events.is_empty();
        events.append(&mut self.events);
        moved
    }

    /// Sends what was posted as far as possible without blocking, and appends to `events`.
    pub fn flush(&mut self, events: &mut Vec<Event>) {
        if !self.paused.is_empty() {
            self.resume();
        }
        while let Some(rank) = self.dirty.pop() {
            self.flush_to(rank);
        }
        if !self.placing_to.is_empty() {
            self.finish_placements();
        }
        events.append(&mut self.events);
    }

    /// Adds what is to be polled: something of it becomes readable when [`Messenger::progress`] may have something to do.
    pub fn descriptors(&self, into: &mut Vec<Pollable>) {
        self.connector.descriptors(into);
    }

    /// When [`Messenger::progress`] must be called even if no descriptor is readable.
    pub fn next_timer(&self) -> Option<Instant> {
        self.connector.next_timer()
    }

    /// When [`Messenger::progress`] must be called while a thread waits; see [`Connector::keep_alive`].
    pub fn keep_alive(&self) -> Option<Instant> {
        self.connector.keep_alive()
    }

    /// See [`Connector::sleep`].
    pub fn sleep(&mut self, publications: bool) -> bool {
        self.connector.sleep(publications)
    }

    /// See [`Connector::wake`].
    pub fn wake(&mut self, slept: bool) {
        self.connector.wake(slept);
    }

    /// See [`Connector::is_quiet`].
    pub fn is_quiet(&self) -> bool {
        self.connector.is_quiet()
    }

    /// See [`Connector::counters`].
    pub fn counters(&self) -> Option<Counters> {
        self.connector.counters()
    }

    /// See [`Connector::set_streams`].
    pub fn set_streams(&mut self, streams: u8) {
        self.connector.set_streams(streams);
    }

    /// See [`Connector::retain_memory`].
    pub fn retain_memory(&mut self, memory: *mut u8, bytes: usize) {
        self.connector.retain_memory(memory, bytes);
    }

    /// See [`Connector::release_memory`].
    pub fn release_memory(&mut self, memory: *mut u8, bytes: usize) {
        self.connector.release_memory(memory, bytes);
    }

    /// Messages of this rank that are not completely sent.
    pub fn outgoing(&self) -> usize {
        self.outgoing
    }

    /// Messages that have been sent and are not reported.
    #[cfg(test)]
    pub(crate) fn unreported(&self) -> usize {
        self.peers.iter().map(|(_, peer)| peer.unreported.len()).sum()
    }

    /// Receives for which memory is exposed, and cancelled ones whose messages may still be placed.
    #[cfg(test)]
    pub(crate) fn exposed(&self) -> usize {
        self.receives.ops().filter(|(_, op)| op.exposed.is_some()).count() + self.withdrawn.len()
    }

    /// Describes the state that remains although all operations have completed; `None` if there is none.
    #[cfg(test)]
    pub(crate) fn remaining_state(&self) -> Option<String> {
        let links = || self.peers.iter().filter_map(|(_, peer)| Some(peer.link.as_deref()?.exposures()));
        let left = [
            (self.outgoing, "messages that have not left"),
            (self.receives.len(), "receives"),
            (self.receives.unmatched().count(), "unexpected messages"),
            (self.queued_sends.len(), "messages without a grant"),
            (self.offers.len(), "messages that were offered"),
            (self.placing.len(), "messages that are being placed"),
            (self.peers.iter().map(|(_, peer)| peer.placing).sum(), "placed messages whose memory is in use"),
            (self.unreported(), "messages sent and not reported"),
            (self.exposed(), "exposed receives"),
            (links().map(|(own, _)| own).sum(), "exposed messages"),
            (links().map(|(_, theirs)| theirs).sum(), "keys of the peer's memory"),
            (self.peers.iter().map(|(_, peer)| peer.readings.len()).sum(), "offers"),
            (self.requests.len(), "puts or gets"),
            (self.regions.len(), "regions"),
            (self.bindings.len(), "bound buffers"),
            (self.writes.len(), "slots with writes that wait"),
            (self.unexpected_writes.values().map(Vec::len).sum(), "unexpected writes"),
            (self.shared_waits.len(), "waits for publications"),
        ];
        let left: Vec<String> = left.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        (!left.is_empty()).then(|| left.join(", "))
    }

    /// The name of `rank` in messages to the user.
    pub fn peer_name(&self, rank: Rank) -> String {
        self.connector.peer_name(rank)
    }

    /// Sets the numbers of the ranks in errors, while the context is made out of another one; none for their own.
    pub fn set_names(&mut self, names: Vec<Rank>) {
        self.connector.set_names(names);
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

    /// The error of operations with `rank`, if it is disconnected.
    fn disconnect_error(&self, rank: Rank) -> Option<Error> {
        self.closed.as_ref().or_else(|| self.peers.get(rank)?.disconnected.as_ref()).cloned()
    }

    /// The error of a receive, if all ranks that could serve it are disconnected. An error detected here is preferred to one that
    /// a peer reported, because that peer may have failed only because this rank kept it waiting.
    fn disconnect_error_of(&self, from: &Source) -> Option<Error> {
        let mut told = None;
        let mut seen = None;
        for rank in from.ranks() {
            let error = self.disconnect_error(*rank)?;
            let first = if error.is_reported_by_peer() { &mut told } else { &mut seen };
            first.get_or_insert(error);
        }
        seen.or(told)
    }
}
