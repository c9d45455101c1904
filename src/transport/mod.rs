//! Transports: how bytes reach another rank.
//!
//! A [`Device`] is a process's access to one kind of network. Each context on it has a [`Connector`], which makes [`Link`]s to
//! the context's peers and says which of them are ready. A link moves bytes and knows nothing of messages: the one message
//! protocol is in [`crate::messaging`]. Whoever drives a context calls connector and links from one thread at a time, and
//! neither blocks, locks for long, nor starts threads. `docs/links.md` tells how to write a transport.

#[cfg(test)]
mod conformance;
#[cfg(any(test, fuzzing))]
pub mod loopback;
pub mod tcp;

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::secret::JobToken;
use crate::sys;
use crate::types::Rank;

/// Callback for log messages that no call returns: level (1 warning, 2 notice, 3 detail) and text. May be called from the
/// device's own thread, while locks of the library are held: it must not call the library.
pub type LogCallback = Arc<dyn Fn(u32, &str) + Send + Sync>;

/// What a context waits for on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Bytes to receive, or the end of the stream.
    pub readable: bool,
    /// Room to send.
    pub writable: bool,
}

/// One established way to one peer: a stream of bytes in both directions, reliable and in order.
pub trait Link: Send {
    /// Takes bytes from the front of `parts`, as many as it can without waiting, and returns how many. Fails with
    /// [`io::ErrorKind::WouldBlock`] if it can take none now.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Fills `parts` from the front with what has arrived, and returns how many bytes. Fails with
    /// [`io::ErrorKind::WouldBlock`] if nothing has. 0 says that the peer has ended the stream.
    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Sets what the connector reports of this link from now on. With neither, it reports not even an end. A new link is
    /// watched for bytes to receive.
    fn watch(&mut self, interest: Interest) -> io::Result<()>;

    /// The way into the peer's memory, if this link has one. Both ends of a link have one, or neither has.
    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory>;

    /// Ends the stream in good order: the peer receives what was sent, then `last_words`, then the end. Returns at once; what
    /// the peer cannot take yet is delivered within [`Device`]'s own limits. Dropping a link instead may lose what was sent.
    fn end(self: Box<Self>, last_words: Vec<u8>);
}

/// A link's way into the peer's memory: a large message is not sent, but read by its receiver out of the sender's memory.
pub trait RemoteMemory {
    /// Messages of more bytes than this are to be read, shorter ones are sent. Does not change.
    fn eager_bytes(&self) -> usize;

    /// Lets the peer read this memory under `key`, which no other memory has, until it is unregistered or the link ends. Where
    /// this fails, the message is sent after all.
    ///
    /// # Safety
    /// The memory is valid for reads of `bytes` until then.
    unsafe fn register(&mut self, key: u32, memory: *const u8, bytes: usize) -> Result<()>;

    /// From now on the peer's reads of this memory fail, and it is not touched any more.
    fn unregister(&mut self, key: u32);

    /// Reads what the peer has registered under `key`, from `offset` on: as many bytes as it can without waiting, and returns
    /// how many. They were registered until after they were read. Fails with
    /// - [`io::ErrorKind::WouldBlock`] if it can read none now: the connector reports the link when it can. Then it is called again for
    ///   the same bytes and memory, which it may have begun to fill;
    /// - [`io::ErrorKind::NotFound`] if the peer has unregistered the memory, or it does not reach so far.
    fn read(&mut self, key: u32, offset: usize, into: &mut [u8]) -> io::Result<usize>;
}

/// What a connector has to say.
pub enum ConnectorEvent {
    /// The way to the peer stands.
    Established {
        /// The peer.
        rank: Rank,
        /// The way.
        link: Box<dyn Link>,
        /// A number that both sides derived, and strangers do not know: it stands in every header on this link.
        connection: u32,
    },
    /// There will be no way to the peer.
    Unreachable {
        /// The peer.
        rank: Rank,
        /// Why.
        error: Error,
    },
    /// The link to the peer has what was waited for; it may also be a false alarm.
    Ready {
        /// The peer.
        rank: Rank,
        /// Of what.
        of: Interest,
    },
}

/// Writes the last words of a context that has closed, for a connection with this number.
pub type CloseNotice = Arc<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

/// Makes the links of one context. What it is told by one call, it may report by a later [`Connector::progress`].
pub trait Connector: Send {
    /// What peers must be told to reach this rank.
    fn address(&self) -> &Address;

    /// From now on peers find this rank at these sockets: at most one of each family.
    fn set_sockets(&mut self, sockets: Vec<SocketAddr>);

    /// What `rank` gave as its address. Fails if somebody else has connected in its name.
    fn set_peer(&mut self, rank: Rank, address: Address) -> Result<()>;

    /// What is known of `rank`.
    fn peer(&self, rank: Rank) -> Option<&Address>;

    /// Whether anything is known of any peer.
    fn knows_any_peer(&self) -> bool;

    /// Makes a link to `rank` as soon as its address is known, unless it has one, or is making one, or has none to come.
    fn connect(&mut self, rank: Rank);

    /// There will be no link to `rank` any more; what was begun is given up.
    fn give_up(&mut self, rank: Rank);

    /// The context has closed: peers that come later are refused, with these last words if there are any.
    fn close(&mut self, last_words: Option<CloseNotice>);

    /// Whether [`Connector::progress`] must be called even while every link is tried.
    fn is_busy(&self) -> bool;

    /// Moves what can be moved without waiting at `now`, and reports which links are ready.
    fn progress(&mut self, now: Instant, events: &mut Vec<ConnectorEvent>);

    /// When [`Connector::progress`] must be called though no descriptor is readable.
    fn next_timer(&self) -> Option<Instant>;

    /// Adds the descriptors of which one becomes readable when [`Connector::progress`] has something to do. They stay the
    /// same for the connector's life.
    fn descriptors(&self, into: &mut Vec<RawFd>);

    /// Where `rank` is found, for messages: `10.0.0.1:4455`.
    fn location(&self, rank: Rank) -> Option<String>;

    /// Why there is no link to `rank`, for messages: `not connected after 3 attempts; the last one: ...`.
    fn why_not_connected(&self, rank: Rank) -> String;

    /// `rank 3 at 10.0.0.1:4455`, as all messages name a peer.
    fn peer_name(&self, rank: Rank) -> String {
        match self.location(rank) {
            Some(at) => format!("rank {rank} at {at}"),
            None => format!("rank {rank}"),
        }
    }
}

/// A process's access to a kind of network. Contexts keep their device alive.
pub trait Device: Send + Sync {
    /// Makes links for `rank` of a context of `size` ranks that all have `token`.
    fn connector(self: Arc<Self>, rank: Rank, size: usize, token: &JobToken) -> Result<Box<dyn Connector>>;

    /// From now on the device drives the context whose connector this is while nobody waits on it, until the watch is
    /// dropped. It begins armed.
    fn watch(
        self: Arc<Self>,
        connector: &dyn Connector,
        driven: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Watch>>;

    /// What can be told of where peers will find a context before it is known where those are: the sockets that are named, or
    /// those from which the server of the store is reached. Ports may be missing.
    fn provisional_sockets(&self, store: Option<SocketAddr>) -> Result<Vec<SocketAddr>>;

    /// Listens for the context of `rank` where the others can reach it; `everyone` are the prospects of all ranks.
    fn listen(&self, store: Option<SocketAddr>, everyone: &[Address], rank: Rank) -> Result<Vec<SocketAddr>>;

    /// Listens where ranks on any host may reach it, for a context of whose peers nothing is known.
    fn listen_anywhere(&self) -> Result<Vec<SocketAddr>>;

    /// Callback for log messages that no call returns.
    fn log(&self) -> Option<LogCallback>;

    /// By which time contexts on this device wait.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Whether this process got the device by fork, and so cannot use it.
    fn is_inherited(&self) -> bool;

    /// Why connections cannot be accepted, if the last one could not.
    fn accept_error(&self) -> Option<io::Error>;
}

/// The time by which contexts wait, and how they do it: the system's, or a simulation's.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Instant;

    /// Returns when one of `descriptors` is readable, or at `until`, or earlier for no reason. Whether the first is readable.
    fn sleep(&self, descriptors: &[RawFd], until: Instant) -> bool;
}

/// The system's monotonic clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, descriptors: &[RawFd], until: Instant) -> bool {
        sys::poll(descriptors, until.saturating_duration_since(Instant::now()))
    }
}

/// Refuses a process that got `device` by fork.
#[inline]
pub fn check_process(device: &dyn Device) -> Result<()> {
    if device.is_inherited() { Err(inherited()) } else { Ok(()) }
}

#[cold]
fn inherited() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        "this process is a child by fork of the one that made the device or context, and cannot use it: it may destroy it, \
         and make its own",
    )
}

/// What a device does for a context.
pub trait BackgroundProgress: Send + Sync {
    /// A descriptor of the context was readable while armed, or some time has passed while it was not.
    fn drive(&self);

    /// The connector has something that came from a peer.
    fn arrived(&self);
}

/// Who drives a context while nobody waits on it. Ends with `Drop`.
pub trait Watch: Send + Sync {
    /// From now on the watch does.
    fn arm(&self);
    /// From now on the caller does.
    fn disarm(&self);
    /// Whether the watch does.
    fn is_armed(&self) -> bool;
}
