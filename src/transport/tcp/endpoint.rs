//! One context's connections: the [`Transport`] over TCP.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickMap;
use crate::transport::frame::{FLAG_ANNOUNCED, Header, Kind, MAX_ABORT_BYTES};
use crate::transport::matching::{Arrival, EAGER_BYTES, Key, Op, Posting, Queues, Receives, refusal};
use crate::transport::slab::Slab;
use crate::transport::tcp::address::{self, Address, Hello, Identity, Reply, peer_name};
use crate::transport::tcp::connection::{Finish, Incoming, Peer, Sent, State, Target};
use crate::transport::tcp::poll::{self, Epoll};
use crate::transport::{Event, LogCallback, Outcome, Recv, Remote, Send, Source, Space, Token, Transport};
use crate::types::{Rank, Slot};

/// Bytes read at once from a socket when they do not go straight to their place: small enough to stay in cache until they
/// are reduced.
const STAGING_BYTES: usize = 128 << 10;
/// Payload from which on the rest is read straight into its place.
const DIRECT_BYTES: usize = 4 << 10;
/// Reads from one connection before others get their turn.
const READS_PER_TURN: usize = 4;
/// Up to so many connections are read without asking the system which are readable.
const DIRECT_LINKS: usize = 4;
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// A message without credit.
struct Held {
    send: Send,
    announced: bool,
}

/// A put or get that has not been answered.
struct Request {
    rank: Rank,
    token: Token,
    into: *mut u8,
    bytes: usize,
    /// Its owner is gone: the answer is thrown away.
    cancelled: bool,
}

/// Memory that peers may reach.
#[derive(Clone, Copy)]
struct Region {
    memory: *mut u8,
    bytes: usize,
}

#[derive(Clone, Copy)]
struct Binding {
    region: Region,
    token: Token,
}

/// A write that came before its buffer was bound.
struct EarlyWrite {
    offset: u64,
    data: Vec<u8>,
}

/// The connections of one context.
pub struct Endpoint {
    rank: Rank,
    local: Address,
    log: Option<LogCallback>,
    epoll: Epoll,
    addresses: Vec<Option<Address>>,
    peers: Vec<Option<Box<Peer>>>,
    /// Ranks whose connections stand.
    links: Vec<Rank>,
    /// Ranks that are being connected to.
    connecting: Vec<Rank>,
    dirty: Vec<Rank>,
    receives: Receives,
    held: Queues<u32>,
    held_sends: Slab<Held>,
    credits: QuickMap<Key, u32>,
    /// Receivers that have become ready during a read.
    cleared: Vec<Key>,
    requests: Slab<Request>,
    regions: HashMap<u32, Region>,
    bindings: QuickMap<Key, Binding>,
    early_writes: QuickMap<Key, Vec<EarlyWrite>>,
    /// Messages queued or held.
    outgoing: usize,
    staging: Box<[u8]>,
    events: Vec<Event>,
    sent: Vec<Sent>,
    closed: Option<Error>,
    retired: Vec<OwnedFd>,
}

// SAFETY: the pointers are to memory of the posters', who vouch for it until the event or the cancellation, whichever thread
// drives the endpoint.
unsafe impl std::marker::Send for Endpoint {}

fn in_range(offset: u64, bytes: u64, size: usize) -> bool {
    offset.checked_add(bytes).is_some_and(|end| end <= size as u64)
}

impl Endpoint {
    /// Connections for `rank` of `size`; peers find it at `listen`.
    pub fn new(rank: Rank, size: usize, listen: SocketAddr, log: Option<LogCallback>) -> Result<Self> {
        let failed = |e| Error::io("cannot create a context", &e);
        let identity: Identity = poll::random().map_err(failed)?;
        Ok(Self {
            rank,
            local: Address { identity, socket: listen, host: address::host() },
            log,
            epoll: Epoll::new().map_err(failed)?,
            addresses: vec![None; size],
            peers: (0..size).map(|_| None).collect(),
            links: Vec::new(),
            connecting: Vec::new(),
            dirty: Vec::new(),
            receives: Receives::default(),
            held: Queues::default(),
            held_sends: Slab::default(),
            credits: QuickMap::default(),
            cleared: Vec::new(),
            requests: Slab::default(),
            regions: HashMap::new(),
            bindings: QuickMap::default(),
            early_writes: QuickMap::default(),
            outgoing: 0,
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            events: Vec::new(),
            sent: Vec::new(),
            closed: None,
            retired: Vec::new(),
        })
    }

    /// Who this context is.
    pub fn identity(&self) -> Identity {
        self.local.identity
    }

    fn log(&self, level: u32, text: &str) {
        if let Some(log) = &self.log {
            log(level, text);
        }
    }

    fn name(&self, rank: Rank) -> String {
        peer_name(rank, self.addresses[rank].as_ref())
    }

    fn peer(&mut self, rank: Rank) -> &mut Peer {
        self.peers[rank].get_or_insert_with(|| Box::new(Peer::new()))
    }

    fn event(&mut self, token: Token, outcome: Outcome) {
        if token.owner < FIRST_REGION_OWNER {
            self.events.push(Event { token, outcome });
        }
    }

    fn mark_dirty(&mut self, rank: Rank) {
        let peer = self.peer(rank);
        if peer.is_established() && !std::mem::replace(&mut peer.dirty, true) {
            self.dirty.push(rank);
        }
    }

    /// The error that operations with `rank` end with, once its connection is over.
    fn lost(&self, rank: Rank) -> Option<Error> {
        if let Some(error) = &self.closed {
            return Some(error.clone());
        }
        match &self.peers[rank].as_deref()?.state {
            State::Closed(error) => Some(error.clone()),
            _ => None,
        }
    }

    // ---- connecting ----

    fn begin_connect(&mut self, rank: Rank) {
        let Some(address) = self.addresses[rank].clone() else { return };
        if !matches!(self.peer(rank).state, State::Idle | State::Retry(_)) {
            return;
        }
        let attempt = (|| {
            let domain = Domain::for_address(address.socket);
            let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
            socket.set_tcp_nodelay(true)?;
            // Leave from the address that we are known by, where the peer's is of the same family.
            if self.local.socket.is_ipv4() == address.socket.is_ipv4() {
                let mut from = self.local.socket;
                from.set_port(0);
                socket.bind(&from.into())?;
            }
            match socket.connect(&address.socket.into()) {
                Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
                _ => {}
            }
            self.epoll.add(socket.as_raw_fd(), poll::READ | poll::WRITE, rank as u64)?;
            Ok(OwnedFd::from(socket))
        })();
        match attempt {
            Ok(socket) => {
                let peer = self.peer(rank);
                peer.socket = Some(socket);
                peer.state = State::Connecting;
                if !self.connecting.contains(&rank) {
                    self.connecting.push(rank);
                }
            }
            Err(e) => self.retry_later(rank, Error::io(format_args!("cannot connect to {}", self.name(rank)), &e)),
        }
    }

    fn retry_later(&mut self, rank: Rank, error: Error) {
        let peer = self.peer(rank);
        let wait = FIRST_RETRY.saturating_mul(1 << peer.attempts.min(10)).min(LAST_RETRY);
        peer.attempts += 1;
        peer.last_error = Some(error);
        peer.socket = None;
        peer.state = State::Retry(Instant::now() + wait);
        if !self.connecting.contains(&rank) {
            self.connecting.push(rank);
        }
    }

    /// Moves a connection that is being made.
    fn advance_connect(&mut self, rank: Rank) {
        let name = self.name(rank);
        let hello = Hello { to: [0; 16], from: self.local.identity, rank: self.rank as u32 };
        let Some(to) = self.addresses[rank].as_ref().map(|a| a.identity) else { return };
        let epoll = self.epoll.clone();
        let peer = self.peer(rank);
        let outcome = (|| -> Result<Option<Reply>> {
            let Some(socket) = &peer.socket else { return Ok(None) };
            let fd = socket.as_raw_fd();
            let failed = |e: &io::Error| Error::io(format_args!("cannot connect to {name}"), e);
            if matches!(peer.state, State::Connecting) {
                let socket = socket2::SockRef::from(socket);
                if let Some(e) = socket.take_error().map_err(|e| failed(&e))? {
                    return Err(failed(&e));
                }
                match poll::send(fd, &[io::IoSlice::new(&Hello { to, ..hello }.encode())]) {
                    Ok(Hello::BYTES) => {}
                    Ok(_) => return Err(Error::new(ErrorKind::Io, format!("cannot send a hello to {name}"))),
                    Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOTCONN)) => return Ok(None),
                    Err(e) => return Err(failed(&e)),
                }
                let _ = epoll.modify(fd, poll::READ, rank as u64);
                peer.state = State::Greeting { reply: Vec::with_capacity(Reply::BYTES) };
            }
            let State::Greeting { reply } = &mut peer.state else { return Ok(None) };
            let mut bytes = [0; Reply::BYTES];
            let rest = &mut bytes[reply.len()..];
            match poll::receive(fd, &mut [IoSliceMut::new(rest)]) {
                Ok(0) => Err(Error::new(ErrorKind::ConnectionLost, format!("{name} closed the connection unanswered"))),
                Ok(n) => {
                    let at = reply.len();
                    reply.extend_from_slice(&bytes[at..at + n]);
                    let Ok(whole) = reply.as_slice().try_into() else { return Ok(None) };
                    Reply::decode(whole).map(Some).map_err(|e| e.context(&name))
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(e) => Err(failed(&e)),
            }
        })();
        match outcome {
            Ok(None) => {}
            Ok(Some(Reply::Accepted)) => {
                let socket = self.peer(rank).socket.take();
                if let Some(socket) = socket {
                    self.established(rank, socket, &to);
                }
            }
            Ok(Some(Reply::Yield)) => {
                let peer = self.peer(rank);
                peer.socket = None;
                peer.state = State::Yielded;
                self.connecting.retain(|r| *r != rank);
            }
            Ok(Some(Reply::Refused)) => {
                let error = Error::new(ErrorKind::ConnectionLost, format!("{name} refused the connection"));
                self.lose(rank, error);
            }
            Err(error) if error.kind() == ErrorKind::Mismatch => self.lose(rank, error),
            Err(error) => self.retry_later(rank, error),
        }
    }

    fn established(&mut self, rank: Rank, socket: OwnedFd, theirs: &Identity) {
        let ours = self.local.identity;
        let fd = socket.as_raw_fd();
        self.connecting.retain(|r| *r != rank);
        if self.epoll.modify(fd, poll::READ, rank as u64).is_err() {
            if let Err(e) = self.epoll.add(fd, poll::READ, rank as u64) {
                let error = Error::io(format_args!("cannot watch the connection to {}", self.name(rank)), &e);
                self.lose(rank, error);
                return;
            }
        }
        let peer = self.peer(rank);
        peer.establish(socket, &ours, theirs);
        self.links.push(rank);
        self.mark_dirty(rank);
        self.log(3, &format!("rank {}: connected to {}", self.rank, self.name(rank)));
    }

    /// A peer has connected to the device and asked for this context.
    pub fn accept(&mut self, socket: OwnedFd, hello: &Hello) {
        let rank = hello.rank as usize;
        let answer = if rank >= self.addresses.len() || rank == self.rank || self.closed.is_some() {
            Reply::Refused
        } else if self.addresses[rank].as_ref().is_some_and(|a| a.identity != hello.from) {
            self.log(1, &format!("rank {}: refused a stranger that says it is rank {rank}", self.rank));
            Reply::Refused
        } else {
            let ours_is_kept = self.rank < rank;
            match self.peer(rank).state {
                State::Connecting | State::Greeting { .. } if ours_is_kept => Reply::Yield,
                State::Established | State::Closed(_) => Reply::Refused,
                _ => Reply::Accepted,
            }
        };
        // Nine bytes fit into the buffer of a socket that nothing was sent on.
        let sent = poll::send(socket.as_raw_fd(), &[io::IoSlice::new(&answer.encode())]);
        if answer == Reply::Accepted && matches!(sent, Ok(Reply::BYTES)) {
            self.peer(rank).socket = None;
            self.established(rank, socket, &hello.from);
        }
    }

    // ---- losing ----

    /// The connection to `rank` is over: everything that depends on it fails with `error`.
    fn lose(&mut self, rank: Rank, error: Error) {
        if matches!(self.peer(rank).state, State::Closed(_)) {
            return;
        }
        self.log(2, &format!("rank {}: {error}", self.rank));
        self.links.retain(|r| *r != rank);
        self.connecting.retain(|r| *r != rank);
        let peer = self.peer(rank);
        peer.state = State::Closed(error.clone());
        let dropped = peer.reset();
        self.outgoing -= dropped.len();
        let mut tokens: Vec<Token> = dropped.into_iter().filter(|out| out.report).filter_map(|out| out.token).collect();
        let peers = &self.peers;
        let closed = |r: Rank| matches!(peers[r].as_deref(), Some(Peer { state: State::Closed(_), .. }));
        tokens.extend(self.receives.lose(rank, closed));
        let held: Vec<u32> = self.held_sends.iter().filter(|(_, h)| h.send.to == rank).map(|(i, _)| i).collect();
        for index in held {
            if let Some(Held { send, .. }) = self.held_sends.remove(index) {
                self.held.remove(Key::new(rank, send.space, send.slot), index);
                self.outgoing -= 1;
                tokens.push(send.token);
            }
        }
        let requests: Vec<u32> = self.requests.iter().filter(|(_, r)| r.rank == rank).map(|(i, _)| i).collect();
        for index in requests {
            tokens.extend(self.requests.remove(index).filter(|r| !r.cancelled).map(|r| r.token));
        }
        tokens.extend(self.bindings.iter().filter(|(key, _)| key.rank() == rank).map(|(_, b)| b.token));
        for token in tokens {
            self.event(token, Outcome::Failed(error.clone()));
        }
    }

    fn io_lost(&mut self, rank: Rank, doing: &str, e: &io::Error) {
        let error = Error::new(
            ErrorKind::ConnectionLost,
            format!("the connection to {} broke while {doing}: {e}", self.name(rank)),
        );
        self.lose(rank, error);
    }

    // ---- sending ----

    fn flush_to(&mut self, rank: Rank) -> bool {
        let mut sent = std::mem::take(&mut self.sent);
        let Some(peer) = self.peers[rank].as_deref_mut() else { return false };
        peer.dirty = false;
        if !peer.is_established() {
            return false;
        }
        let before = peer.data.len();
        let result = peer.flush(&mut sent);
        self.outgoing -= before - peer.data.len();
        let want_write = peer.has_output();
        if result.is_ok() && want_write != peer.write_armed {
            peer.write_armed = want_write;
            let interest = if want_write { poll::READ | poll::WRITE } else { poll::READ };
            let _ = self.epoll.modify(peer.fd(), interest, rank as u64);
        }
        for (token, bytes) in sent.drain(..) {
            self.event(token, Outcome::Done { rank, bytes });
        }
        self.sent = sent;
        match result {
            Ok(moved) => moved,
            Err(e) => {
                // What the peer sent before it left still counts.
                while self.read(rank) {}
                self.io_lost(rank, "sending", &e);
                true
            }
        }
    }

    fn push_message(&mut self, send: &Send, announced: bool) {
        let header = Header {
            space: send.space,
            flags: if announced { FLAG_ANNOUNCED } else { 0 },
            check: send.check,
            ..Header::new(Kind::Data, send.slot, send.bytes as u64)
        };
        self.peer(send.to).push_data(&header, send.from, Some(send.token), true);
        self.mark_dirty(send.to);
    }

    fn announce(&mut self, send: &Send) {
        let header = Header {
            space: send.space,
            check: send.check,
            ..Header::new(Kind::ReadyToSend, send.slot, send.bytes as u64)
        };
        self.outgoing += 1;
        // In order with the messages, and without payload.
        self.peer(send.to).push_data(&header, std::ptr::null(), None, false);
        self.mark_dirty(send.to);
    }

    fn take_credit(&mut self, key: Key) -> bool {
        match self.credits.get_mut(&key) {
            Some(1) => self.credits.remove(&key).is_some(),
            Some(n) => {
                *n -= 1;
                true
            }
            None => false,
        }
    }

    /// The receiver is ready for a large message.
    fn clear_to_send(&mut self, key: Key) {
        let Some(index) = self.held.pop(key) else {
            *self.credits.entry(key).or_insert(0) += 1;
            return;
        };
        if let Some(Held { send, announced }) = self.held_sends.remove(index) {
            self.push_message(&send, announced);
        }
        // What stood behind it.
        while let Some(index) = self.held.front(key) {
            let send = self.held_sends[index].send;
            if send.bytes <= EAGER_BYTES || self.take_credit(key) {
                self.held.pop(key);
                self.held_sends.remove(index);
                self.push_message(&send, false);
            } else {
                if send.space == Space::User {
                    self.held_sends[index].announced = true;
                    self.announce(&send);
                }
                return;
            }
        }
    }

    fn send_to_self(&mut self, send: &Send) {
        let header =
            Header { space: send.space, check: send.check, ..Header::new(Kind::Data, send.slot, send.bytes as u64) };
        let bytes = if send.bytes == 0 {
            &[][..]
        } else {
            // SAFETY: the poster vouches for the memory.
            unsafe { std::slice::from_raw_parts(send.from, send.bytes) }
        };
        match self.receives.arrive(self.rank, &header) {
            Arrival::Early(early) => {
                if let Some((op, from, header, data)) = self.receives.keep(early, bytes) {
                    self.deliver(&op, from, &header, &data);
                }
            }
            Arrival::Op(index) => {
                if let Some(op) = self.receives.finish(index) {
                    self.deliver(&op, self.rank, &header, bytes);
                }
            }
            Arrival::Discard => {}
        }
        self.event(send.token, Outcome::Done { rank: self.rank, bytes: send.bytes });
    }

    // ---- receiving ----

    /// Gives a whole message to its receive.
    fn deliver(&mut self, op: &Op, from: Rank, header: &Header, data: &[u8]) {
        let outcome = refusal(&op.recv, from, header).unwrap_or_else(|| {
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

    fn grant(&mut self, to: Rank, space: Space, slot: Slot) {
        if to != self.rank {
            self.peer(to).push_control(&Header { space, ..Header::new(Kind::ClearToSend, slot, 0) });
            self.mark_dirty(to);
        }
    }

    /// Reads what has come from `rank`. Whether anything had.
    fn read(&mut self, rank: Rank) -> bool {
        let Some(mut peer) = self.peers[rank].take() else { return false };
        if !peer.is_established() {
            self.peers[rank] = Some(peer);
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
                poll::receive(peer.fd(), &mut [IoSliceMut::new(direct), IoSliceMut::new(&mut staging)])
            } else {
                poll::receive(peer.fd(), &mut [IoSliceMut::new(&mut staging)])
            };
            match result {
                Ok(0) => {
                    error = Some(Error::new(
                        ErrorKind::ConnectionLost,
                        if peer.goodbye {
                            format!("{} has closed its context", self.name(rank))
                        } else {
                            format!("{} is gone: it closed the connection", self.name(rank))
                        },
                    ));
                }
                Ok(n) => {
                    any = true;
                    let here = n.min(length);
                    if here > 0 {
                        if let Some(incoming) = &mut peer.incoming {
                            incoming.done += here;
                        }
                    }
                    error = self.take(rank, &mut peer, &staging[..n - here]).err();
                    if error.is_none() && n == wanted {
                        continue;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => {
                    let text = format!("the connection to {} broke while receiving: {e}", self.name(rank));
                    error = Some(Error::new(ErrorKind::ConnectionLost, text));
                }
            }
            break;
        }
        self.staging = staging;
        let dirty = peer.has_output();
        self.peers[rank] = Some(peer);
        while let Some(key) = self.cleared.pop() {
            self.clear_to_send(key);
        }
        match error {
            Some(error) => self.lose(rank, error),
            None if dirty => self.mark_dirty(rank),
            None => {}
        }
        any
    }

    /// Takes apart bytes that came from `rank`.
    fn take(&mut self, rank: Rank, peer: &mut Peer, mut bytes: &[u8]) -> Result<()> {
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
                        }
                    }
                    Target::Text(text) => {
                        incoming.done += n;
                        text.extend_from_slice(now);
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
    fn begin(&mut self, rank: Rank, peer: &mut Peer, header: Header) -> Result<Option<Incoming>> {
        let incoming = |target, finish| Ok(Some(Incoming::new(header, target, finish)));
        let key = Key::new(rank, header.space, header.slot);
        match header.kind {
            Kind::Data => match self.receives.arrive(rank, &header) {
                Arrival::Early(early) => incoming(Target::Early(early), Finish::Nothing),
                Arrival::Discard => incoming(Target::Discard, Finish::Nothing),
                Arrival::Op(index) => {
                    let recv = &self.receives.op(index).recv;
                    if let Some(outcome) = refusal(recv, rank, &header) {
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
            Kind::Write => match self.bindings.get(&key) {
                Some(Binding { region, token }) if in_range(header.offset, header.bytes, region.bytes) => {
                    // SAFETY: the range was just checked.
                    let into = unsafe { region.memory.add(header.offset as usize) };
                    incoming(Target::Memory(into), Finish::Written(*token))
                }
                Some(Binding { region, .. }) => Err(Error::new(
                    ErrorKind::Mismatch,
                    format!(
                        "{} wrote {} bytes at offset {} of slot {:#x}, whose buffer has {} bytes",
                        self.name(rank),
                        header.bytes,
                        header.offset,
                        header.slot,
                        region.bytes
                    ),
                )),
                None => incoming(Target::Text(Vec::new()), Finish::Nothing),
            },
            Kind::Put => match self.regions.get(&header.check) {
                Some(region) if in_range(header.offset, header.bytes, region.bytes) => {
                    // SAFETY: the range was just checked.
                    let into = unsafe { region.memory.add(header.offset as usize) };
                    incoming(Target::Memory(into), Finish::PutDone { refused: false })
                }
                _ => incoming(Target::Discard, Finish::PutDone { refused: true }),
            },
            Kind::Get => {
                let region = self.regions.get(&header.check);
                let region = region.filter(|r| in_range(header.offset, header.bytes, r.bytes));
                let answer = |bytes, refused| Header {
                    offset: u64::from(refused),
                    ..Header::new(Kind::GetDone, header.slot, bytes)
                };
                self.outgoing += 1;
                match region {
                    Some(region) => {
                        // SAFETY: the range was just checked.
                        let from = unsafe { region.memory.add(header.offset as usize) };
                        let token = Token { owner: region_owner(header.check), detail: 0 };
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
                let refused = header.offset != 0;
                let is_get = header.kind == Kind::GetDone;
                if is_get && !refused && (request.into.is_null() || header.bytes != request.bytes as u64) {
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
            Kind::Goodbye => {
                peer.goodbye = true;
                Ok(None)
            }
        }
    }

    /// The payload of a message is complete.
    fn finish(&mut self, rank: Rank, peer: &mut Peer, incoming: Incoming) -> Result<()> {
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
                let reason = String::from_utf8_lossy(&reason);
                let text = format!("{} gave up: {reason}", self.name(rank));
                return Err(Error::new(ErrorKind::ConnectionLost, text));
            }
            Finish::Nothing => {
                if let (Kind::Write, Target::Text(data)) = (incoming.header.kind, incoming.target) {
                    let key = Key::new(rank, Space::User, incoming.header.slot);
                    let write = EarlyWrite { offset: incoming.header.offset, data };
                    self.early_writes.entry(key).or_default().push(write);
                }
            }
        }
        Ok(())
    }

    fn request(&mut self, remote: Remote, into: *mut u8, bytes: usize, token: Token) -> Option<u64> {
        if remote.rank >= self.addresses.len() {
            self.event(token, Outcome::Failed(Error::invalid(format!("there is no rank {}", remote.rank))));
            return None;
        }
        if let Some(error) = self.lost(remote.rank) {
            self.event(token, Outcome::Failed(error));
            return None;
        }
        self.begin_connect(remote.rank);
        let request = Request { rank: remote.rank, token, into, bytes, cancelled: false };
        Some(u64::from(self.requests.insert(request)))
    }

    /// Our own memory, for puts and gets to ourselves.
    fn own_region(&mut self, remote: Remote, bytes: usize, token: Token) -> Option<*mut u8> {
        match self.regions.get(&remote.region) {
            // SAFETY: the range was just checked.
            Some(r) if in_range(remote.offset, bytes as u64, r.bytes) => unsafe {
                Some(r.memory.add(remote.offset as usize))
            },
            _ => {
                let text = "no such region, or it is shorter than offset and length ask for";
                self.event(token, Outcome::Failed(Error::invalid(text)));
                None
            }
        }
    }
}

/// Owners from here on are the endpoint's own: answers to gets are queued under the number of their region, so that
/// `unregister` finds them.
pub const FIRST_REGION_OWNER: u32 = 0xc000_0000;

fn region_owner(region: u32) -> u32 {
    FIRST_REGION_OWNER | region
}

impl Transport for Endpoint {
    fn send(&mut self, send: Send) {
        if send.to == self.rank && self.closed.is_none() {
            return self.send_to_self(&send);
        }
        if let Some(error) = self.lost(send.to) {
            return self.event(send.token, Outcome::Failed(error));
        }
        self.begin_connect(send.to);
        self.outgoing += 1;
        let key = Key::new(send.to, send.space, send.slot);
        let behind = !self.held.is_empty() && self.held.front(key).is_some();
        if !behind && (send.bytes <= EAGER_BYTES || self.take_credit(key)) {
            return self.push_message(&send, false);
        }
        let announced = !behind && send.space == Space::User;
        let index = self.held_sends.insert(Held { send, announced });
        self.held.push(key, index);
        if announced {
            self.announce(&send);
        }
    }

    fn recv(&mut self, recv: Recv) {
        if let Some(error) = self.closed.clone() {
            return self.event(recv.token, Outcome::Failed(error));
        }
        let (space, slot, token, from) = (recv.space, recv.slot, recv.token, recv.from.clone());
        match self.receives.post(recv) {
            Posting::Message { op, from, header, data } => self.deliver(&op, from, &header, &data),
            Posting::Granted { to } => self.grant(to, space, slot),
            Posting::Waits { op, credit } => {
                let ranks: &[Rank] = match &from {
                    Source::Rank(rank) => std::slice::from_ref(rank),
                    Source::AnyOf(ranks) => ranks,
                };
                if ranks.iter().all(|r| self.lost(*r).is_some()) {
                    let error = self.lost(ranks[0]).expect("just seen");
                    self.receives.withdraw(op);
                    return self.event(token, Outcome::Failed(error));
                }
                for rank in ranks {
                    if *rank != self.rank {
                        self.begin_connect(*rank);
                    }
                }
                if let Some(rank) = credit {
                    self.grant(rank, space, slot);
                }
            }
        }
    }

    fn put(&mut self, remote: Remote, from: *const u8, bytes: usize, token: Token) {
        if remote.rank == self.rank {
            if let Some(into) = self.own_region(remote, bytes, token) {
                // SAFETY: the poster vouches for `from`; the region was checked.
                unsafe { std::ptr::copy(from, into, bytes) };
                self.event(token, Outcome::Done { rank: self.rank, bytes });
            }
            return;
        }
        let Some(request) = self.request(remote, std::ptr::null_mut(), bytes, token) else { return };
        let header =
            Header { check: remote.region, offset: remote.offset, ..Header::new(Kind::Put, request, bytes as u64) };
        self.outgoing += 1;
        self.peer(remote.rank).push_data(&header, from, Some(token), false);
        self.mark_dirty(remote.rank);
    }

    fn get(&mut self, remote: Remote, into: *mut u8, bytes: usize, token: Token) {
        if remote.rank == self.rank {
            if let Some(from) = self.own_region(remote, bytes, token) {
                // SAFETY: the poster vouches for `into`; the region was checked.
                unsafe { std::ptr::copy(from, into, bytes) };
                self.event(token, Outcome::Done { rank: self.rank, bytes });
            }
            return;
        }
        let Some(request) = self.request(remote, into, bytes, token) else { return };
        let header =
            Header { check: remote.region, offset: remote.offset, ..Header::new(Kind::Get, request, bytes as u64) };
        self.outgoing += 1;
        self.peer(remote.rank).push_data(&header, std::ptr::null(), None, false);
        self.mark_dirty(remote.rank);
    }

    fn register(&mut self, region: u32, memory: *mut u8, bytes: usize) {
        self.regions.insert(region, Region { memory, bytes });
    }

    fn unregister(&mut self, region: u32) {
        let Some(Region { memory, bytes }) = self.regions.remove(&region) else { return };
        self.cancel(region_owner(region));
        // A put that is arriving must not write there any more.
        let range = memory as usize..memory as usize + bytes;
        for peer in self.peers.iter_mut().flatten() {
            if let Some(Incoming { target, finish: Finish::PutDone { refused }, .. }) = &mut peer.incoming {
                if matches!(target, Target::Memory(into) if range.contains(&(*into as usize))) {
                    (*target, *refused) = (Target::Discard, true);
                }
            }
        }
    }

    fn write(&mut self, to: Rank, slot: Slot, offset: u64, from: *const u8, bytes: usize, token: Token) {
        if let Some(error) = self.lost(to) {
            return self.event(token, Outcome::Failed(error));
        }
        self.begin_connect(to);
        self.outgoing += 1;
        let header = Header { offset, ..Header::new(Kind::Write, slot, bytes as u64) };
        self.peer(to).push_data(&header, from, Some(token), true);
        self.mark_dirty(to);
    }

    fn bind(&mut self, from: Rank, slot: Slot, memory: *mut u8, bytes: usize, token: Token) -> Result<()> {
        let key = Key::new(from, Space::User, slot);
        if self.bindings.contains_key(&key) {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a receive buffer is bound to slot {slot:#x} of {} already", self.name(from)),
            ));
        }
        if let Some(error) = self.lost(from) {
            return Err(error);
        }
        self.begin_connect(from);
        self.bindings.insert(key, Binding { region: Region { memory, bytes }, token });
        for EarlyWrite { offset, data } in self.early_writes.remove(&key).unwrap_or_default() {
            let outcome = if in_range(offset, data.len() as u64, bytes) {
                // SAFETY: the range was just checked; the poster vouches for the memory.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), memory.add(offset as usize), data.len()) };
                Outcome::Written { offset: offset as usize, bytes: data.len() }
            } else {
                Outcome::Failed(Error::new(
                    ErrorKind::Mismatch,
                    format!(
                        "{} wrote {} bytes at offset {offset} of slot {slot:#x}, whose buffer has {bytes} bytes",
                        self.name(from),
                        data.len()
                    ),
                ))
            };
            self.event(token, outcome);
        }
        Ok(())
    }

    fn cancel(&mut self, owner: u32) {
        let mut arriving = Vec::new();
        self.receives.cancel(owner, |op| arriving.push(op));
        let bound: Vec<Key> =
            self.bindings.iter().filter(|(_, b)| b.token.owner == owner).map(|(key, _)| *key).collect();
        bound.iter().for_each(|key| {
            self.bindings.remove(key);
        });
        let requests = &mut self.requests;
        requests.iter_mut().filter(|(_, r)| r.token.owner == owner).for_each(|(_, r)| r.cancelled = true);
        for peer in self.peers.iter_mut().flatten() {
            if let Some(incoming) = &mut peer.incoming {
                let its = match incoming.finish {
                    Finish::Recv(op) => arriving.contains(&op),
                    Finish::Written(token) => token.owner == owner,
                    Finish::Answer { request, .. } => {
                        self.requests.get(request).is_some_and(|r| r.token.owner == owner)
                    }
                    _ => false,
                };
                if its {
                    incoming.target = Target::Discard;
                    if !matches!(incoming.finish, Finish::Answer { .. }) {
                        incoming.finish = Finish::Nothing;
                    }
                }
            }
            self.outgoing -= peer.cancel(owner);
        }
        let held: Vec<u32> =
            self.held_sends.iter().filter(|(_, h)| h.send.token.owner == owner).map(|(i, _)| i).collect();
        for index in held {
            let Some(Held { send, announced }) = self.held_sends.remove(index) else { continue };
            let key = Key::new(send.to, send.space, send.slot);
            self.held.remove(key, index);
            self.outgoing -= 1;
            if announced {
                // It was promised: it goes as an orphan, so that the receiver's order stays whole.
                let mut owned = Vec::new();
                // SAFETY: until this call returns the memory is the poster's and valid.
                owned.extend_from_slice(unsafe { std::slice::from_raw_parts(send.from, send.bytes) });
                self.orphans(send, owned);
            }
        }
        self.events.retain(|e| e.token.owner != owner);
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        while let Some(rank) = self.dirty.pop() {
            moved |= self.flush_to(rank);
        }
        if self.connecting.is_empty() && self.links.len() <= DIRECT_LINKS {
            for i in (0..self.links.len()).rev() {
                let Some(rank) = self.links.get(i).copied() else { continue };
                if self.peers[rank].as_ref().is_some_and(|p| p.has_output()) {
                    moved |= self.flush_to(rank);
                }
                moved |= self.read(rank);
            }
        } else {
            moved |= self.progress_ready();
        }
        moved |= !self.events.is_empty();
        events.append(&mut self.events);
        moved
    }

    fn flush(&mut self, events: &mut Vec<Event>) {
        while let Some(rank) = self.dirty.pop() {
            self.flush_to(rank);
        }
        events.append(&mut self.events);
    }

    fn poll_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn next_timer(&self) -> Option<Instant> {
        let state = |rank: &Rank| match self.peers[*rank].as_ref()?.state {
            State::Retry(at) => Some(at),
            _ => None,
        };
        self.connecting.iter().filter_map(state).min()
    }

    fn pending(&self) -> usize {
        self.receives.len() + self.outgoing + self.requests.len() + self.bindings.len() + self.regions.len()
    }

    fn describe(&self, owner: u32) -> String {
        let mut parts = Vec::new();
        let link = |rank: Rank| match self.peers[rank].as_deref() {
            Some(Peer { state: State::Established, .. }) => "connected".to_owned(),
            Some(Peer { last_error: Some(error), attempts, .. }) => {
                format!("not connected after {attempts} attempts; the last one: {error}")
            }
            _ => "not connected".to_owned(),
        };
        for (index, op) in self.receives.ops().filter(|(_, op)| op.recv.token.owner == owner && !op.cancelled) {
            let arriving = |rank: Rank| match self.peers[rank].as_deref().and_then(|p| p.incoming.as_ref()) {
                Some(i) if i.finish == Finish::Recv(index) => i.done,
                _ => 0,
            };
            let who = match (&op.matched, &op.recv.from) {
                (Some(rank), _) | (None, Source::Rank(rank)) => format!("{} ({})", self.name(*rank), link(*rank)),
                (None, Source::AnyOf(ranks)) => format!("any of ranks {ranks:?}"),
            };
            let done = match (&op.matched, &op.recv.from) {
                (Some(rank), _) | (None, Source::Rank(rank)) => arriving(*rank),
                _ => 0,
            };
            parts.push(format!("to receive {done} of {} bytes from {who} in slot {:#x}", op.recv.bytes, op.recv.slot));
        }
        for (_, h) in self.held_sends.iter().filter(|(_, h)| h.send.token.owner == owner) {
            let (rank, bytes, slot) = (h.send.to, h.send.bytes, h.send.slot);
            let who = format!("{} ({})", self.name(rank), link(rank));
            parts.push(format!("for {who} to receive: 0 of {bytes} bytes sent in slot {slot:#x}"));
        }
        for (rank, peer) in self.peers.iter().enumerate() {
            for out in peer.iter().flat_map(|p| &p.data).filter(|o| o.token.is_some_and(|t| t.owner == owner)) {
                let sent = out.sent.saturating_sub(Header::BYTES);
                let who = format!("{} ({})", self.name(rank), link(rank));
                parts.push(format!("to send {sent} of {} bytes to {who}", out.bytes));
            }
        }
        for (_, request) in self.requests.iter().filter(|(_, r)| r.token.owner == owner) {
            let who = format!("{} ({})", self.name(request.rank), link(request.rank));
            parts.push(format!("for {who} to answer a put or get of {} bytes", request.bytes));
        }
        const SHOWN: usize = 3;
        let more = parts.len().saturating_sub(SHOWN);
        parts.truncate(SHOWN);
        let mut text = parts.join(", and ");
        if more > 0 {
            text.push_str(&format!(", and {more} more"));
        }
        text
    }

    fn address(&self) -> Vec<u8> {
        self.local.serialize()
    }

    fn set_peer(&mut self, rank: Rank, address: &[u8]) -> Result<()> {
        let address = Address::deserialize(address).map_err(|e| e.context(format_args!("address of rank {rank}")))?;
        let claimed = self.peers[rank].as_deref().and_then(|p| p.theirs);
        let stranger = claimed.is_some_and(|theirs| theirs != address.identity);
        self.addresses[rank] = Some(address);
        if stranger {
            let text = format!("{} was impersonated: someone else connected in its name", self.name(rank));
            self.lose(rank, Error::new(ErrorKind::ConnectionLost, text));
        }
        let waiting = self.peers[rank].as_deref().is_some_and(Peer::has_output)
            || self.receives.ops().any(|(_, op)| matches!(op.recv.from, Source::Rank(r) if r == rank));
        if waiting {
            self.begin_connect(rank);
        }
        Ok(())
    }

    fn connect(&mut self, rank: Rank) {
        if self.closed.is_none() && rank != self.rank {
            self.begin_connect(rank);
        }
    }

    fn is_connected(&self, rank: Rank) -> Result<bool> {
        match self.lost(rank) {
            Some(error) => Err(error),
            None => Ok(rank == self.rank || self.peers[rank].as_deref().is_some_and(Peer::is_established)),
        }
    }

    fn shares_host(&self, rank: Rank) -> Option<bool> {
        if rank == self.rank {
            return Some(true);
        }
        Some(self.addresses[rank].as_ref()?.host == self.local.host)
    }

    fn disconnect(&mut self, rank: Rank, error: &Error) {
        self.say_goodbye(rank, None);
        self.lose(rank, error.clone());
    }

    fn close(&mut self, error: &Error, notice: Option<&str>) {
        if self.closed.is_some() {
            return;
        }
        for rank in 0..self.peers.len() {
            if self.peers[rank].is_some() {
                self.say_goodbye(rank, notice);
                self.lose(rank, error.clone());
            }
        }
        // What ranks that were never connected to could have served.
        let all = |_| true;
        for rank in 0..self.peers.len() {
            for token in self.receives.lose(rank, all) {
                self.event(token, Outcome::Failed(error.clone()));
            }
        }
        self.closed = Some(error.clone());
    }
}

impl Endpoint {
    /// Reads and writes what the system says is ready.
    fn progress_ready(&mut self) -> bool {
        let mut moved = false;
        let now = Instant::now();
        for rank in self.connecting.clone() {
            if matches!(self.peer(rank).state, State::Retry(at) if at <= now) {
                self.begin_connect(rank);
            }
        }
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let n = self.epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap_or(0);
        for event in &ready[..n] {
            let rank = event.u64 as usize;
            if self.connecting.contains(&rank) {
                self.advance_connect(rank);
                moved = true;
            } else {
                if event.events & poll::WRITE != 0 {
                    moved |= self.flush_to(rank);
                }
                moved |= self.read(rank);
            }
        }
        moved
    }

    /// Sends the rest of an announced message whose poster is gone, as our own.
    fn orphans(&mut self, send: Send, owned: Vec<u8>) {
        let header = Header {
            space: send.space,
            flags: FLAG_ANNOUNCED,
            check: send.check,
            ..Header::new(Kind::Data, send.slot, send.bytes as u64)
        };
        self.outgoing += 1;
        let peer = self.peer(send.to);
        peer.push_data(&header, owned.as_ptr(), None, false);
        if let Some(out) = peer.data.back_mut() {
            out.owned = Some(owned);
        }
        self.mark_dirty(send.to);
    }

    /// Tells a peer that this is the end, as far as its socket takes it without waiting, and shuts the sending side.
    fn say_goodbye(&mut self, rank: Rank, notice: Option<&str>) {
        self.flush_to(rank);
        let Some(peer) = self.peers[rank].as_deref_mut().filter(|p| p.is_established()) else { return };
        if peer.has_output() {
            // In the middle of a message nothing else can be said.
            return;
        }
        match notice {
            Some(reason) => {
                let mut end = reason.len().min(MAX_ABORT_BYTES);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                self.outgoing += 1;
                peer.push_data(&Header::new(Kind::Abort, 0, end as u64), reason.as_ptr(), None, false);
            }
            None => peer.push_control(&Header::new(Kind::Goodbye, 0, 0)),
        }
        self.flush_to(rank);
        let epoll = self.epoll.clone();
        let Some(peer) = self.peers[rank].as_deref_mut().filter(|p| p.is_established()) else { return };
        if let Some(socket) = peer.socket.take() {
            let _ = socket2::SockRef::from(&socket).shutdown(std::net::Shutdown::Write);
            let _ = epoll.remove(socket.as_raw_fd());
            self.retired.push(socket);
        }
    }

    /// Connections that were ended in good order: for [`super::Device::linger`].
    pub fn take_retired(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.retired)
    }
}
