//! The last words on a connection.

use std::sync::Arc;

use super::Messenger;
use crate::error::{Error, ErrorKind};
use crate::transport::CloseNotice;
use crate::types::Rank;
use crate::wire::Message;
use crate::wire::message::MAX_TEXT_BYTES;

/// The longest beginning of `text` that a message may carry.
pub(super) fn clip(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

/// The message that ends a connection of rank `own`: that this context gives up, with a `notice`, or else that it is done.
fn last_words(own: Rank, notice: Option<&Error>, connection: u32) -> Vec<u8> {
    let Some(notice) = notice else { return Message::Goodbye.encode(connection).to_vec() };
    let text = clip(notice.reason());
    let mismatch = notice.kind() == ErrorKind::Mismatch;
    // Where nobody else is to blame, it began here.
    let culprit = notice.details().rank.unwrap_or(own) as u32;
    [&Message::Abort { mismatch, culprit, bytes: text.len() as u64 }.encode(connection), text].concat()
}

/// What peers hear that connect after the context of rank `own` has given up.
pub(super) fn last_words_for_latecomers(own: Rank, notice: Error) -> CloseNotice {
    Arc::new(move |connection| last_words(own, Some(&notice), connection))
}

impl Messenger {
    /// Ends a connection that failed with `error`. A peer that did what no peer may do hears what it was: `lose` alone would
    /// look to it as if this process had ended.
    pub(super) fn cut_off(&mut self, rank: Rank, error: Error) {
        let error = error.with_rank(rank);
        if error.kind() == ErrorKind::Mismatch && !error.is_told() {
            self.say_goodbye(rank, Some(&error));
        }
        self.lose(rank, error);
    }

    /// Tells a peer that this is the end: that we give up, with a `notice`, or else that we are done.
    pub(super) fn say_goodbye(&mut self, rank: Rank, notice: Option<&Error>) {
        self.flush_to(rank);
        let own = self.rank;
        let Some(peer) = self.peers.get_mut(rank) else { return };
        let Some(link) = peer.link.take() else { return };
        // A message that is half out is finished first, or the peer could not read what follows.
        let words = peer.rest_of_begun().map(|mut words| {
            words.extend_from_slice(&last_words(own, notice, peer.connection));
            words
        });
        link.end(words.unwrap_or_default());
    }
}
