//! What operations wait for, in words.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Endpoint;
use crate::transport::Source;
use crate::transport::frame::Header;
use crate::transport::tcp::connection::{Finish, Peer, State};
use crate::types::{Rank, Slot};

/// What is waited for from one peer; the order is that of the text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wait {
    Receive,
    Clearance,
    Send,
    Answer,
}

#[derive(Default)]
pub(super) struct Sum {
    operations: usize,
    done: usize,
    bytes: usize,
    slot: Option<Slot>,
}

/// How long a peer may take to answer before that is worth a word.
const SILENCE: Duration = Duration::from_millis(300);

/// Peers that a text names.
const SHOWN: usize = 3;

impl Endpoint {
    /// What the operations of `owner` wait for, peer by peer; but for receives from any of several.
    pub(super) fn waits(&self, owner: u32) -> BTreeMap<(Wait, Rank), Sum> {
        let mut sums: BTreeMap<(Wait, Rank), Sum> = BTreeMap::new();
        let mut add = |wait, rank, done, bytes, slot: Option<Slot>| {
            let sum = sums.entry((wait, rank)).or_default();
            sum.operations += 1;
            sum.done += done;
            sum.bytes += bytes;
            sum.slot = sum.slot.or(slot);
        };
        for (index, op) in self.receives.ops().filter(|(_, op)| op.recv.token.owner == owner && !op.cancelled) {
            let (bytes, slot) = (op.recv.bytes, op.recv.slot);
            match (op.matched, &op.recv.from) {
                (None, Source::AnyOf(_)) => {}
                (Some(rank), _) | (None, &Source::Rank(rank)) => {
                    let incoming = self.peers.get(rank).and_then(|p| p.incoming.as_ref());
                    let done = incoming.filter(|i| i.finish == Finish::Recv(index)).map_or(0, |i| i.done);
                    add(Wait::Receive, rank, done, bytes, Some(slot));
                }
            }
        }
        for (_, held) in self.held_sends.iter().filter(|(_, h)| h.send.token.owner == owner) {
            add(Wait::Clearance, held.send.to, 0, held.send.bytes, Some(held.send.slot));
        }
        for (rank, peer) in self.peers.iter() {
            for out in peer.data.iter().filter(|o| o.token.is_some_and(|t| t.owner == owner)) {
                add(Wait::Send, rank, out.sent.saturating_sub(Header::BYTES), out.bytes, None);
            }
        }
        for (_, request) in self.requests.iter().filter(|(_, r)| r.token.owner == owner) {
            add(Wait::Answer, request.rank, 0, request.bytes, None);
        }
        sums
    }

    /// The same in words.
    pub(super) fn describe_waits(&self, owner: u32) -> String {
        let mut parts = Vec::new();
        for (_, op) in self.receives.ops().filter(|(_, op)| op.recv.token.owner == owner && !op.cancelled) {
            if let (None, Source::AnyOf(ranks)) = (op.matched, &op.recv.from) {
                let (bytes, slot) = (op.recv.bytes, op.recv.slot);
                parts.push(format!("to receive up to {bytes} bytes from any of ranks {ranks:?} in slot {slot:#x}"));
            }
        }
        parts.extend(self.waits(owner).iter().map(|((wait, rank), Sum { operations, done, bytes, slot })| {
            let who = format!("{} ({})", self.name(*rank), self.link(*rank));
            let slot = slot.map_or(String::new(), |slot| format!(" in slot {slot:#x}"));
            let slot = if *operations > 1 { format!("{slot} and {} more messages", operations - 1) } else { slot };
            match wait {
                Wait::Receive => format!("to receive {done} of {bytes} bytes from {who}{slot}"),
                Wait::Clearance => format!("for {who} to receive: 0 of {bytes} bytes sent{slot}"),
                Wait::Send => format!("to send {done} of {bytes} bytes to {who}"),
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

    /// How far the connection to `rank` is, and why no further.
    pub fn link(&self, rank: Rank) -> String {
        match self.peers.get(rank) {
            Some(Peer { state: State::Established, told: Some((told, _)), .. }) => format!("connected; {told}"),
            Some(Peer { state: State::Established, asked: Some(since), .. }) if since.elapsed() > SILENCE => format!(
                "connected, but it has not answered for {:.1} s: its process is stopped or hangs, or the network is cut",
                since.elapsed().as_secs_f64()
            ),
            Some(Peer { state: State::Established, .. }) => "connected".to_owned(),
            Some(Peer { state: State::Greeting { .. }, .. }) => {
                "not connected: its host has taken the connection, but its process has not answered".to_owned()
            }
            Some(Peer { state: State::Yielded(_), .. }) => "not connected: it is connecting to this rank".to_owned(),
            Some(Peer { last_error: Some(error), attempts, .. }) => {
                format!("not connected after {attempts} attempts; the last one: {error}")
            }
            Some(Peer { state: State::Connecting, .. }) => "not connected: nothing has answered there".to_owned(),
            _ => "not connected".to_owned(),
        }
    }
}
