//! Limits on unexpected messages.
//!
//! Messages that match no posted receive are queued. When those of one peer reach [`PAUSE_BYTES`], its link is not read while
//! nothing here depends on that peer: flow control of the link then stops the sender until receives are posted. If something does
//! depend on the peer, the message needed may follow those that are queued, so the link is read, up to [`MOST_BYTES`]; more is an
//! error.

use super::Messenger;
use super::inbox::Finish;
use super::operation::Source;
use crate::error::{Error, ErrorKind};
use crate::transport::Interest;
use crate::types::Rank;

/// Queued bytes from one peer from which on its link is paused.
pub const PAUSE_BYTES: usize = 64 << 20;
/// Most queued bytes from one peer.
pub const MOST_BYTES: usize = 1 << 30;

impl Messenger {
    /// Replaces [`PAUSE_BYTES`] and [`MOST_BYTES`].
    #[cfg(any(test, fuzzing))]
    pub(crate) fn set_limits(&mut self, pause: usize, most: usize) {
        (self.pause_bytes, self.most_bytes) = (pause, most);
    }

    /// Bytes of unexpected messages queued from `rank`.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn queued_bytes(&self, rank: Rank) -> usize {
        self.receives.queued_bytes(rank)
    }

    /// Whether the link to `rank` must not be read now; pauses it if so. Cheap while few bytes are queued.
    pub(super) fn pauses(&mut self, rank: Rank) -> bool {
        let queued = self.receives.queued_bytes(rank);
        if queued < self.pause_bytes {
            return false;
        }
        if self.paused.contains(&rank) {
            return true;
        }
        if !self.depends_on(rank) {
            // Without any interest: a link that breaks would otherwise wake the polling thread again and again.
            let Some(link) = self.peers.get_mut(rank).and_then(|p| p.link.as_mut()) else { return false };
            if link.watch(Interest::default()).is_ok() {
                self.paused.push(rank);
                return true;
            }
        } else if queued >= self.most_bytes {
            let text = format!(
                "{} has sent {queued} bytes that no receive was posted for, and what is waited for has not come; at most {} \
                 are queued",
                self.peer_name(rank),
                self.most_bytes
            );
            self.peer_disconnected(rank, Error::new(ErrorKind::ResourceExhausted, text).with_rank(rank));
            return true;
        }
        false
    }

    /// Reads paused links again if enough of the queue was received, or if something depends on the peer.
    pub(super) fn resume(&mut self) {
        for i in (0..self.paused.len()).rev() {
            let rank = self.paused[i];
            if self.receives.queued_bytes(rank) >= self.pause_bytes && !self.depends_on(rank) {
                continue;
            }
            self.paused.swap_remove(i);
            let Some(peer) = self.peers.get_mut(rank) else { continue };
            peer.awaits_room = false;
            let Some(link) = &mut peer.link else { continue };
            if let Err(e) = link.watch(Interest { readable: true, writable: false }) {
                self.peer_disconnected(rank, self.broke_while(rank, "receiving", &e));
            } else {
                self.mark_dirty(rank);
            }
        }
    }

    /// Whether anything here waits for `rank`: to receive, to send, or for an answer.
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
            || peer.placing > 0
            || self.requests.iter().any(|(_, request)| request.rank == rank)
            || self.bindings.keys().any(|key| key.rank() == rank)
    }
}
