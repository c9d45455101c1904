//! What arrives: headers, payload, and what they set in motion.

use std::io::{self, IoSliceMut};

use super::remote::{EarlyWrite, region_owner};
use super::{DIRECT_BYTES, Endpoint, READS_PER_TURN};
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use crate::transport::frame::{Header, Kind};
use crate::transport::matching::{Arrival, EARLY_OVERHEAD, Op, refusal};
use crate::transport::queues::Key;
use crate::transport::tcp::connection::{Finish, Incoming, Peer, Target};
use crate::transport::{Call, EVERYONE, Outcome, Space, Token};
use crate::types::{Rank, Slot};

/// Whose the events are that concern the whole context.
const CONTEXT: Token = Token { owner: EVERYONE, detail: 0 };

impl Endpoint {
    /// Gives a whole message to its receive.
    pub(super) fn deliver(&mut self, op: &Op, from: Rank, header: &Header, data: &[u8]) {
        let outcome = refusal(&op.recv, from, header, || self.name(from)).unwrap_or_else(|| {
            // SAFETY: `refusal` has compared the length; the poster vouches for the memory.
            unsafe {
                match op.recv.reduce {
                    None if data.is_empty() => {}
                    None => std::ptr::copy(data.as_ptr(), op.recv.into, data.len()),
                    Some(reduce) => {
                        Incoming::new(*header, Target::Discard, Finish::Nothing).reduce(op.recv.into, reduce, data)
                    }
                }
            }
            Outcome::Done { rank: from, bytes: data.len() }
        });
        self.event(op.recv.token, outcome);
    }

    pub(super) fn grant(&mut self, to: Rank, space: Space, slot: Slot) {
        if to != self.rank {
            self.peer(to).push_control(&Header { space, ..Header::new(Kind::ClearToSend, slot, 0) });
            self.mark_dirty(to);
        }
    }

    /// Reads what has come from `rank`. Whether anything had.
    pub(super) fn read(&mut self, rank: Rank) -> bool {
        if self.holds_back(rank) {
            return false;
        }
        let Some(mut peer) = self.peers.take(rank) else { return false };
        if !peer.is_established() {
            self.peers.put_back(rank, peer);
            return false;
        }
        let mut staging = std::mem::take(&mut self.staging);
        let mut any = false;
        let mut error = None;
        for _ in 0..READS_PER_TURN {
            let direct = match &peer.incoming {
                Some(Incoming { target: Target::Memory(into), done, header, .. })
                    if header.payload() - done >= DIRECT_BYTES =>
                {
                    // SAFETY: `done` is below the payload's length, for which the memory is valid.
                    unsafe { std::slice::from_raw_parts_mut(into.add(*done), header.payload() - done) }
                }
                _ => &mut [],
            };
            let length = direct.len();
            let wanted = length + staging.len();
            let result = if length > 0 {
                sys::receive(peer.fd(), &mut [IoSliceMut::new(direct), IoSliceMut::new(&mut staging)])
            } else {
                sys::receive(peer.fd(), &mut [IoSliceMut::new(&mut staging)])
            };
            match result {
                Ok(0) => {
                    let how = if peer.goodbye {
                        "has closed its context"
                    } else {
                        "is gone: the connection ended without a goodbye"
                    };
                    let text = || Error::new(ErrorKind::ConnectionLost, format!("{} {how}", self.name(rank)));
                    error = Some(peer.broke.take().filter(|_| !peer.goodbye).unwrap_or_else(text));
                }
                Ok(n) => {
                    any = true;
                    let here = n.min(length);
                    if here > 0
                        && let Some(incoming) = &mut peer.incoming
                    {
                        incoming.done += here;
                    }
                    error = self.take(rank, &mut peer, &staging[..n - here]).err();
                    if error.is_none() && n == wanted {
                        continue;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => {
                    error = Some(peer.broke.take().unwrap_or_else(|| self.broke_while(rank, "receiving", &e)));
                }
            }
            break;
        }
        self.staging = staging;
        let dirty = peer.has_output();
        self.peers.put_back(rank, peer);
        while let Some(key) = self.cleared.pop() {
            self.clear_to_send(key);
        }
        match error {
            Some(error) => self.cut_off(rank, error),
            None if dirty => self.mark_dirty(rank),
            None => {}
        }
        any
    }

    /// Takes apart bytes that came from `rank`.
    pub(super) fn take(&mut self, rank: Rank, peer: &mut Peer, mut bytes: &[u8]) -> Result<()> {
        loop {
            if let Some(incoming) = &mut peer.incoming {
                let n = bytes.len().min(incoming.remaining());
                let (now, rest) = bytes.split_at(n);
                bytes = rest;
                match &mut incoming.target {
                    // SAFETY: target and length were checked against each other when the header came.
                    Target::Memory(into) if n > 0 => unsafe {
                        std::ptr::copy_nonoverlapping(now.as_ptr(), into.add(incoming.done), n);
                        incoming.done += n;
                    },
                    Target::Reduce(into, reduce) => {
                        let (into, reduce) = (*into, *reduce);
                        // SAFETY: likewise.
                        unsafe { incoming.reduce(into, reduce, now) };
                    }
                    Target::Early(early) => {
                        incoming.done += n;
                        if let Some((op, from, header, data)) = self.receives.keep(*early, now) {
                            self.deliver(&op, from, &header, &data);
                            self.receives.recycle(data);
                        }
                    }
                    Target::Text(text) => {
                        incoming.done += n;
                        text.extend_from_slice(now);
                        if incoming.header.kind == Kind::Write {
                            self.receives.charge(rank, n);
                        }
                    }
                    Target::Memory(_) | Target::Discard => incoming.done += n,
                }
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
                let header = Header::decode(&wire, peer.identity).map_err(|e| e.context(self.name(rank)))?;
                peer.incoming = self.begin(rank, peer, header)?;
            }
        }
    }

    /// A header has come: where its payload goes, if it has one.
    pub(super) fn begin(&mut self, rank: Rank, peer: &mut Peer, header: Header) -> Result<Option<Incoming>> {
        let incoming = |target, finish| Ok(Some(Incoming::new(header, target, finish)));
        let key = Key::new(rank, header.space, header.slot);
        match header.kind {
            Kind::Data => match self.receives.arrive(rank, &header) {
                Arrival::Early(early) => incoming(Target::Early(early), Finish::Nothing),
                Arrival::Discard => incoming(Target::Discard, Finish::Nothing),
                Arrival::Op(index) => {
                    let recv = &self.receives.op(index).recv;
                    if let Some(outcome) = refusal(recv, rank, &header, || self.name(rank)) {
                        let token = recv.token;
                        self.receives.finish(index);
                        self.event(token, outcome);
                        return incoming(Target::Discard, Finish::Nothing);
                    }
                    let target = match recv.reduce {
                        Some(reduce) => Target::Reduce(recv.into, reduce),
                        None => Target::Memory(recv.into),
                    };
                    incoming(target, Finish::Recv(index))
                }
            },
            Kind::ReadyToSend => {
                if self.receives.announce(rank, &header) {
                    let grant = Header { space: header.space, ..Header::new(Kind::ClearToSend, header.slot, 0) };
                    peer.push_control(&grant);
                }
                Ok(None)
            }
            Kind::ClearToSend => {
                self.cleared.push(key);
                Ok(None)
            }
            Kind::Write => match self.bindings.get(&key).copied() {
                Some(binding) => match binding.region.at(header.offset, header.bytes) {
                    Some(into) => incoming(Target::Memory(into), Finish::Written(binding.token)),
                    None => Err(self.wrote_outside(key, binding, header.offset, header.bytes)),
                },
                None => {
                    self.receives.charge(rank, EARLY_OVERHEAD);
                    incoming(Target::Text(Vec::new()), Finish::Nothing)
                }
            },
            Kind::Put => {
                let into = self.regions.get(&header.region()).and_then(|region| region.at(header.offset, header.bytes));
                let target = into.map_or(Target::Discard, Target::Memory);
                incoming(target, Finish::PutDone { refused: into.is_none() })
            }
            Kind::Get => {
                let from = self.regions.get(&header.region()).and_then(|region| region.at(header.offset, header.bytes));
                let answer = |bytes, refused| Header {
                    offset: u64::from(refused),
                    ..Header::new(Kind::GetDone, header.slot, bytes)
                };
                self.outgoing += 1;
                match from {
                    Some(from) => {
                        let token = Token { owner: region_owner(header.region()), detail: 0 };
                        peer.push_data(&answer(header.bytes, false), from, Some(token), false);
                    }
                    None => peer.push_data(&answer(0, true), std::ptr::null(), None, false),
                }
                Ok(None)
            }
            Kind::PutDone | Kind::GetDone => {
                let request = u32::try_from(header.slot).ok().and_then(|r| Some((r, self.requests.get(r)?)));
                let Some((index, request)) = request.filter(|(_, r)| r.rank == rank) else {
                    return Err(Error::new(
                        ErrorKind::Mismatch,
                        format!("{} answered a request that was not made", self.name(rank)),
                    ));
                };
                // Its memory would be the poster's again while it is still read.
                if peer.is_putting(header.slot) {
                    return Err(Error::new(
                        ErrorKind::Mismatch,
                        format!("{} answered a put before it was sent", self.name(rank)),
                    ));
                }
                let refused = header.offset != 0;
                let is_get = header.kind == Kind::GetDone;
                let misfit = header.bytes != request.bytes as u64 || (header.bytes > 0 && request.into.is_null());
                if is_get && !refused && misfit {
                    return Err(Error::new(
                        ErrorKind::Mismatch,
                        format!("{} sent {} bytes for a get of {}", self.name(rank), header.bytes, request.bytes),
                    ));
                }
                let target = if is_get && !refused && !request.cancelled {
                    Target::Memory(request.into)
                } else {
                    Target::Discard
                };
                incoming(target, Finish::Answer { request: index, refused })
            }
            Kind::Abort => incoming(Target::Text(Vec::new()), Finish::Abort),
            Kind::Ask => {
                let call = Call { check: header.check, tag: header.slot as u32 };
                self.event(CONTEXT, Outcome::Asked { rank, call });
                Ok(None)
            }
            Kind::Tell => incoming(Target::Text(Vec::new()), Finish::Tell),
            Kind::Goodbye => {
                peer.goodbye = true;
                Ok(None)
            }
        }
    }

    /// The payload of a message is complete.
    pub(super) fn finish(&mut self, rank: Rank, peer: &mut Peer, incoming: Incoming) -> Result<()> {
        let bytes = incoming.done;
        match incoming.finish {
            Finish::Recv(op) => {
                if let Some(op) = self.receives.finish(op) {
                    self.event(op.recv.token, Outcome::Done { rank, bytes });
                }
            }
            Finish::Written(token) => {
                self.event(token, Outcome::Written { offset: incoming.header.offset as usize, bytes });
            }
            Finish::PutDone { refused } => {
                let header =
                    Header { offset: u64::from(refused), ..Header::new(Kind::PutDone, incoming.header.slot, 0) };
                peer.push_control(&header);
            }
            Finish::Answer { request, refused } => {
                if let Some(request) = self.requests.remove(request).filter(|r| !r.cancelled) {
                    let outcome = if refused {
                        Outcome::Failed(Error::invalid(format!(
                            "{} has no such region, or it is shorter than offset and length ask for",
                            self.name(rank)
                        )))
                    } else {
                        Outcome::Done { rank, bytes: request.bytes }
                    };
                    self.event(request.token, outcome);
                }
            }
            Finish::Abort => {
                let Target::Text(reason) = incoming.target else { return Ok(()) };
                let reason = String::from_utf8_lossy(&reason).into_owned();
                let kind = if incoming.header.check == 1 { ErrorKind::Mismatch } else { ErrorKind::ConnectionLost };
                let error = Error::told(kind, self.name(rank), reason);
                self.event(CONTEXT, Outcome::Failed(error.clone()));
                return Err(error);
            }
            Finish::Tell => {
                let Target::Text(text) = incoming.target else { return Ok(()) };
                if peer.asked.is_some() {
                    peer.told = Some((String::from_utf8_lossy(&text).into_owned(), incoming.header.offset == 1));
                    self.event(CONTEXT, Outcome::Told);
                }
            }
            Finish::Nothing => {
                if let (Kind::Write, Target::Text(data)) = (incoming.header.kind, incoming.target) {
                    let key = Key::new(rank, Space::User, incoming.header.slot);
                    let write = EarlyWrite { offset: incoming.header.offset, data };
                    match self.bindings.get(&key).copied() {
                        // It was bound while the write arrived.
                        Some(binding) => self.write_late(key, binding, &write)?,
                        None => self.early_writes.entry(key).or_default().push(write),
                    }
                }
            }
        }
        Ok(())
    }
}
