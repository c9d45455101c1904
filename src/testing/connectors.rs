//! Connectors that make no links by themselves and write down what they are asked, for the tests of what composes
//! connectors.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::sys::{self, Registration, Waker};
use crate::transport::shm::HostGroup;
use crate::transport::{
    Allocations, Bell, CloseNotice, Connector, ConnectorEvent, Description, Interest, Link, LocalRanks, Made,
    OverLinks, Part, Peers, Provided, Provider, Reach, SharedMemory, Sharing,
};
use crate::types::Rank;

/// What connectors and links were told, in order.
pub type Log = Arc<Mutex<Vec<String>>>;

/// What a connector can do, what it is to do next, and what it was asked.
#[derive(Default)]
pub struct State {
    pub name: &'static str,
    pub log: Log,
    /// Whether it makes its links out of those of later connectors, or shares memory with the ranks of its host.
    pub is_over: bool,
    pub shares: bool,
    /// The ranks that it may reach; it cannot reach others.
    pub reach: HashMap<Rank, Reach>,
    /// What fails, if something does.
    pub fails: Option<&'static str>,
    pub is_busy: bool,
    pub awaits: bool,
    /// What it does at its next turn, and what it then reports.
    pub at_turn: Option<Box<dyn FnOnce() + Send>>,
    pub events: Vec<ConnectorEvent>,
    pub turns: usize,
    /// Ranks of which it uses another connector's link.
    pub taken: Vec<Rank>,
    /// The ranks that share memory once [`SharedMemory::share`] is called.
    pub group: Option<Arc<HostGroup>>,
    /// What its poller watches for it, with these numbers.
    pub watched: Vec<(Arc<Waker>, Option<u64>)>,
    pub registrations: Vec<Registration>,
}

/// A connector and what provides it.
#[derive(Clone)]
pub struct Fake(Arc<Mutex<State>>);

impl Fake {
    /// One that reaches these ranks.
    pub fn new(log: &Log, name: &'static str, reaches: &[Rank]) -> Self {
        let reach = reaches.iter().map(|rank| (*rank, Reach::Yes)).collect();
        Self(Arc::new(Mutex::new(State { name, log: log.clone(), reach, ..State::default() })))
    }

    /// One that makes its links to these ranks out of those of later connectors.
    pub fn over(log: &Log, name: &'static str, taken: &[Rank]) -> Self {
        let fake = Self::new(log, name, &[]);
        (fake.state().is_over, fake.state().taken) = (true, taken.to_vec());
        fake
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn log(&self, text: &str) {
        let state = self.state();
        state.log.lock().unwrap().push(format!("{} {text}", state.name));
    }

    fn fails(&self, what: &str) -> Result<()> {
        let fails = self.state().fails == Some(what);
        if fails { Err(Error::new(ErrorKind::Io, format!("cannot {what}"))) } else { Ok(()) }
    }

    /// Has it report at its next turn that a link is made, whose connection has this number.
    pub fn establishes(&self, connection: u32, rank: Rank) {
        let link = Box::new(FakeLink { connection, log: self.state().log.clone() });
        self.state().events.push(ConnectorEvent::Established { rank, link, connection });
    }

    /// Has it report at its next turn that the link to `rank` is readable.
    pub fn is_ready(&self, rank: Rank) {
        self.state().events.push(ConnectorEvent::Ready { rank, of: Interest { readable: true, writable: false } });
    }
}

impl Provider for Fake {
    fn part(&self, provided: &mut Provided<'_>) -> Result<Part> {
        self.fails("create")?;
        let mut state = self.state();
        for (waker, number) in state.watched.clone() {
            let number = number.unwrap_or(provided.number);
            let registration = provided.poller.add(&*waker, sys::READ, number).unwrap();
            state.registrations.push(registration);
        }
        Ok(self.clone().into())
    }
}

impl Connector for Fake {
    fn reach(&mut self, _: &Peers, rank: Rank) -> Result<Reach> {
        self.fails("reach")?;
        Ok(self.state().reach.get(&rank).copied().unwrap_or(Reach::No))
    }

    fn connect(&mut self, rank: Rank) {
        self.log(&format!("connects to {rank}"));
    }

    fn give_up(&mut self, rank: Rank) {
        self.log(&format!("gives {rank} up"));
    }

    fn close(&mut self, _: CloseNotice, has_failed: bool) {
        self.log(&format!("closes, failed: {has_failed}"));
    }

    fn is_busy(&self) -> bool {
        self.state().is_busy
    }

    fn progress(&mut self, _: &Peers, _: Instant, events: &mut Vec<ConnectorEvent>) {
        let mut state = self.state();
        state.turns += 1;
        events.append(&mut state.events);
        let act = state.at_turn.take();
        drop(state);
        act.into_iter().for_each(|act| act());
    }

    fn sleep(&mut self, publications: bool) -> bool {
        self.log(&format!("sleeps, publications: {publications}"));
        self.state().is_over
    }

    fn wake(&mut self, slept: bool) {
        self.log(&format!("wakes, slept: {slept}"));
    }

    fn describe(&self, _: &Peers, _: Rank) -> Description {
        Description::default()
    }

    fn shared_memory(&mut self) -> Option<&mut dyn SharedMemory> {
        if self.state().shares { Some(self) } else { None }
    }

    fn over_links(&mut self) -> Option<&mut dyn OverLinks> {
        if self.state().is_over { Some(self) } else { None }
    }
}

impl OverLinks for Fake {
    fn take(&mut self, _: &Peers, made: Made, name: String, _: Instant, _: &mut Vec<ConnectorEvent>) -> Option<Made> {
        let takes = self.state().taken.contains(&made.rank);
        self.log(&format!("{} {} to {name}", if takes { "takes" } else { "leaves" }, made.connection));
        if takes { None } else { Some(made) }
    }

    fn ready(&mut self, rank: Rank, _: Instant, _: &mut Vec<ConnectorEvent>) -> bool {
        self.log(&format!("is asked about {rank}"));
        self.state().taken.contains(&rank)
    }

    fn awaits(&self, _: Instant) -> bool {
        self.state().awaits
    }
}

impl SharedMemory for Fake {
    fn open(&mut self, _: &Peers, _: &[Address]) -> Sharing {
        Sharing::Segments
    }

    fn share(&mut self, _: &Peers, _: &[Sharing]) -> Result<Option<Arc<dyn LocalRanks>>> {
        self.fails("share")?;
        Ok(self.state().group.take().map(|group| group as _))
    }

    fn exited(&mut self, number: u64) {
        self.log(&format!("is told that {number} has ended"));
    }

    fn allocations(&self) -> Allocations {
        Allocations::new(None)
    }

    fn bell(&self) -> Option<Arc<dyn Bell>> {
        None
    }
}

/// A link that is only passed on.
struct FakeLink {
    connection: u32,
    log: Log,
}

impl Link for FakeLink {
    fn send(&mut self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        unreachable!()
    }

    fn receive(&mut self, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        unreachable!()
    }

    fn watch(&mut self, _: Interest) -> io::Result<()> {
        unreachable!()
    }

    fn end(self: Box<Self>, rest: Vec<u8>, close_notice: Vec<u8>) {
        self.log.lock().unwrap().push(format!("link {} ends with {rest:?} {close_notice:?}", self.connection));
    }
}

impl Drop for FakeLink {
    fn drop(&mut self) {
        self.log.lock().unwrap().push(format!("link {} is dropped", self.connection));
    }
}
