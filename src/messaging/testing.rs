//! For tests and fuzzing: a link over a socket pair, and a connector without connections. Tests pass links to the messenger.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::Messenger;
use crate::error::Result;
use crate::net::address::{self, Address};
use crate::sys::{self, AsRaw, Pollable};
use crate::transport::{CloseNotice, Connector, ConnectorEvent, Interest, Link};
use crate::types::Rank;

/// A connector that knows no addresses and makes no connections.
pub struct Unconnected {
    address: Address,
    /// The descriptor to poll, if any.
    descriptor: Option<Pollable>,
    /// Where the times of calls of `progress` are recorded, if anywhere.
    turns: Option<Turns>,
}

/// The times at which the connector's `progress` was called.
pub type Turns = Arc<Mutex<Vec<Instant>>>;

impl Unconnected {
    pub fn new(descriptor: Option<Pollable>, turns: Option<Turns>) -> Self {
        let sockets = vec![([127, 0, 0, 1], 1).into()];
        // Miri keeps the system's files from the tests.
        let (host, cores) = if cfg!(miri) { (1, 1) } else { (address::host(), address::cores()) };
        let address = Address {
            identity: [1; 16],
            sockets,
            host,
            cores,
            place: Default::default(),
            segment: None,
            ibverbs: false,
        };
        Self { address, descriptor, turns }
    }
}

impl Connector for Unconnected {
    fn set_rank(&mut self, _: Rank, _: usize) {}
    fn address(&self) -> &Address {
        &self.address
    }

    fn set_sockets(&mut self, sockets: Vec<SocketAddr>) {
        self.address.sockets = sockets;
    }

    fn set_peer(&mut self, _: Rank, _: Address) -> Result<()> {
        Ok(())
    }

    fn peer(&self, _: Rank) -> Option<&Address> {
        None
    }

    fn knows_any_peer(&self) -> bool {
        false
    }

    fn connect(&mut self, _: Rank) {}

    fn give_up(&mut self, _: Rank) {}

    fn close(&mut self, _: Option<CloseNotice>) {}

    fn is_busy(&self) -> bool {
        self.turns.is_some()
    }

    fn progress(&mut self, now: Instant, _: &mut Vec<ConnectorEvent>) {
        if let Some(turns) = &self.turns {
            turns.lock().expect("no thread panics with the lock").push(now);
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        None
    }

    fn descriptors(&self, into: &mut Vec<Pollable>) {
        into.extend(self.descriptor.clone());
    }

    fn location(&self, _: Rank) -> Option<String> {
        None
    }

    fn why_not_connected(&self, _: Rank) -> String {
        "not connected".to_owned()
    }
}

/// Rank `rank` of `size`, for links that are passed to [`Messenger::established`].
pub fn messenger(rank: Rank, size: usize) -> Messenger {
    Messenger::new(rank, size, Box::new(Unconnected::new(None, None)), None)
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

/// A pair of non-blocking sockets.
pub fn sockets() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    ours.set_nonblocking(true).and_then(|()| theirs.set_nonblocking(true)).expect("non-blocking sockets");
    (ours, theirs)
}
