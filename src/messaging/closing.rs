//! Orderly ends of connections.

use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::transport::CloseNotice;
use crate::types::Rank;
use crate::wire::Message;
use crate::wire::message::MAX_TEXT_BYTES;

/// The longest prefix of `text` that fits into a message.
pub fn clip(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

/// The message that ends a connection of rank `own`: with a `notice` an abort for that reason, else a goodbye.
pub fn last_message(own: Rank, notice: Option<&Error>, connection: u32) -> Vec<u8> {
    let Some(notice) = notice else { return Message::Goodbye.encode(connection).to_vec() };
    let text = clip(notice.reason());
    let mismatch = notice.kind() == ErrorKind::Mismatch;
    // If the error names no rank, the failure began here.
    let culprit = notice.details().rank.unwrap_or(own) as u32;
    [&Message::Abort { mismatch, culprit, bytes: text.len() as u64 }.encode(connection), text].concat()
}

/// [`last_message`] for peers that were not connected when the context of rank `own` was closed.
pub fn close_notice(own: Rank, notice: Option<Error>) -> CloseNotice {
    Arc::new(move |connection| last_message(own, notice.as_ref(), connection))
}
