//! Makes a context's ranks of one host share memory.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::group::{Candidate, HostGroup};
use super::link::{Port, ShmLink};
use super::segment::{OwnSegment, Secret};
use super::{Allocations, Processes};
use crate::environment::SHARED_MEMORY;
use crate::error::{Error, ErrorKind, Result};
use crate::log::{Level, LogCallback};
use crate::net::address::{self, Address};
use crate::net::handshake::Identity;
use crate::secret::{JobToken, SecretKey};
use crate::sys::process;
use crate::sys::shared_memory::SharedMemory;
use crate::sys::socket::lacks_descriptors;
use crate::sys::{self, Pollable, Poller, Registration};
#[cfg(any(test, fuzzing))]
use crate::transport::Bell;
use crate::transport::local::{MESSAGES, PUBLICATIONS};
use crate::transport::{
    self, CloseNotice, Connector, ConnectorEvent, Description, Interest, Link, LocalRanks, Part, Peers, Provided,
    Reach, SharedMemory as SharesMemory, Sharing,
};
use crate::types::Rank;

/// Descriptors that a rank needs for each rank of its host: of its memory until it is mapped, and of its process.
const RANK_DESCRIPTORS: usize = 2;
/// The part of the process's descriptors that the ranks of one context in it take at most: one in so many.
const CONTEXT_PART: u64 = 4;
/// The part of the process's descriptors that contexts leave to the program: one in so many, and at most so many.
const LEFT_PART: u64 = 16;
const MAX_LEFT_DESCRIPTORS: u64 = 64;

/// The memory that a device's contexts share with those of other ranks of their hosts.
#[derive(Default)]
pub struct Provider {
    /// The processes that the contexts watch.
    processes: Arc<Processes>,
}

impl transport::Provider for Provider {
    fn part(&self, provided: &mut Provided<'_>) -> Result<Part> {
        let Provided { token, address, poller, number, log, .. } = provided;
        let failed = |e| Error::io("cannot create a context", &e);
        let own = OwnSegment::create(&secret(token, &address.identity)).and_then(|(own, memory)| {
            Ok((poller.add(Pollable::Socket(own.doorbell()), sys::READ, *number)?, Arc::new(own), memory))
        });
        let own = match own {
            // Connections would lack them, too.
            Err(e) if lacks_descriptors(&e) => return Err(failed(e)),
            own => own.inspect_err(|e| log_detail(*log, &format!("no memory is shared: {e}"))).ok(),
        };
        let (watched, own, memory) = own.map_or((None, None, None), |(a, b, c)| (Some(a), Some(b), Some(c)));
        address.segment = memory.as_ref().map(SharedMemory::descriptor);
        Ok(Part::from(ShmConnector {
            token: token.clone(),
            log: log.cloned(),
            processes: self.processes.clone(),
            own,
            memory,
            found: None,
            opened: None,
            group: None,
            ports: Arc::new([]),
            fresh: Vec::new(),
            poller: poller.clone(),
            _watched: watched,
        }))
    }
}

/// The connector of one context.
struct ShmConnector {
    token: JobToken,
    log: Option<LogCallback>,
    processes: Arc<Processes>,
    own: Option<Arc<OwnSegment>>,
    /// The memory of `own`, as long as peers may open it.
    memory: Option<SharedMemory>,
    /// What [`SharesMemory::open`] has found, and of which ranks of this host.
    found: Option<(Vec<(Rank, Identity)>, Sharing)>,
    /// All ranks of the host, until it is known whether all of them can share memory.
    opened: Option<HostGroup>,
    group: Option<Arc<HostGroup>>,
    /// One for each member of the group.
    ports: Arc<[Port]>,
    /// Members whose links have not been reported.
    fresh: Vec<usize>,
    /// Readable if a peer has rung, or if the process of one has ended: then the number of its event is the member.
    poller: Poller,
    /// The doorbell.
    _watched: Option<Registration>,
}

impl ShmConnector {
    /// Opens the memory of all other ranks of this host.
    fn open_all(&self, peers: &Peers, addresses: &[Address]) -> Result<HostGroup> {
        let here = || addresses.iter().enumerate().filter(|(_, address)| address.host == peers.own.host);
        let unable = |text| Err(Error::new(ErrorKind::Unsupported, text));
        let (Some(own), Some(memory)) = (&self.own, &self.memory) else {
            return unable("this rank has no memory to share".to_owned());
        };
        let (members, limit) = (here().count(), sys::descriptor_limit());
        let process = process_of(&peers.own);
        let in_process = here().filter(|(_, address)| process_of(address) == process).count();
        if (in_process * members * RANK_DESCRIPTORS) as u64 > limit / CONTEXT_PART {
            return unable(format!("{members} ranks need too many of this process's {limit} descriptors"));
        }
        let mut others = Vec::with_capacity(members);
        for (rank, address) in here().filter(|(rank, _)| *rank != peers.rank) {
            let Some(segment) = address.segment else {
                return unable(format!(
                    "rank {rank} shares no memory; its {SHARED_MEMORY} or device says so, or its system"
                ));
            };
            others.push(Candidate { rank, segment, secret: secret(&self.token, &address.identity) });
        }
        let shares_cores = members > address::count_cores(here().map(|(_, address)| address));
        let group = HostGroup::open(peers.rank, own.clone(), memory, &others, &self.processes, shares_cores)?;
        let used = process::descriptors().map_err(|e| Error::io("cannot share memory", &e))?;
        let left = limit.saturating_sub(used);
        if left < (limit / LEFT_PART).min(MAX_LEFT_DESCRIPTORS) {
            let text = format!("{left} of this process's {limit} descriptors are left, which the program may need");
            return Err(Error::new(ErrorKind::ResourceExhausted, text).with_errno(Some(libc::EMFILE)));
        }
        Ok(group)
    }

    /// The link to the member at `index`, and the number of the connection.
    fn link(&self, index: usize) -> io::Result<(Box<dyn Link>, u32)> {
        let group = self.group.as_ref().expect("there is a member");
        let link = ShmLink::new(group.clone(), index, self.ports.clone(), self.poller.clone())?;
        let (here, _) = self.found.as_ref().expect("the group was found");
        let [low, high] = [index.min(group.index()), index.max(group.index())].map(|index| here[index].1);
        let [a, b, c, d, ..] = SecretKey::derive(&self.token, "gloo_rs shared memory", &low).prove("link", &[&high]);
        Ok((Box::new(link), u32::from_le_bytes([a, b, c, d])))
    }

    fn log(&self, peers: &Peers, text: &str) {
        log_detail(self.log.as_ref(), &format!("rank {}: {text}", peers.rank));
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
    fn reach(&mut self, _: &Peers, rank: Rank) -> Result<Reach> {
        let has = |group: &HostGroup| group.index_of(rank).is_some();
        Ok(match (&self.opened, &self.group) {
            (Some(opened), _) if has(opened) => Reach::Undecided,
            (_, Some(group)) if has(group) => Reach::Yes,
            _ => Reach::No,
        })
    }

    /// All links are there when the ranks of the host have agreed.
    fn connect(&mut self, _: Rank) {}

    fn give_up(&mut self, rank: Rank) {
        let index = self.group.as_ref().and_then(|group| group.index_of(rank));
        self.fresh.retain(|fresh| Some(*fresh) != index);
    }

    fn close(&mut self, close_notice: CloseNotice, _: bool) {
        for index in std::mem::take(&mut self.fresh) {
            if let Ok((link, connection)) = self.link(index) {
                link.end(Vec::new(), close_notice(connection));
            }
        }
    }

    fn is_busy(&self) -> bool {
        !self.fresh.is_empty()
    }

    fn progress(&mut self, peers: &Peers, _: Instant, events: &mut Vec<ConnectorEvent>) {
        let Some(group) = self.group.clone() else { return };
        for index in std::mem::take(&mut self.fresh) {
            let rank = group.ranks()[index] as Rank;
            let named = |e| Error::io(format_args!("cannot watch the process of rank {}", peers.named(rank)), &e);
            events.push(match self.link(index) {
                Ok((link, connection)) => ConnectorEvent::Established { rank, link, connection },
                Err(error) => ConnectorEvent::Unreachable { rank, error: named(error) },
            });
        }
        for (index, port) in self.ports.iter().enumerate() {
            let of = port.ready(&group, index);
            if of != Interest::default() {
                events.push(ConnectorEvent::Ready { rank: group.ranks()[index] as Rank, of });
            }
        }
    }

    fn sleep(&mut self, publications: bool) -> bool {
        let bits = if publications { MESSAGES | PUBLICATIONS } else { MESSAGES };
        self.group.as_ref().inspect(|group| group.waiting().begin(bits)).is_some()
    }

    fn wake(&mut self, slept: bool) {
        if let Some(group) = &self.group {
            group.waiting().end(MESSAGES | PUBLICATIONS);
            if slept {
                group.clear_doorbell();
            }
        } else if let Some(own) = self.own.as_ref().filter(|_| slept) {
            // Peers that know earlier that memory is shared may have rung already.
            own.clear_doorbell();
        }
    }

    fn describe(&self, _: &Peers, _: Rank) -> Description {
        Description::default()
    }

    fn shared_memory(&mut self) -> Option<&mut dyn SharesMemory> {
        Some(self)
    }
}

impl SharesMemory for ShmConnector {
    fn open(&mut self, peers: &Peers, addresses: &[Address]) -> Sharing {
        let here = addresses.iter().enumerate().filter(|(_, address)| address.host == peers.own.host);
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
        let found = match self.open_all(peers, addresses) {
            Ok(group) => {
                let found = if group.reads_memory() { Sharing::Processes } else { Sharing::Segments };
                self.opened = Some(group);
                found
            }
            Err(error) => {
                self.log(peers, &format!("no memory is shared with the other ranks of this host: {error}"));
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

    fn share(&mut self, peers: &Peers, found: &[Sharing]) -> Result<Option<Arc<dyn LocalRanks>>> {
        // All ranks have mapped it, or do not want to any more.
        self.memory = None;
        let Some(opened) = self.opened.take() else { return Ok(None) };
        let min = opened.ranks().iter().map(|rank| (found[*rank as usize], *rank)).min();
        let (min, rank) = min.expect("this rank is one of them");
        if min == Sharing::Nothing {
            self.log(peers, &format!("no memory is shared with the other ranks of this host: rank {rank} cannot"));
            return Ok(None);
        }
        let reads = min == Sharing::Processes;
        let group = opened.confirm(reads, &|rank| peers.named(rank))?;
        let why = || group.unreadable().map_or_else(|| format!("rank {rank} cannot"), str::to_owned);
        let how = match reads {
            true => "and processes read each other's".to_owned(),
            false => format!("but processes cannot read each other's: {}", why()),
        };
        self.log(peers, &format!("memory is shared with {} ranks of this host, {how}", group.ranks().len() - 1));
        self.ports = group.ranks().iter().map(|_| Port::new()).collect();
        self.fresh = (0..group.ranks().len()).filter(|index| *index != group.index()).collect();
        self.group = Some(group.clone());
        Ok(Some(group))
    }

    fn exited(&mut self, number: u64) {
        self.ports.get(number as usize).into_iter().for_each(Port::set_exited);
    }

    fn allocations(&self) -> Allocations {
        Allocations::new(self.own.clone())
    }

    #[cfg(any(test, fuzzing))]
    fn bell(&self) -> Option<Arc<dyn Bell>> {
        Some(self.own.clone()?)
    }
}

#[cfg(any(test, fuzzing))]
impl Bell for OwnSegment {
    fn ring(&self) {
        Self::ring(self);
    }

    fn has_rung(&self) -> bool {
        sys::poll(&[Pollable::Socket(self.doorbell())], std::time::Duration::ZERO)
    }
}
