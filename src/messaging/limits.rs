//! How much a peer may send that nobody has asked for.
//!
//! Messages that meet no receive are kept. From [`PAUSE_BYTES`] on the peer's link is not read while nothing here
//! depends on the peer: then the link holds the peer back, and it goes on as receives are posted. Something that does depend on it
//! may stand behind what is kept, so for that the link is read on, up to [`MOST_BYTES`], which end it.

use super::Messenger;
use super::inbox::Finish;
use super::operation::Source;
use crate::error::{Error, ErrorKind};
use crate::transport::Interest;
use crate::types::Rank;

/// Kept from one peer before its link is left alone.
pub const PAUSE_BYTES: usize = 64 << 20;
/// Kept from one peer at most.
pub const MOST_BYTES: usize = 1 << 30;

impl Messenger {
    /// Other limits than [`PAUSE_BYTES`] and [`MOST_BYTES`].
    #[cfg(any(test, fuzzing))]
    pub(crate) fn set_limits(&mut self, pause: usize, most: usize) {
        (self.pause_bytes, self.most_bytes) = (pause, most);
    }

    /// What is kept from `rank`, in bytes.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn kept(&self, rank: Rank) -> usize {
        self.receives.kept(rank)
    }

    /// Whether the link to `rank` is not to be read now. Costs something only for who has sent too much.
    pub(super) fn holds_back(&mut self, rank: Rank) -> bool {
        let kept = self.receives.kept(rank);
        if kept < self.pause_bytes {
            return false;
        }
        if self.paused.contains(&rank) {
            return true;
        }
        if !self.depends_on(rank) {
            // Not only without interest in it: a link that breaks would wake whoever polls, again and again.
            let Some(link) = self.peers.get_mut(rank).and_then(|p| p.link.as_mut()) else { return false };
            if link.watch(Interest::default()).is_ok() {
                self.paused.push(rank);
                return true;
            }
        } else if kept >= self.most_bytes {
            let text = format!(
                "{} has sent {kept} bytes that no receive was posted for, and what is waited for has not come; at most {} \
                 are kept",
                self.peer_name(rank),
                self.most_bytes
            );
            self.lose(rank, Error::new(ErrorKind::ResourceExhausted, text).with_rank(rank));
            return true;
        }
        false
    }

    /// Reads links again that were left alone, where there is room now or something depends on the peer.
    pub(super) fn resume(&mut self) {
        for i in (0..self.paused.len()).rev() {
            let rank = self.paused[i];
            if self.receives.kept(rank) >= self.pause_bytes && !self.depends_on(rank) {
                continue;
            }
            self.paused.swap_remove(i);
            let Some(peer) = self.peers.get_mut(rank) else { continue };
            peer.awaits_room = false;
            let Some(link) = &mut peer.link else { continue };
            if let Err(e) = link.watch(Interest { readable: true, writable: false }) {
                self.lose(rank, self.broke_while(rank, "receiving", &e));
            } else {
                self.mark_dirty(rank);
            }
        }
    }

    /// Whether anything here waits for `rank`, to receive, to send, or for an answer.
    fn depends_on(&self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get(rank) else { return false };
        let receives = || {
            self.receives.ops().any(|(_, op)| match (op.matched, &op.recv.from) {
                (Some(from), _) | (None, &Source::Rank(from)) => from == rank,
                (None, Source::AnyOf(ranks)) => ranks.contains(&rank),
            })
        };
        peer.has_output()
            || peer
                .incoming
                .as_ref()
                .is_some_and(|incoming| !matches!(incoming.finish, Finish::Nothing | Finish::UnexpectedWrite { .. }))
            || receives()
            || self.queued_sends.iter().any(|(_, queued)| queued.send.to == rank)
            || self.offers.values().any(|send| send.to == rank)
            || self.requests.iter().any(|(_, request)| request.rank == rank)
            || self.bindings.keys().any(|key| key.rank() == rank)
    }
}
