//! Descriptions of what operations wait for, and queries to the peers for which they wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::error::Details;
use crate::messaging::endpoint::Endpoint;
use crate::messaging::inbox::{Finish, Incoming};
use crate::messaging::one_sided::OneSided;
use crate::messaging::operation::{Replies, Source, Token};
use crate::messaging::peer::{Peer, Query, Reply};
use crate::messaging::rendezvous::Rendezvous;
use crate::types::{Rank, Slot, Space};

/// A peer that has not replied for this long is described as not answering.
const SILENCE_TIME: Duration = Duration::from_millis(300);

/// The largest number of waits that a description names.
const MAX_SHOWN_WAITS: usize = 3;

/// The largest number of peers that are queried at once. It is larger than what a description names, because those that
/// do not reply are named first.
const MAX_QUERIED_PEERS: usize = 64;

/// What an operation waits for from one peer, in the order of the description.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    Receive,
    Publication,
    Grant,
    Send,
    Bind,
    Answer,
    Write,
}

/// What a peer does while others wait for it. The first of these is the most likely cause of a timeout.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PeerState {
    /// The peer was queried and has not replied.
    Silent,
    /// The peer does not wait for other ranks, or was not queried.
    NotWaiting,
    /// The peer waits for other ranks.
    Waiting,
}

#[derive(Default)]
struct Sum {
    operations: usize,
    done: usize,
    bytes: usize,
    slot: Option<(Space, Slot)>,
}

/// A message or grant of a collective that matches no operation of this rank.
#[derive(Clone, Copy, Debug)]
pub struct Unmatched {
    /// The sender.
    pub from: Rank,
    /// The [kind](crate::wire::fingerprint::kind) of collective.
    pub kind: u8,
    /// Fingerprint and length of the message; `None` for a grant, whose sender waits to receive.
    pub message: Option<(u64, u64)>,
}

/// The waits for what peers do in shared memory: the operation, the peer, and the bytes that it publishes.
pub type Publications = Vec<(Token, Rank, usize)>;

/// A view of all that operations can wait for.
#[derive(Clone, Copy)]
pub struct Diagnosis<'a> {
    pub(super) ep: &'a Endpoint,
    pub(super) rendezvous: &'a Rendezvous,
    pub(super) one_sided: &'a OneSided,
    pub(super) publications: &'a Publications,
    /// Peers to which the last query was sent.
    pub(super) queried: &'a [Rank],
}

impl<'a> Diagnosis<'a> {
    /// Calls `add` with what each operation with a token for which `of` holds waits for: from which peer, the bytes
    /// done and total, and the slot. Excludes receives from any of several ranks.
    fn each(&self, of: impl Fn(Token) -> bool, mut add: impl FnMut(Wait, Rank, (usize, usize), Option<(Space, Slot)>)) {
        for (index, op) in self.ep.receives.ops().filter(|(_, op)| of(op.recv.token) && !op.cancelled) {
            if let (Some(rank), _) | (None, &Source::Rank(rank)) = (op.matched, &op.recv.from) {
                let incoming = self.ep.peers.get(rank).into_iter().flat_map(Peer::arriving);
                let mut into_it = incoming.filter(|incoming| incoming.finish == Finish::Recv(index));
                let done = into_it.next().map_or(0, |incoming| incoming.done);
                add(Wait::Receive, rank, (done, op.recv.bytes), Some((op.recv.space, op.recv.slot)));
            }
        }
        for (_, rank, bytes) in self.publications.iter().filter(|(token, ..)| of(*token)) {
            add(Wait::Publication, *rank, (0, *bytes), None);
        }
        let large = self.rendezvous.queued().chain(self.rendezvous.offers.sends());
        for send in large.filter(|send| of(send.token)) {
            add(Wait::Grant, send.to, (0, send.bytes), Some((send.space, send.slot)));
        }
        for send in self.rendezvous.accesses.sends().filter(|send| of(send.token)) {
            add(Wait::Send, send.to, (0, send.bytes), None);
        }
        for (rank, peer) in self.ep.peers.iter() {
            for (_, done, bytes) in peer.queue.sending().filter(|(token, ..)| of(*token)) {
                add(Wait::Send, rank, (done, bytes), None);
            }
        }
        for (key, write) in self.one_sided.waiting_writes().filter(|(_, write)| of(write.token)) {
            add(Wait::Bind, key.rank(), (0, write.bytes), Some((key.space(), key.slot())));
        }
        for request in self.one_sided.requests().filter(|request| of(request.token)) {
            add(Wait::Answer, request.rank, (0, request.bytes), None);
        }
        for (key, binding) in self.one_sided.bindings().filter(|(_, binding)| of(binding.token)) {
            add(Wait::Write, key.rank(), (0, binding.region.bytes), Some((key.space(), key.slot())));
        }
    }

    /// What the operations with tokens for which `of` holds wait for, by peer.
    fn awaited(&self, of: impl Fn(Token) -> bool) -> BTreeMap<(Wait, Rank), Sum> {
        let mut sums: BTreeMap<(Wait, Rank), Sum> = BTreeMap::new();
        self.each(of, |wait, rank, (done, bytes), slot| {
            let sum = sums.entry((wait, rank)).or_default();
            sum.operations += 1;
            sum.done += done;
            sum.bytes += bytes;
            sum.slot = sum.slot.or(slot);
        });
        sums
    }

    /// Whether anything here waits for messages of `rank`: to receive, to send, or for an answer.
    pub(super) fn depends_on(&self, rank: Rank) -> bool {
        let Some(peer) = self.ep.peers.get(rank) else { return false };
        let arrives =
            |incoming: &Incoming| !matches!(incoming.finish, Finish::Nothing | Finish::UnexpectedWrite { .. });
        let mut depends = peer.has_output() || peer.accesses > 0 || peer.incoming.as_ref().is_some_and(arrives);
        self.each(|_| true, |wait, other, _, _| depends |= other == rank && wait != Wait::Publication);
        depends || self.ep.receives.ops().any(|(_, op)| op.servers().contains(&rank))
    }

    /// Describes what the operations of `owner` wait for at `now`: ranks, addresses, bytes done and total.
    pub fn describe(&self, owner: u32, now: Instant) -> String {
        let mut parts = Vec::new();
        for (_, op) in self.ep.receives.ops().filter(|(_, op)| op.recv.token.owner == owner && !op.cancelled) {
            if let (None, Source::AnyOf(ranks)) = (op.matched, &op.recv.from) {
                let (bytes, slot) = (op.recv.bytes, op.recv.space.describe(op.recv.slot));
                let errors =
                    ranks.iter().filter_map(|rank| self.ep.disconnect_error(*rank)).map(|error| format!("; {error}"));
                let errors: String = errors.take(MAX_SHOWN_WAITS).collect();
                parts.push(format!("to receive up to {bytes} bytes from any of ranks {ranks:?} {slot}{errors}"));
            }
        }
        let mut awaited: Vec<_> = self.awaited(|token| token.owner == owner).into_iter().collect();
        // Peers that wait themselves come last, since they are hardly the cause and only so many are shown.
        awaited.sort_by_key(|((_, rank), _)| self.peer_state(*rank));
        parts.extend(awaited.iter().map(|((wait, rank), Sum { operations, done, bytes, slot })| {
            let who = format!("{} ({})", self.ep.peer_name(*rank), self.link_state(*rank, now));
            let slot = slot.map_or(String::new(), |(space, slot)| format!(" {}", space.describe(slot)));
            let slot = if *operations > 1 { format!("{slot} and {} more messages", operations - 1) } else { slot };
            match wait {
                Wait::Receive => format!("to receive {done} of {bytes} bytes from {who}{slot}"),
                Wait::Publication => format!("for {who} to publish or read {bytes} bytes in shared memory"),
                Wait::Grant => format!("for {who} to receive: 0 of {bytes} bytes sent{slot}"),
                Wait::Send => format!("to send {done} of {bytes} bytes to {who}"),
                Wait::Write => format!("for {who} to write into a buffer of {bytes} bytes{slot}"),
                Wait::Bind => format!("for {who} to bind a buffer: 0 of {bytes} bytes written{slot}"),
                Wait::Answer => format!("for {who} to answer a put or get of {bytes} bytes"),
            }
        }));
        let more = parts.len().saturating_sub(MAX_SHOWN_WAITS);
        parts.truncate(MAX_SHOWN_WAITS);
        let mut text = parts.join(", and ");
        if more > 0 {
            text.push_str(&format!(", and {more} more"));
        }
        text
    }

    /// What `rank` has replied to a query, if it was queried.
    fn peer_state(&self, rank: Rank) -> PeerState {
        match self.ep.peers.get(rank).and_then(|peer| peer.query.as_ref()).map(|query| &query.reply) {
            Some(None) => PeerState::Silent,
            Some(Some(Reply { waiting: true, .. })) => PeerState::Waiting,
            Some(Some(_)) | None => PeerState::NotWaiting,
        }
    }

    /// The most likely cause of a timeout of the operations with tokens for which `of` holds: the rank, and the bytes
    /// done and total of what they wait for from it.
    pub fn blame(&self, of: impl Fn(Token) -> bool) -> Details {
        let awaited = self.awaited(&of).into_iter().filter(|((_, rank), _)| *rank != self.ep.rank);
        if let Some(((_, rank), sum)) = awaited.min_by_key(|((_, rank), _)| self.peer_state(*rank)) {
            return Details { rank: Some(rank), bytes: (sum.done, sum.bytes), ..Details::default() };
        }
        let from_any = self.ep.receives.ops().find(|(_, op)| of(op.recv.token) && !op.cancelled);
        Details { bytes: (0, from_any.map_or(0, |(_, op)| op.recv.bytes)), ..Details::default() }
    }

    /// Whether an operation of `owner` waits for another rank.
    pub fn waits(&self, owner: u32) -> bool {
        self.awaited(|token| token.owner == owner).keys().any(|(_, rank)| *rank != self.ep.rank)
    }

    /// Whether an operation of `owner` waits for `rank`.
    pub fn waits_for(&self, owner: u32, rank: Rank) -> bool {
        self.awaited(|token| token.owner == owner).keys().any(|(_, other)| *other == rank)
    }

    /// Messages and grants of collectives with `tag` that match no operation of this rank.
    pub fn unmatched(self, tag: Slot) -> impl Iterator<Item = Unmatched> + 'a {
        let messages = self.ep.receives.unmatched();
        let messages = messages.map(|(from, e)| (from, e.space, e.slot, Some((e.fingerprint, e.bytes))));
        let grants = self.rendezvous.unused_grants().map(|key| (key.rank(), key.space(), key.slot(), None));
        let here = messages.chain(grants).filter(move |(_, space, slot, _)| !space.is_user() && *slot == tag);
        here.map(|(from, space, _, message)| Unmatched { from, kind: space.kind(), message })
    }

    /// The state of the link to `rank`, and why it is not established, if so.
    pub fn link_state(&self, rank: Rank, now: Instant) -> String {
        let Some(peer) = self.ep.peers.get(rank).filter(|peer| peer.is_established()) else {
            return self.ep.connections.why_not_connected(rank);
        };
        match &peer.query {
            Some(Query { reply: Some(Reply { text, .. }), .. }) => format!("connected; {text}"),
            Some(Query { since, .. }) if now.duration_since(*since) > SILENCE_TIME => format!(
                "connected, but it has not answered for {:.1} s: its process is stopped or hangs, or the network is cut",
                now.duration_since(*since).as_secs_f64()
            ),
            _ => "connected".to_owned(),
        }
    }

    /// What `rank` has replied to the last query in [`Message::Reply`](crate::wire::Message::Reply)'s `instead`.
    pub fn reply_of(&self, rank: Rank) -> Option<u64> {
        Some(self.ep.peers.get(rank)?.query.as_ref()?.reply.as_ref()?.instead)
    }

    /// The peers for which the operations of `owner` wait and that are to be queried, those without a connection first:
    /// nobody needs to reply for them. And how many of them are not connected.
    pub(super) fn peers_to_query(&self, owner: u32) -> (Vec<Rank>, usize) {
        let mut ranks: Vec<Rank> =
            self.awaited(|token| token.owner == owner).into_keys().map(|(_, rank)| rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks.retain(|rank| *rank != self.ep.rank);
        let is_connected = |rank: &Rank| self.ep.peers.get(*rank).is_some_and(Peer::is_established);
        ranks.sort_by_key(is_connected);
        ranks.truncate(MAX_QUERIED_PEERS);
        let unconnected = ranks.partition_point(|rank| !is_connected(rank));
        (ranks, unconnected)
    }

    /// The replies to the last query, of the peers for which the operations of `owner` still wait: whoever has got what
    /// it waited for does not need the others' replies, which may never come.
    pub fn replies(&self, owner: u32) -> Replies {
        let awaited: Vec<Rank> = self.awaited(|token| token.owner == owner).into_keys().map(|(_, rank)| rank).collect();
        let (mut waiting, mut other) = (false, false);
        for rank in self.queried.iter().filter(|rank| awaited.contains(rank)) {
            let Some(peer) = self.ep.peers.get(*rank).filter(|peer| peer.is_established()) else {
                // Nobody knows that this peer waits for others: it may be the cause.
                other = true;
                continue;
            };
            match peer.query.as_ref().and_then(|query| query.reply.as_ref()) {
                // A peer without a reply may be the rank that hangs, even if others are late too.
                None => return Replies::Missing,
                Some(Reply { waiting: true, .. }) => waiting = true,
                Some(_) => other = true,
            }
        }
        if waiting && !other { Replies::AllWaiting } else { Replies::Cause }
    }

    /// The peers for which the operations of `owner` still wait, and that have replied that they are in another call in
    /// its place; and the fingerprint of that.
    pub fn elsewhere(self, owner: u32) -> impl Iterator<Item = (Rank, u64)> + 'a {
        let instead = move |rank: &Rank| {
            let reply = self.ep.peers.get(*rank)?.query.as_ref()?.reply.as_ref()?;
            (reply.instead != 0 && self.waits_for(owner, *rank)).then_some((*rank, reply.instead))
        };
        self.queried.iter().filter_map(instead)
    }
}
