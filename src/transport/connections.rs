//! The connections of one context: the connectors of all its transports, in the order of preference. For each peer, the
//! first that can reach it makes the link.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    Allocations, CloseNotice, Connector, ConnectorEvent, Counters, Description, DrainingLink, LocalRanks, Made,
    OverLinks, Part, Peers, Reach, SharedMemory, Sharing,
};
use crate::error::{Error, Result};
use crate::log::LogCallback;
use crate::net::address::Address;
use crate::secret::JobToken;
use crate::sys::poller::Event;
use crate::sys::{self, Pollable, Poller, PollerKind, Registration};
use crate::types::Rank;

/// The events of the poller that have this number or a higher one say that a connector has work, by its position. Lower
/// ones are the connectors' own.
const PARTS: u64 = u64::MAX - 63;
/// Once in so many turns the poller is asked which connectors have work that nothing else tells of.
const TURNS: u32 = 1024;
/// Once in so many turns the poller is asked where links are made of those of other connectors.
const TURNS_OVER_LINKS: u32 = 64;

/// A transport beside that of the device, which makes the links that it can.
pub trait Provider: Send + Sync {
    /// What it gives a context.
    fn part(&self, provided: &mut Provided<'_>) -> Result<Part>;
}

/// The context for which a transport provides links.
pub struct Provided<'a> {
    /// That of all its ranks.
    pub token: &'a JobToken,
    /// What peers need to connect to this rank, for the connector to add to.
    pub address: &'a mut Address,
    /// Watches what the connector waits for.
    pub poller: &'a Poller,
    /// The number of events that only say that the connector has work; those of its own begin with 0.
    pub number: u64,
    /// Keeps what ended links leave behind.
    pub linger: &'a Linger,
    /// Callback for messages that no call returns.
    pub log: Option<&'a LogCallback>,
}

/// Keeps what an ended link leaves behind, until its peer has all that was sent.
pub type Linger = Arc<dyn Fn(Box<dyn DrainingLink>) + Send + Sync>;

/// The connections of one context.
pub struct Connections {
    peers: Peers,
    /// In the order of preference. The last one is that of the device.
    parts: Vec<Part>,
    /// The position of the one that makes its links out of those of the later ones.
    over: Option<usize>,
    /// Those from here on have work only if the poller says so, or they do.
    idle_from: usize,
    /// The ranks of this host, if they share memory.
    local: Option<Arc<dyn LocalRanks>>,
    /// Whether they are all that there are.
    is_quiet: bool,
    /// What is to be polled.
    sources: Vec<Pollable>,
    /// If there are several: it watches all of them.
    poller: Option<Poller>,
    _watched: Vec<Registration>,
    turns: u32,
    /// After how many turns it is asked, if it is.
    looks_after: Option<u32>,
    /// Those that have work, as the poller says: a set of positions.
    ready: u64,
    /// Ranks to which links are wanted as soon as it is known how.
    deferred: Vec<Rank>,
    /// Links of which it is not known yet whether another connector makes others of them, and who has made them.
    early: Vec<(usize, Made)>,
    /// Whether that may be known now.
    must_place: bool,
    /// What the poller has failed with, if that has not been reported.
    failed: Option<Error>,
}

impl Connections {
    /// Those of a rank with this address, whose device makes them by `connector`; `sources` are to be polled for it, by
    /// a poller of this `kind`. If the transports of `providers` can reach a peer, an earlier one is preferred.
    pub fn new(
        mut address: Address,
        connector: impl Connector + 'static,
        (sources, kind): (Vec<Pollable>, PollerKind),
        providers: &[Box<dyn Provider>],
        (token, linger, log): (&JobToken, &Linger, Option<&LogCallback>),
    ) -> Result<Self> {
        let failed = |e| Error::io("cannot create a context", &e);
        let mut of_base = sources;
        let (mut parts, mut watched, mut poller) = (Vec::with_capacity(providers.len() + 1), Vec::new(), None);
        if !providers.is_empty() {
            let all = Poller::new(kind).map_err(failed)?;
            for source in std::mem::replace(&mut of_base, vec![all.clone().into()]) {
                watched.push(all.add(source, sys::READ, PARTS + providers.len() as u64).map_err(failed)?);
            }
            for (at, provider) in providers.iter().enumerate() {
                let (address, number) = (&mut address, PARTS + at as u64);
                parts.push(provider.part(&mut Provided { token, address, poller: &all, number, linger, log })?);
            }
            poller = Some(all);
        }
        parts.push(connector.into());
        let over = parts.iter_mut().position(|part| part.connector.over_links().is_some());
        Ok(Self {
            peers: Peers::new(address),
            idle_from: over.map_or(parts.len(), |over| over + 1),
            over,
            parts,
            local: None,
            is_quiet: false,
            sources: of_base,
            poller,
            _watched: watched,
            turns: 0,
            looks_after: over.map(|_| TURNS_OVER_LINKS),
            ready: 0,
            deferred: Vec::new(),
            early: Vec::new(),
            must_place: false,
            failed: None,
        })
    }

    /// Those of a device without other transports.
    #[cfg(any(test, fuzzing))]
    pub fn alone(address: Address, connector: impl Connector + 'static, sources: Vec<Pollable>) -> Self {
        let (token, linger): (_, Linger) = (JobToken::none(), Arc::new(|_| ()));
        Self::new(address, connector, (sources, PollerKind::SYSTEM), &[], (&token, &linger, None))
            .expect("no poller is needed")
    }

    /// These connections, which behave as if all peers shared memory.
    #[cfg(all(test, loom))]
    pub fn quiet(self) -> Self {
        Self { is_quiet: true, ..self }
    }

    /// Sets which rank of how many this is: once, before any other call. Peers that connect earlier wait.
    pub fn set_rank(&mut self, rank: Rank, size: usize) {
        (self.peers.rank, self.peers.size) = (rank, size);
    }

    /// The address that peers need to connect to this rank.
    pub fn address(&self) -> &Address {
        &self.peers.own
    }

    /// The ranks, as far as they are known.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// The ranks, for a caller that sets how many connections a link has, or the numbers of ranks in errors.
    pub fn peers_mut(&mut self) -> &mut Peers {
        &mut self.peers
    }

    /// Sets the sockets at which peers find this rank: at most one per address family.
    pub fn set_sockets(&mut self, sockets: Vec<SocketAddr>) {
        self.peers.own.sockets = sockets;
    }

    /// Sets the address of `rank`. Fails if another process has already connected as that rank.
    pub fn set_peer(&mut self, rank: Rank, address: Address) -> Result<()> {
        self.peers.set(rank, address);
        self.must_place = !self.early.is_empty();
        self.parts.iter_mut().try_for_each(|part| part.connector.reach(&self.peers, rank).map(drop))
    }

    /// Establishes a link to `rank` if its address is known, unless there is a link, an attempt, or a final failure.
    pub fn connect(&mut self, rank: Rank) {
        if self.peers.get(rank).is_none() {
            return;
        }
        for part in &mut self.parts {
            match part.connector.reach(&self.peers, rank) {
                Ok(Reach::Yes) => return part.connector.connect(rank),
                Ok(Reach::Undecided) => return self.deferred.push(rank),
                Ok(Reach::No) | Err(_) => {}
            }
        }
    }

    /// Ends all attempts to connect to `rank`; no link to it will be established.
    pub fn give_up(&mut self, rank: Rank) {
        self.deferred.retain(|deferred| *deferred != rank);
        self.early.retain(|(_, made)| made.rank != rank);
        self.parts.iter_mut().for_each(|part| part.connector.give_up(rank));
    }

    /// See [`Connector::close`].
    pub fn close(&mut self, close_notice: &CloseNotice, has_failed: bool) {
        for (_, Made { link, connection, .. }) in self.early.drain(..) {
            link.end(Vec::new(), close_notice(connection));
        }
        self.parts.iter_mut().for_each(|part| part.connector.close(close_notice.clone(), has_failed));
    }

    /// A peer has connected, of which nothing else tells.
    pub fn arrived(&mut self) {
        self.ready |= 1 << (self.parts.len() - 1);
    }

    /// Whether [`Connections::progress`] must be called even if the caller tries every link.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.must_place
            || self.ready != 0
            || self.failed.is_some()
            || self.parts.iter().any(|part| part.connector.is_busy())
    }

    /// Does all work that is possible without blocking at `now`, and appends events.
    pub fn progress(&mut self, now: Instant, events: &mut Vec<ConnectorEvent>) {
        self.turns = self.turns.wrapping_add(1);
        if self.looks_after.is_some_and(|turns| self.turns.is_multiple_of(turns)) {
            self.look();
            // A caller that is not told of arrivals finds them, too: they are no event of the poller.
            self.arrived();
        }
        events.extend(self.failed.take().map(|error| ConnectorEvent::Failed { error }));
        if std::mem::take(&mut self.must_place) {
            for (at, made) in std::mem::take(&mut self.early) {
                self.place(at, made, now, events);
            }
        }
        let ready = std::mem::take(&mut self.ready);
        let awaits = self.over().is_some_and(|over| over.awaits(now));
        // First those of whose links others make theirs.
        for at in (0..self.parts.len()).rev() {
            let connector = &mut self.parts[at].connector;
            if at < self.idle_from || ready >> at & 1 != 0 || awaits || connector.is_busy() {
                let first = events.len();
                connector.progress(&self.peers, now, events);
                if at > 0 && events.len() > first {
                    self.pass_on(at, first, now, events);
                }
            }
        }
    }

    /// When [`Connections::progress`] must be called even if no descriptor is readable.
    pub fn next_timer(&self) -> Option<Instant> {
        self.parts.iter().filter_map(|part| part.connector.next_timer()).min()
    }

    /// When [`Connections::progress`] must be called, though nothing else says so, while a thread waits: to find out
    /// whether peers are still there.
    pub fn keep_alive(&self) -> Option<Instant> {
        self.parts.iter().filter_map(|part| part.keep_alive.as_ref()?.next()).min()
    }

    /// Appends what is to be polled: at least one of it is readable when [`Connections::progress`] has work. It does
    /// not change during the life of this.
    pub fn descriptors(&self, into: &mut Vec<Pollable>) {
        into.extend(self.sources.iter().cloned());
    }

    /// Says that nobody makes progress until a descriptor is readable: descriptors need to become readable only after
    /// this. With `publications`, also when ranks that share memory have published something. If it returns `true`,
    /// call [`Connections::progress`] once more before sleeping.
    pub fn sleep(&mut self, publications: bool) -> bool {
        let mut again = false;
        for part in &mut self.parts[..self.idle_from] {
            again |= part.connector.sleep(publications);
        }
        if again && self.looks_after.is_some() {
            // If that does not work, nothing wakes whoever sleeps until it is readable.
            self.look();
        }
        again
    }

    /// Ends what [`Connections::sleep`] has begun. `slept`: a descriptor may be readable.
    pub fn wake(&mut self, slept: bool) {
        self.parts.iter_mut().for_each(|part| part.connector.wake(slept));
        if slept && self.looks_after.is_some() {
            self.look();
        }
    }

    /// Whether no descriptor becomes readable between [`Connections::wake`] and [`Connections::sleep`], unless the
    /// process of a peer ends.
    pub fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Tries to open the memory of the ranks of this host; `addresses` are those of all ranks. Called before
    /// [`Connections::set_peer`], and only if [`Connections::share_memory`] follows when all ranks have done this, or
    /// if none of them has memory to share. Returns what it has found, for all ranks.
    pub fn open_memory(&mut self, addresses: &[Address]) -> Sharing {
        let Self { parts, peers, .. } = self;
        shared_memory(parts).map_or(Sharing::Nothing, |memory| memory.open(peers, addresses))
    }

    /// Shares memory if all ranks of this host can; `found` is what each rank has found.
    pub fn share_memory(&mut self, found: &[Sharing]) -> Result<()> {
        let Self { parts, peers, .. } = self;
        let Some(memory) = shared_memory(parts) else { return Ok(()) };
        if let Some(local) = memory.share(peers, found)? {
            // Without peers elsewhere, the others have hardly ever work, and to ask them takes a system call.
            self.is_quiet = local.ranks().len() == self.peers.size;
            if self.is_quiet {
                self.idle_from = 1;
            }
            let carries = self.over.is_some_and(|over| over < self.idle_from);
            self.looks_after = Some(if carries { TURNS_OVER_LINKS } else { TURNS });
            self.local = Some(local);
        }
        self.must_place = !self.early.is_empty();
        std::mem::take(&mut self.deferred).into_iter().for_each(|rank| self.connect(rank));
        Ok(())
    }

    /// The ranks of this host, if they share memory.
    pub fn local_ranks(&self) -> Option<&Arc<dyn LocalRanks>> {
        self.local.as_ref()
    }

    /// Memory for data, which the other ranks of this host read where it is if they can.
    pub fn allocations(&mut self) -> Allocations {
        shared_memory(&mut self.parts).map_or_else(|| Allocations::new(None), |memory| memory.allocations())
    }

    /// The doorbell that ranks of this host ring.
    #[cfg(any(test, fuzzing))]
    pub fn bell(&mut self) -> Option<Arc<dyn super::Bell>> {
        shared_memory(&mut self.parts)?.bell()
    }

    /// This memory stays mapped, and is meant for messages, until [`Connections::release_memory`]: links may register
    /// it with devices.
    pub fn retain_memory(&self, memory: *mut u8, bytes: usize) {
        self.parts.iter().filter_map(|part| part.registry.as_ref()).for_each(|registry| registry.retain(memory, bytes));
    }

    /// Ends what [`Connections::retain_memory`] has begun, with the same arguments.
    pub fn release_memory(&self, memory: *mut u8, bytes: usize) {
        self.parts
            .iter()
            .filter_map(|part| part.registry.as_ref())
            .for_each(|registry| registry.release(memory, bytes));
    }

    /// What was counted of work requests, if links have queue pairs.
    pub fn counters(&self) -> Option<Counters> {
        self.parts.iter().find_map(|part| Some(part.counting.as_ref()?.counters()))
    }

    /// The reason why there is no link to `rank`, for messages.
    pub fn why_not_connected(&self, rank: Rank) -> String {
        self.describe(rank, |description| description.why_not_connected).unwrap_or_else(|| "not connected".to_owned())
    }

    /// The name of a peer in all messages, for example `rank 3 at 10.0.0.1:4455`.
    pub fn peer_name(&self, rank: Rank) -> String {
        self.peers.name(rank, self.describe(rank, |description| description.location))
    }

    fn describe<T>(&self, rank: Rank, of: impl Fn(Description) -> Option<T>) -> Option<T> {
        self.parts.iter().find_map(|part| of(part.connector.describe(&self.peers, rank)))
    }

    fn over(&mut self) -> Option<&mut dyn OverLinks> {
        self.parts[self.over?].connector.over_links()
    }

    /// Asks the poller which connectors have work: one system call, however many ranks there are.
    fn look(&mut self) {
        let Some(poller) = &self.poller else { return };
        let mut ready = [Event::default(); 64];
        let found = poller.wait(&mut ready, Some(Duration::ZERO)).unwrap_or_else(|error| {
            let whose = if self.local.is_some() { "the ranks of this host" } else { "this rank's connections" };
            self.failed = Some(Error::io(format_args!("cannot look for events of {whose}"), &error));
            0
        });
        for event in &ready[..found] {
            match event.number.checked_sub(PARTS) {
                Some(at) => self.ready |= 1 << at,
                None => shared_memory(&mut self.parts).into_iter().for_each(|memory| memory.exited(event.number)),
            }
        }
    }

    /// Handles the events from `first` on, which are of the connector at `at`, and for earlier ones to see.
    fn pass_on(&mut self, at: usize, first: usize, now: Instant, events: &mut Vec<ConnectorEvent>) {
        let is_plain = |event: &ConnectorEvent| matches!(event, ConnectorEvent::Ready { .. });
        // Its own links, and those of an earlier connector, are none that it has taken.
        let is_under = self.over.is_some_and(|over| over < at);
        if !is_under && events[first..].iter().all(is_plain) {
            return;
        }
        for event in events.split_off(first) {
            match event {
                ConnectorEvent::Established { rank, link, connection } => {
                    self.place(at, Made { rank, link, connection }, now, events);
                }
                // A rank that shares memory and connects in another way does not obey the agreement.
                ConnectorEvent::Unreachable { rank, .. } if self.preferred(at, rank) == Reach::Yes => {}
                ConnectorEvent::Ready { rank, .. }
                    if is_under && self.over().is_some_and(|over| over.ready(rank, now, events)) => {}
                event => events.push(event),
            }
        }
    }

    /// Whether a connector before that at `at` can make the link to `rank`.
    fn preferred(&mut self, at: usize, rank: Rank) -> Reach {
        let reach = |part: &mut Part| part.connector.reach(&self.peers, rank).unwrap_or(Reach::No);
        self.parts[..at].iter_mut().map(reach).find(|reach| *reach != Reach::No).unwrap_or(Reach::No)
    }

    /// The connector at `at` has made a link: it is reported, or another one makes its own out of it.
    fn place(&mut self, at: usize, made: Made, now: Instant, events: &mut Vec<ConnectorEvent>) {
        let rank = made.rank;
        let over = self.over.filter(|over| *over < at);
        match self.preferred(at, rank) {
            _ if over.is_some() && self.peers.get(rank).is_none() => return self.early.push((at, made)),
            Reach::Undecided => return self.early.push((at, made)),
            // Dropped, the link ends.
            Reach::Yes => return,
            Reach::No => {}
        }
        let name = over.map(|_| self.peer_name(rank)).unwrap_or_default();
        let taker = over.and_then(|over| self.parts[over].connector.over_links());
        let left = match taker {
            Some(taker) => taker.take(&self.peers, made, name, now, events),
            None => Some(made),
        };
        let event = |Made { rank, link, connection }| ConnectorEvent::Established { rank, link, connection };
        events.extend(left.map(event));
    }
}

/// What the connector has that shares memory, if there is one.
fn shared_memory(parts: &mut [Part]) -> Option<&mut dyn SharedMemory> {
    parts.iter_mut().find_map(|part| part.connector.shared_memory())
}

// Neither Miri nor loom knows shared memory.
#[cfg(all(test, not(any(miri, loom))))]
mod tests;
