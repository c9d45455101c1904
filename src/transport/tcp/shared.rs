//! What a TCP device, its thread, and the connectors and links of its contexts share.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::LINGER;
use super::closing::ClosingLink;
#[cfg(feature = "tls")]
use super::relay::Relays;
use super::streams::Streams;
use crate::error::{Error, Result};
use crate::log::{Level, LogCallback};
use crate::net::address::{self, Address};
use crate::net::choice::{Choice, Chosen};
use crate::net::gate::Listeners;
use crate::net::handshake::{Answer, Handle, Identity, Proven};
use crate::net::ports::{self, PortRange};
use crate::net::stream::{Security, Stream, Transport};
use crate::net::this_host;
use crate::secret::SecretKey;
use crate::sys::{ForkMark, Poller, Registration, Waker, topology};
use crate::transport::{BackgroundProgress, CloseNotice, DrainingLink, Provider};
use crate::wait_mode::WaitMode;

/// How many contexts that have failed the device remembers after they have been destroyed.
const MAX_FAILED_CONTEXTS: usize = 64;

pub const WAKER: u64 = 0;

pub const NEVER: u64 = u64::MAX;

/// Authenticated incoming connections, passed from the device's thread to the connector.
pub type Arrivals = Arc<Mutex<Vec<(Stream, Proven)>>>;

pub struct Entry {
    pub context: Option<Weak<dyn BackgroundProgress>>,
    pub number: u64,
    pub key: SecretKey,
    pub arrivals: Arrivals,
    /// What a context that has failed and been destroyed sends to peers that connect later: they learn why it failed,
    /// and do not take this rank for the cause.
    pub notice: Option<CloseNotice>,
}

#[derive(Default)]
pub struct Contexts {
    pub by_handle: HashMap<Handle, Entry>,
    /// The contexts that have a close notice, the oldest first.
    pub failed: VecDeque<Handle>,
    pub draining: Vec<(Box<dyn DrainingLink>, Instant)>,
}

/// An address at which the device listens.
pub struct Listening {
    pub address: SocketAddr,
    pub interface: Option<String>,
}

pub struct Shared {
    pub choice: Choice,
    pub port: u16,
    pub port_range: Option<PortRange>,
    pub listening: Mutex<Vec<Listening>>,
    pub listeners: Listeners,
    pub log: Option<LogCallback>,
    /// The transports beside this one that its contexts use, the preferred ones first.
    pub providers: Vec<Box<dyn Provider>>,
    pub transport: Transport,
    pub security: Security,
    /// Connections of each link, if the peer wants as many; 0: as the tuner says.
    pub streams: u8,
    pub wait: Option<WaitMode>,
    /// The threads that encrypt for links of several connections.
    #[cfg(feature = "tls")]
    pub relays: Relays,
    pub poller: Poller,
    /// The registration of the waker with the poller.
    pub _woken: Registration,
    pub waker: Waker,
    pub mark: ForkMark,
    pub contexts: Mutex<Contexts>,
    pub next_number: AtomicU64,
    /// Number of contexts that are not armed; the thread ticks while there are any.
    pub unarmed: AtomicUsize,
    /// Whether the thread sleeps without ticking.
    pub asleep: AtomicBool,
    /// When contexts are to be reminded: nanoseconds since the device was created; [`NEVER`] if none is.
    pub reminder: AtomicU64,
    pub created: Instant,
    pub stop: AtomicBool,
}

impl Shared {
    /// The address of a context of this device with this identity, at these `sockets`.
    pub fn address(&self, identity: Identity, sockets: Vec<SocketAddr>) -> Result<Address> {
        Ok(Address {
            identity,
            sockets,
            host: this_host::host()?,
            network: this_host::network()?,
            cores: address::cores(),
            place: topology::place().map_err(|e| Error::io("cannot create a context", &e))?,
            segment: None,
            ibverbs: false,
            streams: self.streams,
        })
    }

    pub fn contexts(&self) -> MutexGuard<'_, Contexts> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for events of another context.
    pub fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    pub fn listening(&self) -> MutexGuard<'_, Vec<Listening>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread if it sleeps without ticking.
    pub fn wake_up(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// The time until contexts are to be reminded, if any is.
    pub fn until_reminder(&self) -> Option<Duration> {
        let at = self.reminder.load(Ordering::SeqCst);
        (at != NEVER).then(|| Duration::from_nanos(at).saturating_sub(self.created.elapsed()))
    }

    /// Keeps a closed connection until its peer has received everything.
    pub fn linger(&self, mut closing: ClosingLink) {
        closing.send_notice();
        self.keep(Box::new(closing));
    }

    /// Keeps what a link has left behind.
    pub fn keep(&self, draining: Box<dyn DrainingLink>) {
        self.contexts().draining.push((draining, Instant::now() + LINGER));
        self.waker.wake();
    }

    /// Sends `notice` to a peer that connects to a context that has failed.
    pub fn notify(&self, stream: Stream, connection: u32, notice: &CloseNotice) {
        let notice = [&Answer::Accepted.encode()[..], &notice(connection)].concat();
        self.linger(ClosingLink::new(Streams::new([stream.into()].into()), notice));
    }

    /// Removes a context. With a `notice`, it is remembered for peers that connect later.
    pub fn remove_context(&self, handle: &Handle, notice: Option<CloseNotice>) {
        // In a child process a thread that does not exist there may hold the lock.
        if self.mark.is_child() {
            return;
        }
        let mut guard = self.contexts();
        let contexts = &mut *guard;
        let (Some(entry), Some(notice)) = (contexts.by_handle.get_mut(handle), notice) else {
            contexts.by_handle.remove(handle);
            return;
        };
        // What arrives in the old list from now on is dropped, and its peer connects again.
        let arrivals = std::mem::take(&mut entry.arrivals);
        (entry.context, entry.notice) = (None, Some(notice.clone()));
        contexts.failed.push_back(*handle);
        if contexts.failed.len() > MAX_FAILED_CONTEXTS
            && let Some(oldest) = contexts.failed.pop_front()
        {
            contexts.by_handle.remove(&oldest);
        }
        drop(guard);
        let arrivals = std::mem::take(&mut *arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        arrivals.into_iter().for_each(|(stream, proven)| self.notify(stream, proven.frames, &notice));
    }

    /// Listens on all of `chosen` on which the device does not listen yet. Returns all addresses with their ports.
    pub fn listen(&self, chosen: &[Chosen]) -> Result<Vec<SocketAddr>> {
        let mut listening = self.listening();
        let mut addresses = Vec::with_capacity(chosen.len());
        for (index, Chosen { address, interface, why }) in chosen.iter().enumerate() {
            let mut wanted = *address;
            let same = |l: &&Listening| {
                wanted.set_port(l.address.port());
                wanted == l.address
            };
            if let Some(there) = listening.iter().find(same) {
                addresses.push(there.address);
                continue;
            }
            wanted.set_port(self.port);
            let on = interface.as_ref().map(|name| format!(" on {name}")).unwrap_or_default();
            match ports::listen(wanted, false, self.port_range.as_ref())
                .and_then(|listener| self.listeners.add(listener))
            {
                Ok(address) => {
                    self.log(Level::Notice, &format!("listening at {address}{on}: {why}"));
                    listening.push(Listening { address, interface: interface.clone() });
                    addresses.push(address);
                }
                // The kernel may still be checking a new IPv6 address for duplicates; the address of the other family
                // suffices then.
                Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable && addresses.len() + chosen.len() > index + 1 => {
                    self.log(Level::Warning, &format!("not listening on {wanted}{on}: {e}"));
                }
                Err(e) => {
                    return Err(ports::cannot_listen(format_args!("cannot listen on {wanted}{on}"), self.port, &e));
                }
            }
        }
        Ok(addresses)
    }

    /// Whether the options or the environment name interfaces, or exclude some.
    pub fn names_interfaces(&self) -> bool {
        self.choice != Choice::Free(None)
    }

    pub fn log(&self, level: Level, text: &str) {
        if let Some(log) = &self.log {
            log(level, text);
        }
    }
}
