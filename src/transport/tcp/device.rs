//! A TCP device: listening addresses of this host, and the thread that makes progress for contexts on which no thread
//! waits.
//!
//! A thread that waits on a context makes all progress for it. For each context separately, the device's thread takes over when no
//! thread waits: its watch is armed, and the thread wakes up when something has come, or a peer is gone. Where links are sockets and
//! nothing is left to be done, the watch is armed only one or two [`TICK`]s after the last thread has left: the next call, if it follows
//! soon, need not disarm it.

mod thread;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::thread::Thread;
use super::connector::{Arrivals, TcpConnector};
use super::link::ClosingLink;
#[cfg(feature = "tls")]
use super::relay::Relays;
use super::streams::Streams;
use crate::environment;
use crate::error::{Error, ErrorKind, Result};
use crate::log::{self, Level, LogCallback};
use crate::net::address::Address;
use crate::net::admission::ConnectionStatistics;
use crate::net::choice::{Choice, Chosen, Surroundings};
use crate::net::gate::Listeners;
use crate::net::handshake::{self, Answer, Handle, MAX_STREAMS};
use crate::net::ports::{self, PortRange};
use crate::net::stream::{Security, Stream, Transport};
use crate::secret::{JobToken, SecretKey};
use crate::sys::{self, ForkMark, Pollable, Poller, Registration, Waker};
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
use crate::transport::ibverbs::{
    self, IbverbsConnector, Linger,
    library::Library,
    rail::{PathOptions, Rail},
};
use crate::transport::shm::{self, ShmConnector};
use crate::transport::{self, BackgroundProgress, Clock, CloseNotice, Connector, Lingering, SystemClock, Watch};
use crate::types::Rank;
use crate::wait_mode::WaitMode;

/// Interval at which the thread makes progress for contexts on which no thread has waited since, and at which closed connections are looked at.
pub const TICK: Duration = Duration::from_millis(5);
/// How long a closed connection is kept for the peer to acknowledge all data.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// How many contexts that have failed the device remembers after they have been destroyed.
const REMEMBERED: usize = 64;

const WAKER: u64 = 0;

const NEVER: u64 = u64::MAX;

/// Selects the addresses of this host. If neither an option nor the variable [`crate::net::choice::INTERFACES`] is set,
/// the selection is made when a context connects: loopback if all ranks are on this host, else addresses from which the
/// store or the other ranks are reachable.
#[derive(Clone, Default)]
pub struct DeviceOptions {
    /// A list of network interfaces in the syntax of [`crate::net::pattern::Patterns`]: `eth0`, `ib*,10.0.0.0/8`, or
    /// `^docker*`.
    pub interface: Option<String>,
    /// A host name or an IPv4 or IPv6 address of this host.
    pub hostname: Option<String>,
    /// The port to listen on; 0: the kernel chooses one.
    pub port: u16,
    /// The ports of which the device takes a free one if `port` is 0, as `20000-20100`. `None`: as [`ports::PORT_RANGE`] says.
    pub port_range: Option<String>,
    /// Callback for log messages that no call returns.
    pub log: Option<LogCallback>,
    /// Whether contexts share memory with ranks of this host. `None`: as [`shm::VARIABLE`] says, else yes. If a rank does not, no
    /// rank of its host does.
    pub shared_memory: Option<bool>,
    /// Whom this process lets trace it, and so read its memory, where Yama forbids that: the number of a process from which it descends,
    /// with all that descend from that one; `any`, all of the user's; or `0`. `None`: as [`shm::ptracer::VARIABLE`] says, else nobody.
    pub ptracer: Option<String>,
    /// What carries the bytes of connections. `None`: as [`crate::net::stream::TRANSPORT`] says, else TCP.
    pub transport: Option<Transport>,
    /// Connections of each link, 1 to [`MAX_STREAMS`], if the peer wants as many; one with the transport `ibverbs`. `None`: as
    /// [`STREAMS`] says, else as the tuner says.
    pub streams: Option<u32>,
    /// How threads wait on contexts whose options do not say. `None`: as the environment says when a context is created.
    pub wait: Option<WaitMode>,
    /// Which ports are used, with the transport `ibverbs`. `None`: as the environment says.
    #[cfg(all(feature = "ibverbs", target_os = "linux"))]
    pub ibverbs: Option<ibverbs::Options>,
}

/// The environment variable with the number of connections of each link, for devices whose options do not say.
pub const STREAMS: &str = "GLOO_RS_STREAMS";

/// The number of connections that `option` or the environment asks for; 0 if neither does.
fn streams(option: Option<u32>) -> Result<u8> {
    let checked = |streams: u32| u8::try_from(streams).ok().filter(|streams| (1..=MAX_STREAMS).contains(streams));
    let wrong =
        |source: &str, value: &str| Error::invalid(format!("{source} is {value}; it must be 1 to {MAX_STREAMS}"));
    let variable = std::env::var_os(STREAMS).filter(|value| !value.is_empty());
    match (option, variable) {
        (Some(streams), _) => checked(streams).ok_or_else(|| wrong("streams", &streams.to_string())),
        (None, None) => Ok(0),
        (None, Some(value)) => {
            let value = value.to_string_lossy();
            value.parse().ok().and_then(checked).ok_or_else(|| wrong(STREAMS, &format!("{value:?}")))
        }
    }
}

struct Entry {
    context: Option<Weak<dyn BackgroundProgress>>,
    number: u64,
    key: SecretKey,
    arrivals: Arrivals,
    /// Of a context that has failed and been destroyed: what peers that connect later are sent, so that they learn why, and
    /// do not take this rank for the cause.
    notice: Option<CloseNotice>,
}

#[derive(Default)]
struct Contexts {
    by_handle: HashMap<Handle, Entry>,
    /// Those with a notice, the oldest first.
    failed: VecDeque<Handle>,
    lingering: Vec<(Box<dyn Lingering>, Instant)>,
}

/// An address at which the device listens.
struct Listening {
    address: SocketAddr,
    interface: Option<String>,
}

pub(super) struct Shared {
    choice: Choice,
    port: u16,
    port_range: Option<PortRange>,
    listening: Mutex<Vec<Listening>>,
    listeners: Listeners,
    pub(super) log: Option<LogCallback>,
    shares_memory: bool,
    /// The processes of ranks that share memory with those of this one.
    processes: Arc<shm::Processes>,
    pub(super) transport: Transport,
    pub(super) security: Security,
    /// Connections of each link, if the peer wants as many; 0: as the tuner says.
    pub(super) streams: u8,
    wait: Option<WaitMode>,
    /// The threads that encrypt for links of several connections.
    #[cfg(feature = "tls")]
    pub(super) relays: Relays,
    /// The ports that contexts use, with the transport `ibverbs`; else none.
    #[cfg(all(feature = "ibverbs", target_os = "linux"))]
    rails: Vec<Arc<Rail>>,
    /// Attributes of connections over them.
    #[cfg(all(feature = "ibverbs", target_os = "linux"))]
    path: PathOptions,
    poller: Poller,
    /// Of the waker.
    _woken: Registration,
    waker: Waker,
    mark: ForkMark,
    contexts: Mutex<Contexts>,
    next_number: AtomicU64,
    /// Number of contexts that are not armed; the thread ticks while there are any.
    unarmed: AtomicUsize,
    /// Whether the thread sleeps without ticking.
    asleep: AtomicBool,
    /// When contexts are to be reminded: nanoseconds since the device was created; [`NEVER`] if none is.
    reminder: AtomicU64,
    created: Instant,
    stop: AtomicBool,
}

/// The listening sockets and their thread. Contexts keep their device alive.
pub struct Device {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The registration of a context for progress by the device's thread.
struct ContextWatch {
    device: Arc<Device>,
    /// `None` once it has ended.
    registration: Option<Registration>,
    number: u64,
    armed: AtomicBool,
}

impl Device {
    /// Creates a device and starts its thread. Listens at once if the options name an address or an interface.
    pub fn create(options: &DeviceOptions) -> Result<Arc<Device>> {
        let choice = Choice::make(options.interface.as_deref(), options.hostname.as_deref())?;
        let port_range = PortRange::choose(options.port_range.as_deref())?;
        if options.port != 0 && options.port_range.is_some() {
            return Err(Error::invalid(format!(
                "port is {}, and port_range is set: one of them says where to listen",
                options.port
            )));
        }
        let failed = |e: io::Error| Error::io("cannot create a device", &e);
        let log = log::or_environment(options.log.clone())?;
        if let Some(log) = &log {
            environment::unread().iter().for_each(|said| log(Level::Warning, said));
        }
        let shares_memory =
            options.shared_memory.map_or_else(|| environment::switch(shm::VARIABLE), |on| Ok(Some(on)))? != Some(false);
        let tracers = shm::ptracer::choose(options.ptracer.as_deref())?;
        let transport = Transport::choose(options.transport.as_ref())?;
        let security = Security::of(&transport, log.as_ref())?;
        #[cfg(all(feature = "ibverbs", target_os = "linux"))]
        let (rails, path) = rails(&transport, options.ibverbs.clone(), log.as_ref())?;
        // Its links have one for each port, and the sockets only tell that a peer is there.
        let wanted = streams(options.streams)?;
        let streams = if transport.name() == "ibverbs" { 1 } else { wanted };
        let kind = transport.poller().of_pollers();
        let parts = Poller::new(kind).and_then(|poller| Ok((poller, Waker::new()?, ForkMark::new()?)));
        let (poller, waker, mark) = parts.map_err(failed)?;
        let woken = poller.add(&waker, sys::READ, WAKER).map_err(failed)?;
        let shared = Arc::new(Shared {
            choice,
            port: options.port,
            port_range,
            listening: Mutex::default(),
            listeners: Listeners::new(&poller),
            log,
            shares_memory,
            processes: Arc::default(),
            transport,
            security,
            streams,
            wait: options.wait,
            #[cfg(feature = "tls")]
            relays: Relays::default(),
            #[cfg(all(feature = "ibverbs", target_os = "linux"))]
            rails,
            #[cfg(all(feature = "ibverbs", target_os = "linux"))]
            path,
            poller,
            _woken: woken,
            waker,
            mark,
            contexts: Mutex::default(),
            next_number: AtomicU64::new(WAKER + 1),
            unarmed: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            reminder: AtomicU64::new(NEVER),
            created: Instant::now(),
            stop: AtomicBool::new(false),
        });
        if let Choice::Named(chosen) = &shared.choice {
            shared.listen(chosen)?;
        }
        // Before any peer knows of this process, and so tries to read its memory.
        if let Some(said) = tracers.filter(|_| shares_memory).and_then(shm::ptracer::permit) {
            shared.log(Level::Notice, &said);
        }
        let thread = {
            let shared = shared.clone();
            let work = move || Thread::new(shared).run();
            std::thread::Builder::new().name("gloo_rs".into()).spawn(work).map_err(failed)?
        };
        Ok(Arc::new(Device { shared, thread: Some(thread) }))
    }

    /// The addresses at which the device listens, in order of preference: at most one per family, unless contexts have
    /// connected to different networks. Empty if the options name none and no context has connected.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.listening().iter().map(|l| l.address).collect()
    }

    /// The interface of the first address, if known.
    pub fn interface(&self) -> Option<String> {
        self.shared.listening().first().and_then(|l| l.interface.clone())
    }

    /// The ports of InfiniBand and RoCE that its contexts use, the preferred ones first, and the attributes of connections; no ports
    /// with other transports.
    #[cfg(all(feature = "ibverbs", target_os = "linux"))]
    pub fn rails(&self) -> (&[Arc<Rail>], PathOptions) {
        (&self.shared.rails, self.shared.path)
    }

    /// Counters of incoming connections. May be called by any thread at any time.
    pub fn statistics(&self) -> ConnectionStatistics {
        self.shared.listeners.statistics()
    }
}

/// The ports that a device with this transport uses, opened, and the attributes of connections.
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
fn rails(
    transport: &Transport,
    options: Option<ibverbs::Options>,
    log: Option<&LogCallback>,
) -> Result<(Vec<Arc<Rail>>, PathOptions)> {
    if *transport != Transport::Ibverbs {
        return Ok((Vec::new(), ibverbs::Options::default().path()));
    }
    let options = options.unwrap_or_default().or_environment()?;
    let library = Library::load()?;
    let rails = ibverbs::choose(&library, &options)?;
    if let Some(log) = log {
        if let Some(error) = library.fork_error() {
            let text = format!(
                "this process must not fork: ibv_fork_init: {error}, since memory was registered before; set RDMAV_FORK_SAFE=1"
            );
            log(Level::Warning, &text);
        }
        rails.iter().for_each(|rail| log(Level::Notice, &format!("using {}", ibverbs::choice::summary(rail))));
    }
    Ok((rails, options.path()))
}

impl transport::Device for Device {
    fn connector(self: Arc<Self>, token: &JobToken) -> Result<Box<dyn Connector>> {
        let arrivals = Arrivals::default();
        let sockets = transport::Device::provisional_sockets(self.as_ref(), None)?;
        let connector = TcpConnector::new(token, sockets, self.shared.clone(), arrivals.clone())?;
        let number = self.shared.next_number.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { context: None, number, key: connector.key(), arrivals, notice: None };
        self.shared.contexts().by_handle.insert(connector.handle(), entry);
        let connector = self.shared.over_rails(Box::new(connector))?;
        if !self.shared.shares_memory {
            return Ok(connector);
        }
        let kind = self.shared.transport.poller().of_pollers();
        let (processes, log) = (self.shared.processes.clone(), self.shared.log.clone());
        Ok(Box::new(ShmConnector::over(connector, kind, token, processes, log)?))
    }

    fn watch(
        self: Arc<Self>,
        connector: &dyn Connector,
        context: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Watch>> {
        let mut descriptors = Vec::new();
        connector.descriptors(&mut descriptors);
        let mut contexts = self.shared.contexts();
        let entry = contexts.by_handle.get_mut(&handshake::handle(&connector.address().identity));
        let (Some(entry), Some(Pollable::Poller(poller)), 1) = (entry, descriptors.pop(), 1 + descriptors.len()) else {
            return Err(Error::new(ErrorKind::Internal, "the connector belongs to another device"));
        };
        entry.context = Some(context);
        let number = entry.number;
        drop(contexts);
        let registration = self.shared.poller.add(poller, sys::READ, number);
        let registration = Some(registration.map_err(|e| Error::io("cannot watch a context", &e))?);
        Ok(Box::new(ContextWatch { device: self.clone(), registration, number, armed: AtomicBool::new(true) }))
    }

    fn provisional_sockets(&self, store: Option<SocketAddr>) -> Result<Vec<SocketAddr>> {
        match (&self.shared.choice, store) {
            (Choice::Named(_), _) => Ok(self.addresses()),
            (Choice::Free(_), None) => Ok(Vec::new()),
            (Choice::Free(patterns), Some(store)) => {
                let found = Surroundings::here(patterns.as_ref())?.towards_store(store)?;
                Ok(found.into_iter().map(|c| c.address).collect())
            }
        }
    }

    fn listen(&self, store: Option<SocketAddr>, all_addresses: &[Address], rank: Rank) -> Result<Vec<SocketAddr>> {
        let Choice::Free(patterns) = &self.shared.choice else { return Ok(self.addresses()) };
        let here = all_addresses[rank].host;
        let mut others = all_addresses.iter().filter(|a| a.host != here).flat_map(|a| a.sockets.iter().copied());
        let host = Surroundings::here(patterns.as_ref())?;
        let one_host = all_addresses.iter().all(|a| a.host == here);
        self.shared.listen(&if one_host {
            host.on_one_host(all_addresses)
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

    fn wait_mode(&self) -> Option<WaitMode> {
        self.shared.wait
    }

    fn transport(&self) -> &'static str {
        self.shared.transport.name()
    }

    #[inline]
    fn is_inherited(&self) -> bool {
        self.shared.mark.is_child()
    }

    fn accept_error(&self) -> Option<io::Error> {
        self.shared.listeners.accept_error()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.shared.mark.is_child() {
            // The thread belongs to the parent process, as does the eventfd.
            return std::mem::forget(self.thread.take());
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The thread itself may drop the last context; it then ends without being joined.
            if !sys::is_current(&thread) {
                let _ = thread.join();
            }
        }
        #[cfg(feature = "tls")]
        self.shared.relays.end();
    }
}

impl ContextWatch {
    fn watch(&self, interest: u32) {
        let _ = self.registration.as_ref().map(|registration| registration.set(interest, self.number));
    }
}

impl Watch for ContextWatch {
    fn arm(&self) {
        if !self.armed.swap(true, Ordering::SeqCst) {
            let shared = &self.device.shared;
            shared.unarmed.fetch_sub(1, Ordering::SeqCst);
            self.watch(sys::READ);
        }
    }

    fn disarm(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            let shared = &self.device.shared;
            shared.unarmed.fetch_add(1, Ordering::SeqCst);
            self.watch(0);
            shared.wake_up();
        }
    }

    fn remind(&self, time: Duration) {
        let shared = &self.device.shared;
        let at = u64::try_from((shared.created.elapsed() + time).as_nanos()).unwrap_or(NEVER);
        if at < shared.reminder.fetch_min(at, Ordering::SeqCst) {
            shared.wake_up();
        }
    }

    fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }
}

impl Drop for ContextWatch {
    fn drop(&mut self) {
        let shared = &self.device.shared;
        if self.device.shared.mark.is_child() {
            // The poller is shared with the parent process, and a thread that does not exist here may hold the
            // lock.
            return;
        }
        self.registration.take().into_iter().for_each(Registration::end);
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

    /// Wakes the thread if it sleeps without ticking.
    fn wake_up(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// The time until contexts are to be reminded, if any is.
    fn until_reminder(&self) -> Option<Duration> {
        let at = self.reminder.load(Ordering::SeqCst);
        (at != NEVER).then(|| Duration::from_nanos(at).saturating_sub(self.created.elapsed()))
    }

    /// `connector`, or one that makes links over the rails, if there are any.
    fn over_rails(self: &Arc<Self>, connector: Box<dyn Connector>) -> Result<Box<dyn Connector>> {
        #[cfg(all(feature = "ibverbs", target_os = "linux"))]
        if !self.rails.is_empty() {
            let shared = self.clone();
            let linger: Linger = Arc::new(move |lingering| shared.keep(lingering));
            let (rails, kind) = (self.rails.clone(), self.transport.poller().of_pollers());
            return Ok(Box::new(IbverbsConnector::over(connector, rails, self.path, linger, kind, self.log.clone())?));
        }
        Ok(connector)
    }

    /// Keeps a closed connection until its peer has received everything.
    pub(super) fn linger(&self, mut closing: ClosingLink) {
        closing.send_notice();
        self.keep(Box::new(closing));
    }

    /// Keeps what a link has left behind.
    pub(super) fn keep(&self, lingering: Box<dyn Lingering>) {
        self.contexts().lingering.push((lingering, Instant::now() + LINGER));
        self.waker.wake();
    }

    /// Sends `notice` to a peer that connects to a context that has failed.
    pub(super) fn notify(&self, stream: Stream, connection: u32, notice: &CloseNotice) {
        let notice = [&Answer::Accepted.encode()[..], &notice(connection)].concat();
        self.linger(ClosingLink::new(Streams::new([stream.into()].into()), notice));
    }

    /// Removes a context. With a `notice`, it is remembered for peers that connect later.
    pub(super) fn remove_context(&self, handle: &Handle, notice: Option<CloseNotice>) {
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
        if contexts.failed.len() > REMEMBERED
            && let Some(oldest) = contexts.failed.pop_front()
        {
            contexts.by_handle.remove(&oldest);
        }
        drop(guard);
        let arrivals = std::mem::take(&mut *arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        arrivals.into_iter().for_each(|(stream, proven)| self.notify(stream, proven.frames, &notice));
    }

    /// Listens on all of `chosen` on which the device does not listen yet. Returns all addresses with their ports.
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
    pub(super) fn names_interfaces(&self) -> bool {
        self.choice != Choice::Free(None)
    }

    fn log(&self, level: Level, text: &str) {
        if let Some(log) = &self.log {
            log(level, text);
        }
    }
}
