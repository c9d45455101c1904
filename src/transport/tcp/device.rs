//! The place where connections arrive: addresses of this host, and the thread that serves what nobody waits on.
//!
//! A context whose operations somebody waits for is driven by that thread alone. The device's thread takes over, for each
//! context on its own, when messages are left to be sent that nobody waits for ("armed"), and otherwise one or two [`TICK`]s
//! after the last waiter has left; then it also receives, and notices peers that leave.

mod thread;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::thread::Thread;
use super::connector::{Arrivals, TcpConnector};
use super::link::Parting;
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;
use crate::net::admission::ConnectionStatistics;
use crate::net::choice::{Choice, Chosen, Surroundings};
use crate::net::gate::{self, Listeners};
use crate::net::handshake::{self, Handle};
use crate::secret::{JobToken, SecretKey};
use crate::sys::{self, Epoll, ForkMark, Waker};
use crate::transport::{self, BackgroundProgress, Clock, Connector, LogCallback, SystemClock, Watch};
use crate::types::Rank;

/// How often the thread looks after contexts that nobody has waited on since.
pub const TICK: Duration = Duration::from_millis(5);
/// How long a connection that we have ended is kept for its peer to acknowledge everything.
const LINGER: Duration = Duration::from_secs(2);

const WAKER: u64 = 0;

/// Which addresses of this host to use. With nothing set, not even the variable [`crate::net::choice::INTERFACES`], that is decided
/// when a context connects: loopback if all its ranks are on this host, else addresses that reach the store or other ranks.
#[derive(Clone, Default)]
pub struct DeviceOptions {
    /// A list of network interfaces, as [`crate::net::pattern::Patterns`] describes it: `eth0`, or `ib*,10.0.0.0/8`, or `^docker*`.
    pub interface: Option<String>,
    /// A host name of this host, or an IPv4 or IPv6 address of it.
    pub hostname: Option<String>,
    /// Port to listen on; 0 lets the system choose.
    pub port: u16,
    /// Told what happens on the side.
    pub log: Option<LogCallback>,
}

struct Entry {
    driven: Option<Weak<dyn BackgroundProgress>>,
    number: u64,
    key: SecretKey,
    arrivals: Arrivals,
}

#[derive(Default)]
struct Contexts {
    by_handle: HashMap<Handle, Entry>,
    lingering: Vec<(Parting, Instant)>,
}

/// An address where connections arrive.
struct Listening {
    address: SocketAddr,
    interface: Option<String>,
}

pub(super) struct Shared {
    choice: Choice,
    port: u16,
    listening: Mutex<Vec<Listening>>,
    listeners: Listeners,
    pub(super) log: Option<LogCallback>,
    epoll: Epoll,
    waker: Waker,
    mark: ForkMark,
    contexts: Mutex<Contexts>,
    next_number: AtomicU64,
    /// Contexts that are not armed: while there are any, the thread ticks.
    unarmed: AtomicUsize,
    /// The thread sleeps without a tick.
    asleep: AtomicBool,
    stop: AtomicBool,
}

/// Listening sockets and their thread. Contexts keep their device alive.
pub struct Device {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The device's thread as the driver of a context.
struct Drives {
    device: Arc<Device>,
    fd: RawFd,
    number: u64,
    armed: AtomicBool,
}

impl Device {
    /// Starts the thread; binds and listens, if the options name where.
    pub fn create(options: &DeviceOptions) -> Result<Arc<Device>> {
        let choice = Choice::make(options.interface.as_deref(), options.hostname.as_deref())?;
        let failed = |e: io::Error| Error::io("cannot create a device", &e);
        let parts = Epoll::new().and_then(|e| Ok((e, Waker::new()?, ForkMark::new()?)));
        let (epoll, waker, mark) = parts.map_err(failed)?;
        epoll.add(waker.as_raw_fd(), sys::READ, WAKER).map_err(failed)?;
        let shared = Arc::new(Shared {
            choice,
            port: options.port,
            listening: Mutex::default(),
            listeners: Listeners::new(&epoll),
            log: options.log.clone(),
            epoll,
            waker,
            mark,
            contexts: Mutex::default(),
            next_number: AtomicU64::new(WAKER + 1),
            unarmed: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        if let Choice::Named(chosen) = &shared.choice {
            shared.listen(chosen)?;
        }
        let thread = {
            let shared = shared.clone();
            let work = move || Thread::new(shared).run();
            std::thread::Builder::new().name("gloo_rs".into()).spawn(work).map_err(failed)?
        };
        Ok(Arc::new(Device { shared, thread: Some(thread) }))
    }

    /// Where peers connect to, the preferred address first: one of each family at most, unless contexts have connected to
    /// different networks. Empty as long as nothing was named and no context has connected.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.listening().iter().map(|l| l.address).collect()
    }

    /// The interface that has the first address, if one does.
    pub fn interface(&self) -> Option<String> {
        self.shared.listening().first().and_then(|l| l.interface.clone())
    }

    /// What has become of the connections that have arrived. From any thread, at any time.
    pub fn statistics(&self) -> ConnectionStatistics {
        self.shared.listeners.statistics()
    }
}

impl transport::Device for Device {
    fn connector(self: Arc<Self>, rank: Rank, size: usize, token: &JobToken) -> Result<Box<dyn Connector>> {
        let arrivals = Arrivals::default();
        let sockets = transport::Device::provisional_sockets(self.as_ref(), None)?;
        let connector = TcpConnector::new(rank, size, token, sockets, self.shared.clone(), arrivals.clone())?;
        let number = self.shared.next_number.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { driven: None, number, key: connector.key(), arrivals };
        self.shared.contexts().by_handle.insert(connector.handle(), entry);
        Ok(Box::new(connector))
    }

    fn watch(
        self: Arc<Self>,
        connector: &dyn Connector,
        driven: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Watch>> {
        let mut descriptors = Vec::new();
        connector.descriptors(&mut descriptors);
        let mut contexts = self.shared.contexts();
        let entry = contexts.by_handle.get_mut(&handshake::handle(&connector.address().identity));
        let (Some(entry), &[fd]) = (entry, &descriptors[..]) else {
            return Err(Error::new(ErrorKind::Internal, "a connector of another device"));
        };
        entry.driven = Some(driven);
        let number = entry.number;
        drop(contexts);
        let watch = Drives { device: self.clone(), fd, number, armed: AtomicBool::new(true) };
        self.shared.epoll.add(fd, sys::READ, number).map_err(|e| Error::io("cannot watch a context", &e))?;
        Ok(Box::new(watch))
    }

    fn provisional_sockets(&self, store: Option<SocketAddr>) -> Result<Vec<SocketAddr>> {
        match (&self.shared.choice, store) {
            (Choice::Named(_), _) => Ok(self.addresses()),
            (Choice::Free(_), None) => Ok(Vec::new()),
            (Choice::Free(patterns), Some(store)) => {
                let found = Surroundings::here(patterns.as_ref())?.towards_store(store);
                Ok(found.into_iter().map(|c| c.address).collect())
            }
        }
    }

    fn listen(&self, store: Option<SocketAddr>, everyone: &[Address], rank: Rank) -> Result<Vec<SocketAddr>> {
        let Choice::Free(patterns) = &self.shared.choice else { return Ok(self.addresses()) };
        let here = everyone[rank].host;
        let mut others = everyone.iter().filter(|a| a.host != here).flat_map(|a| a.sockets.iter().copied());
        let host = Surroundings::here(patterns.as_ref())?;
        let one_host = everyone.iter().all(|a| a.host == here);
        self.shared.listen(&if one_host {
            host.on_one_host(everyone)
        } else {
            host.on_several_hosts(store, &mut others)
        }?)
    }

    fn listen_anywhere(&self) -> Result<Vec<SocketAddr>> {
        let Choice::Free(patterns) = &self.shared.choice else { return Ok(self.addresses()) };
        let host = Surroundings::here(patterns.as_ref())?;
        self.shared.listen(&host.on_several_hosts(None, &mut std::iter::empty())?)
    }

    fn log(&self) -> Option<LogCallback> {
        self.shared.log.clone()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    #[inline]
    fn is_inherited(&self) -> bool {
        self.shared.mark.is_child()
    }

    fn accept_error(&self) -> Option<io::Error> {
        self.shared.listeners.why_not_connected()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.shared.mark.is_child() {
            // The thread is the parent's, and so is what the waker wakes.
            return std::mem::forget(self.thread.take());
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The last context may be dropped by the thread itself, which then ends on its own.
            // Not by std's current thread, which would leave memory behind on a thread of the host program.
            // SAFETY: no memory is involved.
            if thread.as_pthread_t() != unsafe { libc::pthread_self() } {
                let _ = thread.join();
            }
        }
    }
}

impl Watch for Drives {
    fn arm(&self) {
        if !self.armed.swap(true, Ordering::SeqCst) {
            let shared = &self.device.shared;
            shared.unarmed.fetch_sub(1, Ordering::SeqCst);
            let _ = shared.epoll.modify(self.fd, sys::READ, self.number);
        }
    }

    fn disarm(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            let shared = &self.device.shared;
            shared.unarmed.fetch_add(1, Ordering::SeqCst);
            let _ = shared.epoll.modify(self.fd, 0, self.number);
            if shared.asleep.swap(false, Ordering::SeqCst) {
                shared.waker.wake();
            }
        }
    }

    fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }
}

impl Drop for Drives {
    fn drop(&mut self) {
        let shared = &self.device.shared;
        if self.device.shared.mark.is_child() {
            // What is watched is the parent's, and the lock may be held by a thread that is not here.
            return;
        }
        let _ = shared.epoll.remove(self.fd);
        if !self.is_armed() {
            shared.unarmed.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Shared {
    fn contexts(&self) -> MutexGuard<'_, Contexts> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listening(&self) -> MutexGuard<'_, Vec<Listening>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a connection that has ended in good order, until its peer has everything.
    pub(super) fn linger(&self, mut parting: Parting) {
        parting.speak();
        self.contexts().lingering.push((parting, Instant::now() + LINGER));
        self.waker.wake();
    }

    /// A context is gone.
    pub(super) fn forget(&self, handle: &Handle) {
        // In a child by fork the lock may be held by a thread that is not here.
        if !self.mark.is_child() {
            self.contexts().by_handle.remove(handle);
        }
    }

    /// Listens on all of `chosen` where that is not so already; the addresses with their ports.
    fn listen(&self, chosen: &[Chosen]) -> Result<Vec<SocketAddr>> {
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
            match gate::listen(wanted, false).and_then(|listener| self.listeners.add(listener)) {
                Ok(address) => {
                    self.log(2, &format!("listening at {address}{on}: {why}"));
                    listening.push(Listening { address, interface: interface.clone() });
                    addresses.push(address);
                }
                // The system may still be checking an IPv6 address; that of the other family is enough then.
                Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable && addresses.len() + chosen.len() > index + 1 => {
                    self.log(1, &format!("not listening on {wanted}{on}: {e}"));
                }
                Err(e) => return Err(Error::io(format_args!("cannot listen on {wanted}{on}"), &e)),
            }
        }
        Ok(addresses)
    }

    fn log(&self, level: u32, text: &str) {
        if let Some(log) = &self.log {
            log(level, text);
        }
    }
}
