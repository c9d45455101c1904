//! Makes a context's ranks of one host share memory. Another connector makes the links to all other ranks.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::group::{Candidate, HostGroup};
use super::link::{Port, ShmLink};
use super::segment::{OwnSegment, Secret};
use super::{Processes, VARIABLE};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{Level, LogCallback};
use crate::net::address::{self, Address};
use crate::net::handshake::Identity;
use crate::secret::{JobToken, SecretKey};
use crate::sys::poller::Event;
use crate::sys::process;
use crate::sys::shared_memory::SharedMemory;
use crate::sys::socket::lacks_descriptors;
use crate::sys::{self, Pollable, Poller, PollerKind, Registration};
use crate::transport::local::{LocalRanks, MESSAGES, PUBLICATIONS, Sharing};
use crate::transport::{CloseNotice, Connector, ConnectorEvent, Counters, Interest, Link};
use crate::types::Rank;

/// Once in so many turns the connector asks the system whether processes have ended.
const TURNS: u32 = 1024;
/// What the poller calls the doorbell, and what the inner connector has; members by their positions.
const DOORBELL: u64 = u64::MAX;
const INNER: u64 = u64::MAX - 1;
/// Descriptors that a rank needs for each rank of its host: of its memory until it is mapped, and of its process.
const DESCRIPTORS: usize = 2;
/// The part of the process's descriptors that the ranks of one context in it take at most: one in so many.
const PART: u64 = 4;
/// The part of the process's descriptors that contexts leave to the program: one in so many, and at most so many.
const LEFT_PART: u64 = 16;
const MAX_LEFT: u64 = 64;

/// The connector of one context.
pub struct ShmConnector {
    rank: Rank,
    size: usize,
    inner: Box<dyn Connector>,
    /// The inner connector's, with the segment.
    address: Address,
    token: JobToken,
    log: Option<LogCallback>,
    /// Those that the device's contexts watch.
    processes: Arc<Processes>,
    own: Option<Arc<OwnSegment>>,
    /// The memory of `own`, as long as peers may open it.
    memory: Option<SharedMemory>,
    /// What [`Connector::open_memory`] has found, and of which ranks of this host.
    found: Option<(Vec<(Rank, Identity)>, Sharing)>,
    /// All ranks of the host, until it is known whether all of them can share memory.
    opened: Option<HostGroup>,
    /// Ranks of the host that must be connected as soon as it is known how.
    deferred: Vec<Rank>,
    group: Option<Arc<HostGroup>>,
    /// One for each member of the group.
    ports: Arc<[Port]>,
    /// Members whose links have not been reported.
    fresh: Vec<usize>,
    /// Readable if a peer has rung, if the process of one has ended, or if the inner connector has work.
    poller: Poller,
    /// Of the inner connector, and of the doorbell.
    _registrations: Vec<Registration>,
    /// Number of calls of `progress`.
    turns: u32,
    /// Whether the inner connector has work, as the poller says.
    has_inner_work: bool,
    /// Whether some ranks are not members of the group.
    has_others: bool,
    /// What the poller has failed with, if that has not been reported.
    failed: Option<Error>,
}

impl ShmConnector {
    /// A connector that leaves the peers that share no memory with this rank to `inner`. Peers have `token`.
    /// A poller of this kind can wait for that of `inner`. All connectors of a device share `processes`.
    pub fn over(
        inner: Box<dyn Connector>,
        kind: PollerKind,
        token: &JobToken,
        processes: Arc<Processes>,
        log: Option<LogCallback>,
    ) -> Result<Self> {
        let mut address = inner.address().clone();
        let failed = |e| Error::io("cannot create a context", &e);
        let poller = Poller::new(kind).map_err(failed)?;
        let mut sources = Vec::new();
        inner.descriptors(&mut sources);
        let watched = sources.into_iter().map(|source| poller.add(source, sys::READ, INNER));
        let mut registrations = watched.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let own = OwnSegment::create(&secret(token, &address.identity)).and_then(|(own, memory)| {
            registrations.push(poller.add(Pollable::Socket(own.doorbell()), sys::READ, DOORBELL)?);
            Ok((Arc::new(own), memory))
        });
        let own = match own {
            // Connections would lack them, too.
            Err(e) if lacks_descriptors(&e) => return Err(failed(e)),
            own => own.inspect_err(|e| log_detail(log.as_ref(), &format!("no memory is shared: {e}"))).ok(),
        };
        let (own, memory) = own.unzip();
        address.segment = memory.as_ref().map(SharedMemory::descriptor);
        Ok(Self {
            rank: 0,
            size: 0,
            inner,
            address,
            token: token.clone(),
            log,
            processes,
            own,
            memory,
            found: None,
            opened: None,
            deferred: Vec::new(),
            group: None,
            ports: Arc::new([]),
            fresh: Vec::new(),
            poller,
            _registrations: registrations,
            turns: 0,
            has_inner_work: false,
            has_others: true,
            failed: None,
        })
    }

    /// Opens the memory of all other ranks of this host.
    fn open(&self, addresses: &[Address]) -> Result<HostGroup> {
        let here = || addresses.iter().enumerate().filter(|(_, address)| address.host == self.address.host);
        let unable = |text| Err(Error::new(ErrorKind::Unsupported, text));
        let (Some(own), Some(memory)) = (&self.own, &self.memory) else {
            return unable("this rank has no memory to share".to_owned());
        };
        let (members, limit) = (here().count(), sys::descriptor_limit());
        let process = process_of(&self.address);
        let in_process = here().filter(|(_, address)| process_of(address) == process).count();
        if (in_process * members * DESCRIPTORS) as u64 > limit / PART {
            return unable(format!("{members} ranks need too many of this process's {limit} descriptors"));
        }
        let mut others = Vec::with_capacity(members);
        for (rank, address) in here().filter(|(rank, _)| *rank != self.rank) {
            let Some(segment) = address.segment else {
                return unable(format!(
                    "rank {rank} shares no memory; its {VARIABLE} or device says so, or its system"
                ));
            };
            others.push(Candidate { rank, segment, secret: secret(&self.token, &address.identity) });
        }
        let shares_cores = members > address::count_cores(here().map(|(_, address)| address));
        let group = HostGroup::open(self.rank, own.clone(), memory, &others, &self.processes, shares_cores)?;
        let used = process::descriptors().map_err(|e| Error::io("cannot share memory", &e))?;
        let left = limit.saturating_sub(used);
        if left < (limit / LEFT_PART).min(MAX_LEFT) {
            let text = format!("{left} of this process's {limit} descriptors are left, which the program may need");
            return Err(Error::new(ErrorKind::ResourceExhausted, text).with_errno(Some(libc::EMFILE)));
        }
        Ok(group)
    }

    /// The position in the group of `rank`, another member.
    fn member(&self, rank: Rank) -> Option<usize> {
        self.group.as_ref().and_then(|group| group.index_of(rank))
    }

    /// The link to the member at `index`, and the number of the connection.
    fn link(&self, index: usize) -> Result<(Rank, Box<dyn Link>, u32)> {
        let group = self.group.as_ref().expect("there is a member");
        let rank = group.ranks()[index] as Rank;
        let link = ShmLink::new(group.clone(), index, self.ports.clone(), self.poller.clone())
            .map_err(|e| Error::io(format_args!("cannot watch the process of rank {}", self.named(rank)), &e))?;
        let theirs = self.inner.peer(rank).map_or([0; 16], |address| address.identity);
        let identities = [self.address.identity, theirs];
        let [low, high] = if self.rank < rank { identities } else { [theirs, self.address.identity] };
        let [a, b, c, d, ..] = SecretKey::derive(&self.token, "gloo_rs shared memory", &low).prove("link", &[&high]);
        Ok((rank, Box::new(link), u32::from_le_bytes([a, b, c, d])))
    }

    /// Asks the system whether processes have ended, and whether the inner connector has work: one system call, however many ranks there
    /// are.
    fn look_at_poller(&mut self) {
        let mut ready = [Event::default(); 64];
        let found = self.poller.wait(&mut ready, Some(Duration::ZERO)).unwrap_or_else(|error| {
            self.failed = Some(Error::io("cannot look for events of the ranks of this host", &error));
            0
        });
        for event in &ready[..found] {
            match event.number {
                DOORBELL => {}
                INNER => self.has_inner_work = true,
                index => self.ports.get(index as usize).into_iter().for_each(Port::set_exited),
            }
        }
    }

    fn log(&self, text: &str) {
        log_detail(self.log.as_ref(), &format!("rank {}: {text}", self.rank));
    }
}

/// The process that has the memory in an address.
fn process_of(address: &Address) -> Option<u32> {
    address.segment.map(|segment| segment.process)
}

fn log_detail(log: Option<&LogCallback>, text: &str) {
    if let Some(log) = log {
        log(Level::Detail, text);
    }
}

/// What the segment of the context with this identity contains.
fn secret(token: &JobToken, identity: &Identity) -> Secret {
    SecretKey::derive(token, "gloo_rs shared memory", identity).prove("segment", &[])
}

impl Connector for ShmConnector {
    fn set_rank(&mut self, rank: Rank, size: usize) {
        (self.rank, self.size) = (rank, size);
        self.inner.set_rank(rank, size);
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn set_sockets(&mut self, sockets: Vec<SocketAddr>) {
        self.address.sockets.clone_from(&sockets);
        self.inner.set_sockets(sockets);
    }

    fn set_peer(&mut self, rank: Rank, address: Address) -> Result<()> {
        self.inner.set_peer(rank, address)
    }

    fn peer(&self, rank: Rank) -> Option<&Address> {
        self.inner.peer(rank)
    }

    fn knows_any_peer(&self) -> bool {
        self.inner.knows_any_peer()
    }

    fn connect(&mut self, rank: Rank) {
        if self.opened.as_ref().is_some_and(|group| group.index_of(rank).is_some()) {
            self.deferred.push(rank);
        } else if self.member(rank).is_none() {
            self.inner.connect(rank);
        }
    }

    fn give_up(&mut self, rank: Rank) {
        let index = self.member(rank);
        self.fresh.retain(|fresh| Some(*fresh) != index);
        self.deferred.retain(|deferred| *deferred != rank);
        self.inner.give_up(rank);
    }

    fn close(&mut self, close_notice: CloseNotice, has_failed: bool) {
        for index in std::mem::take(&mut self.fresh) {
            if let Ok((_, link, connection)) = self.link(index) {
                link.end(Vec::new(), close_notice(connection));
            }
        }
        self.inner.close(close_notice, has_failed);
    }

    fn is_busy(&self) -> bool {
        !self.fresh.is_empty() || self.has_inner_work || self.failed.is_some() || self.inner.is_busy()
    }

    fn progress(&mut self, now: Instant, events: &mut Vec<ConnectorEvent>) {
        self.turns = self.turns.wrapping_add(1);
        let rarely = self.turns.is_multiple_of(TURNS);
        let Some(group) = self.group.clone() else { return self.inner.progress(now, events) };
        for index in std::mem::take(&mut self.fresh) {
            events.push(match self.link(index) {
                Ok((rank, link, connection)) => ConnectorEvent::Established { rank, link, connection },
                Err(error) => ConnectorEvent::Unreachable { rank: group.ranks()[index] as Rank, error },
            });
        }
        if rarely {
            self.look_at_poller();
        }
        events.extend(self.failed.take().map(|error| ConnectorEvent::Failed { error }));
        for (index, port) in self.ports.iter().enumerate() {
            let of = port.ready(&group, index);
            if of != Interest::default() {
                events.push(ConnectorEvent::Ready { rank: group.ranks()[index] as Rank, of });
            }
        }
        // Without peers elsewhere, it has hardly ever work, and to ask it takes a system call.
        if std::mem::take(&mut self.has_inner_work) || self.has_others || self.inner.is_busy() {
            let first = events.len();
            self.inner.progress(now, events);
            // A member that connects by TCP does not obey the agreement.
            let is_member = |event: &mut ConnectorEvent| match event {
                ConnectorEvent::Established { rank, .. } | ConnectorEvent::Unreachable { rank, .. } => {
                    group.index_of(*rank).is_some()
                }
                ConnectorEvent::Ready { .. } | ConnectorEvent::Failed { .. } => false,
            };
            events.extract_if(first.., is_member).for_each(drop);
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        self.inner.next_timer()
    }

    fn descriptors(&self, into: &mut Vec<Pollable>) {
        into.push(self.poller.clone().into());
    }

    fn open_memory(&mut self, addresses: &[Address]) -> Sharing {
        let here = addresses.iter().enumerate().filter(|(_, address)| address.host == self.address.host);
        let here: Vec<(Rank, Identity)> = here.map(|(rank, address)| (rank, address.identity)).collect();
        if here.len() < 2 {
            self.memory = None;
            return Sharing::Nothing;
        }
        // Other ranks may know what this one found before its connecting timed out.
        if let Some((ranks, found)) = &self.found
            && *ranks == here
        {
            return *found;
        }
        self.opened = None;
        let found = match self.open(addresses) {
            Ok(group) => {
                let found = if group.reads_memory() { Sharing::Processes } else { Sharing::Segments };
                self.opened = Some(group);
                found
            }
            Err(error) => {
                self.log(&format!("no memory is shared with the other ranks of this host: {error}"));
                let errno = error.details().errno.map(io::Error::from_raw_os_error);
                if errno.as_ref().is_some_and(lacks_descriptors) {
                    // The program may have closed some when it tries again.
                    return Sharing::NoRoom;
                }
                Sharing::Nothing
            }
        };
        self.found = Some((here, found));
        found
    }

    fn share_memory(&mut self, found: &[Sharing]) -> Result<()> {
        // All ranks have mapped it, or do not want to any more.
        self.memory = None;
        let Some(opened) = self.opened.take() else { return Ok(()) };
        let deferred = std::mem::take(&mut self.deferred);
        let least = opened.ranks().iter().map(|rank| (found[*rank as usize], *rank)).min();
        let (least, rank) = least.expect("this rank is one of them");
        if least == Sharing::Nothing {
            self.log(&format!("no memory is shared with the other ranks of this host: rank {rank} cannot"));
            deferred.into_iter().for_each(|rank| self.inner.connect(rank));
            return Ok(());
        }
        let reads = least == Sharing::Processes;
        let group = opened.confirm(reads, &|rank| self.inner.named(rank))?;
        let why = || group.unreadable().map_or_else(|| format!("rank {rank} cannot"), str::to_owned);
        let how = match reads {
            true => "and processes read each other's".to_owned(),
            false => format!("but processes cannot read each other's: {}", why()),
        };
        self.log(&format!("memory is shared with {} ranks of this host, {how}", group.ranks().len() - 1));
        self.ports = group.ranks().iter().map(|_| Port::new()).collect();
        self.fresh = (0..group.ranks().len()).filter(|index| *index != group.index()).collect();
        self.has_others = group.ranks().len() < self.size;
        self.group = Some(group);
        Ok(())
    }

    fn local_ranks(&self) -> Option<Arc<dyn LocalRanks>> {
        Some(self.group.clone()?)
    }

    fn segment(&self) -> Option<&Arc<OwnSegment>> {
        self.own.as_ref()
    }

    fn keep_alive(&self) -> Option<Instant> {
        self.inner.keep_alive()
    }

    fn sleep(&mut self, publications: bool) -> bool {
        let Some(group) = self.group.clone() else { return self.inner.sleep(publications) };
        if self.has_others {
            // If it must be asked, it is busy in the next turn.
            self.inner.sleep(publications);
        }
        // If that does not work, nothing wakes whoever sleeps until it is readable.
        self.look_at_poller();
        group.waiting().begin(if publications { MESSAGES | PUBLICATIONS } else { MESSAGES });
        true
    }

    fn wake(&mut self, slept: bool) {
        if let Some(group) = &self.group {
            group.waiting().end(MESSAGES | PUBLICATIONS);
            if slept {
                group.clear_doorbell();
                self.look_at_poller();
            }
        }
        self.inner.wake(slept);
    }

    fn is_quiet(&self) -> bool {
        self.group.is_some() && !self.has_others
    }

    fn set_streams(&mut self, streams: u8) {
        self.inner.set_streams(streams);
    }

    fn retain_memory(&mut self, memory: *mut u8, bytes: usize) {
        self.inner.retain_memory(memory, bytes);
    }

    fn release_memory(&mut self, memory: *mut u8, bytes: usize) {
        self.inner.release_memory(memory, bytes);
    }

    fn counters(&self) -> Option<Counters> {
        self.inner.counters()
    }

    fn set_names(&mut self, names: Vec<Rank>) {
        self.inner.set_names(names);
    }

    fn named(&self, rank: Rank) -> Rank {
        self.inner.named(rank)
    }

    fn location(&self, rank: Rank) -> Option<String> {
        self.inner.location(rank)
    }

    fn why_not_connected(&self, rank: Rank) -> String {
        self.inner.why_not_connected(rank)
    }
}
