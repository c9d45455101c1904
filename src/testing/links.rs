//! Links for tests and fuzzing: a link over a socket pair, and a connector without connections. Tests pass links to the
//! messenger.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::error::Result;
use crate::messaging::Messenger;
use crate::net::address::{self, Address};
use crate::net::this_host;
use crate::sys::{self, AsRaw, Pollable};
use crate::transport::{
    CloseNotice, Connections, Connector, ConnectorEvent, Description, Interest, Link, Peers, Placement, Reach,
};
use crate::types::Rank;

/// A connector that reaches nobody.
struct Unconnected {
    /// Where the times of calls of `progress` are recorded, if anywhere.
    turns: Option<Turns>,
    /// Told when [`Connector::sleep`] and [`Connector::wake`] are called.
    sleeps: Option<fn(Sleep)>,
}

/// A call of [`Connector::sleep`], or of [`Connector::wake`] with this argument.
#[cfg_attr(not(loom), allow(dead_code, reason = "only models look"))]
pub enum Sleep {
    Begins,
    Ends(bool),
}

/// The times at which the connector's `progress` was called.
pub type Turns = Arc<Mutex<Vec<Instant>>>;

/// Connections that reach nobody; `descriptor` is to be polled.
pub fn unconnected(descriptor: Option<Pollable>, turns: Option<Turns>) -> Connections {
    over(Unconnected { turns, sleeps: None }, descriptor)
}

/// Quiet ones that call `sleeps`.
#[cfg(all(test, loom))]
pub fn quiet(descriptor: Pollable, sleeps: fn(Sleep)) -> Connections {
    over(Unconnected { turns: None, sleeps: Some(sleeps) }, Some(descriptor)).quiet()
}

fn over(connector: Unconnected, descriptor: Option<Pollable>) -> Connections {
    Connections::alone(address(), connector, descriptor.into_iter().collect())
}

/// An address on this host at which nobody listens.
pub fn address() -> Address {
    // Miri keeps the system's files from the tests.
    let (host, cores) = if cfg!(miri) { (1, 1) } else { (this_host::host().unwrap(), address::cores()) };
    Address {
        identity: [1; 16],
        sockets: vec![([127, 0, 0, 1], 1).into()],
        host,
        cores,
        place: Default::default(),
        segment: None,
        ibverbs: false,
        network: 0,
        streams: 1,
    }
}

impl Connector for Unconnected {
    fn reach(&mut self, _: &Peers, _: Rank) -> Result<Reach> {
        Ok(Reach::No)
    }

    fn connect(&mut self, _: Rank) {}

    fn give_up(&mut self, _: Rank) {}

    fn close(&mut self, _: CloseNotice, _: bool) {}

    fn is_busy(&self) -> bool {
        self.turns.is_some()
    }

    fn progress(&mut self, _: &Peers, now: Instant, _: &mut Vec<ConnectorEvent>) {
        if let Some(turns) = &self.turns {
            turns.lock().expect("no thread panics with the lock").push(now);
        }
    }

    fn sleep(&mut self, _: bool) -> bool {
        self.sleeps.inspect(|sleeps| sleeps(Sleep::Begins)).is_some()
    }

    fn wake(&mut self, slept: bool) {
        self.sleeps.into_iter().for_each(|sleeps| sleeps(Sleep::Ends(slept)));
    }

    fn describe(&self, _: &Peers, _: Rank) -> Description {
        Description::default()
    }
}

/// Rank `rank` of `size`, for links that are passed to [`Messenger::established`].
pub fn messenger(rank: Rank, size: usize) -> Messenger {
    Messenger::new(rank, size, unconnected(None, None), None)
}

/// Sockets of ended links, with the bytes that remain to be sent on each.
pub type Ended = Arc<Mutex<Vec<(UnixStream, Vec<u8>)>>>;

/// A link over one end of a socket pair.
pub struct StreamLink {
    stream: UnixStream,
    ended: Ended,
}

impl StreamLink {
    /// A link over a non-blocking socket, which moves to `ended` when the link ends.
    pub fn new(stream: UnixStream, ended: Ended) -> Self {
        Self { stream, ended }
    }
}

impl Link for StreamLink {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        sys::send(self.stream.raw(), parts)
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        sys::receive(self.stream.raw(), parts)
    }

    fn watch(&mut self, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn end(self: Box<Self>, rest: Vec<u8>, close_notice: Vec<u8>) {
        let Self { stream, ended } = *self;
        ended.lock().expect("no thread panics with the lock").push((stream, [rest, close_notice].concat()));
    }
}

/// A link over one end of a socket pair that pretends to place messages: it accesses the memory, and checks that keys
/// and tickets are used as they should be. Its peer can say of any message that it has been placed.
pub struct PlacingLink {
    stream: StreamLink,
    /// The memory exposed under a key, or null for `own`, and its length.
    exposed: HashMap<u32, (*mut u8, usize)>,
    /// Keys of memory that was withdrawn although its message has not come.
    withdrawn: HashSet<u32>,
    own: Vec<u8>,
    /// Tickets and memory of messages that are being written.
    placing: VecDeque<(u32, *const u8, usize)>,
}

// SAFETY: the messenger keeps the memory behind the pointers valid, on whichever thread it is progressed.
unsafe impl Send for PlacingLink {}

impl PlacingLink {
    /// Like [`StreamLink::new`].
    pub fn new(stream: UnixStream, ended: Ended) -> Self {
        let stream = StreamLink::new(stream, ended);
        Self { stream, exposed: HashMap::new(), withdrawn: HashSet::new(), own: Vec::new(), placing: VecDeque::new() }
    }
}

impl Link for PlacingLink {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.send(parts)
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.stream.receive(parts)
    }

    fn watch(&mut self, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn placement(&mut self) -> Option<&mut dyn Placement> {
        Some(self)
    }

    #[cfg(test)]
    fn exposures(&self) -> (usize, usize) {
        (self.exposed.len() + self.withdrawn.len(), 0)
    }

    fn end(self: Box<Self>, rest: Vec<u8>, close_notice: Vec<u8>) {
        Box::new(self.stream).end(rest, close_notice);
    }
}

impl Placement for PlacingLink {
    fn eager_bytes(&self) -> usize {
        1000
    }

    unsafe fn expose(&mut self, key: u32, into: Option<*mut u8>, bytes: usize) -> bool {
        assert!(key != 0 && bytes > 0 && !self.exposed.contains_key(&key));
        let refuses = key.is_multiple_of(5);
        if !refuses {
            let into = into.filter(|_| !key.is_multiple_of(3)).unwrap_or_default();
            self.exposed.insert(key, (into, bytes));
        }
        !refuses
    }

    fn placed(&mut self, key: u32) -> Option<&[u8]> {
        let (into, bytes) = self.exposed[&key];
        if into.is_null() {
            self.own = vec![1; bytes];
            return Some(&self.own);
        }
        // SAFETY: the memory is exposed.
        unsafe { std::ptr::write_bytes(into, 1, bytes) };
        None
    }

    fn withdraw(&mut self, key: u32, is_done: bool) {
        assert!(self.exposed.remove(&key).is_some() || is_done && self.withdrawn.remove(&key));
        if !is_done {
            self.withdrawn.insert(key);
        }
    }

    fn forget(&mut self, key: u32) {
        assert!(key != 0);
    }

    unsafe fn place(&mut self, key: u32, from: *const u8, bytes: usize, ticket: u32) -> bool {
        assert!(key != 0 && self.placing.iter().all(|(other, ..)| *other != ticket));
        let places = !key.is_multiple_of(4);
        if places {
            self.placing.push_back((ticket, from, bytes));
        }
        places
    }

    fn finished(&mut self) -> Option<u32> {
        let (ticket, from, bytes) = self.placing.pop_front()?;
        // SAFETY: the ticket has not been returned.
        let memory = unsafe { std::slice::from_raw_parts(from, bytes) };
        assert!(memory.iter().all(|byte| *byte == memory[0]), "messages of this peer have equal bytes");
        Some(ticket)
    }

    fn cancel(&mut self, ticket: u32) {
        let before = self.placing.len();
        self.placing.retain(|(other, ..)| *other != ticket);
        assert!(self.placing.len() < before);
    }
}

/// A pair of non-blocking sockets.
pub fn sockets() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    ours.set_nonblocking(true).and_then(|()| theirs.set_nonblocking(true)).expect("non-blocking sockets");
    (ours, theirs)
}
