//! A messenger over one link.

use std::io::Write;
use std::time::Instant;

use super::testing::{Ended, StreamLink, messenger, sockets};
use super::*;
use crate::wire::Message;

const CONNECTION: u32 = 0x0102_0304;

#[test]
fn a_message_without_a_grant_for_a_rank_of_unknown_address_ends_with_the_messenger() {
    let mut messenger = messenger(0, 3);
    let message = vec![0; matching::EAGER_BYTES + 1];
    let token = Token { owner: 1, detail: 0 };
    let (space, from, bytes) = (Space::Collective, message.as_ptr(), message.len());
    // SAFETY: the message outlives the messenger's use of it.
    unsafe { messenger.send(Send { to: 2, space, slot: 0, fingerprint: 0, from, bytes, token }) };
    messenger.close(&Error::invalid("the end"), None);
    let mut events = Vec::new();
    messenger.progress(Instant::now(), &mut events);
    assert!(matches!(&events[..], [Event { token: ended, outcome: Outcome::Failed(_) }] if *ended == token));
}

#[test]
fn a_put_is_not_over_before_it_has_left() {
    let (ours, mut peer) = sockets();
    let mut messenger = messenger(0, 2);
    messenger.established(1, Box::new(StreamLink::new(ours, Ended::default())), CONNECTION);
    let memory = vec![0; 16 << 20];
    let (token, remote) = (Token { owner: 1, detail: 0 }, Remote { rank: 1, region: 0, offset: 0 });
    // SAFETY: the memory outlives the messenger's use of it.
    unsafe { messenger.put(remote, memory.as_ptr(), memory.len(), token) };
    let mut events = Vec::new();
    messenger.progress(Instant::now(), &mut events);
    peer.write_all(&Message::PutDone { request: 0, refused: false }.encode(CONNECTION)).unwrap();
    messenger.progress(Instant::now(), &mut events);
    let [Event { outcome: Outcome::Failed(error), .. }] = &events[..] else { panic!("{events:?}") };
    assert!(error.message().contains("before it was sent"), "{error}");
}

#[test]
fn a_write_for_a_buffer_that_nobody_bound_is_held_back_while_it_arrives() {
    const PAUSE: usize = 100_000;
    let (ours, mut peer) = sockets();
    let mut messenger = messenger(0, 2);
    messenger.set_limits(PAUSE, 4 << 20);
    messenger.established(1, Box::new(StreamLink::new(ours, Ended::default())), CONNECTION);
    let write = Message::Write { slot: 3, offset: 0, bytes: 64 << 20 };
    peer.write_all(&write.encode(CONNECTION)).unwrap();
    let mut events = Vec::new();
    // Nothing here depends on it: the link is left alone as soon as the limit is reached, and not read up to the other.
    while peer.write(&[1; 64 << 10]).is_ok() {
        messenger.progress(Instant::now(), &mut events);
    }
    assert!(messenger.kept(1) <= PAUSE + READS_PER_TURN * STAGING_BYTES, "{} bytes are kept", messenger.kept(1));
    assert!(matches!(messenger.is_connected(1), Ok(true)) && events.is_empty(), "{events:?}");
}
