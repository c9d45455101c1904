//! Makes a context's ranks of one host share memory. Another connector makes the links to all other ranks.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use super::group::{Candidate, HostGroup};
use super::segment::{OwnSegment, Secret};
use super::{Sharing, VARIABLE};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{Level, LogCallback};
use crate::net::address::{self, Address};
use crate::net::handshake::Identity;
use crate::secret::{JobToken, SecretKey};
use crate::sys;
use crate::transport::{CloseNotice, Connector, ConnectorEvent};
use crate::types::Rank;

/// Descriptors that a rank needs for each rank of its host.
const DESCRIPTORS: usize = 3;
/// The part of the process's descriptors that the ranks of one context in it take at most: one in so many.
const PART: u64 = 4;

/// The connector of one context.
pub struct ShmConnector {
    rank: Rank,
    inner: Box<dyn Connector>,
    /// The inner connector's, with the segment.
    address: Address,
    token: JobToken,
    log: Option<LogCallback>,
    own: Option<Arc<OwnSegment>>,
    /// All ranks of the host, until it is known whether all of them can share memory.
    opened: Option<HostGroup>,
    group: Option<Arc<HostGroup>>,
}

impl ShmConnector {
    /// A connector that leaves the peers that share no memory with this rank to `inner`. Peers have `token`.
    pub fn over(inner: Box<dyn Connector>, token: &JobToken, log: Option<LogCallback>) -> Result<Self> {
        let mut address = inner.address().clone();
        let own = OwnSegment::create(&secret(token, &address.identity));
        let own = own.inspect_err(|e| log_detail(log.as_ref(), &format!("no memory is shared: {e}"))).ok();
        address.segment = own.as_ref().map(OwnSegment::descriptor);
        let (token, own) = (token.clone(), own.map(Arc::new));
        Ok(Self { rank: 0, inner, address, token, log, own, opened: None, group: None })
    }

    /// Opens the memory of all other ranks of this host.
    fn open(&self, addresses: &[Address]) -> Result<HostGroup> {
        let here = || addresses.iter().enumerate().filter(|(_, address)| address.host == self.address.host);
        let unable = |text| Err(Error::new(ErrorKind::Unsupported, text));
        let Some(own) = &self.own else { return unable("this rank has no memory to share".to_owned()) };
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
        HostGroup::open(self.rank, own.clone(), &others, shares_cores)
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
        self.rank = rank;
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
        self.inner.connect(rank);
    }

    fn give_up(&mut self, rank: Rank) {
        self.inner.give_up(rank);
    }

    fn close(&mut self, close_notice: Option<CloseNotice>) {
        self.inner.close(close_notice);
    }

    fn is_busy(&self) -> bool {
        self.inner.is_busy()
    }

    fn progress(&mut self, now: Instant, events: &mut Vec<ConnectorEvent>) {
        self.inner.progress(now, events);
    }

    fn next_timer(&self) -> Option<Instant> {
        self.inner.next_timer()
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        self.inner.descriptors(into);
    }

    fn open_memory(&mut self, addresses: &[Address]) -> Sharing {
        let here = addresses.iter().filter(|address| address.host == self.address.host);
        if here.count() < 2 {
            return Sharing::Nothing;
        }
        match self.open(addresses) {
            Ok(group) => {
                let found = if group.reads_memory() { Sharing::Processes } else { Sharing::Segments };
                self.opened = Some(group);
                found
            }
            Err(error) => {
                self.log(&format!("no memory is shared with the other ranks of this host: {error}"));
                Sharing::Nothing
            }
        }
    }

    fn share_memory(&mut self, found: &[Sharing]) -> Result<()> {
        let Some(opened) = self.opened.take() else { return Ok(()) };
        let least = opened.ranks().iter().map(|rank| (found[*rank as usize], *rank)).min();
        let (least, rank) = least.expect("this rank is one of them");
        if least == Sharing::Nothing {
            self.log(&format!("no memory is shared with the other ranks of this host: rank {rank} cannot"));
            return Ok(());
        }
        let reads = least == Sharing::Processes;
        let group = opened.confirm(reads)?;
        let how = if reads { "and processes read each other's" } else { "but processes cannot read each other's" };
        self.log(&format!("memory is shared with {} ranks of this host, {how}", group.ranks().len() - 1));
        self.group = Some(group);
        Ok(())
    }

    fn host_group(&self) -> Option<&Arc<HostGroup>> {
        self.group.as_ref()
    }

    fn location(&self, rank: Rank) -> Option<String> {
        self.inner.location(rank)
    }

    fn why_not_connected(&self, rank: Rank) -> String {
        self.inner.why_not_connected(rank)
    }
}
