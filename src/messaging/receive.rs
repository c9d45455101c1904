//! Receives headers and payload, and handles messages.

use std::io::{self, IoSliceMut};

use super::inbox::{Finish, Incoming, Target};
use super::matching::{Arrival, Op, UNEXPECTED_OVERHEAD, refusal};
use super::operation::{Outcome, Token};
use super::peer::{Peer, Reply};
use super::placements::Grant;
use super::queues::Key;
use super::remote::{UnexpectedWrite, region_owner};
use super::{DIRECT_BYTES, Messenger, READS_PER_TURN, STAGING_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::reserve::try_reserve;
use crate::transport::{LastWords, Link};
use crate::types::{Rank, Slot, Space};
use crate::wire::{Envelope, Message};

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

/// Receives once: directly into the destination of the current payload if enough of it is missing, and the rest into `staging`.
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
    /// Delivers a complete message to its receive.
    pub(super) fn deliver(&mut self, op: &Op, from: Rank, envelope: &Envelope, data: &[u8]) {
        let outcome = refusal(&op.recv, from, envelope, || self.peer_name(from)).unwrap_or_else(|| {
            // SAFETY: `refusal` has checked that the message fits into the receive, and that it has the exact length if it
            // reduces; the poster keeps the memory valid until the event below.
            unsafe {
                match op.recv.reduce {
                    None if data.is_empty() => {}
                    None => std::ptr::copy(data.as_ptr(), op.recv.into, data.len()),
                    Some(reduce) => {
                        Incoming::new(data.len(), Target::Discard, Finish::Nothing).reduce(op.recv.into, reduce, data)
                    }
                }
            }
            Outcome::Done { rank: from, bytes: data.len() }
        });
        self.event(op.recv.token, outcome);
    }

    /// Lets the link pass on what it has received, if it has that in memory of its own.
    fn receive_in_place(&mut self, rank: Rank, peer: &mut Peer) -> Option<Received> {
        // Nothing else is asked of a link of this kind meanwhile.
        let mut link = peer.link.take()?;
        let (mut result, mut room) = (Ok(()), STAGING_BYTES);
        let received = link.receive_in_place(&mut |bytes| {
            result = self.take(rank, peer, bytes);
            room = room.saturating_sub(bytes.len());
            result.is_ok() && room > 0
        });
        peer.link = Some(link);
        Some(Received::of(received?, |_| Received::InPlace { result, full: room == 0 }))
    }

    /// Reads from the link to `rank`. Returns whether anything was received.
    pub(super) fn read(&mut self, rank: Rank) -> bool {
        if self.pauses(rank) {
            return false;
        }
        if !self.peers.get(rank).is_some_and(Peer::is_established) {
            return false;
        }
        let Some(mut peer) = self.peers.take(rank) else { return false };
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
        self.peers.put_back(rank, peer);
        if !self.granted.is_empty() {
            let mut granted = std::mem::take(&mut self.granted);
            granted.drain(..).for_each(|grant| self.granted(grant));
            self.granted = granted;
        }
        while let Some(key) = self.unblocked.pop() {
            self.release(key);
        }
        while let Some(key) = self.granted_writes.pop() {
            self.release_writes(key);
        }
        match error {
            Some(error) => self.fail_connection(rank, error),
            None if dirty => self.mark_dirty(rank),
            None => {}
        }
        any
    }

    /// The error for the end of a stream.
    fn end_of_stream(&self, rank: Rank, peer: &mut Peer) -> Error {
        let how =
            if peer.goodbye { "has closed its context" } else { "is gone: the connection ended without a goodbye" };
        let text = || Error::new(ErrorKind::ConnectionLost, format!("{} {how}", self.peer_name(rank)));
        peer.send_error.take().filter(|_| !peer.goodbye).unwrap_or_else(text)
    }

    /// The error for a stream that broke with `e`. If the peer's close notice has come all the same, it gives the reason.
    fn end_of_broken(&mut self, rank: Rank, peer: &mut Peer, e: &io::Error) -> Error {
        if let Some(LastWords(words)) = e.get_ref().and_then(|inner| inner.downcast_ref()) {
            // What was being received is not completed, and the notice begins with a header.
            peer.begin_anew();
            match self.take(rank, peer, words) {
                Err(reason) if reason.is_reported_by_peer() => return reason,
                Ok(()) if peer.goodbye => return self.end_of_stream(rank, peer),
                _ => {}
            }
        }
        peer.send_error.take().unwrap_or_else(|| self.broke_while(rank, "receiving", e))
    }

    /// Parses bytes received from `rank`.
    pub(super) fn take(&mut self, rank: Rank, peer: &mut Peer, mut bytes: &[u8]) -> Result<()> {
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
                let message = Message::decode(&wire, peer.connection).map_err(|e| e.context(self.peer_name(rank)))?;
                peer.incoming = self.begin(rank, peer, message)?;
            }
        }
    }

    /// Stores payload in its destination.
    pub(super) fn place(&mut self, rank: Rank, incoming: &mut Incoming, bytes: &[u8]) -> Result<()> {
        let n = bytes.len();
        match &mut incoming.target {
            // SAFETY: the length was checked against the target when the header arrived, and `bytes` does not exceed what is
            // missing of it. The poster keeps the memory valid; a cancellation changes the target.
            Target::Memory(into) if n > 0 => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.add(incoming.done), n);
            },
            Target::Reduce(into, reduce) => {
                let (into, reduce) = (*into, *reduce);
                // SAFETY: as above; a receive that reduces has the exact length of its message, a whole number of elements.
                unsafe { incoming.reduce(into, reduce, bytes) };
                return Ok(());
            }
            Target::Unexpected(message) => {
                self.receives.make_room(*message, n)?;
                if let Some((op, from, envelope, data)) = self.receives.append(*message, bytes) {
                    self.deliver(&op, from, &envelope, &data);
                    self.receives.recycle(data);
                }
            }
            Target::Own(memory) => {
                try_reserve(memory, n, "a message of the peer's")?;
                memory.extend_from_slice(bytes);
                if matches!(incoming.finish, Finish::UnexpectedWrite { .. }) {
                    self.receives.charge(rank, n);
                }
            }
            Target::Memory(_) | Target::Discard => {}
        }
        incoming.done += n;
        Ok(())
    }

    /// Handles a header, and returns the destination of its payload, if it has one.
    pub(super) fn begin(&mut self, rank: Rank, peer: &mut Peer, message: Message) -> Result<Option<Incoming>> {
        let incoming = |target, finish| Ok(Some(Incoming::new(message.payload(), target, finish)));
        let text = |finish| incoming(Target::Own(Vec::new()), finish);
        match message {
            Message::Data { envelope, announced, placed: 0 } => {
                Ok(Some(self.begin_data(rank, peer, &envelope, announced)))
            }
            Message::Data { envelope, announced, placed } => {
                self.begin_placed(rank, peer, &envelope, announced, placed).map(|()| None)
            }
            Message::Announce { envelope, number } => {
                if (number != 0) != peer.places() {
                    return Err(self.unplaceable(rank, "announces a message with the number", number));
                }
                if let Some(op) = self.receives.announce(rank, &envelope, number) {
                    self.answer(rank, peer, op, &envelope, number);
                }
                Ok(None)
            }
            Message::Offer { envelope, key } => self.offered(rank, peer, &envelope, key).map(|()| None),
            Message::Taken { key } => {
                self.taken(rank, peer, key);
                Ok(None)
            }
            Message::Replacement { envelope, key } => Ok(Some(self.begin_replacement(rank, peer, &envelope, key))),
            Message::Grant { space, slot, announcement, key } => {
                if key | announcement != 0 && !peer.places() {
                    return Err(self.unplaceable(rank, "grants a message with the number or key", key | announcement));
                }
                self.granted.push(Grant { order: Key::new(rank, space, slot), announcement, key });
                Ok(None)
            }
            Message::Write { slot, offset, bytes } => self.begin_write(rank, slot, offset, bytes).map(Some),
            Message::Written { slot, offset, bytes } => self.written(rank, slot, offset, bytes).map(|()| None),
            Message::Bound { slot, region } => self.bound(rank, peer, slot, region).map(|()| None),
            Message::Put { request, region, offset, bytes } => {
                let into = self.regions.get(&region).and_then(|region| region.at(offset, bytes));
                let refused = into.is_none();
                incoming(into.map_or(Target::Discard, Target::Memory), Finish::PutDone { request, region, refused })
            }
            Message::Get { request, region, offset, bytes } => {
                let from = self.regions.get(&region).and_then(|region| region.at(offset, bytes));
                self.outgoing += 1;
                let (from, token, bytes) = match from {
                    Some(from) => (from.cast_const(), Some(Token { owner: region_owner(region), detail: 0 }), bytes),
                    None => (std::ptr::null(), None, 0),
                };
                let refused = token.is_none();
                peer.push(&Message::GetDone { request, refused, bytes }, from, token, false);
                Ok(None)
            }
            Message::PutDone { request, refused } => self.begin_answer(rank, peer, request, refused, None).map(Some),
            Message::GetDone { request, refused, bytes } => {
                self.begin_answer(rank, peer, request, refused, Some(bytes)).map(Some)
            }
            Message::Abort { mismatch, culprit, .. } => text(Finish::Abort { mismatch, culprit }),
            Message::Query { slot, fingerprint } => {
                self.event(Token::CONTEXT, Outcome::Queried { rank, slot, fingerprint });
                Ok(None)
            }
            Message::Reply { waiting, instead, .. } => text(Finish::Reply { waiting, instead }),
            Message::Goodbye => {
                peer.goodbye = true;
                Ok(None)
            }
        }
    }

    fn begin_data(&mut self, rank: Rank, peer: &mut Peer, envelope: &Envelope, announced: bool) -> Incoming {
        let arrival = self.receives.arrive(rank, envelope, announced);
        match arrival {
            Arrival::Op(op) => self.withdraw(peer, op),
            Arrival::Discard(Some(exposed)) => peer.withdraw(exposed.key),
            _ => {}
        }
        self.begin_arrival(rank, envelope, arrival)
    }

    /// The error for a number that does not belong on the link to `rank`, since only links that place messages have such numbers.
    #[cold]
    fn unplaceable(&self, rank: Rank, what: &str, number: u32) -> Error {
        let text = format!("{} {what} {number}, which does not belong on this link", self.peer_name(rank));
        Error::new(ErrorKind::Mismatch, text)
    }

    /// The destination of a message, as `arrival` says.
    pub(super) fn begin_arrival(&mut self, rank: Rank, envelope: &Envelope, arrival: Arrival) -> Incoming {
        let bytes = envelope.bytes as usize;
        match arrival {
            Arrival::Unexpected(message) => Incoming::new(bytes, Target::Unexpected(message), Finish::Nothing),
            Arrival::Discard(_) => Incoming::new(bytes, Target::Discard, Finish::Nothing),
            Arrival::Op(index) => {
                let recv = &self.receives.op(index).recv;
                if let Some(outcome) = refusal(recv, rank, envelope, || self.peer_name(rank)) {
                    let token = recv.token;
                    self.receives.finish(index);
                    self.event(token, outcome);
                    return Incoming::new(bytes, Target::Discard, Finish::Nothing);
                }
                let target = match recv.reduce {
                    Some(reduce) => Target::Reduce(recv.into, reduce),
                    None => Target::Memory(recv.into),
                };
                Incoming::new(bytes, target, Finish::Recv(index))
            }
        }
    }

    fn begin_write(&mut self, rank: Rank, slot: Slot, offset: u64, bytes: u64) -> Result<Incoming> {
        let key = Key::new(rank, Space::USER, slot);
        match self.bindings.get(&key).copied() {
            Some(binding) => match binding.region.at(offset, bytes) {
                Some(into) => {
                    let finish = Finish::Written { token: binding.token, offset };
                    Ok(Incoming::new(bytes as usize, Target::Memory(into), finish))
                }
                None => Err(self.wrote_outside(key, binding, offset, bytes)),
            },
            None => {
                self.receives.charge(rank, UNEXPECTED_OVERHEAD);
                let finish = Finish::UnexpectedWrite { slot, offset };
                Ok(Incoming::new(bytes as usize, Target::Own(Vec::new()), finish))
            }
        }
    }

    /// Handles the answer to a put or, if `bytes` follow, to a get.
    fn begin_answer(
        &mut self,
        rank: Rank,
        peer: &Peer,
        index: u32,
        refused: bool,
        bytes: Option<u64>,
    ) -> Result<Incoming> {
        let bad = |what: String| Err(Error::new(ErrorKind::Mismatch, format!("{} {what}", self.peer_name(rank))));
        let Some(request) = self.requests.get(index).filter(|r| r.rank == rank && r.is_get == bytes.is_some()) else {
            return bad("answered a request that was not made".into());
        };
        // Completing the request would permit the poster to reuse memory that is still being sent.
        if peer.is_putting(index) {
            return bad("answered a put before it was sent".into());
        }
        let bytes = bytes.unwrap_or(0);
        if refused && bytes > 0 || !refused && request.is_get && bytes != request.bytes as u64 {
            return bad(format!("sent {bytes} bytes for a get of {}", request.bytes));
        }
        let target = if bytes > 0 && !request.cancelled { Target::Memory(request.into) } else { Target::Discard };
        Ok(Incoming::new(bytes as usize, target, Finish::Answer { request: index, refused }))
    }

    /// The payload of a message is complete.
    pub(super) fn finish(&mut self, rank: Rank, peer: &mut Peer, incoming: Incoming) -> Result<()> {
        let bytes = incoming.done;
        let own = match incoming.target {
            Target::Own(memory) => memory,
            _ => Vec::new(),
        };
        match incoming.finish {
            Finish::Recv(op) => {
                if let Some(op) = self.receives.finish(op) {
                    self.event(op.recv.token, Outcome::Done { rank, bytes });
                }
            }
            Finish::Written { token, offset } => {
                self.event(token, Outcome::Written { offset: offset as usize, bytes });
            }
            Finish::UnexpectedWrite { slot, offset } => {
                let key = Key::new(rank, Space::USER, slot);
                let write = UnexpectedWrite { offset, data: own };
                match self.bindings.get(&key).copied() {
                    // The buffer was bound while the write arrived.
                    Some(binding) => self.write_late(key, binding, &write)?,
                    None => self.unexpected_writes.entry(key).or_default().push(write),
                }
            }
            Finish::PutDone { request, refused, .. } => peer.push_control(&Message::PutDone { request, refused }),
            Finish::Answer { request, refused } => {
                if let Some(request) = self.requests.remove(request).filter(|r| !r.cancelled) {
                    let outcome = if refused {
                        let name = self.peer_name(rank);
                        let text =
                            format!("{name} has no such region, or it is shorter than offset and length ask for");
                        Outcome::Failed(Error::invalid(text).with_rank(rank))
                    } else {
                        Outcome::Done { rank, bytes: request.bytes }
                    };
                    self.event(request.token, outcome);
                }
            }
            Finish::Abort { mismatch, culprit } => {
                let reason = String::from_utf8_lossy(&own).into_owned();
                let kind = if mismatch { ErrorKind::Mismatch } else { ErrorKind::ConnectionLost };
                // If the number is no valid rank, the sender is named.
                let culprit = Some(culprit as Rank).filter(|culprit| *culprit < self.size).unwrap_or(rank);
                let error = Error::reported_by_peer(kind, self.peer_name(rank), reason, culprit);
                self.event(Token::CONTEXT, Outcome::Failed(error.clone()));
                return Err(error);
            }
            Finish::Reply { waiting, instead } => {
                if let Some(query) = &mut peer.query {
                    query.reply = Some(Reply { text: String::from_utf8_lossy(&own).into_owned(), waiting, instead });
                    self.event(Token::CONTEXT, Outcome::Replied);
                }
            }
            Finish::Nothing => {}
        }
        Ok(())
    }
}
