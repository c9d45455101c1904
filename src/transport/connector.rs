//! What a transport gives a context: a connector, which makes links to peers, and whatever else it can.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use super::{Allocations, Interest, Link, LocalRanks, Sharing};
use crate::error::{Error, Result};
use crate::hash::QuickMap;
use crate::net::address::Address;
use crate::types::Rank;

/// The ranks of one context, as its connectors know them.
pub struct Peers {
    /// This rank.
    pub rank: Rank,
    /// How many there are.
    pub size: usize,
    /// The address that peers need to connect to this rank.
    pub own: Address,
    /// How many connections links have that are made from now on, where neither side's device says how many; the same
    /// on all ranks.
    pub streams: u8,
    /// The numbers of the ranks in errors, if they are others.
    pub names: Vec<Rank>,
    /// With the number of the context there.
    addresses: QuickMap<u32, (Address, u32)>,
}

impl Peers {
    /// Nobody but this rank, whose number is not known yet.
    pub fn new(own: Address) -> Self {
        Self { rank: 0, size: 0, own, streams: 1, names: Vec::new(), addresses: QuickMap::default() }
    }

    /// Sets the address of `rank`.
    pub fn set(&mut self, rank: Rank, address: Address) {
        let number = address.context_number();
        self.addresses.insert(rank as u32, (address, number));
    }

    /// The address of `rank`, if it is known.
    pub fn get(&self, rank: Rank) -> Option<&Address> {
        self.addresses.get(&(rank as u32)).map(|(address, _)| address)
    }

    /// [`Address::context_number`] of `rank`, if its address is known.
    pub fn context_number(&self, rank: Rank) -> Option<u32> {
        self.addresses.get(&(rank as u32)).map(|(_, number)| *number)
    }

    /// The ranks whose addresses are known, with these.
    pub fn known(&self) -> impl Iterator<Item = (Rank, &Address)> {
        self.addresses.iter().map(|(rank, (address, _))| (*rank as Rank, address))
    }

    /// Whether `rank` is known to be on this host.
    pub fn is_here(&self, rank: Rank) -> bool {
        self.get(rank).is_some_and(|address| address.host == self.own.host)
    }

    /// The number of `rank` in errors.
    pub fn named(&self, rank: Rank) -> Rank {
        self.names.get(rank).copied().unwrap_or(rank)
    }

    /// The name of a peer in all messages, for example `rank 3 at 10.0.0.1:4455`.
    pub fn name(&self, rank: Rank, at: Option<impl Display>) -> String {
        let named = self.named(rank);
        at.map_or_else(|| format!("rank {named}"), |at| format!("rank {named} at {at}"))
    }
}

/// What the queue pairs of a context have done since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sends that were posted.
    pub sends: u64,
    /// RDMA writes that were posted.
    pub writes: u64,
    /// RDMA reads that were posted.
    pub reads: u64,
    /// Calls that posted sends, writes or reads.
    pub doorbells: u64,
    /// Receives that were posted.
    pub receives: u64,
    /// Completions that were taken.
    pub completions: u64,
    /// Times that memory was registered with all devices.
    pub registrations: u64,
    /// Bytes of sends, with headers.
    pub sent_bytes: u64,
    /// Bytes of RDMA writes.
    pub written_bytes: u64,
    /// Bytes of RDMA reads.
    pub read_bytes: u64,
}

/// An event that a connector reports.
pub enum ConnectorEvent {
    /// The link to a peer is established.
    Established {
        /// The peer.
        rank: Rank,
        /// The link.
        link: Box<dyn Link>,
        /// A number that both ends derived from secrets. Every header on this link contains it.
        connection: u32,
    },
    /// No link to the peer can be established.
    Unreachable {
        /// The peer.
        rank: Rank,
        /// The reason.
        error: Error,
    },
    /// The connector has failed: it does not learn any more what happens on its links.
    Failed {
        /// The reason.
        error: Error,
    },
    /// A watched condition of the link may be true; false alarms are permitted.
    Ready {
        /// The peer.
        rank: Rank,
        /// The conditions.
        of: Interest,
    },
}

/// Creates the final bytes of a closed context for the connection with the given number.
pub type CloseNotice = Arc<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

/// Whether a connector can make the link to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The transport cannot reach the peer, or only [out of another's links](Connector::over_links).
    No,
    /// It is not known yet whether the transport can reach the peer.
    Undecided,
    /// The transport can reach the peer.
    Yes,
}

/// What a connector knows of a peer, for messages.
#[derive(Default)]
pub struct Description {
    /// The peer's location, for example `10.0.0.1:4455`.
    pub location: Option<String>,
    /// The reason why there is no link to it, for example `not connected after 3 attempts; the last one: ...`.
    pub why_not_connected: Option<String>,
}

/// Makes a context's links of one transport. Results of a call may be reported by a later [`Connector::progress`].
pub trait Connector: Send {
    /// Whether it can make the link to `rank`. Called whenever the address of that becomes known; then fails if another
    /// process has already connected as that rank.
    fn reach(&mut self, peers: &Peers, rank: Rank) -> Result<Reach>;

    /// Makes a link to `rank`, which it can reach, unless there is one, an attempt, or a final failure.
    fn connect(&mut self, rank: Rank);

    /// Ends all attempts to connect to `rank`; no link to it will be established.
    fn give_up(&mut self, rank: Rank);

    /// Tells the connector that the context is closed. Peers with links that were not reported are sent `close_notice`.
    /// Peers that connect later are refused, after that notice if the context `has_failed`, also once the connector has
    /// been dropped if its device exists.
    fn close(&mut self, close_notice: CloseNotice, has_failed: bool);

    /// Whether [`Connector::progress`] must be called even if the caller tries every link.
    fn is_busy(&self) -> bool;

    /// Does all work that is possible without blocking at `now`, and appends events.
    fn progress(&mut self, peers: &Peers, now: Instant, events: &mut Vec<ConnectorEvent>);

    /// When [`Connector::progress`] must be called even if no descriptor is readable.
    fn next_timer(&self) -> Option<Instant> {
        None
    }

    /// See [`Connections::sleep`](super::Connections::sleep).
    fn sleep(&mut self, publications: bool) -> bool {
        let _ = publications;
        false
    }

    /// See [`Connections::wake`](super::Connections::wake).
    fn wake(&mut self, slept: bool) {
        let _ = slept;
    }

    /// What it knows of `rank`.
    fn describe(&self, peers: &Peers, rank: Rank) -> Description;

    /// If its links are memory that ranks of this host share.
    fn shared_memory(&mut self) -> Option<&mut dyn SharedMemory> {
        None
    }

    /// If it makes its links out of those of the transports after it.
    fn over_links(&mut self) -> Option<&mut dyn OverLinks> {
        None
    }
}

/// A connector's ability to share memory with the ranks of this host, if all of them can.
pub trait SharedMemory {
    /// Tries to open the memory of the ranks of this host; `addresses` are those of all ranks. Returns what it has
    /// found, for all ranks.
    fn open(&mut self, peers: &Peers, addresses: &[Address]) -> Sharing;

    /// Shares memory if all ranks of this host can, and it does not already; `found` is what each rank has found.
    /// Returns the ranks that do.
    fn share(&mut self, peers: &Peers, found: &[Sharing]) -> Result<Option<Arc<dyn LocalRanks>>>;

    /// The process that the context's poller watches under this number has ended.
    fn exited(&mut self, number: u64);

    /// Memory for data, which the other ranks of this host read where it is.
    fn allocations(&self) -> Allocations;

    /// The doorbell of this rank.
    #[cfg(any(test, fuzzing))]
    fn bell(&self) -> Option<Arc<dyn Bell>>;
}

/// A rank's doorbell.
#[cfg(any(test, fuzzing))]
pub trait Bell: Send + Sync {
    /// Rings it, as a peer.
    fn ring(&self);

    /// Whether it was rung, and nobody has answered.
    fn has_rung(&self) -> bool;
}

/// A connector's ability to make its links out of another transport's.
pub trait OverLinks {
    /// Takes a link of another transport to `rank`, called `name`. Returns it if the peer has not this transport.
    fn take(
        &mut self,
        peers: &Peers,
        made: Made,
        name: String,
        now: Instant,
        events: &mut Vec<ConnectorEvent>,
    ) -> Option<Made>;

    /// The link that it has taken from another transport is ready. Returns false if it has taken none, or has given it
    /// back.
    fn ready(&mut self, rank: Rank, now: Instant, events: &mut Vec<ConnectorEvent>) -> bool;

    /// Whether it waits for something on those links, so that their connector must be asked.
    fn awaits(&self, now: Instant) -> bool;
}

/// A link that was made.
pub struct Made {
    /// The peer.
    pub rank: Rank,
    /// The link.
    pub link: Box<dyn Link>,
    /// A number that both ends derived from secrets.
    pub connection: u32,
}

/// Registers memory with devices, so that links need not do it for each message. Thread-safe.
pub trait Registry: Send + Sync {
    /// Announces memory that stays mapped, and is meant for messages, until [`Registry::release`].
    fn retain(&self, memory: *mut u8, bytes: usize);

    /// Ends what [`Registry::retain`] has begun, with the same arguments.
    fn release(&self, memory: *mut u8, bytes: usize);
}

/// Counts work requests. Thread-safe.
pub trait Counting: Send + Sync {
    /// What was counted.
    fn counters(&self) -> Counters;
}

/// Finds out whether peers are still there. Thread-safe.
pub trait KeepAlive: Send + Sync {
    /// When [`Connector::progress`] must be called, though nothing else says so, while a thread waits.
    fn next(&self) -> Option<Instant>;
}

/// What a transport gives one context.
pub struct Part {
    /// Makes the links.
    pub connector: Box<dyn Connector>,
    /// If links register memory with devices.
    pub registry: Option<Arc<dyn Registry>>,
    /// If they have queue pairs.
    pub counting: Option<Arc<dyn Counting>>,
    /// If nothing but an exchange tells whether peers are still there.
    pub keep_alive: Option<Arc<dyn KeepAlive>>,
}

impl<C: Connector + 'static> From<C> for Part {
    fn from(connector: C) -> Self {
        Self { connector: Box::new(connector), registry: None, counting: None, keep_alive: None }
    }
}
