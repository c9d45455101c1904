//! Receives headers and payload, and handles messages.

use std::io::{self, IoSliceMut};

use super::endpoint::Endpoint;
use super::inbox::{DIRECT_BYTES, Finish, Incoming, Target};
use super::matching::Arrival;
use super::one_sided::region_owner;
use super::operation::{Outcome, Token};
use super::peer::{Peer, Reply};
use super::queues::Key;
use super::rendezvous::Grant;
use super::{Messenger, READS_PER_TURN, STAGING_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::reserve::try_reserve;
use crate::transport::{Link, ReceivedNotice};
use crate::types::{Rank, Space};
use crate::wire::Message;

/// The result of one receive from a link.
enum Received {
    /// Bytes received directly into their destination, bytes in the staging buffer, and whether more may be available.
    Bytes { direct: usize, staged: usize, full: bool },
    /// Bytes that the link has passed on, what came of handling them, and whether more may be available.
    InPlace { result: Result<()>, full: bool },
    /// No bytes are available.
    Nothing,
    /// The end of the stream.
    End,
    /// The link is broken.
    Broke(io::Error),
}

/// Receives once: directly into the destination of the current payload if enough of it is missing, and the rest into
/// `staging`.
fn receive(link: &mut dyn Link, incoming: Option<&mut Incoming>, staging: &mut [u8]) -> Received {
    let direct = match incoming {
        Some(Incoming { target: Target::Memory(into), done, bytes, .. }) if *bytes - *done >= DIRECT_BYTES => {
            // SAFETY: `done` is at most `bytes`, for which the poster of the receive keeps the memory valid.
            unsafe { std::slice::from_raw_parts_mut(into.add(*done), *bytes - *done) }
        }
        _ => &mut [],
    };
    let length = direct.len();
    let wanted = length + staging.len();
    let result = if length > 0 {
        link.receive(&mut [IoSliceMut::new(direct), IoSliceMut::new(staging)])
    } else {
        link.receive(&mut [IoSliceMut::new(staging)])
    };
    Received::of(result, |n| Received::Bytes { direct: n.min(length), staged: n - n.min(length), full: n == wanted })
}

impl Received {
    /// The result of a receive from a link; `bytes` makes it out of their number.
    #[inline]
    fn of(result: io::Result<usize>, bytes: impl FnOnce(usize) -> Self) -> Self {
        match result {
            Ok(0) => Self::End,
            Ok(n) => bytes(n),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Self::Nothing,
            Err(e) => Self::Broke(e),
        }
    }
}

impl Messenger {
    /// Lets the link pass on what it has received, if it has that in memory of its own.
    fn receive_in_place(&mut self, rank: Rank, peer: &mut Peer) -> Option<Received> {
        // Nothing else is asked of a link of this kind meanwhile.
        let mut link = peer.link.take()?;
        let (mut result, mut room) = (Ok(()), STAGING_BYTES);
        let received = link.receive_in_place(&mut |bytes| {
            peer.traffic.received += bytes.len() as u64;
            result = self.take(rank, peer, bytes);
            room = room.saturating_sub(bytes.len());
            result.is_ok() && room > 0
        });
        peer.link = Some(link);
        Some(Received::of(received?, |_| Received::InPlace { result, full: room == 0 }))
    }

    /// Reads offered messages as far as possible without blocking, some of them from each rank. Returns whether
    /// anything moved.
    #[inline]
    pub(super) fn read_offers(&mut self) -> bool {
        let mut moved = false;
        for index in (0..self.rendezvous.offers.reading()).rev() {
            let Self { ep, rendezvous, staging, .. } = self;
            // If a peer disconnects, it is removed from the list.
            let Some((rank, any, error)) = rendezvous.offers.read(index, staging, ep) else { continue };
            moved |= any;
            match error {
                Some(error) => self.fail_connection(rank, error),
                // What is queued for the sender is sent now, because the sender waits for it.
                None if self.ep.peers.get(rank).is_some_and(Peer::has_output) => drop(self.flush_to(rank)),
                None => {}
            }
        }
        moved
    }

    /// Whether the link to `rank` must not be read now; pauses it if so. Cheap while few bytes are queued.
    #[inline]
    fn pauses(&mut self, rank: Rank) -> bool {
        let queued = self.ep.receives.queued_bytes(rank);
        if !self.limits.are_reached(queued) {
            return false;
        }
        if self.limits.paused.contains(&rank) {
            return true;
        }
        let depends = self.diagnosis().depends_on(rank);
        self.limits.pause(rank, queued, depends, &mut self.ep).unwrap_or_else(|error| {
            self.peer_disconnected(rank, error);
            true
        })
    }

    /// Reads paused links again if enough of the queue was received, or if something depends on the peer.
    #[inline]
    pub(super) fn resume(&mut self) {
        for index in (0..self.limits.paused.len()).rev() {
            let Some(rank) = self.limits.paused.get(index).copied() else { continue };
            if (!self.limits.are_reached(self.ep.receives.queued_bytes(rank)) || self.diagnosis().depends_on(rank))
                && let Err(error) = self.limits.resume(rank, &mut self.ep)
            {
                self.peer_disconnected(rank, error);
            }
        }
    }

    /// Reads from the link to `rank`. Returns whether anything was received.
    pub(super) fn read(&mut self, rank: Rank) -> bool {
        if self.pauses(rank) {
            return false;
        }
        if !self.ep.peers.get(rank).is_some_and(Peer::is_established) {
            return false;
        }
        let Some(mut peer) = self.ep.peers.take(rank) else { return false };
        let mut staging = std::mem::take(&mut self.staging);
        let mut any = false;
        let mut error = None;
        for _ in 0..READS_PER_TURN {
            let received = match self.receive_in_place(rank, &mut peer) {
                Some(received) => received,
                None => match peer.link.as_deref_mut() {
                    Some(link) => receive(link, peer.incoming.as_mut(), &mut staging),
                    None => break,
                },
            };
            let (result, full) = match received {
                Received::Bytes { direct, staged, full } => {
                    any = true;
                    peer.traffic.received += (direct + staged) as u64;
                    if let Some(incoming) = &mut peer.incoming {
                        incoming.done += direct;
                    }
                    (self.take(rank, &mut peer, &staging[..staged]), full)
                }
                Received::InPlace { result, full } => {
                    any = true;
                    (result, full)
                }
                Received::Nothing => break,
                Received::End => (Err(self.end_of_stream(rank, &mut peer)), false),
                Received::Broke(e) => (Err(self.end_of_broken(rank, &mut peer, &e)), false),
            };
            error = result.err();
            if error.is_some() || !full {
                break;
            }
        }
        self.staging = staging;
        let dirty = peer.has_output();
        self.ep.peers.put_back(rank, peer);
        self.rendezvous.progress(&mut self.ep);
        self.one_sided.progress(&mut self.ep, &mut self.rendezvous.accesses);
        match error {
            Some(error) => self.fail_connection(rank, error),
            None if dirty => self.ep.mark_dirty(rank),
            None => {}
        }
        any
    }

    /// The error for the end of a stream.
    fn end_of_stream(&self, rank: Rank, peer: &mut Peer) -> Error {
        let how =
            if peer.goodbye { "has closed its context" } else { "is gone: the connection ended without a goodbye" };
        let text = || Error::new(ErrorKind::ConnectionLost, format!("{} {how}", self.ep.peer_name(rank)));
        peer.send_error.take().filter(|_| !peer.goodbye).unwrap_or_else(text)
    }

    /// The error for a stream that broke with `e`. If the peer's close notice has come all the same, it gives the
    /// reason.
    fn end_of_broken(&mut self, rank: Rank, peer: &mut Peer, e: &io::Error) -> Error {
        if let Some(ReceivedNotice(words)) = e.get_ref().and_then(|inner| inner.downcast_ref()) {
            // What was being received is not completed, and the notice begins with a header.
            peer.begin_anew();
            match self.take(rank, peer, words) {
                Err(reason) if reason.is_reported_by_peer() => return reason,
                Ok(()) if peer.goodbye => return self.end_of_stream(rank, peer),
                _ => {}
            }
        }
        peer.send_error.take().unwrap_or_else(|| self.ep.broke_while(rank, "receiving", e))
    }

    /// Parses bytes received from `rank`.
    fn take(&mut self, rank: Rank, peer: &mut Peer, mut bytes: &[u8]) -> Result<()> {
        loop {
            if let Some(incoming) = &mut peer.incoming {
                let (now, rest) = bytes.split_at(bytes.len().min(incoming.remaining()));
                bytes = rest;
                self.place(rank, incoming, now)?;
                if incoming.remaining() > 0 {
                    return Ok(());
                }
                if let Some(incoming) = peer.incoming.take() {
                    self.finish(rank, peer, incoming)?;
                }
            }
            if bytes.is_empty() {
                return Ok(());
            }
            if let Some(wire) = peer.take_header(&mut bytes) {
                let message =
                    Message::decode(&wire, peer.queue.connection).map_err(|e| e.context(self.ep.peer_name(rank)))?;
                peer.incoming = self.begin(rank, peer, message)?;
            }
        }
    }

    /// Stores payload in its destination.
    fn place(&mut self, rank: Rank, incoming: &mut Incoming, bytes: &[u8]) -> Result<()> {
        let n = bytes.len();
        match &mut incoming.target {
            Target::Unexpected(message) => {
                self.ep.receives.make_room(*message, n)?;
                self.ep.append(*message, bytes);
            }
            Target::Own(memory) => {
                try_reserve(memory, n, "a message of the peer's")?;
                memory.extend_from_slice(bytes);
                if matches!(incoming.finish, Finish::UnexpectedWrite { .. }) {
                    self.ep.receives.charge(rank, n);
                }
            }
            _ => {}
        }
        incoming.store(bytes);
        Ok(())
    }

    /// Handles a header, and returns the destination of its payload, if it has one.
    fn begin(&mut self, rank: Rank, peer: &mut Peer, message: Message) -> Result<Option<Incoming>> {
        let Self { ep, rendezvous, one_sided, .. } = self;
        let bound = |slot| Key::new(rank, Space::USER, slot);
        let incoming = |target, finish| Ok(Some(Incoming::new(message.payload(), target, finish)));
        let text = |finish| incoming(Target::Own(Vec::new()), finish);
        match message {
            Message::Data { envelope, announced, placed: 0 } => {
                let arrival = ep.receives.arrive(rank, &envelope, announced);
                let exposed = match arrival {
                    // The message comes in the stream.
                    Arrival::Op(op) => ep.receives.op_mut(op).exposed.take(),
                    Arrival::Discard(exposed) => exposed,
                    Arrival::Unexpected(_) => None,
                };
                exposed.into_iter().for_each(|exposed| peer.withdraw(exposed.key));
                return Ok(Some(ep.destination(rank, &envelope, arrival)));
            }
            Message::Data { envelope, announced, placed } => {
                rendezvous.exposures.placed(rank, peer, &envelope, announced, placed, ep)?;
                peer.traffic.add(true, envelope.bytes);
            }
            Message::Announce { envelope, number } => {
                if (number != 0) != peer.places() {
                    return Err(unplaceable(ep, rank, "announces a message with the number", number));
                }
                if let Some(op) = ep.receives.announce(rank, &envelope, number) {
                    rendezvous.exposures.answer(rank, peer, ep.receives.op_mut(op), &envelope, number);
                }
            }
            Message::Offer { envelope, key } => {
                rendezvous.offers.offered(rank, peer, &envelope, key, ep)?;
            }
            Message::Taken { key } => rendezvous.taken(rank, peer, key, ep),
            Message::Replacement { envelope, key } => {
                let arrival = rendezvous.offers.replaced(rank, peer, &envelope, key, ep);
                return Ok(Some(ep.destination(rank, &envelope, arrival)));
            }
            Message::Grant { space, slot, announcement, key } => {
                if key | announcement != 0 && !peer.places() {
                    let what = "grants a message with the number or key";
                    return Err(unplaceable(ep, rank, what, key | announcement));
                }
                rendezvous.granted.push(Grant { order: Key::new(rank, space, slot), announcement, key });
            }
            Message::Write { slot, offset, bytes } => {
                return one_sided.begin_write(bound(slot), offset, bytes, ep).map(Some);
            }
            Message::Written { slot, offset, bytes } => {
                one_sided.written(bound(slot), offset, bytes, ep)?;
                peer.traffic.add(true, bytes);
            }
            Message::Bound { slot, region } => one_sided.bound(bound(slot), peer, region, ep)?,
            Message::Put { request, region, offset, bytes } => {
                let into = one_sided.region_at(region, offset, bytes);
                let refused = into.is_none();
                return incoming(
                    into.map_or(Target::Discard, Target::Memory),
                    Finish::PutDone { request, region, refused },
                );
            }
            Message::Get { request, region, offset, bytes } => {
                let from = one_sided.region_at(region, offset, bytes);
                let (refused, bytes) = (from.is_none(), from.map_or(0, |_| bytes));
                let token = from.map(|_| Token { owner: region_owner(region), detail: 0 });
                let from = from.unwrap_or(std::ptr::null_mut()).cast_const();
                ep.outgoing += 1;
                peer.queue.push(&Message::GetDone { request, refused, bytes }, from, token, false);
            }
            Message::PutDone { request, refused } => {
                return one_sided.begin_answer(rank, peer, request, refused, None, ep).map(Some);
            }
            Message::GetDone { request, refused, bytes } => {
                return one_sided.begin_answer(rank, peer, request, refused, Some(bytes), ep).map(Some);
            }
            Message::Abort { cause, culprit, .. } => return text(Finish::Abort { cause, culprit }),
            Message::Query { slot, fingerprint } => {
                ep.event(Token::CONTEXT, Outcome::Queried { rank, slot, fingerprint });
            }
            Message::Reply { waiting, instead, .. } => return text(Finish::Reply { waiting, instead }),
            Message::Agreement { .. } => return text(Finish::Agreement),
            Message::Goodbye => peer.goodbye = true,
        }
        Ok(None)
    }

    /// The payload of a message is complete.
    fn finish(&mut self, rank: Rank, peer: &mut Peer, incoming: Incoming) -> Result<()> {
        let Self { ep, one_sided, .. } = self;
        let bytes = incoming.done;
        let own = match incoming.target {
            Target::Own(memory) => memory,
            _ => Vec::new(),
        };
        match incoming.finish {
            Finish::Recv(op) => ep.complete(rank, op, bytes),
            Finish::Written { token, offset } => {
                ep.event(token, Outcome::Written { offset: offset as usize, bytes });
            }
            Finish::UnexpectedWrite { slot, offset } => {
                one_sided.finish_unexpected(Key::new(rank, Space::USER, slot), offset, own, ep)?;
            }
            Finish::PutDone { request, refused, .. } => peer.queue.push_control(&Message::PutDone { request, refused }),
            Finish::Answer { request, refused } => one_sided.answered(rank, request, refused, ep),
            Finish::Abort { cause, culprit } => {
                let reason = String::from_utf8_lossy(&own).into_owned();
                // If the number is no valid rank, the sender is named.
                let culprit = Some(culprit as Rank).filter(|culprit| *culprit < ep.size).unwrap_or(rank);
                let error = Error::reported_by_peer(cause.kind(), ep.peer_name(rank), reason, culprit);
                ep.event(Token::CONTEXT, Outcome::Failed(error.clone()));
                return Err(error);
            }
            Finish::Reply { waiting, instead } => {
                if let Some(query) = &mut peer.query {
                    query.reply = Some(Reply { text: String::from_utf8_lossy(&own).into_owned(), waiting, instead });
                    ep.event(Token::CONTEXT, Outcome::Replied);
                }
            }
            Finish::Agreement => {
                ep.agreements.push_back((rank, own));
                ep.event(Token::CONTEXT, Outcome::Agreement);
            }
            Finish::Nothing => {}
        }
        Ok(())
    }
}

/// The error for a number that does not belong on the link to `rank`, since only links that place messages have such
/// numbers.
#[cold]
fn unplaceable(ep: &Endpoint, rank: Rank, what: &str, number: u32) -> Error {
    ep.violation(rank, format_args!("{what} {number}, which does not belong on this link"))
}
