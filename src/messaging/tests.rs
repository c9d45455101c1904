//! A messenger with one link.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::time::Instant;

use super::*;
use crate::error::Error;
use crate::testing::links::{Ended, StreamLink, messenger, sockets};
use crate::transport::{Interest, Link, OneSided, ReceivedNotice};
use crate::types::Space;
use crate::wire::message::Cause;
use crate::wire::{Envelope, Message};

const CONNECTION: u32 = 0x0102_0304;

#[test]
fn a_message_without_a_grant_for_a_rank_of_unknown_address_ends_with_the_messenger() {
    let mut messenger = messenger(0, 3);
    let message = vec![0; matching::EAGER_BYTES + 1];
    let token = Token { owner: 1, detail: 0 };
    let (space, from, bytes) = (Space::collective(1, 0), message.as_ptr(), message.len());
    // SAFETY: the message outlives the messenger's use of it.
    unsafe { messenger.send(Send { to: 2, space, slot: 0, fingerprint: 0, from, bytes, more: false, token }) };
    messenger.close(&Error::invalid("the end"), None);
    let mut events = Vec::new();
    messenger.progress(Instant::now(), &mut events);
    assert!(matches!(&events[..], [Event { token: ended, outcome: Outcome::Failed(_) }] if *ended == token));
}

/// Rank 1 gives up because it waits for this rank, which waits for rank 2, whose process has ended.
#[test]
#[cfg_attr(miri, ignore = "needs sockets")]
fn a_receive_from_any_names_the_rank_that_ended_and_not_one_that_gave_up_because_of_it() {
    let mut messenger = messenger(0, 3);
    let mut peers = [1, 2].map(|rank| {
        let (ours, peer) = sockets();
        messenger.established(rank, Box::new(StreamLink::new(ours, Ended::default())), CONNECTION);
        Some(peer)
    });
    let (mut memory, token) = ([0u8; 4], Token { owner: 1, detail: 0 });
    let mut recv = |messenger: &mut Messenger| {
        let (space, from, into, reduce) = (Space::USER, Source::AnyOf([1, 2].into()), memory.as_mut_ptr(), None);
        let recv =
            Recv { from, space, slot: 5, fingerprint: 0, into, bytes: 4, exact: false, more: false, reduce, token };
        // SAFETY: the array outlives the messenger's use of it.
        unsafe { messenger.recv(recv) };
    };
    recv(&mut messenger);
    let mut events = Vec::new();
    drop(peers[1].take());
    messenger.progress(Instant::now(), &mut events);
    assert!(events.is_empty(), "rank 1 may still send: {events:?}");
    let text = b"rank 1: timed out, waiting for rank 0";
    let abort = Message::Abort { cause: Cause::Failure, culprit: 0, bytes: text.len() as u64 };
    peers[0].as_mut().unwrap().write_all(&[&abort.encode(CONNECTION)[..], text].concat()).unwrap();
    messenger.progress(Instant::now(), &mut events);
    // One receive was posted before, one is posted after.
    recv(&mut messenger);
    messenger.progress(Instant::now(), &mut events);
    let ends: Vec<_> = events.iter().filter(|event| event.token == token).map(|event| &event.outcome).collect();
    assert_eq!(ends.len(), 2, "{events:?}");
    for end in ends {
        let Outcome::Failed(error) = end else { panic!("{end:?}") };
        assert_eq!(error.message(), "rank 2 is gone: the connection ended without a goodbye");
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs sockets")]
fn a_small_message_leaves_when_it_is_posted_and_one_behind_another_does_not_overtake_it() {
    let (ours, mut peer) = sockets();
    let mut messenger = messenger(0, 2);
    messenger.established(1, Box::new(StreamLink::new(ours, Ended::default())), CONNECTION);
    // More messages than the socket's buffer takes.
    let messages: Vec<Vec<u8>> = (0..64u8).map(|index| vec![index; matching::EAGER_BYTES]).collect();
    for (index, message) in messages.iter().enumerate() {
        let token = Token { owner: 1, detail: index as u32 };
        let (space, from, bytes) = (Space::collective(1, 0), message.as_ptr(), message.len());
        // SAFETY: the messages outlive the messenger's use of them.
        unsafe {
            messenger.send(Send { to: 1, space, slot: index as u64, fingerprint: 0, from, bytes, more: false, token })
        };
        if index == 0 {
            let mut first = vec![0; crate::wire::header::HEADER_BYTES + message.len()];
            peer.read_exact(&mut first).expect("it was sent, though nothing has called progress");
            assert!(first.ends_with(message));
        }
    }
    let (mut events, mut rest) = (Vec::new(), Vec::new());
    while events.len() < messages.len() {
        messenger.progress(Instant::now(), &mut events);
        let mut part = vec![0; 1 << 20];
        while let Ok(n) = peer.read(&mut part) {
            rest.extend_from_slice(&part[..n]);
        }
    }
    let ended: Vec<u32> = events.iter().map(|event| event.token.detail).collect();
    assert!(ended.iter().copied().eq(0..messages.len() as u32), "{ended:?}");
    for (got, message) in rest.chunks(crate::wire::header::HEADER_BYTES + matching::EAGER_BYTES).zip(&messages[1..]) {
        assert!(got.ends_with(message));
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs sockets")]
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
#[cfg_attr(miri, ignore = "needs sockets")]
fn lengths_that_are_only_announced_take_no_memory() {
    const LONG: u64 = 1 << 60;
    let envelope = Envelope { space: Space::USER, slot: 1, fingerprint: 0, bytes: LONG, more: false };
    // Unexpected; flagged as announced without an announcement; for a buffer that is not bound.
    for (message, part) in [
        (Message::Announce { envelope, number: 0 }, 0),
        (Message::Data { envelope, announced: true, placed: 0 }, 0),
        (Message::Write { slot: 3, offset: 0, bytes: LONG }, 100),
    ] {
        let (ours, mut peer) = sockets();
        let mut messenger = messenger(0, 2);
        messenger.established(1, Box::new(StreamLink::new(ours, Ended::default())), CONNECTION);
        let payload = if message.payload() > 0 { 100 } else { 0 };
        peer.write_all(&[&message.encode(CONNECTION)[..], &[1; 100][..payload]].concat()).unwrap();
        let mut events = Vec::new();
        assert!(messenger.progress(Instant::now(), &mut events), "nothing has come");
        assert!(matches!(messenger.is_connected(1), Ok(true)) && events.is_empty(), "{message:?}: {events:?}");
        let queued = messenger.queued_bytes(1);
        assert!(queued <= matching::UNEXPECTED_OVERHEAD_BYTES + part, "{message:?}: {queued} bytes are queued");
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs sockets")]
fn a_write_for_a_buffer_that_nobody_bound_is_held_back_while_it_arrives() {
    const PAUSE: usize = 100_000;
    let (ours, mut peer) = sockets();
    let mut messenger = messenger(0, 2);
    messenger.set_limits(PAUSE, 4 << 20);
    messenger.established(1, Box::new(StreamLink::new(ours, Ended::default())), CONNECTION);
    let write = Message::Write { slot: 3, offset: 0, bytes: 64 << 20 };
    peer.write_all(&write.encode(CONNECTION)).unwrap();
    let mut events = Vec::new();
    // Nothing here depends on the peer, so its link is paused at the first limit, and the second is not reached.
    while peer.write(&[1; 64 << 10]).is_ok() {
        messenger.progress(Instant::now(), &mut events);
    }
    assert!(
        messenger.queued_bytes(1) <= PAUSE + READS_PER_TURN * STAGING_BYTES,
        "{} bytes are queued",
        messenger.queued_bytes(1)
    );
    assert!(matches!(messenger.is_connected(1), Ok(true)) && events.is_empty(), "{events:?}");
}

/// A link that accesses the peer's memory, though it can do nothing there; each receive returns one of these messages.
struct Accessing(Vec<Vec<u8>>);

impl Link for Accessing {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let message = self.0.remove(0);
        parts[0][..message.len()].copy_from_slice(&message);
        Ok(message.len())
    }

    fn watch(&mut self, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn one_sided(&mut self) -> Option<&mut dyn OneSided> {
        Some(self)
    }

    fn end(self: Box<Self>, _: Vec<u8>, _: Vec<u8>) {}
}

impl OneSided for Accessing {
    unsafe fn publish(&mut self, _: u32, _: *mut u8, _: usize) -> bool {
        false
    }

    fn retract(&mut self, _: u32) {}

    fn published(&self, _: u32) -> Option<usize> {
        None
    }

    unsafe fn put(&mut self, _: u32, _: usize, _: *const u8, _: usize, _: u32) -> bool {
        false
    }

    unsafe fn get(&mut self, _: u32, _: usize, _: *mut u8, _: usize, _: u32) -> bool {
        false
    }
}

#[test]
fn a_write_that_waits_for_the_peer_s_buffer_ends_though_too_many_messages_come_before_the_answer() {
    const BYTES: usize = 1000;
    let envelope = Envelope { space: Space::USER, slot: 5, fingerprint: 0, bytes: BYTES as u64, more: false };
    let data = Message::Data { envelope, announced: false, placed: 0 }.encode(CONNECTION);
    let bound = Message::Bound { slot: 3, region: 0 }.encode(CONNECTION).to_vec();
    let mut messenger = messenger(0, 2);
    messenger.set_limits(BYTES, 4 << 20);
    let link = Accessing(vec![[&data[..], &[1; BYTES]].concat(), bound]);
    messenger.established(1, Box::new(link), CONNECTION);
    let (memory, token) = ([7u8; 4], Token { owner: 1, detail: 0 });
    // SAFETY: the array outlives the messenger's use of it.
    unsafe { messenger.write(1, 3, 0, memory.as_ptr(), memory.len(), token) };
    let mut events = Vec::new();
    for _ in 0..3 {
        messenger.progress(Instant::now(), &mut events);
    }
    assert!(
        matches!(&events[..], [Event { token: ended, outcome: Outcome::Done { .. } }] if *ended == token),
        "{events:?}"
    );
}

/// A link that breaks after these bytes, with the peer's close notice.
struct Broken(Vec<u8>, Vec<u8>);

impl Link for Broken {
    fn send(&mut self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(io::Error::other(ReceivedNotice(self.1.clone())));
        }
        let n = self.0.len().min(parts[0].len());
        parts[0][..n].copy_from_slice(&self.0[..n]);
        self.0.drain(..n);
        Ok(n)
    }

    fn watch(&mut self, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn end(self: Box<Self>, _: Vec<u8>, _: Vec<u8>) {}
}

#[test]
fn a_close_notice_that_comes_when_the_stream_has_broken_gives_the_reason() {
    let text = b"rank 1: timed out, waiting for rank 2";
    let abort = Message::Abort { cause: Cause::Failure, culprit: 2, bytes: text.len() as u64 };
    let abort = [&abort.encode(CONNECTION)[..], text].concat();
    let envelope = Envelope { space: Space::USER, slot: 5, fingerprint: 0, bytes: 4, more: false };
    let data = [&Message::Data { envelope, announced: false, placed: 0 }.encode(CONNECTION)[..], &[1, 2]].concat();
    let goodbye = Message::Goodbye.encode(CONNECTION).to_vec();
    for (words, expected) in
        [(abort, "gave up"), (goodbye, "has closed its context"), (vec![7; 50], "broke while"), (vec![], "broke while")]
    {
        // The stream breaks between messages, in a header, or in a payload.
        for begun in [0, 11, data.len()] {
            let mut messenger = messenger(0, 3);
            messenger.established(1, Box::new(Broken(data[..begun].to_vec(), words.clone())), CONNECTION);
            let (mut memory, token) = ([0u8; 4], Token { owner: 1, detail: 0 });
            let (space, from, into) = (Space::USER, Source::Rank(1), memory.as_mut_ptr());
            let (reduce, bytes) = (None, memory.len());
            let recv =
                Recv { from, space, slot: 5, fingerprint: 0, into, bytes, exact: false, more: false, reduce, token };
            // SAFETY: the array outlives the messenger's use of it.
            unsafe { messenger.recv(recv) };
            let mut events = Vec::new();
            for _ in 0..3 {
                messenger.progress(Instant::now(), &mut events);
            }
            let end = events.iter().find(|event| event.token == token).map(|event| &event.outcome);
            let Some(Outcome::Failed(error)) = end else { panic!("{events:?}") };
            assert!(error.message().contains(expected), "{expected}: {error}");
        }
    }
}
