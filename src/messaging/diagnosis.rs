//! Descriptions of what operations wait for, and queries to the peers for which they wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Messenger;
use super::closing::clip;
use super::inbox::Finish;
use super::operation::{Replies, Source, Token};
use super::peer::{Peer, Query, Reply};
use crate::error::Details;
use crate::types::{Rank, Slot, Space};
use crate::wire::Message;

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
    /// It was queried and has not replied.
    Silent,
    /// It does not wait for other ranks, or was not queried.
    NotWaiting,
    /// It waits for other ranks.
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

/// A peer that has not replied for this long is described as not answering.
const SILENCE: Duration = Duration::from_millis(300);

/// Most peers that a description names.
const SHOWN: usize = 3;

/// Most peers that are queried at once. More than a description names, because those that do not reply are named first.
const QUERIED: usize = 64;

impl Messenger {
    /// What the operations with tokens for which `its` holds wait for, by peer. Excludes receives from any of several ranks.
    fn awaited(&self, its: impl Fn(Token) -> bool) -> BTreeMap<(Wait, Rank), Sum> {
        let mut sums: BTreeMap<(Wait, Rank), Sum> = BTreeMap::new();
        let mut add = |wait, rank, done, bytes, slot: Option<(Space, Slot)>| {
            let sum = sums.entry((wait, rank)).or_default();
            sum.operations += 1;
            sum.done += done;
            sum.bytes += bytes;
            sum.slot = sum.slot.or(slot);
        };
        for (index, op) in self.receives.ops().filter(|(_, op)| its(op.recv.token) && !op.cancelled) {
            let (bytes, slot) = (op.recv.bytes, (op.recv.space, op.recv.slot));
            match (op.matched, &op.recv.from) {
                (None, Source::AnyOf(_)) => {}
                (Some(rank), _) | (None, &Source::Rank(rank)) => {
                    let incoming = self.peers.get(rank).into_iter().flat_map(Peer::arriving);
                    let mut into_it = incoming.filter(|incoming| incoming.finish == Finish::Recv(index));
                    let done = into_it.next().map_or(0, |incoming| incoming.done);
                    add(Wait::Receive, rank, done, bytes, Some(slot));
                }
            }
        }
        for (_, rank, bytes) in self.shared_waits.iter().filter(|(token, ..)| its(*token)) {
            add(Wait::Publication, *rank, 0, *bytes, None);
        }
        for (_, queued) in self.queued_sends.iter().filter(|(_, q)| its(q.send.token)) {
            add(Wait::Grant, queued.send.to, 0, queued.send.bytes, Some((queued.send.space, queued.send.slot)));
        }
        for send in self.offers.values().filter(|send| its(send.token)) {
            add(Wait::Grant, send.to, 0, send.bytes, Some((send.space, send.slot)));
        }
        for (_, placing) in self.placing.iter().filter(|(_, placing)| its(placing.send.token)) {
            add(Wait::Send, placing.send.to, 0, placing.send.bytes, None);
        }
        for (rank, peer) in self.peers.iter() {
            for (done, bytes) in peer.sending(&its) {
                add(Wait::Send, rank, done, bytes, None);
            }
        }
        for (key, write) in self.writes.iter().flat_map(|(key, all)| all.iter().map(move |write| (key, write))) {
            if its(write.token) {
                add(Wait::Bind, key.rank(), 0, write.bytes, Some((key.space(), key.slot())));
            }
        }
        for (_, request) in self.requests.iter().filter(|(_, r)| its(r.token)) {
            add(Wait::Answer, request.rank, 0, request.bytes, None);
        }
        for (key, binding) in self.bindings.iter().filter(|(_, binding)| its(binding.token)) {
            add(Wait::Write, key.rank(), 0, binding.region.bytes(), Some((key.space(), key.slot())));
        }
        sums
    }

    /// Describes what the operations of `owner` wait for at `now`: ranks, addresses, bytes done and total.
    pub fn describe(&self, owner: u32, now: Instant) -> String {
        let mut parts = Vec::new();
        for (_, op) in self.receives.ops().filter(|(_, op)| op.recv.token.owner == owner && !op.cancelled) {
            if let (None, Source::AnyOf(ranks)) = (op.matched, &op.recv.from) {
                let (bytes, slot) = (op.recv.bytes, op.recv.space.describe(op.recv.slot));
                let errors =
                    ranks.iter().filter_map(|rank| self.disconnect_error(*rank)).map(|error| format!("; {error}"));
                let errors: String = errors.take(SHOWN).collect();
                parts.push(format!("to receive up to {bytes} bytes from any of ranks {ranks:?} {slot}{errors}"));
            }
        }
        let mut awaited: Vec<_> = self.awaited(|token| token.owner == owner).into_iter().collect();
        // Those that wait themselves last, since they are hardly the cause and only so many are shown.
        awaited.sort_by_key(|((_, rank), _)| self.peer_state(*rank));
        parts.extend(awaited.iter().map(|((wait, rank), Sum { operations, done, bytes, slot })| {
            let who = format!("{} ({})", self.peer_name(*rank), self.link_state(*rank, now));
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
        let more = parts.len().saturating_sub(SHOWN);
        parts.truncate(SHOWN);
        let mut text = parts.join(", and ");
        if more > 0 {
            text.push_str(&format!(", and {more} more"));
        }
        text
    }

    /// What `rank` has replied to a query, if it was queried.
    fn peer_state(&self, rank: Rank) -> PeerState {
        match self.peers.get(rank).and_then(|peer| peer.query.as_ref()).map(|query| &query.reply) {
            Some(None) => PeerState::Silent,
            Some(Some(Reply { waiting: true, .. })) => PeerState::Waiting,
            Some(Some(_)) | None => PeerState::NotWaiting,
        }
    }

    /// The most likely cause of a timeout of the operations with tokens for which `its` holds: the rank, and the bytes done and
    /// total of what they wait for from it.
    pub fn blame(&self, its: impl Fn(Token) -> bool) -> Details {
        let awaited = self.awaited(&its).into_iter().filter(|((_, rank), _)| *rank != self.rank);
        if let Some(((_, rank), sum)) = awaited.min_by_key(|((_, rank), _)| self.peer_state(*rank)) {
            return Details { rank: Some(rank), bytes: (sum.done, sum.bytes), ..Details::default() };
        }
        let from_any = self.receives.ops().find(|(_, op)| its(op.recv.token) && !op.cancelled);
        Details { bytes: (0, from_any.map_or(0, |(_, op)| op.recv.bytes)), ..Details::default() }
    }

    /// Whether an operation of `owner` waits for another rank.
    pub fn waits(&self, owner: u32) -> bool {
        self.awaited(|token| token.owner == owner).keys().any(|(_, rank)| *rank != self.rank)
    }

    /// Whether an operation of `owner` waits for `rank`.
    pub fn waits_for(&self, owner: u32, rank: Rank) -> bool {
        self.awaited(|token| token.owner == owner).keys().any(|(_, other)| *other == rank)
    }

    /// Messages and grants of collectives with `tag` that match no operation of this rank.
    pub fn unmatched(&self, tag: Slot) -> impl Iterator<Item = Unmatched> {
        let messages = self.receives.unmatched();
        let messages = messages.map(|(from, e)| (from, e.space, e.slot, Some((e.fingerprint, e.bytes))));
        let grants = self.grants.keys().map(|key| (key.rank(), key.space(), key.slot(), None));
        let here = messages.chain(grants).filter(move |(_, space, slot, _)| !space.is_user() && *slot == tag);
        here.map(|(from, space, _, message)| Unmatched { from, kind: space.kind(), message })
    }

    /// The state of the link to `rank`, and why it is not established, if so.
    pub fn link_state(&self, rank: Rank, now: Instant) -> String {
        let Some(peer) = self.peers.get(rank).filter(|peer| peer.is_established()) else {
            return self.connector.why_not_connected(rank);
        };
        match &peer.query {
            Some(Query { reply: Some(Reply { text, .. }), .. }) => format!("connected; {text}"),
            Some(Query { since, .. }) if now.duration_since(*since) > SILENCE => format!(
                "connected, but it has not answered for {:.1} s: its process is stopped or hangs, or the network is cut",
                now.duration_since(*since).as_secs_f64()
            ),
            _ => "connected".to_owned(),
        }
    }

    /// Queries the connected peers for which the operations of `owner` wait, the call with this tag and fingerprint. Returns whether there
    /// are any. `describe` includes their replies.
    pub fn query(&mut self, owner: u32, (slot, fingerprint): (Slot, u64), now: Instant) -> bool {
        let mut ranks: Vec<Rank> =
            self.awaited(|token| token.owner == owner).into_keys().map(|(_, rank)| rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks.retain(|rank| *rank != self.rank);
        let is_connected = |rank: &Rank| self.peers.get(*rank).is_some_and(Peer::is_established);
        // Those without a connection first: nobody needs to reply for them.
        ranks.sort_by_key(is_connected);
        ranks.truncate(QUERIED);
        let connected: Vec<Rank> = ranks.iter().copied().filter(is_connected).collect();
        for rank in &connected {
            let peer = self.peer(*rank);
            peer.query = Some(Query { since: now, reply: None });
            peer.push_control(&Message::Query { slot, fingerprint });
            self.mark_dirty(*rank);
        }
        self.queried = ranks;
        !connected.is_empty()
    }

    /// The replies to the last query, of the peers for which the operations of `owner` still wait: whoever has got what it waited for does
    /// not need the others' replies, which may never come.
    pub fn replies(&self, owner: u32) -> Replies {
        let awaited: Vec<Rank> = self.awaited(|token| token.owner == owner).into_keys().map(|(_, rank)| rank).collect();
        let (mut waiting, mut other) = (false, false);
        for rank in self.queried.iter().filter(|rank| awaited.contains(rank)) {
            let Some(peer) = self.peers.get(*rank).filter(|peer| peer.is_established()) else {
                // It does not wait for others, as far as anybody knows: it may be the cause.
                other = true;
                continue;
            };
            match peer.query.as_ref().and_then(|query| query.reply.as_ref()) {
                // It may be the rank that hangs, even if others are late too.
                None => return Replies::Missing,
                Some(Reply { waiting: true, .. }) => waiting = true,
                Some(_) => other = true,
            }
        }
        if waiting && !other { Replies::AllWaiting } else { Replies::Cause }
    }

    /// The peers for which the operations of `owner` still wait, and that have replied that they are in another call in its place; and
    /// the fingerprint of that.
    pub fn elsewhere(&self, owner: u32) -> impl Iterator<Item = (Rank, u64)> {
        let instead = move |rank: &Rank| {
            let reply = self.peers.get(*rank)?.query.as_ref()?.reply.as_ref()?;
            (reply.instead != 0 && self.waits_for(owner, *rank)).then_some((*rank, reply.instead))
        };
        self.queried.iter().filter_map(instead)
    }

    /// Replies to a query of `rank`. `waiting`: a collective here waits for other ranks. `instead`: see [`Message::Reply`].
    pub fn reply(&mut self, rank: Rank, text: &str, waiting: bool, instead: u64) {
        let owned = clip(text).to_vec();
        let message = Message::Reply { waiting, instead, bytes: owned.len() as u64 };
        let Some(peer) = self.peers.get_mut(rank).filter(|p| p.is_established()) else { return };
        self.outgoing += 1;
        peer.push_owned(&message, owned);
        self.mark_dirty(rank);
    }
}
