//! Orderly ends of connections.

use std::sync::Arc;

use super::Messenger;
use crate::error::{Error, ErrorKind};
use crate::transport::CloseNotice;
use crate::types::Rank;
use crate::wire::Message;
use crate::wire::message::MAX_TEXT_BYTES;

/// The longest prefix of `text` that fits into a message.
pub(super) fn clip(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

/// The message that ends a connection of rank `own`: with a `notice` an abort for that reason, else a goodbye.
fn last_message(own: Rank, notice: Option<&Error>, connection: u32) -> Vec<u8> {
    let Some(notice) = notice else { return Message::Goodbye.encode(connection).to_vec() };
    let text = clip(notice.reason());
    let mismatch = notice.kind() == ErrorKind::Mismatch;
    // If the error names no rank, the failure began here.
    let culprit = notice.details().rank.unwrap_or(own) as u32;
    [&Message::Abort { mismatch, culprit, bytes: text.len() as u64 }.encode(connection), text].concat()
}

/// [`last_message`] for peers that were not connected when the context of rank `own` was closed.
pub(super) fn close_notice(own: Rank, notice: Option<Error>) -> CloseNotice {
    Arc::new(move |connection| last_message(own, notice.as_ref(), connection))
}

impl Messenger {
    /// Ends a connection that failed with `error`. A peer that violated the protocol is sent the error; otherwise it could only
    /// assume that this process has ended.
    pub(super) fn fail_connection(&mut self, rank: Rank, error: Error) {
        let error = error.with_rank(rank);
        if error.kind() == ErrorKind::Mismatch && !error.is_reported_by_peer() {
            self.end_link(rank, Some(&error));
        }
        self.peer_disconnected(rank, error);
    }

    /// Ends the link to `rank` after sending an abort with the reason of `notice`, or else a goodbye.
    pub(super) fn end_link(&mut self, rank: Rank, notice: Option<&Error>) {
        self.flush_to(rank);
        let own = self.rank;
        let Some(peer) = self.peers.get_mut(rank) else { return };
        let Some(link) = peer.link.take() else { return };
        // A message that is partly sent is completed first, since otherwise the peer could not parse what follows.
        let words = peer.rest_of_begun().map(|rest| (rest, last_message(own, notice, peer.connection)));
        let (rest, close_notice) = words.unwrap_or_default();
        link.end(rest, close_notice);
    }
}
