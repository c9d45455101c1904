//! What operations wait for, in words.

use super::Endpoint;
use crate::transport::Source;
use crate::transport::frame::Header;
use crate::transport::tcp::connection::{Finish, Peer, State};
use crate::types::Rank;

impl Endpoint {
    pub(super) fn describe_waits(&self, owner: u32) -> String {
        let mut parts = Vec::new();
        let link = |rank: Rank| match self.peers[rank].as_deref() {
            Some(Peer { state: State::Established, .. }) => "connected".to_owned(),
            Some(Peer { last_error: Some(error), attempts, .. }) => {
                format!("not connected after {attempts} attempts; the last one: {error}")
            }
            _ => "not connected".to_owned(),
        };
        for (index, op) in self.receives.ops().filter(|(_, op)| op.recv.token.owner == owner && !op.cancelled) {
            let arriving = |rank: Rank| match self.peers[rank].as_deref().and_then(|p| p.incoming.as_ref()) {
                Some(i) if i.finish == Finish::Recv(index) => i.done,
                _ => 0,
            };
            let who = match (&op.matched, &op.recv.from) {
                (Some(rank), _) | (None, Source::Rank(rank)) => format!("{} ({})", self.name(*rank), link(*rank)),
                (None, Source::AnyOf(ranks)) => format!("any of ranks {ranks:?}"),
            };
            let done = match (&op.matched, &op.recv.from) {
                (Some(rank), _) | (None, Source::Rank(rank)) => arriving(*rank),
                _ => 0,
            };
            parts.push(format!("to receive {done} of {} bytes from {who} in slot {:#x}", op.recv.bytes, op.recv.slot));
        }
        for (_, h) in self.held_sends.iter().filter(|(_, h)| h.send.token.owner == owner) {
            let (rank, bytes, slot) = (h.send.to, h.send.bytes, h.send.slot);
            let who = format!("{} ({})", self.name(rank), link(rank));
            parts.push(format!("for {who} to receive: 0 of {bytes} bytes sent in slot {slot:#x}"));
        }
        for (rank, peer) in self.peers.iter().enumerate() {
            for out in peer.iter().flat_map(|p| &p.data).filter(|o| o.token.is_some_and(|t| t.owner == owner)) {
                let sent = out.sent.saturating_sub(Header::BYTES);
                let who = format!("{} ({})", self.name(rank), link(rank));
                parts.push(format!("to send {sent} of {} bytes to {who}", out.bytes));
            }
        }
        for (_, request) in self.requests.iter().filter(|(_, r)| r.token.owner == owner) {
            let who = format!("{} ({})", self.name(request.rank), link(request.rank));
            parts.push(format!("for {who} to answer a put or get of {} bytes", request.bytes));
        }
        const SHOWN: usize = 3;
        let more = parts.len().saturating_sub(SHOWN);
        parts.truncate(SHOWN);
        let mut text = parts.join(", and ");
        if more > 0 {
            text.push_str(&format!(", and {more} more"));
        }
        text
    }
}
