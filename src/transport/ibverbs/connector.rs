//! Makes a context's links by queue pairs, out of the links of another connector.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use super::connection::Connection;
use super::endpoint::{End, OFFER_BYTES, Offer, READY};
use super::handles::DeviceContext;
use super::link::{IbverbsLink, Linger};
use super::memory::Registration;
use super::rail::{PathOptions, Rail};
use super::shared::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::QuickMap;
use crate::log::{Level, LogCallback};
use crate::net::address::Address;
use crate::sys::{self, Pollable, Poller, PollerKind, Registration as Watched, Waker};
use crate::transport::{CloseNotice, Connector, ConnectorEvent, Counters, Interest, Link};
use crate::types::Rank;

/// Once in so many turns the inner connector is asked for events, if nothing says that it has any.
const TURNS: u32 = 64;

/// A connection over which queue pairs are being connected.
struct Joining {
    link: Box<dyn Link>,
    /// The number of the connection for headers.
    number: u32,
    /// The connection of queue pairs; `None` if they could not be created.
    id: Option<u32>,
    /// Why they could not be, or why the peer's do not fit.
    failed: Option<Error>,
    out: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
    is_connected: bool,
}

/// What comes of an attempt to connect queue pairs.
enum Step {
    /// It waits for the peer, or for room to send.
    Waits,
    /// Both sides' queue pairs are connected.
    Joined,
    /// The peer has sent messages instead, from this byte on: the last words of a context that has ended.
    Messages(usize),
}

/// A link of which some bytes were received already.
struct Begun {
    bytes: Vec<u8>,
    link: Box<dyn Link>,
}

impl Link for Begun {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.link.send(parts)
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return self.link.receive(parts);
        }
        let n = io::Read::read_vectored(&mut &self.bytes[..], parts)?;
        self.bytes.drain(..n);
        Ok(n)
    }

    fn flush(&mut self) {
        self.link.flush();
    }

    fn watch(&mut self, interest: Interest) -> io::Result<()> {
        self.link.watch(interest)
    }

    fn end(self: Box<Self>, rest: Vec<u8>, close_notice: Vec<u8>) {
        self.link.end(rest, close_notice);
    }
}

/// The connector of one context.
pub struct IbverbsConnector {
    rank: Rank,
    inner: Box<dyn Connector>,
    /// The inner connector's, which says that this rank has queue pairs.
    address: Address,
    shared: Arc<Shared>,
    linger: Linger,
    log: Option<LogCallback>,
    size: usize,
    /// Links to ranks whose address is not known yet, and their numbers.
    early: Vec<(Rank, Box<dyn Link>, u32)>,
    joining: QuickMap<u32, Joining>,
    /// The connection of each rank that was established.
    established: QuickMap<u32, u32>,
    /// Why ranks are not connected, if that is known.
    reasons: QuickMap<u32, String>,
    /// Readable if a queue has a completion, or if the inner connector has work.
    poller: Poller,
    _registrations: Vec<Watched>,
    /// The rails' devices, and how many changes of each are known.
    devices: Vec<(Arc<DeviceContext>, u32)>,
    /// Woken by whoever takes a device's event.
    waker: Arc<Waker>,
    inner_events: Vec<ConnectorEvent>,
    /// Calls of `progress`.
    turns: u32,
    /// Whether a thread may have slept since the inner connector was last asked.
    look: bool,
    is_sleeping: bool,
    /// When a connection that is ending must be looked at again.
    timer: Option<Instant>,
}

impl IbverbsConnector {
    /// A connector over `inner`, whose links are used to connect queue pairs of `rails`. `linger` keeps connections until the peer has all
    /// that was sent. A poller of this kind can wait for that of `inner`.
    pub fn over(
        inner: Box<dyn Connector>,
        rails: Vec<Arc<Rail>>,
        path: PathOptions,
        linger: Linger,
        kind: PollerKind,
        log: Option<LogCallback>,
    ) -> Result<Self> {
        let failed = |e| Error::io("cannot create a context", &e);
        let poller = Poller::new(kind).map_err(failed)?;
        let address = Address { ibverbs: true, ..inner.address().clone() };
        let mut sources = Vec::new();
        inner.descriptors(&mut sources);
        let watched = sources.into_iter().map(|source| poller.add(source, sys::READ, 0));
        let registrations = watched.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let waker = Arc::new(Waker::new().map_err(failed)?);
        Ok(Self {
            rank: 0,
            inner,
            address,
            shared: Shared::new(rails, path, Registration::from_environment()?),
            linger,
            log,
            size: 0,
            early: Vec::new(),
            joining: QuickMap::default(),
            established: QuickMap::default(),
            reasons: QuickMap::default(),
            poller,
            _registrations: registrations,
            devices: Vec::new(),
            waker,
            inner_events: Vec::new(),
            turns: 0,
            look: true,
            is_sleeping: false,
            timer: None,
        })
    }

    /// Creates the completion queues when the first peer connects, since their sizes depend on the number of ranks.
    fn open(&mut self) -> Result<()> {
        let mut state = self.shared.lock();
        if !state.common.queues.is_empty() {
            return Ok(());
        }
        state.open(self.size)?;
        for queue in &state.common.queues {
            let watched = self.poller.add(Pollable::Socket(queue.descriptor()), sys::READ, 0);
            self._registrations.push(watched.map_err(|e| Error::io("cannot watch a completion queue", &e))?);
            // The thread may be about to sleep. If this fails, the queue is broken, and the next poll says so.
            let _ = queue.arm();
        }
        let devices: Vec<_> = state.common.rails.iter().map(|rail| rail.domain.context().clone()).collect();
        drop(state);
        devices
            .into_iter()
            .try_for_each(|device| self.watch_device(device))
            .map_err(|e| Error::io("cannot watch a device", &e))
    }

    /// Watches the asynchronous events of a device, which this context or another one may take.
    fn watch_device(&mut self, device: Arc<DeviceContext>) -> io::Result<()> {
        // A device with several ports is watched once.
        if self.devices.iter().any(|(known, _)| Arc::ptr_eq(known, &device)) {
            return Ok(());
        }
        self._registrations.push(self.poller.add(Pollable::Socket(device.events()), sys::READ, 0)?);
        if self.devices.is_empty() {
            self._registrations.push(self.poller.add(Pollable::Socket(self.waker.as_raw_fd()), sys::READ, 0)?);
        }
        device.observe(&self.waker);
        let changes = device.changes();
        self.devices.push((device, changes));
        Ok(())
    }

    /// Handles changes of devices and their ports.
    fn look_after_devices(&mut self) {
        for (device, known) in &mut self.devices {
            device.take_events();
            if device.changes() == *known {
                continue;
            }
            // First, so that a change that follows wakes again.
            self.waker.clear();
            *known = device.changes();
            self.shared.lock().device_changed(device);
        }
    }

    /// The inner connector has a link to `rank`: begins to connect queue pairs.
    fn join(&mut self, rank: Rank, link: Box<dyn Link>, number: u32) {
        let made = self.open().and_then(|()| {
            let mut state = self.shared.lock();
            let depth = state.depth(self.size);
            state.add(|common, id| Connection::new(common, id, rank, depth))
        });
        let (id, failed, offer) = match made {
            Ok(id) => {
                let mut state = self.shared.lock();
                let (connection, common) = state.connection(id).expect("added just now");
                let offer = connection.offer(&common.rails);
                (Some(id), None, offer)
            }
            Err(error) => {
                let offer = Offer::refusal(error.message());
                (None, Some(error), offer)
            }
        };
        let joining = Joining {
            link,
            number,
            id,
            failed,
            out: offer.encode(),
            sent: 0,
            received: Vec::new(),
            is_connected: false,
        };
        self.joining.insert(rank as u32, joining);
    }

    /// Goes on with connecting queue pairs to `rank`.
    fn advance(&mut self, rank: Rank, events: &mut Vec<ConnectorEvent>) {
        let Some(mut joining) = self.joining.remove(&(rank as u32)) else { return };
        match self.step(rank, &mut joining) {
            Ok(Step::Waits) => drop(self.joining.insert(rank as u32, joining)),
            Ok(Step::Messages(at)) => {
                if let Some(id) = joining.id {
                    self.shared.lock().remove(id);
                }
                let link = Box::new(Begun { bytes: joining.received.split_off(at), link: joining.link });
                events.push(ConnectorEvent::Established { rank, link, connection: joining.number });
            }
            Ok(Step::Joined) => {
                let Joining { link, number, id, .. } = joining;
                let id = id.expect("connected above");
                let mut state = self.shared.lock();
                let (connection, _) = state.connection(id).expect("it is removed with its link");
                connection.establish(link);
                drop(state);
                self.established.insert(rank as u32, id);
                let link = Box::new(IbverbsLink::new(self.shared.clone(), id, self.linger.clone()));
                events.push(ConnectorEvent::Established { rank, link, connection: number });
            }
            Err(error) => {
                if let Some(id) = joining.id {
                    self.shared.lock().remove(id);
                }
                // The peer may not have the reason yet.
                joining.link.end(joining.out.split_off(joining.sent), Vec::new());
                self.inner.give_up(rank);
                self.reasons.insert(rank as u32, error.message().to_owned());
                events.push(ConnectorEvent::Unreachable { rank, error });
            }
        }
    }

    /// Sends and receives what is possible now.
    fn step(&mut self, rank: Rank, joining: &mut Joining) -> Result<Step> {
        let name = self.inner.peer_name(rank);
        let lost = |e: &dyn std::fmt::Display| {
            let text = format!("{name}: the connection broke while queue pairs were being connected: {e}");
            Error::new(ErrorKind::ConnectionLost, text).with_rank(rank)
        };
        loop {
            while joining.sent < joining.out.len() {
                match joining.link.send(&[IoSlice::new(&joining.out[joining.sent..])]) {
                    Ok(n) => joining.sent += n,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) => return Err(lost(&e)),
                }
            }
            let writable = joining.sent < joining.out.len();
            joining.link.watch(Interest { readable: true, writable }).map_err(|e| lost(&e))?;
            let wanted = OFFER_BYTES + 1 - joining.received.len();
            if wanted == 0 {
                return Ok(if joining.is_connected && !writable { Step::Joined } else { Step::Waits });
            }
            let mut bytes = [0; OFFER_BYTES + 1];
            match joining.link.receive(&mut [IoSliceMut::new(&mut bytes[..wanted])]) {
                Ok(0) => return Err(lost(&"the peer has ended it")),
                Ok(n) => joining.received.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Step::Waits),
                Err(e) => return Err(lost(&e)),
            }
            if !Offer::may_begin(&joining.received) {
                return Ok(Step::Messages(0));
            }
            if joining.received.len() >= OFFER_BYTES && !joining.is_connected {
                self.connect_pairs(rank, joining)?;
                joining.is_connected = true;
                joining.out.push(READY);
            }
            if joining.received.get(OFFER_BYTES).is_some_and(|byte| *byte != READY) {
                return Ok(Step::Messages(OFFER_BYTES));
            }
        }
    }

    /// Connects the queue pairs to those that the peer has offered.
    fn connect_pairs(&mut self, rank: Rank, joining: &mut Joining) -> Result<()> {
        let name = self.inner.peer_name(rank);
        let offer: [u8; OFFER_BYTES] = joining.received[..OFFER_BYTES].try_into().expect("so many");
        let offer = Offer::decode(&offer).map_err(|e| e.context(&name).with_rank(rank))?;
        if let Some(error) = joining.failed.take() {
            return Err(error.context(format_args!("no queue pair to {name}")));
        }
        if !offer.reason.is_empty() {
            let text = format!("{name} has no queue pair for this rank: {}", offer.reason);
            return Err(Error::new(ErrorKind::ConnectionLost, text).with_rank(rank));
        }
        let mut state = self.shared.lock();
        let id = joining.id.expect("it was created, or there is an error");
        let (connection, common) = state.connection(id).expect("it is removed with its link");
        connection.connect(&offer, common).map_err(|e| e.context(&name).with_rank(rank))
    }

    /// Handles events of the inner connector.
    fn progress_inner(&mut self, now: Instant, events: &mut Vec<ConnectorEvent>) {
        let mut inner_events = std::mem::take(&mut self.inner_events);
        self.inner.progress(now, &mut inner_events);
        for event in inner_events.drain(..) {
            match event {
                ConnectorEvent::Established { rank, link, connection } => self.early.push((rank, link, connection)),
                ConnectorEvent::Ready { rank, of } => match self.established.get(&(rank as u32)).copied() {
                    Some(id) => {
                        let mut state = self.shared.lock();
                        if let Some((connection, common)) = state.connection(id) {
                            connection.look(common);
                        }
                        // What came before the end.
                        state.poll();
                    }
                    None if self.joining.contains_key(&(rank as u32)) => self.advance(rank, events),
                    None => events.push(ConnectorEvent::Ready { rank, of }),
                },
                other @ (ConnectorEvent::Unreachable { .. } | ConnectorEvent::Failed { .. }) => events.push(other),
            }
        }
        self.inner_events = inner_events;
        let inner = &self.inner;
        let known: Vec<_> = self.early.extract_if(.., |(rank, ..)| inner.peer(*rank).is_some()).collect();
        for (rank, link, number) in known {
            if self.inner.peer(rank).is_some_and(|address| address.ibverbs) {
                self.join(rank, link, number);
                self.advance(rank, events);
            } else {
                let name = self.inner.peer_name(rank);
                self.log(
                    Level::Warning,
                    &format!("{name} does not use ibverbs: messages between it and this rank use TCP"),
                );
                events.push(ConnectorEvent::Established { rank, link, connection: number });
            }
        }
    }

    /// Looks after connections that are ending, and those from which nothing has come for long.
    fn tick(&mut self, now: Instant) {
        let mut state = self.shared.lock();
        let (connections, common) = state.connections();
        self.timer = None;
        common.is_ending = false;
        for (_, connection) in connections {
            let again = connection.tick(now, common);
            self.timer = [self.timer, again].into_iter().flatten().min();
            connection.go_on(common);
        }
    }

    /// Whether a connection or link wants the connector to make progress.
    fn is_due(&self) -> bool {
        let state = self.shared.lock();
        state.common.is_ending || state.common.is_due
    }

    fn log(&self, level: Level, text: &str) {
        if let Some(log) = &self.log {
            log(level, &format!("rank {}: {text}", self.rank));
        }
    }
}

impl Connector for IbverbsConnector {
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
        self.look = true;
        self.inner.set_peer(rank, address)
    }

    fn peer(&self, rank: Rank) -> Option<&Address> {
        self.inner.peer(rank)
    }

    fn knows_any_peer(&self) -> bool {
        self.inner.knows_any_peer()
    }

    fn connect(&mut self, rank: Rank) {
        if !self.established.contains_key(&(rank as u32)) {
            self.inner.connect(rank);
        }
    }

    fn give_up(&mut self, rank: Rank) {
        if let Some(Joining { id: Some(id), .. }) = self.joining.remove(&(rank as u32)) {
            self.shared.lock().remove(id);
        }
        self.early.retain(|(other, ..)| *other != rank);
        self.inner.give_up(rank);
    }

    fn close(&mut self, close_notice: CloseNotice, has_failed: bool) {
        for (_, link, number) in self.early.drain(..) {
            link.end(Vec::new(), close_notice(number));
        }
        for (_, mut joining) in self.joining.drain() {
            if let Some(id) = joining.id {
                self.shared.lock().remove(id);
            }
            let words = match joining.is_connected {
                // The peer may have established its link, or will when it knows that this side is ready.
                true => End { notice: close_notice(joining.number), ..End::default() }.encode(),
                // It takes them for messages.
                false => close_notice(joining.number),
            };
            joining.link.end(joining.out.split_off(joining.sent), words);
        }
        self.inner.close(close_notice, has_failed);
    }

    fn is_busy(&self) -> bool {
        self.look || !self.joining.is_empty() || self.timer.is_some() || self.inner.is_busy() || self.is_due()
    }

    fn progress(&mut self, now: Instant, events: &mut Vec<ConnectorEvent>) {
        self.turns = self.turns.wrapping_add(1);
        let mut state = self.shared.lock();
        state.common.now = state.common.now.max(Some(now));
        state.poll();
        let due = std::mem::take(&mut state.common.is_due);
        let ending = due || state.common.is_ending || self.timer.is_some_and(|timer| timer <= now);
        drop(state);
        let look = std::mem::take(&mut self.look);
        if look || ending || !self.joining.is_empty() || self.inner.is_busy() || self.turns.is_multiple_of(TURNS) {
            self.progress_inner(now, events);
            self.look_after_devices();
            self.tick(now);
        }
        let mut state = self.shared.lock();
        for id in std::mem::take(&mut state.common.touched) {
            let Some((connection, common)) = state.connection(id) else { continue };
            let of = connection.untouch(common);
            if of != Interest::default() {
                events.push(ConnectorEvent::Ready { rank: connection.rank, of });
                // Again, until there is nothing more to do.
                connection.touch(common);
            }
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let state = self.shared.lock();
        // A connection that has just broken does not know the time.
        let now = state.common.now.filter(|_| state.common.is_ending);
        [self.inner.next_timer(), self.timer, now].into_iter().flatten().min()
    }

    fn keep_alive(&self) -> Option<Instant> {
        let mut state = self.shared.lock();
        let (connections, _) = state.connections();
        connections.filter_map(|(_, connection)| connection.silent_until()).min()
    }

    fn sleep(&mut self, _: bool) -> bool {
        if !std::mem::replace(&mut self.is_sleeping, true) {
            let state = self.shared.lock();
            for queue in &state.common.queues {
                queue.take_events();
                // If this fails, the queue is broken, and the next poll says so.
                let _ = queue.arm();
            }
            self.look = true;
        }
        true
    }

    fn wake(&mut self, _: bool) {
        self.look |= std::mem::take(&mut self.is_sleeping);
    }

    fn descriptors(&self, into: &mut Vec<Pollable>) {
        into.push(self.poller.clone().into());
    }

    fn retain_memory(&mut self, memory: *mut u8, bytes: usize) {
        self.shared.lock().common.registry.retain(memory, bytes);
    }

    fn release_memory(&mut self, memory: *mut u8, bytes: usize) {
        self.shared.lock().common.registry.release(memory, bytes);
    }

    fn counters(&self) -> Option<Counters> {
        Some(self.shared.lock().counters())
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
        match self.reasons.get(&(rank as u32)) {
            Some(reason) => reason.clone(),
            None if self.joining.contains_key(&(rank as u32)) => {
                "not connected: the queue pairs are being connected over TCP, and the peer has not answered yet"
                    .to_owned()
            }
            None => self.inner.why_not_connected(rank),
        }
    }
}
