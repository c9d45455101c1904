//! Makes a context's links by queue pairs, out of those of another connector.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use super::connection::Connection;
use super::endpoint::{End, Offer};
use super::handles::DeviceContext;
use super::joining::{Begun, Joining, Step};
use super::link::IbverbsLink;
use super::memory::Registration;
use super::rail::{PathOptions, Rail};
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::hash::QuickMap;
use crate::log::{Level, LogCallback};
use crate::sys::{self, Pollable, Poller, Registration as Watched, Waker};
use crate::transport::connections::Linger;
use crate::transport::{
    self, CloseNotice, Connector, ConnectorEvent, Description, Interest, Made, OverLinks, Part, Peers, Provided, Reach,
};
use crate::types::Rank;

/// Once in so many turns devices and connections are looked after, if nothing says that there is something to do.
const TURNS: u32 = 64;

/// The ports that a device's contexts use.
pub struct Provider {
    /// The preferred ones first.
    pub rails: Vec<Arc<Rail>>,
    /// Attributes of connections over them.
    pub path: PathOptions,
}

impl transport::Provider for Provider {
    fn part(&self, provided: &mut Provided<'_>) -> Result<Part> {
        let failed = |e| Error::io("cannot create a context", &e);
        let shared = Shared::new(self.rails.clone(), self.path, Registration::from_environment()?);
        let connector = IbverbsConnector {
            shared: shared.clone(),
            linger: provided.linger.clone(),
            log: provided.log.cloned(),
            joining: QuickMap::default(),
            established: QuickMap::default(),
            reasons: QuickMap::default(),
            poller: provided.poller.clone(),
            number: provided.number,
            watched: Vec::new(),
            devices: Vec::new(),
            waker: Arc::new(Waker::new().map_err(failed)?),
            turns: 0,
            look: true,
            must_ask: false,
            is_sleeping: false,
            timer: None,
        };
        provided.address.ibverbs = true;
        let (registry, counting, keep_alive) =
            (Some(shared.clone() as _), Some(shared.clone() as _), Some(shared as _));
        Ok(Part { connector: Box::new(connector), registry, counting, keep_alive })
    }
}

/// The connector of one context.
struct IbverbsConnector {
    shared: Arc<Shared>,
    linger: Linger,
    log: Option<LogCallback>,
    joining: QuickMap<u32, Joining>,
    /// The connection of each rank that was established.
    established: QuickMap<u32, u32>,
    /// Why ranks are not connected, if that is known.
    reasons: QuickMap<u32, String>,
    /// Readable if a queue has a completion; by events with this number.
    poller: Poller,
    number: u64,
    watched: Vec<Watched>,
    /// The rails' devices, and how many changes of each are known.
    devices: Vec<(Arc<DeviceContext>, u32)>,
    /// Woken by whoever takes a device's event.
    waker: Arc<Waker>,
    /// Calls of `progress`.
    turns: u32,
    /// Whether a thread may have slept since devices and connections were last looked after.
    look: bool,
    /// Whether the connector of the links out of which it makes its own must be asked at the next turn.
    must_ask: bool,
    is_sleeping: bool,
    /// When a connection that is ending must be looked at again.
    timer: Option<Instant>,
}

impl IbverbsConnector {
    /// Creates the completion queues when the first peer connects, since their sizes depend on the number of ranks.
    fn open(&mut self, size: usize) -> Result<()> {
        let mut state = self.shared.lock();
        if !state.common.queues.is_empty() {
            return Ok(());
        }
        state.open(size)?;
        for queue in &state.common.queues {
            let watched = self.poller.add(Pollable::Socket(queue.descriptor()), sys::READ, self.number);
            self.watched.push(watched.map_err(|e| Error::io("cannot watch a completion queue", &e))?);
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
        self.watched.push(self.poller.add(Pollable::Socket(device.events()), sys::READ, self.number)?);
        if self.devices.is_empty() {
            self.watched.push(self.poller.add(Pollable::Socket(self.waker.as_raw_fd()), sys::READ, self.number)?);
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

    /// Begins to connect queue pairs over a link to a rank called `name`.
    fn join(&mut self, size: usize, Made { rank, link, connection }: Made, name: String) {
        let made = self.open(size).and_then(|()| {
            let mut state = self.shared.lock();
            let depth = state.depth(size);
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
            name,
            link,
            number: connection,
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
        match joining.step(rank, &self.shared) {
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
                self.reasons.insert(rank as u32, error.message().to_owned());
                events.push(ConnectorEvent::Unreachable { rank, error });
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
            connection.progress(common);
        }
    }

    /// Whether a connection or link wants the connector to make progress.
    fn is_due(&self) -> bool {
        let state = self.shared.lock();
        state.common.is_ending || state.common.is_due
    }

    fn set_time(&self, now: Instant) {
        let mut state = self.shared.lock();
        state.common.now = state.common.now.max(Some(now));
    }
}

impl OverLinks for IbverbsConnector {
    fn take(
        &mut self,
        peers: &Peers,
        made: Made,
        name: String,
        now: Instant,
        events: &mut Vec<ConnectorEvent>,
    ) -> Option<Made> {
        let rank = made.rank;
        if peers.get(rank).is_some_and(|address| address.ibverbs) {
            self.set_time(now);
            self.join(peers.size, made, name);
            self.advance(rank, events);
            return None;
        }
        if let Some(log) = &self.log {
            let text = format!("{name} does not use ibverbs: messages between it and this rank use TCP");
            log(Level::Warning, &format!("rank {}: {text}", peers.rank));
        }
        Some(made)
    }

    fn ready(&mut self, rank: Rank, now: Instant, events: &mut Vec<ConnectorEvent>) -> bool {
        self.set_time(now);
        if let Some(id) = self.established.get(&(rank as u32)) {
            let mut state = self.shared.lock();
            if let Some((connection, common)) = state.connection(*id) {
                connection.look(common);
            }
            // What came before the end.
            state.poll();
            return true;
        }
        let joins = self.joining.contains_key(&(rank as u32));
        if joins {
            self.advance(rank, events);
        }
        joins
    }

    fn awaits(&self, now: Instant) -> bool {
        let is_due = self.look || self.must_ask || self.is_due();
        is_due || !self.joining.is_empty() || self.timer.is_some_and(|timer| timer <= now)
    }
}

impl Connector for IbverbsConnector {
    /// It needs a link of another transport to join.
    fn reach(&mut self, _: &Peers, _: Rank) -> Result<Reach> {
        Ok(Reach::No)
    }

    fn connect(&mut self, _: Rank) {}

    fn give_up(&mut self, rank: Rank) {
        if let Some(Joining { id: Some(id), .. }) = self.joining.remove(&(rank as u32)) {
            self.shared.lock().remove(id);
        }
    }

    fn close(&mut self, close_notice: CloseNotice, _: bool) {
        for (_, mut joining) in self.joining.drain() {
            if let Some(id) = joining.id {
                self.shared.lock().remove(id);
            }
            let notice = match joining.is_connected {
                // The peer may have established its link, or will when it knows that this side is ready.
                true => End { notice: close_notice(joining.number), ..End::default() }.encode(),
                // The peer takes what comes for messages.
                false => close_notice(joining.number),
            };
            joining.link.end(joining.out.split_off(joining.sent), notice);
        }
    }

    fn is_busy(&self) -> bool {
        self.look || self.must_ask || !self.joining.is_empty() || self.timer.is_some() || self.is_due()
    }

    fn progress(&mut self, _: &Peers, now: Instant, events: &mut Vec<ConnectorEvent>) {
        self.turns = self.turns.wrapping_add(1);
        let mut state = self.shared.lock();
        state.common.now = state.common.now.max(Some(now));
        state.poll();
        let due = std::mem::take(&mut state.common.is_due);
        let ending = due || state.common.is_ending || self.timer.is_some_and(|timer| timer <= now);
        drop(state);
        let look = std::mem::take(&mut self.look);
        // The connector of the other links came first, and did not know of what was found since.
        self.must_ask = ending;
        if look || ending || !self.joining.is_empty() || self.turns.is_multiple_of(TURNS) {
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
        [self.timer, now].into_iter().flatten().min()
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

    fn describe(&self, _: &Peers, rank: Rank) -> Description {
        let joins = self.joining.contains_key(&(rank as u32));
        let joining = "not connected: the queue pairs are being connected over TCP, and the peer has not answered yet";
        let why_not_connected = self.reasons.get(&(rank as u32)).cloned().or(joins.then(|| joining.to_owned()));
        Description { location: None, why_not_connected }
    }

    fn over_links(&mut self) -> Option<&mut dyn OverLinks> {
        Some(self)
    }
}
