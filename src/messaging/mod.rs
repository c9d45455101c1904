//! The message protocol of one context, the same over any kind of link: matching, unexpected messages, announcements
//! and grants, one-sided operations, diagnostic queries, abort and goodbye, and a router with a link for each peer.
//!
//! The messenger has no sockets, clock or threads: links and connectors move the bytes, and callers pass the time.
//! Operations are posted, and [`Messenger::progress`] progresses them. Every operation ends with exactly one [`Event`],
//! unless it is cancelled with [`Messenger::cancel`].

mod accesses;
mod diagnosis;
mod endpoint;
mod inbox;
mod limits;
pub mod matching;
#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod memory_tests;
mod one_sided;
mod operation;
mod peer;
pub mod queues;
mod ranks;
mod receive;
mod rendezvous;
mod router;
mod send_queue;
#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests;

pub use diagnosis::{Diagnosis, Unmatched};
pub use endpoint::EVENTS;
pub use operation::{Event, Outcome, Recv, ReduceInto, Remote, Replies, Send, Source, Token};
pub use peer::Traffic;

use std::time::Instant;

use crate::error::Result;
use crate::log::LogCallback;
use crate::reserve::{SMALL_BYTES, check_room};
use crate::transport::{Connections, ConnectorEvent};
use crate::types::{Rank, Slot, Space};
use crate::wire::Message;
use diagnosis::Publications;
use endpoint::Endpoint;
use inbox::{Finish, Target};
use limits::Limits;
use matching::{Arrival, Posting};
use one_sided::{OneSided, Region, region_owner};
use peer::{Peer, Query};
use queues::Key;
use rendezvous::Rendezvous;
use router::clip;
use send_queue::Sent;

/// Size of the staging buffer for received bytes: small enough to stay in cache until they are reduced.
pub(crate) const STAGING_BYTES: usize = 128 << 10;
/// Receives from one link before other links are read.
pub(crate) const READS_PER_TURN: usize = 4;
/// A context with at most this many links tries all of them, without asking the connector which are ready.
const DIRECT_LINKS: usize = 4;

/// The operations, messages and links of one context.
pub struct Messenger {
    ep: Endpoint,
    limits: Limits,
    rendezvous: Rendezvous,
    one_sided: OneSided,
    publications: Publications,
    /// Peers to which the last query was sent.
    queried: Vec<Rank>,
    staging: Box<[u8]>,
    sent: Vec<Sent>,
    connector_events: Vec<ConnectorEvent>,
}

// SAFETY: the posters keep the memory behind all pointers valid until the event or the cancellation, on whichever
// thread the messenger is progressed.
unsafe impl std::marker::Send for Messenger {}

impl Messenger {
    /// A messenger for `rank` of `size`, which `connections` connect.
    pub fn new(rank: Rank, size: usize, connections: Connections, log: Option<LogCallback>) -> Self {
        Self {
            ep: Endpoint::new(rank, size, connections, log),
            limits: Limits::default(),
            rendezvous: Rendezvous::default(),
            one_sided: OneSided::default(),
            publications: Vec::with_capacity(EVENTS),
            queried: Vec::new(),
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            sent: Vec::with_capacity(EVENTS),
            connector_events: Vec::with_capacity(EVENTS),
        }
    }

    /// Posts a send.
    ///
    /// # Safety
    /// `send.from` is valid for `send.bytes` until the event or the cancellation.
    #[inline]
    pub unsafe fn send(&mut self, send: Send) {
        if send.to == self.ep.rank && self.ep.closed.is_none() {
            return self.send_to_self(&send);
        }
        if let Some(error) = self.ep.disconnect_error(send.to) {
            return self.ep.event(send.token, Outcome::Failed(error));
        }
        if self.rendezvous.is_idle()
            && let Some(peer) = self.ep.peers.get_mut(send.to)
            && send.bytes <= peer.eager_bytes()
            && peer.is_idle()
        {
            // The message is sent at once, before the rest of the call is posted.
            self.ep.outgoing += 1;
            peer.queue.push(&send.message(false, 0), send.from, Some(send.token), true);
            self.flush_to(send.to);
            return;
        }
        self.ep.connect(send.to);
        self.rendezvous.send(send, &mut self.ep);
    }

    fn send_to_self(&mut self, send: &Send) {
        let (ep, envelope) = (&mut self.ep, send.envelope());
        // SAFETY: the poster keeps the memory valid until the event, which is pushed below.
        let bytes = unsafe { send.payload() };
        if bytes.len() > SMALL_BYTES
            && let Err(error) = check_room(bytes.len(), "a message of this rank to itself")
        {
            return ep.event(send.token, Outcome::Failed(error));
        }
        match ep.receives.arrive(send.to, &envelope, false) {
            Arrival::Unexpected(message) => ep.append(message, bytes),
            Arrival::Op(index) => {
                if let Some(op) = ep.receives.finish(index) {
                    ep.deliver(&op, send.to, &envelope, bytes);
                }
            }
            Arrival::Discard(_) => {}
        }
        ep.event(send.token, Outcome::Done { rank: send.to, bytes: send.bytes });
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// `recv.into` is valid for writes of `recv.bytes`, and the operand of `recv.reduce` for reads of as many, until
    /// the event or the cancellation. Nothing else accesses `into` meanwhile.
    pub unsafe fn recv(&mut self, recv: Recv) {
        let Self { ep, rendezvous, .. } = self;
        if let Some(error) = ep.closed.clone() {
            return ep.event(recv.token, Outcome::Failed(error));
        }
        let (token, from) = (recv.token, recv.from.clone());
        let grants_above = rendezvous.grants_above(&recv, ep);
        match ep.receives.post(recv, grants_above) {
            Posting::Message { op, from, envelope, data } => {
                ep.deliver(&op, from, &envelope, &data);
                ep.receives.recycle(data);
            }
            Posting::Granted { op, to, envelope, announcement } => {
                if let Some(peer) = ep.peers.get_mut(to) {
                    rendezvous.exposures.answer(to, peer, ep.receives.op_mut(op), &envelope, announcement);
                    ep.mark_dirty(to);
                }
            }
            Posting::Offered { op, from, envelope, key } => {
                rendezvous.offers.read_later(from, op, &envelope, key, ep);
            }
            Posting::Waits { op, grant } => {
                if let Some(error) = ep.disconnect_error_of(&from) {
                    ep.receives.withdraw(op);
                    return ep.event(token, Outcome::Failed(error));
                }
                for rank in from.ranks() {
                    ep.connect(*rank);
                }
                if let Some(rank) = grant {
                    rendezvous.grant(rank, op, ep);
                }
            }
        }
    }

    /// Writes `bytes` from `from` to the remote range; completes when they are there.
    ///
    /// # Safety
    /// `from` is valid for `bytes` until the event or the cancellation.
    pub unsafe fn put(&mut self, remote: Remote, from: *const u8, bytes: usize, token: Token) {
        let by = (&mut self.ep, &mut self.rendezvous.accesses);
        // SAFETY: the caller guarantees that the memory is valid.
        unsafe { self.one_sided.request(false, remote, from.cast_mut(), bytes, token, by) };
    }

    /// Reads `bytes` of the remote range to `into`; completes when they are here.
    ///
    /// # Safety
    /// `into` is valid for writes of `bytes` until the event or the cancellation, and nothing else accesses it
    /// meanwhile.
    pub unsafe fn get(&mut self, remote: Remote, into: *mut u8, bytes: usize, token: Token) {
        let by = (&mut self.ep, &mut self.rendezvous.accesses);
        // SAFETY: the caller guarantees that the memory is valid.
        unsafe { self.one_sided.request(true, remote, into, bytes, token, by) };
    }

    /// Lets peers `put` to and `get` from this memory under the returned key, until `unregister`.
    ///
    /// # Safety
    /// `memory` is valid for reads and writes of `bytes` until `unregister`.
    pub unsafe fn register(&mut self, memory: *mut u8, bytes: usize) -> Result<u32> {
        // SAFETY: the caller guarantees that the memory is valid.
        unsafe { self.one_sided.register(memory, bytes, &mut self.ep) }
    }

    /// Ends the registration of `region`, and cancels accesses in progress.
    pub fn unregister(&mut self, region: u32) {
        if self.one_sided.unregister(region, &mut self.ep) {
            self.cancel(region_owner(region));
        }
    }

    /// Writes at `offset` into the buffer that `to` has bound to `slot`; completes when the bytes are sent.
    ///
    /// # Safety
    /// `from` is valid for `bytes` until the event or the cancellation.
    pub unsafe fn write(&mut self, to: Rank, slot: Slot, offset: u64, from: *const u8, bytes: usize, token: Token) {
        let (key, by) = (Key::new(to, Space::USER, slot), (&mut self.ep, &mut self.rendezvous.accesses));
        // SAFETY: the caller guarantees that the memory is valid.
        unsafe { self.one_sided.write(key, offset, from, bytes, token, by) };
    }

    /// Binds memory to `slot` for writes by `from`; each write causes an `Outcome::Written`. Ends with `cancel`.
    ///
    /// # Safety
    /// `memory` is valid for writes of `bytes` until the cancellation.
    pub unsafe fn bind(&mut self, from: Rank, slot: Slot, memory: *mut u8, bytes: usize, token: Token) -> Result<()> {
        let key = Key::new(from, Space::USER, slot);
        // SAFETY: the caller guarantees that the memory is valid.
        unsafe { self.one_sided.bind(key, Region { memory, bytes }, token, &mut self.ep)? };
        if let Err(error) = self.one_sided.write_early(key, &mut self.ep) {
            // The buffer's owner gets the error when it waits, as with a later write.
            self.fail_connection(from, error);
        }
        Ok(())
    }

    /// Starts a wait for `bytes` bytes that `rank` publishes in shared memory, where the caller looks for them. It ends
    /// by [`Messenger::end_wait_for_publication`] or [`Messenger::cancel`], or fails when the peer is disconnected.
    pub fn wait_for_publication(&mut self, rank: Rank, bytes: usize, token: Token) {
        if let Some(error) = self.ep.disconnect_error(rank) {
            return self.ep.event(token, Outcome::Failed(error));
        }
        self.ep.connect(rank);
        self.publications.push((token, rank, bytes));
    }

    /// Ends the wait for a publication with this token.
    pub fn end_wait_for_publication(&mut self, token: Token) {
        self.publications.retain(|(other, ..)| *other != token);
        self.ep.events.retain(|event| event.token != token);
    }

    /// Whether anything waits for a publication.
    pub fn waits_for_publication(&self) -> bool {
        !self.publications.is_empty()
    }

    /// Cancels all operations of `owner`: no event follows for them, and their memory is not accessed any more.
    pub fn cancel(&mut self, owner: u32) {
        let Self { ep, rendezvous, one_sided, .. } = self;
        let (mut arriving, mut starved) = (Vec::new(), Vec::new());
        rendezvous.exposures.cancel(owner, ep);
        ep.receives.cancel(owner, |op| arriving.push(op));
        one_sided.cancel(owner, ep);
        for (rank, peer) in ep.peers.iter_mut() {
            if let Some(incoming) = &mut peer.incoming {
                let is_cancelled = match incoming.finish {
                    Finish::Recv(op) => arriving.contains(&op),
                    Finish::Written { token, .. } => token.owner == owner,
                    Finish::Answer { request, .. } => one_sided.answers(request, owner),
                    _ => false,
                };
                if is_cancelled {
                    incoming.target = Target::Discard;
                    if !matches!(incoming.finish, Finish::Answer { .. }) {
                        incoming.finish = Finish::Nothing;
                    }
                }
            }
            let (removed, copied) = peer.queue.cancel(owner);
            ep.outgoing -= removed;
            starved.extend(copied.err().map(|error| (rank, error.with_rank(rank))));
        }
        rendezvous.cancel(owner, ep, &mut starved);
        rendezvous.offers.cancel_readings(&arriving, ep);
        self.publications.retain(|(token, ..)| token.owner != owner);
        for (rank, error) in starved {
            // The memory of these operations is valid until this function returns.
            self.disconnect(rank, &error);
        }
        self.ep.events.retain(|event| event.token.owner != owner);
    }

    /// Moves data as far as possible without blocking, at the time `now`, and appends to `events`. Returns whether
    /// anything was moved.
    pub fn progress(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        self.resume();
        while let Some(rank) = self.ep.dirty.pop() {
            moved |= self.flush_to(rank);
        }
        if self.ep.linked.len() <= DIRECT_LINKS && !self.ep.connections.is_busy() {
            for i in (0..self.ep.linked.len()).rev() {
                let Some(rank) = self.ep.linked.get(i).copied() else { continue };
                if self.ep.peers.get(rank).is_some_and(|p| p.has_output()) {
                    moved |= self.flush_to(rank);
                }
                moved |= self.read(rank);
            }
        } else {
            moved |= self.progress_ready(now);
        }
        moved |= self.read_offers();
        if self.rendezvous.accesses.are_open() {
            moved |= self.rendezvous.accesses.finish(&mut self.ep);
        }
        moved |= !self.ep.events.is_empty();
        events.append(&mut self.ep.events);
        moved
    }

    /// Sends what was posted as far as possible without blocking, and appends to `events`.
    pub fn flush(&mut self, events: &mut Vec<Event>) {
        self.resume();
        while let Some(rank) = self.ep.dirty.pop() {
            self.flush_to(rank);
        }
        if self.rendezvous.accesses.are_open() {
            self.rendezvous.accesses.finish(&mut self.ep);
        }
        events.append(&mut self.ep.events);
    }

    /// Whether an offered message can be read further.
    pub fn is_reading(&self) -> bool {
        self.rendezvous.offers.can_read(&self.ep)
    }

    /// What operations wait for, and what peers have replied to queries.
    pub fn diagnosis(&self) -> Diagnosis<'_> {
        let Self { ep, rendezvous, one_sided, publications, queried, .. } = self;
        Diagnosis { ep, rendezvous, one_sided, publications, queried }
    }

    /// Queries the connected peers for which the operations of `owner` wait, the call with this tag and fingerprint.
    /// Returns whether there are any. `describe` includes their replies.
    pub fn query(&mut self, owner: u32, (slot, fingerprint): (Slot, u64), now: Instant) -> bool {
        let (ranks, unconnected) = self.diagnosis().peers_to_query(owner);
        for rank in &ranks[unconnected..] {
            self.query_rank(*rank, (slot, fingerprint), now);
        }
        let any = unconnected < ranks.len();
        self.queried = ranks;
        any
    }

    /// Queries `rank`, which is connected. [`Diagnosis::link_state`] has its reply.
    pub fn query_rank(&mut self, rank: Rank, (slot, fingerprint): (Slot, u64), now: Instant) {
        self.ep.peer(rank).query = Some(Query { since: now, reply: None });
        self.ep.push_control(rank, &Message::Query { slot, fingerprint });
    }

    /// Replies to a query of `rank`. `waiting`: a collective here waits for other ranks. `instead`: see
    /// [`Message::Reply`].
    pub fn reply(&mut self, rank: Rank, text: &str, waiting: bool, instead: u64) {
        if self.ep.peers.get(rank).is_some_and(Peer::is_established) {
            let owned = clip(text).to_vec();
            let message = Message::Reply { waiting, instead, bytes: owned.len() as u64 };
            self.ep.push_owned(rank, &message, owned);
        }
    }

    /// Messages of this rank that are not completely sent.
    pub fn outgoing(&self) -> usize {
        self.ep.outgoing + self.rendezvous.outgoing() + self.one_sided.waiting_writes().count()
    }

    /// Replaces the limits on unexpected messages: from how many bytes on a link is paused, and the largest number.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn set_limits(&mut self, pause_bytes: usize, max_bytes: usize) {
        self.limits.set(pause_bytes, max_bytes);
    }

    /// Bytes of unexpected messages queued from `rank`.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn queued_bytes(&self, rank: Rank) -> usize {
        self.ep.receives.queued_bytes(rank)
    }

    /// Messages that have been sent and are not reported.
    #[cfg(test)]
    pub(crate) fn unreported(&self) -> usize {
        self.ep.peers.iter().map(|(_, peer)| peer.queue.unreported.len()).sum()
    }

    /// Receives for which memory is exposed, and cancelled ones whose messages may still be placed.
    #[cfg(test)]
    pub(crate) fn exposed(&self) -> usize {
        self.ep.receives.ops().filter(|(_, op)| op.exposed.is_some()).count()
            + self.rendezvous.exposures.withdrawn.len()
    }

    /// Describes the state that remains although all operations have completed; `None` if there is none.
    #[cfg(test)]
    pub(crate) fn remaining_state(&self) -> Option<String> {
        let peers = || self.ep.peers.iter().map(|(_, peer)| peer);
        let exposures = || peers().filter_map(|peer| Some(peer.link.as_deref()?.exposures()));
        let own = [
            (self.outgoing(), "messages that have not left"),
            (self.ep.receives.len(), "receives"),
            (self.ep.receives.unmatched().count(), "unexpected messages"),
            (self.rendezvous.queued().count(), "messages without a grant"),
            (self.rendezvous.offers.sends().count(), "messages that were offered"),
            (self.rendezvous.accesses.len(), "messages that are being placed"),
            (peers().map(|peer| peer.accesses).sum(), "placed messages whose memory is in use"),
            (self.unreported(), "messages sent and not reported"),
            (self.exposed(), "exposed receives"),
            (exposures().map(|(own, _)| own).sum(), "exposed messages"),
            (exposures().map(|(_, theirs)| theirs).sum(), "keys of the peer's memory"),
            (peers().map(|peer| peer.readings.len()).sum(), "offers"),
            (self.publications.len(), "waits for publications"),
        ];
        let left = own.into_iter().chain(self.one_sided.remaining()).filter(|(n, _)| *n > 0);
        let left: Vec<String> = left.map(|(n, what)| format!("{n} {what}")).collect();
        (!left.is_empty()).then(|| left.join(", "))
    }
}
