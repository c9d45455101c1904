//! Transports: how bytes reach another rank.
//!
//! A [`Device`] is a process's access to networks. Each context on it has [`Connections`]: a [`Connector`] of each
//! transport, which creates [`Link`]s to the context's peers and reports which of them are ready. A link transfers
//! bytes and does not interpret messages; the message protocol, which all links share, is in [`crate::messaging`]. A
//! context calls its connector and links from one thread at a time. They must not block, hold locks for long, or start
//! threads. `docs/links.md` describes how to write a transport.

pub mod connections;
mod connector;
pub mod device;
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
pub mod ibverbs;
pub mod local;
pub mod options;
pub mod shm;
pub mod tcp;

pub use connections::{Connections, Provided, Provider};
#[cfg(any(test, fuzzing))]
pub use connector::Bell;
pub use connector::{
    CloseNotice, Connector, ConnectorEvent, Counters, Counting, Description, KeepAlive, Made, OverLinks, Part, Peers,
    Reach, Registry, SharedMemory,
};
pub use local::{LocalRanks, Sharing};
pub use shm::Allocations;

use std::any::Any;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::log::LogCallback;
use crate::net::address::Address;
use crate::net::monitor::Question;
use crate::secret::JobToken;
use crate::sys::{self, Pollable};
use crate::types::Rank;
use crate::wait_mode::WaitMode;

/// The conditions on a link for which a context waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Received bytes, or the end of the stream.
    pub readable: bool,
    /// Room to send.
    pub writable: bool,
}

/// An established connection to one peer: a reliable, ordered stream of bytes in each direction.
pub trait Link: Send {
    /// Accepts as many bytes from the front of `parts` as possible without blocking, and returns their number. Fails
    /// with [`io::ErrorKind::WouldBlock`] if it can accept none.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Fills `parts` from the front with received bytes and returns their number. Fails with
    /// [`io::ErrorKind::WouldBlock`] if there are none. 0 means that the peer has ended the stream.
    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Receives from a link that has what it receives in memory of its own, and has neither [`Link::remote_memory`] nor
    /// [`Link::placement`]: passes the bytes to `take` there, in one or more calls, until no more have arrived or it
    /// returns false. `None` if this is no such link.
    fn receive_in_place(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> Option<io::Result<usize>> {
        let _ = take;
        None
    }

    /// Sends bytes that [`Link::send`] has taken and the link still holds. A connector reports a link that holds some
    /// as writable when they can be sent.
    fn flush(&mut self) {}

    /// Sets the conditions that the connector reports for this link. If both are false, not even the end of the stream
    /// is reported. A new link is watched for received bytes.
    fn watch(&mut self, interest: Interest) -> io::Result<()>;

    /// Access to the peer's memory, if the link supports it. Either both ends of a link do or neither.
    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        None
    }

    /// The ability to place messages in the peer's memory, if the link has it. Either both ends of a link have it or
    /// neither, and a link that has it has no [`Link::remote_memory`].
    fn placement(&mut self) -> Option<&mut dyn Placement> {
        None
    }

    /// With [`Link::placement`]: the number of messages for which memory is exposed or may still be written, and of the
    /// peer's keys that are known.
    #[cfg(test)]
    fn exposures(&self) -> (usize, usize) {
        (0, 0)
    }

    /// One-sided access to the peer's memory, if the link supports it. Either both ends of a link do or neither.
    fn one_sided(&mut self) -> Option<&mut dyn OneSided> {
        None
    }

    /// Ends the stream in an orderly way: the peer receives all accepted bytes, then `rest`, the rest of a message that
    /// was accepted in part, then `close_notice`, then the end of the stream. Returns at once; data that the peer
    /// cannot accept yet is delivered within time limits of the [`Device`]. If the stream is broken, the link may
    /// deliver `close_notice` alone, as [`ReceivedNotice`]. Dropping a link instead may lose accepted bytes.
    fn end(self: Box<Self>, rest: Vec<u8>, close_notice: Vec<u8>);
}

/// The peer's close notice, if it came by another way than the stream, which has broken: the payload of the
/// [`io::Error`] that [`Link::receive`] then returns.
#[derive(Debug)]
pub struct ReceivedNotice(pub Vec<u8>);

impl fmt::Display for ReceivedNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stream broke, and the peer has ended the link with a notice of {} bytes", self.0.len())
    }
}

impl std::error::Error for ReceivedNotice {}

/// A link's access to the peer's memory. A large message is not sent; its receiver reads it from the sender's memory.
pub trait RemoteMemory {
    /// Messages longer than this are read by the receiver, shorter ones are sent. Constant for a link.
    fn eager_bytes(&self) -> usize;

    /// Allows the peer to read this memory under `key`, which must not be in use, until it is unregistered or the link
    /// ends. If this fails, the caller sends the message instead.
    ///
    /// # Safety
    /// The memory is valid for reads of `bytes` until then.
    unsafe fn register(&mut self, key: u32, memory: *const u8, bytes: usize) -> Result<()>;

    /// Ends a registration: from now on the peer's reads of this memory fail, and it is not accessed any more.
    fn unregister(&mut self, key: u32);

    /// Reads `into.len()` bytes or fewer, as many as possible without blocking, from what the peer has registered under
    /// `key`, starting at `offset`; returns their number. The memory was still registered when the read was complete.
    /// Fails with
    /// - [`io::ErrorKind::WouldBlock`] if nothing can be read now: the connector reports the link when reading can
    ///   continue. The caller must then repeat the call with the same arguments; `into` may have been written
    ///   partially;
    /// - [`io::ErrorKind::NotFound`] if the memory is not registered, or is shorter.
    fn read(&mut self, key: u32, offset: usize, into: &mut [u8]) -> io::Result<usize>;
}

/// A link's ability to place messages: the sender's side writes a message into memory that the receiver has exposed for
/// it, without passing it through the stream.
///
/// The receiver exposes memory under a key and sends the key in a grant. The sender's link writes the message to what
/// the key stands for, and a header in the stream then says that it has been placed. A key stands for one message: it
/// is used in one call of `place` at most.
pub trait Placement {
    /// Messages longer than this are placed if the receiver has exposed memory for them. Constant for a link, and equal
    /// at both ends.
    fn eager_bytes(&self) -> usize;

    /// Exposes memory of `bytes` bytes, which are not 0, for one message of the peer, under `key`, which is not in use
    /// and not 0: `into` if that is given, else a buffer of the link's own, from which the message is then taken by
    /// [`Placement::placed`]. The link may also choose its own buffer although `into` is given. The peer's link knows
    /// the key before any byte that is sent later arrives. Returns false if the link cannot do it now, because memory
    /// cannot be registered, no buffer is free or the like: the caller then grants without a key, and the message comes
    /// in the stream.
    ///
    /// # Safety
    /// `into` is valid for writes of `bytes` until [`Placement::withdraw`] or the end of the link, and nothing else
    /// accesses it meanwhile.
    unsafe fn expose(&mut self, key: u32, into: Option<*mut u8>, bytes: usize) -> bool;

    /// The message that was placed under `key`, which is exposed: `None` if it lies in `into`, else the bytes in the
    /// link's buffer, as many as were exposed. Called once the header that says that it was placed has arrived; what a
    /// peer has not written, although it says so, has any value.
    fn placed(&mut self, key: u32) -> Option<&[u8]>;

    /// Ends the exposure under `key`: the memory at `into` is not accessed afterwards. `is_done`: the peer does not
    /// write there any more, because it has placed the message, or sent it. Else the link may have to break, so that it
    /// cannot. Then its [`Link::send`] accepts nothing more, its next [`Link::receive`] that finds no more bytes fails,
    /// and [`Link::end`] can still be called. If `is_done` becomes true later, a second call says so: a buffer of the
    /// link's own can be used again.
    fn withdraw(&mut self, key: u32, is_done: bool);

    /// No message will be placed under `key`, which the peer has exposed.
    fn forget(&mut self, key: u32);

    /// Starts to write `bytes` bytes at `from` to what the peer has exposed under `key`. Bytes that are sent later
    /// arrive after them. Returns false if the link cannot do it, for example because the key is not known or is of
    /// memory of another length: the caller then sends the message in the stream. [`Placement::finished`] returns
    /// `ticket`, which is not in use, when the message has been written.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes` until `finished` has returned the ticket, [`Placement::cancel`], or the end
    /// of the link.
    unsafe fn place(&mut self, key: u32, from: *const u8, bytes: usize, ticket: u32) -> bool;

    /// Returns the ticket of a message that has been written and whose memory is not accessed any more; each ticket
    /// once. When one can be returned, the connector reports the link once as readable, whatever is watched. If the
    /// peer ends the link after it has received a message, the ticket can be returned before [`Link::receive`] tells of
    /// the end.
    fn finished(&mut self) -> Option<u32>;

    /// The memory of `ticket` is not accessed any more when this returns, and the ticket is free. Either the message
    /// has been written, or the link has broken, as by [`Placement::withdraw`]: no byte that was sent after
    /// [`Placement::place`] arrives.
    fn cancel(&mut self, ticket: u32);
}

/// A link's ability to access regions of the peer's memory, and bound buffers, without the peer's processor taking
/// part. A link that has it has [`Placement`], too: its tickets are for both.
pub trait OneSided {
    /// Lets the peer access this memory as `region`, until [`OneSided::retract`] or the end of the link. Returns false
    /// if the memory cannot be registered with the device.
    ///
    /// # Safety
    /// It is valid for reads and writes of `bytes` until then.
    unsafe fn publish(&mut self, region: u32, memory: *mut u8, bytes: usize) -> bool;

    /// Ends what `publish` has begun. The peer may still access the memory until it is released
    /// ([`Registry::release`]); a later access breaks the link.
    fn retract(&mut self, region: u32);

    /// The length of the peer's `region`, if it is known to be accessible.
    fn published(&self, region: u32) -> Option<usize>;

    /// Starts to write `bytes` bytes at `from` to the peer's `region` at `offset`; they are inside it. Bytes sent later
    /// arrive after them. Returns false if the link cannot do it. [`Placement::finished`] returns `ticket` when they
    /// are there.
    ///
    /// # Safety
    /// As for [`Placement::place`].
    unsafe fn put(&mut self, region: u32, offset: usize, from: *const u8, bytes: usize, ticket: u32) -> bool;

    /// Starts to read `bytes` bytes of the peer's `region` at `offset`; they are inside it. Returns false if the link
    /// cannot do it. [`Placement::finished`] returns `ticket` when they are in `into`.
    ///
    /// # Safety
    /// `into` is valid for writes of `bytes` until `finished` has returned the ticket, [`Placement::cancel`], or the
    /// end of the link, and nothing else accesses it meanwhile.
    unsafe fn get(&mut self, region: u32, offset: usize, into: *mut u8, bytes: usize, ticket: u32) -> bool;
}

/// What a link leaves behind when it ends, until its peer has all that was sent.
pub trait DrainingLink: Send {
    /// Goes on without blocking; returns whether this must be kept: until the peer has acknowledged everything. The
    /// caller limits the time.
    fn linger(&mut self) -> bool;
}

/// A process's access to one kind of network. Contexts keep their device alive.
pub trait Device: Send + Sync {
    /// The connections of one rank, which [`Connections::set_rank`] sets, of a context whose ranks all have `token`.
    fn connections(self: Arc<Self>, token: &JobToken) -> Result<Connections>;

    /// Takes connections to the identity of `address`, for a context that is made when the first has come: `context` is
    /// told by [`BackgroundProgress::arrived`]. They wait until [`Device::expected_connections`] takes them over. Ends
    /// when the result is dropped.
    fn expect(
        self: Arc<Self>,
        token: &JobToken,
        address: &Address,
        context: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Send>>;

    /// The connections of the identity of `address`, which [`Device::expect`] was given, by this transport alone,
    /// whatever others the device uses.
    fn expected_connections(self: Arc<Self>, token: &JobToken, address: &Address) -> Result<Connections>;

    /// Registers a context for background progress: while no thread waits on the context, the device calls `context`,
    /// until the returned watch is dropped. The watch is initially armed.
    fn watch(
        self: Arc<Self>,
        connections: &Connections,
        context: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Watch>>;

    /// The sockets at which peers may find a context, as far as they are known before the peers' hosts are: the
    /// configured ones, or the local addresses of routes to the store's server. Ports may be missing.
    fn provisional_sockets(&self, store: Option<SocketAddr>) -> Result<Vec<SocketAddr>>;

    /// Listens for the context of `rank` where the other ranks can reach it, and returns the addresses. `all_addresses`
    /// holds the provisional addresses of all ranks.
    fn listen(&self, store: Option<SocketAddr>, all_addresses: &[Address], rank: Rank) -> Result<Vec<SocketAddr>>;

    /// Listens where ranks on any host may reach it, for a context whose peers are not known. Returns the addresses.
    fn listen_anywhere(&self) -> Result<Vec<SocketAddr>>;

    /// Callback for log messages that no call returns.
    fn log(&self) -> Option<LogCallback>;

    /// The clock by which contexts on this device wait.
    fn clock(&self) -> Arc<dyn Clock>;

    /// How threads wait on its contexts whose options do not say.
    fn wait_mode(&self) -> Option<WaitMode> {
        None
    }

    /// The name of what carries the bytes of its links, but for those through shared memory: `tcp`, `uv`, `tls`,
    /// `ibverbs`.
    fn transport(&self) -> &'static str;

    /// Whether the device was created by a parent process before fork. It cannot be used in the child.
    fn is_inherited(&self) -> bool;

    /// What the layers above keep with the device: it is dropped with it. `None` if they cannot.
    fn layer_data(&self) -> Option<&LayerData> {
        None
    }

    /// The error of the last attempt to accept a connection, if that failed.
    fn accept_error(&self) -> Option<io::Error>;
}

/// See [`Device::layer_data`].
pub type LayerData = Mutex<Option<Arc<dyn Any + Send + Sync>>>;

/// A clock and a way to wait: the system's, or that of a simulation.
pub trait Clock: Send + Sync {
    /// The current time.
    fn now(&self) -> Instant;

    /// Waits until one of `sources` is readable, or until `until`; may return earlier. Returns whether the first
    /// of them is readable.
    fn sleep(&self, sources: &[Pollable], until: Instant) -> bool;

    /// Lets another thread have this core, if one is ready to run.
    fn yield_now(&self) {
        std::thread::yield_now();
    }

    /// Whether it shows another time than the system's clock.
    fn is_simulated(&self) -> bool {
        false
    }
}

/// The system's monotonic clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, sources: &[Pollable], until: Instant) -> bool {
        sys::poll(sources, until.saturating_duration_since(Instant::now()))
    }
}

/// Fails in a child process of the one that created `device`.
#[inline]
pub fn check_process(device: &dyn Device) -> Result<()> {
    if device.is_inherited() { Err(inherited()) } else { Ok(()) }
}

#[cold]
fn inherited() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        "this process is a child by fork of the process that created the device or context, and cannot use it; it may \
         destroy it and create its own",
    )
}

/// A context's interface for progress by the device's thread, while no thread waits on the context.
pub trait BackgroundProgress: Send + Sync {
    /// Makes progress: a descriptor of the context is readable, and its watch is armed.
    fn drive(&self);

    /// How often threads of the program were here since the last call of this or of `drive`. If they were, one may soon
    /// make the progress itself, so `drive` may be called a moment later.
    fn visits(&self) -> usize {
        0
    }

    /// Called periodically while its watch is not armed.
    fn tick(&self);

    /// Called once after each [`Watch::remind`], or earlier if another context of the device is reminded.
    fn reminded(&self) {}

    /// Tells the context that the connector has received a connection from a peer.
    fn arrived(&self);

    /// What the context is doing, or has done, as JSON. `None` if that is of interest to nobody.
    fn report(&self, _question: Question) -> Option<String> {
        None
    }

    /// Whether a thread of the program polls the context, or sleeps until something comes for it.
    #[cfg(any(test, fuzzing))]
    fn is_polled(&self) -> bool {
        false
    }
}

/// The registration of a context for background progress. Dropping it ends the registration.
pub trait Watch: Send + Sync {
    /// Makes the device responsible for progress.
    fn arm(&self);
    /// Makes the caller responsible for progress.
    fn disarm(&self);
    /// Whether the device is responsible for progress.
    fn is_armed(&self) -> bool;
    /// Has the device call [`BackgroundProgress::reminded`] after `time`. Takes no lock and allocates nothing, so that
    /// it is safe in a signal handler. A simulated device never does.
    fn remind(&self, _time: Duration) {}
}
