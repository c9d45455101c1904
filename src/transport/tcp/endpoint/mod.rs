//! One context's connections: the [`Transport`] over TCP.

mod connect;
mod describe;
mod early;
mod farewell;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod ranks;
mod receive;
mod remote;
mod send;

pub use remote::FIRST_REGION_OWNER;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickMap;
use crate::secret::{JobToken, SecretKey};
use crate::sys::{self, Epoll};
use crate::transport::frame::{Header, Kind};
use crate::transport::matching::{Op, Posting, Receives};
use crate::transport::queues::{Key, Queues};
use crate::transport::slab::Slab;
use crate::transport::tcp::address::{self, Address, peer_name};
use crate::transport::tcp::connection::{Finish, Parting, Peer, Sent, State, Target};
use crate::transport::tcp::handshake::{self, Handle, Identity};
use crate::transport::{
    Call, EVENTS, EVERYONE, Event, LogCallback, Outcome, Recv, Remote, Send, Source, Space, Token, Told, Transport,
};
use crate::types::{Rank, Slot};
use ranks::ByRank;
use remote::{Binding, EarlyWrite, Region, Request};
use send::Held;

/// Bytes read at once from a socket when they do not go straight to their place: small enough to stay in cache until they
/// are reduced.
const STAGING_BYTES: usize = 128 << 10;
/// Payload from which on the rest is read straight into its place.
const DIRECT_BYTES: usize = 4 << 10;
/// Reads from one connection before others get their turn.
const READS_PER_TURN: usize = 4;
/// Bytes on their way to a rank of the same host. By itself the system lets megabytes pile up there, which leave the cache
/// before they are read: 32 MiB between two ranks then take 15 ms instead of 9.
const LOCAL_SEND_BUFFER: usize = 128 << 10;
/// Up to so many connections are read without asking the system which are readable.
const DIRECT_LINKS: usize = 4;
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// How long a peer may refuse connections before it counts as gone.
const PATIENCE: Duration = Duration::from_secs(2);

/// The connections of one context.
pub struct Endpoint {
    rank: Rank,
    size: usize,
    local: Address,
    token: JobToken,
    log: Option<LogCallback>,
    epoll: Epoll,
    addresses: ByRank<Address>,
    peers: ByRank<Peer>,
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
    /// Limits on what is kept from one peer; see [`early`].
    pause_bytes: usize,
    most_bytes: usize,
    /// Ranks whose connections are not read, because too much is kept from them.
    paused: Vec<Rank>,
    events: Vec<Event>,
    sent: Vec<Sent>,
    closed: Option<Error>,
    /// Why it was closed, if peers are to know.
    notice: Option<Error>,
    retired: Vec<Parting>,
    /// Peers that were asked what they are doing.
    asked: Vec<Rank>,
}

// SAFETY: the pointers are to memory of the posters', who vouch for it until the event or the cancellation, whichever thread
// drives the endpoint.
unsafe impl std::marker::Send for Endpoint {}

impl Endpoint {
    /// Connections for `rank` of `size`, whose peers have `token`, too, and find it at `sockets`, or where [`Endpoint::set_sockets`]
    /// says.
    pub fn new(
        rank: Rank,
        size: usize,
        token: &JobToken,
        sockets: Vec<SocketAddr>,
        log: Option<LogCallback>,
    ) -> Result<Self> {
        let failed = |e| Error::io("cannot create a context", &e);
        let identity: Identity = sys::random().map_err(failed)?;
        Ok(Self {
            rank,
            size,
            local: Address { identity, sockets, host: address::host(), cores: address::cores() },
            token: token.clone(),
            log,
            epoll: Epoll::new().map_err(failed)?,
            addresses: ByRank::default(),
            peers: ByRank::default(),
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
            pause_bytes: early::PAUSE_BYTES,
            most_bytes: early::MOST_BYTES,
            paused: Vec::new(),
            events: Vec::with_capacity(EVENTS),
            sent: Vec::with_capacity(EVENTS),
            closed: None,
            notice: None,
            retired: Vec::new(),
            asked: Vec::new(),
        })
    }

    /// What this context is called in the open.
    pub fn handle(&self) -> Handle {
        handshake::handle(&self.local.identity)
    }

    /// What peers must have to connect to it.
    pub fn key(&self) -> SecretKey {
        handshake::key(&self.token, &self.local.identity)
    }

    /// From now on peers find this context there: at most one address of each family.
    pub fn set_sockets(&mut self, sockets: Vec<SocketAddr>) {
        self.local.sockets = sockets;
    }

    /// Where peers find this context.
    pub fn sockets(&self) -> &[SocketAddr] {
        &self.local.sockets
    }

    /// The addresses of all ranks, if they are known.
    pub fn addresses(&self) -> Option<Vec<Address>> {
        (0..self.size).map(|rank| self.addresses.get(rank).cloned()).collect()
    }

    fn log(&self, level: u32, text: &str) {
        if let Some(log) = &self.log {
            log(level, text);
        }
    }

    fn name(&self, rank: Rank) -> String {
        peer_name(rank, self.target(rank))
    }

    fn peer(&mut self, rank: Rank) -> &mut Peer {
        self.peers.get_or_insert_with(rank, Peer::new)
    }

    fn event(&mut self, token: Token, outcome: Outcome) {
        if token.owner < FIRST_REGION_OWNER || token.owner == EVERYONE {
            self.events.push(Event { token, outcome });
        }
    }

    fn mark_dirty(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank)
            && peer.is_established()
            && !std::mem::replace(&mut peer.dirty, true)
        {
            self.dirty.push(rank);
        }
    }

    /// The error that operations with `rank` end with, once its connection is over.
    fn lost(&self, rank: Rank) -> Option<Error> {
        if let Some(error) = &self.closed {
            return Some(error.clone());
        }
        match &self.peers.get(rank)?.state {
            State::Closed(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// Reads and writes what the system says is ready.
    fn progress_ready(&mut self) -> bool {
        let mut moved = self.retry_due();
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let n = self.epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap_or(0);
        for event in &ready[..n] {
            let rank = event.u64 as usize;
            if self.connecting.contains(&rank) {
                self.advance_connect(rank);
                moved = true;
            } else {
                if event.events & sys::WRITE != 0 {
                    moved |= self.flush_to(rank);
                }
                moved |= self.read(rank);
            }
        }
        moved
    }
}

impl Transport for Endpoint {
    unsafe fn send(&mut self, send: Send) {
        if send.to == self.rank && self.closed.is_none() {
            return self.send_to_self(&send);
        }
        if let Some(error) = self.lost(send.to) {
            return self.event(send.token, Outcome::Failed(error));
        }
        self.send_or_hold(send);
    }

    unsafe fn recv(&mut self, recv: Recv) {
        if let Some(error) = self.closed.clone() {
            return self.event(recv.token, Outcome::Failed(error));
        }
        let (space, slot, token, from) = (recv.space, recv.slot, recv.token, recv.from.clone());
        match self.receives.post(recv) {
            Posting::Message { op, from, header, data } => {
                self.deliver(&op, from, &header, &data);
                self.receives.recycle(data);
            }
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

    unsafe fn put(&mut self, remote: Remote, from: *const u8, bytes: usize, token: Token) {
        // SAFETY: the same contract.
        unsafe { self.put_remote(remote, from, bytes, token) }
    }

    unsafe fn get(&mut self, remote: Remote, into: *mut u8, bytes: usize, token: Token) {
        // SAFETY: the same contract.
        unsafe { self.get_remote(remote, into, bytes, token) }
    }

    unsafe fn register(&mut self, region: u32, memory: *mut u8, bytes: usize) {
        self.regions.insert(region, Region::new(memory, bytes));
    }

    fn unregister(&mut self, region: u32) {
        self.forget_region(region);
    }

    unsafe fn write(&mut self, to: Rank, slot: Slot, offset: u64, from: *const u8, bytes: usize, token: Token) {
        if let Some(error) = self.lost(to) {
            return self.event(token, Outcome::Failed(error));
        }
        self.begin_connect(to);
        self.outgoing += 1;
        let header = Header { offset, ..Header::new(Kind::Write, slot, bytes as u64) };
        self.peer(to).push_data(&header, from, Some(token), true);
        self.mark_dirty(to);
    }

    unsafe fn bind(&mut self, from: Rank, slot: Slot, memory: *mut u8, bytes: usize, token: Token) -> Result<()> {
        self.bind_slot(from, slot, memory, bytes, token)
    }

    fn cancel(&mut self, owner: u32) {
        let mut arriving = Vec::new();
        self.receives.cancel(owner, |op| arriving.push(op));
        self.bindings.retain(|_, binding| binding.token.owner != owner);
        let requests = &mut self.requests;
        requests.iter_mut().filter(|(_, r)| r.token.owner == owner).for_each(|(_, r)| r.cancelled = true);
        for peer in self.peers.iter_mut() {
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
        self.cancel_held(owner);
        self.events.retain(|e| e.token.owner != owner);
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        if !self.paused.is_empty() {
            self.resume();
        }
        while let Some(rank) = self.dirty.pop() {
            moved |= self.flush_to(rank);
        }
        if self.connecting.is_empty() && self.links.len() <= DIRECT_LINKS {
            for i in (0..self.links.len()).rev() {
                let Some(rank) = self.links.get(i).copied() else { continue };
                if self.peers.get(rank).is_some_and(|p| p.has_output()) {
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
        if !self.paused.is_empty() {
            self.resume();
        }
        while let Some(rank) = self.dirty.pop() {
            self.flush_to(rank);
        }
        events.append(&mut self.events);
    }

    fn poll_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn next_timer(&self) -> Option<Instant> {
        self.next_retry()
    }

    fn outgoing(&self) -> usize {
        self.outgoing
    }

    fn describe(&self, owner: u32) -> String {
        self.describe_waits(owner)
    }

    fn ask(&mut self, owner: u32, call: Call) -> bool {
        self.ask_awaited(owner, call)
    }

    fn told(&self) -> Told {
        self.what_was_told()
    }

    fn tell(&mut self, rank: Rank, text: &str, same: bool) {
        self.tell_peer(rank, text, same);
    }

    fn unasked(&self, slots: Range<Slot>) -> Vec<(Rank, u64, u64)> {
        let unmet = self.receives.unmet();
        let here = unmet.filter(|(_, h)| h.space == Space::Collective && slots.contains(&h.slot));
        here.map(|(rank, header)| (rank, header.check, header.bytes)).collect()
    }

    fn peer_name(&self, rank: Rank) -> String {
        self.name(rank)
    }

    fn address(&self) -> Vec<u8> {
        self.local.serialize()
    }

    fn set_peer(&mut self, rank: Rank, address: &[u8]) -> Result<()> {
        let address = Address::deserialize(address).map_err(|e| e.context(format_args!("address of rank {rank}")))?;
        let claimed = self.peers.get(rank).and_then(|p| p.theirs);
        let stranger = claimed.is_some_and(|theirs| theirs != handshake::handle(&address.identity));
        self.addresses.set(rank, address);
        if stranger {
            let text = format!("{} was impersonated: someone else connected in its name", self.name(rank));
            self.lose(rank, Error::new(ErrorKind::ConnectionLost, text));
        }
        let waiting = self.peers.get(rank).is_some_and(Peer::has_output)
            || self.receives.ops().any(|(_, op)| matches!(op.recv.from, Source::Rank(r) if r == rank));
        if waiting {
            self.connect(rank);
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
            None => Ok(rank == self.rank || self.peers.get(rank).is_some_and(Peer::is_established)),
        }
    }

    fn is_isolated(&self) -> bool {
        self.links.is_empty() && self.addresses.is_empty()
    }

    fn shares_host(&self, rank: Rank) -> Option<bool> {
        if rank == self.rank {
            return Some(true);
        }
        Some(self.addresses.get(rank)?.host == self.local.host)
    }

    fn disconnect(&mut self, rank: Rank, error: &Error) {
        self.say_goodbye(rank, None);
        self.lose(rank, error.clone());
    }

    fn close(&mut self, error: &Error, notice: Option<&Error>) {
        if self.closed.is_some() {
            return;
        }
        let met: Vec<Rank> = self.peers.iter().map(|(rank, _)| rank).collect();
        for rank in met {
            self.say_goodbye(rank, notice);
            self.lose(rank, error.clone());
        }
        // What ranks that were never connected to could have served.
        let all = |_| true;
        let server = |op: &Op| match (op.matched, &op.recv.from) {
            (Some(rank), _) | (None, &Source::Rank(rank)) => Some(rank),
            (None, Source::AnyOf(ranks)) => ranks.first().copied(),
        };
        let servers: BTreeSet<Rank> = self.receives.ops().filter_map(|(_, op)| server(op)).collect();
        for rank in servers {
            for token in self.receives.lose(rank, all) {
                self.event(token, Outcome::Failed(error.clone()));
            }
        }
        self.closed = Some(error.clone());
        self.notice = notice.cloned();
    }
}
