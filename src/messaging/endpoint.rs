//! The endpoint of one context, which all parts of the messenger borrow: the peers with their links, the receives, and
//! the events.

use std::collections::VecDeque;
use std::io;

use crate::error::{Error, ErrorKind, Result};
use crate::log::{Level, LogCallback};
use crate::messaging::inbox::{Finish, Incoming, Target};
use crate::messaging::matching::{Arrival, Op, Receives, refusal};
use crate::messaging::operation::{Event, Outcome, Send, Source, Token};
use crate::messaging::peer::Peer;
use crate::messaging::ranks::ByRank;
use crate::reserve::try_copy;
use crate::transport::{Connections, OneSided};
use crate::types::Rank;
use crate::wire::{Envelope, Message};

/// Events, and other entries of lists, for which memory is reserved. How many are pushed at once varies, and the steady
/// state must not allocate.
pub const EVENTS: usize = 256;

/// Token owners from this number on are regions: the answers to gets have their region as owner, so that `unregister`
/// cancels them.
pub const FIRST_REGION_OWNER: u32 = 0xc000_0000;

/// The peers of one context, its receives, and what has happened to its operations.
pub struct Endpoint {
    /// This rank.
    pub rank: Rank,
    /// The number of ranks.
    pub size: usize,
    log: Option<LogCallback>,
    pub connections: Connections,
    pub peers: ByRank<Peer>,
    pub receives: Receives,
    /// Ranks with an established link.
    pub linked: Vec<Rank>,
    /// Ranks with output to flush.
    pub dirty: Vec<Rank>,
    /// Messages in the peers' send queues.
    pub outgoing: usize,
    /// Events that the caller has not got.
    pub events: Vec<Event>,
    /// Messages of agreements that were received, with their senders.
    pub agreements: VecDeque<(Rank, Vec<u8>)>,
    /// Whether there is an event for each peer that is disconnected.
    pub tells_of_ends: bool,
    /// Why the context is closed, if it is.
    pub closed: Option<Error>,
}

impl Endpoint {
    /// The endpoint of `rank` of `size`, which `connections` connect.
    pub fn new(rank: Rank, size: usize, mut connections: Connections, log: Option<LogCallback>) -> Self {
        connections.set_rank(rank, size);
        Self {
            rank,
            size,
            log,
            connections,
            peers: ByRank::default(),
            receives: Receives::default(),
            linked: Vec::new(),
            dirty: Vec::new(),
            outgoing: 0,
            events: Vec::with_capacity(EVENTS),
            agreements: VecDeque::new(),
            tells_of_ends: false,
            closed: None,
        }
    }

    /// The peer `rank`, whose entry is created if there is none: then `close` fails what depends on it, although its
    /// address is unknown.
    pub fn peer(&mut self, rank: Rank) -> &mut Peer {
        self.peers.get_or_insert_with(rank, Peer::default)
    }

    /// The link's access to the memory of `rank`, if it has it.
    pub fn one_sided(&mut self, rank: Rank) -> Option<&mut dyn OneSided> {
        self.peers.get_mut(rank).and_then(Peer::one_sided)
    }

    /// Whether the link to `rank` accesses the peer's `region` itself, and the range is inside it. The peer reports one
    /// that is not, if the operation is sent to it.
    pub fn reaches(&mut self, rank: Rank, region: u32, offset: u64, bytes: usize) -> bool {
        let inside = |length: usize| (offset as usize).checked_add(bytes).is_some_and(|end| end <= length);
        bytes > 0 && self.one_sided(rank).and_then(|link| link.published(region)).is_some_and(inside)
    }

    /// Starts to connect to `rank`, unless this was done before.
    #[inline]
    pub fn connect(&mut self, rank: Rank) {
        if rank != self.rank && self.closed.is_none() && self.peers.get(rank).is_none_or(|p| p.link.is_none()) {
            self.connections.connect(rank);
        }
    }

    /// Queues a message to `rank`. With `report`, an event for `token` follows when it is sent.
    #[inline]
    pub fn push(&mut self, rank: Rank, message: &Message, from: *const u8, token: Option<Token>, report: bool) {
        self.outgoing += 1;
        self.peer(rank).queue.push(message, from, token, report);
        self.mark_dirty(rank);
    }

    /// Queues a message to `rank` that has no payload, and of whose end nobody is told.
    pub fn push_header(&mut self, rank: Rank, message: &Message) {
        self.push(rank, message, std::ptr::null(), None, false);
    }

    /// Queues a header to `rank` that may overtake messages.
    pub fn push_control(&mut self, rank: Rank, message: &Message) {
        self.peer(rank).queue.push_control(message);
        self.mark_dirty(rank);
    }

    /// Queues `message` to `rank` with a payload that the queue owns.
    pub fn push_owned(&mut self, rank: Rank, message: &Message, owned: Vec<u8>) {
        self.outgoing += 1;
        self.peer(rank).queue.push_owned(message, owned);
        self.mark_dirty(rank);
    }

    /// Queues a copy of a cancelled message, as `message`, because the receiver waits for it. If it fails, the receiver
    /// must be disconnected, since nothing else would tell it that its message does not come: the rank and the error
    /// are added to `starved`.
    ///
    /// # Safety
    /// `send.from` is still valid for `send.bytes`.
    pub unsafe fn push_copy(&mut self, send: &Send, message: &Message, starved: &mut Vec<(Rank, Error)>) {
        // SAFETY: the caller guarantees that the memory is valid.
        match try_copy(unsafe { send.payload() }, "a copy of a message whose buffer is destroyed") {
            Ok(owned) => self.push_owned(send.to, message, owned),
            Err(error) => starved.push((send.to, error.with_rank(send.to))),
        }
    }

    /// `rank` has output to flush.
    pub fn mark_dirty(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank)
            && peer.is_established()
            && !std::mem::replace(&mut peer.dirty, true)
        {
            self.dirty.push(rank);
        }
    }

    /// Tells the caller of an outcome, unless the operation is an answer to a peer.
    pub fn event(&mut self, token: Token, outcome: Outcome) {
        if token.owner < FIRST_REGION_OWNER || token == Token::CONTEXT {
            self.events.push(Event { token, outcome });
        }
    }

    /// Delivers a complete message to its receive.
    pub fn deliver(&mut self, op: &Op, from: Rank, envelope: &Envelope, data: &[u8]) {
        let outcome = refusal(&op.recv, from, envelope, || self.peer_name(from)).unwrap_or_else(|| {
            // SAFETY: `refusal` has checked that the message fits into the receive, and that it has the exact length if
            // it reduces; the poster keeps the memory valid until the event below.
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

    /// Appends bytes, for which there is room, to an unexpected message, and delivers it once it is complete and
    /// matched.
    pub fn append(&mut self, message: u32, bytes: &[u8]) {
        if let Some((op, from, envelope, data)) = self.receives.append(message, bytes) {
            self.deliver(&op, from, &envelope, &data);
            self.receives.recycle(data);
        }
    }

    /// The payload of a message to the receive `op` is complete.
    #[inline]
    pub fn complete(&mut self, rank: Rank, op: u32, bytes: usize) {
        if let Some(op) = self.receives.finish(op) {
            self.event(op.recv.token, Outcome::Done { rank, bytes });
        }
    }

    /// The destination of a message, as `arrival` says.
    pub fn destination(&mut self, rank: Rank, envelope: &Envelope, arrival: Arrival) -> Incoming {
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

    /// The error of operations with `rank`, if it is disconnected.
    pub fn disconnect_error(&self, rank: Rank) -> Option<Error> {
        self.closed.as_ref().or_else(|| self.peers.get(rank)?.disconnected.as_ref()).cloned()
    }

    /// The error of a receive, if all ranks that could serve it are disconnected. An error detected here is preferred
    /// to one that a peer reported, because that peer may have failed only because this rank kept it waiting.
    pub fn disconnect_error_of(&self, from: &Source) -> Option<Error> {
        let mut told = None;
        let mut seen = None;
        for rank in from.ranks() {
            let error = self.disconnect_error(*rank)?;
            let first = if error.is_reported_by_peer() { &mut told } else { &mut seen };
            first.get_or_insert(error);
        }
        seen.or(told)
    }

    /// Whether a link to `rank` is established; an error if it is disconnected.
    pub fn is_connected(&self, rank: Rank) -> Result<bool> {
        match self.disconnect_error(rank) {
            Some(error) => Err(error),
            None => Ok(rank == self.rank || self.peers.get(rank).is_some_and(Peer::is_established)),
        }
    }

    /// The name of `rank` in messages to the user.
    pub fn peer_name(&self, rank: Rank) -> String {
        self.connections.peer_name(rank)
    }

    /// The error for what `rank` does against the protocol.
    #[cold]
    pub fn violation(&self, rank: Rank, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Mismatch, format!("{} {what}", self.peer_name(rank)))
    }

    /// The error for a connection that broke with `e`.
    pub fn broke_while(&self, rank: Rank, doing: &str, e: &io::Error) -> Error {
        let text = format!("the connection to {} broke while {doing}: {e}", self.peer_name(rank));
        Error::new(ErrorKind::ConnectionLost, text).with_rank(rank).with_errno(e.raw_os_error())
    }

    pub fn log(&self, level: Level, text: &str) {
        if let Some(log) = &self.log {
            log(level, text);
        }
    }
}
