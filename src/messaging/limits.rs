//! Limits on unexpected messages.
//!
//! Messages that match no posted receive are queued. When those of one peer reach [`PAUSE_BYTES`], its link is not read
//! while nothing here depends on that peer: flow control of the link then stops the sender until receives are posted.
//! If something does depend on the peer, the message needed may follow those that are queued, so the link is read, up
//! to [`MAX_BYTES`]; more is an error.

use crate::error::{Error, ErrorKind, Result};
use crate::messaging::endpoint::Endpoint;
use crate::transport::Interest;
use crate::types::Rank;

/// Queued bytes from one peer from which on its link is paused.
const PAUSE_BYTES: usize = 64 << 20;
/// The largest number of queued bytes from one peer.
const MAX_BYTES: usize = 1 << 30;

/// Limits on the bytes of unexpected messages queued from one peer, and the peers that have reached them.
pub struct Limits {
    pause_bytes: usize,
    max_bytes: usize,
    /// Ranks whose links are not read, because too many unexpected bytes from them are queued.
    pub paused: Vec<Rank>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { pause_bytes: PAUSE_BYTES, max_bytes: MAX_BYTES, paused: Vec::new() }
    }
}

impl Limits {
    /// Replaces [`PAUSE_BYTES`] and [`MAX_BYTES`].
    #[cfg(any(test, fuzzing))]
    pub fn set(&mut self, pause_bytes: usize, max_bytes: usize) {
        (self.pause_bytes, self.max_bytes) = (pause_bytes, max_bytes);
    }

    /// Whether a peer with so many queued bytes is read only if something here depends on it.
    #[inline]
    pub fn are_reached(&self, queued: usize) -> bool {
        queued >= self.pause_bytes
    }

    /// Decides about the link to `rank`, which has reached the limit: returns whether it is paused now. `depends`:
    /// something here depends on the peer. Fails if too many bytes are queued even so.
    pub fn pause(&mut self, rank: Rank, queued: usize, depends: bool, ep: &mut Endpoint) -> Result<bool> {
        if !depends {
            // The link is watched for nothing: one that breaks would otherwise wake the polling thread again and again.
            let link = ep.peers.get_mut(rank).and_then(|peer| peer.link.as_mut());
            if link.is_some_and(|link| link.watch(Interest::default()).is_ok()) {
                self.paused.push(rank);
                return Ok(true);
            }
        } else if queued >= self.max_bytes {
            let text = format!(
                "{} has sent {queued} bytes that no receive was posted for, and what is waited for has not come; at most {} \
                 are queued",
                ep.peer_name(rank),
                self.max_bytes
            );
            return Err(Error::new(ErrorKind::ResourceExhausted, text).with_rank(rank));
        }
        Ok(false)
    }

    /// Reads the link to `rank` again, which is paused.
    pub fn resume(&mut self, rank: Rank, ep: &mut Endpoint) -> Result<()> {
        self.disconnect(rank);
        let Some(peer) = ep.peers.get_mut(rank) else { return Ok(()) };
        peer.awaits_room = false;
        let Some(link) = &mut peer.link else { return Ok(()) };
        match link.watch(Interest { readable: true, writable: false }) {
            Ok(()) => ep.mark_dirty(rank),
            Err(e) => return Err(ep.broke_while(rank, "receiving", &e)),
        }
        Ok(())
    }

    /// The link to `rank` has ended.
    pub fn disconnect(&mut self, rank: Rank) {
        self.paused.retain(|other| *other != rank);
    }
}
