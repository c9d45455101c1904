//! A TCP device: listening addresses of this host, and the thread that makes progress for contexts on which no thread
//! waits.
//!
//! A thread that waits on a context makes all progress for it. For each context separately, the device's thread takes
//! over when no thread waits: its watch is armed, and the thread wakes up when something has come, or a peer is gone.
//! Where links are sockets and nothing is left to be done, the watch is armed only one or two [`TICK`](super::TICK)s
//! after the last thread has left: the next call, if it follows soon, need not disarm it.

mod deferral;
mod thread;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::thread::Thread;
use super::connector::TcpConnector;
#[cfg(feature = "tls")]
use super::relay::Relays;
use super::shared::{Arrivals, Entry, NEVER, Shared, WAKER};
use crate::error::{Error, ErrorKind, Result};
use crate::log::LogCallback;
use crate::net::address::Address;
use crate::net::admission::ConnectionStatistics;
use crate::net::choice::{Choice, Surroundings};
use crate::net::gate::Listeners;
use crate::net::handshake::{self, Handle, MAX_STREAMS};
use crate::net::monitor::{Monitor, Report};
use crate::net::ports::PortRange;
use crate::net::stream::{Security, Transport};
use crate::secret::JobToken;
use crate::sys::{self, ForkMark, Pollable, Poller, Registration, Waker};
use crate::transport::connections::Linger;
use crate::transport::options::DeviceOptions;
use crate::transport::{self, BackgroundProgress, Clock, Connections, LayerData, Provider, SystemClock, Watch};
use crate::types::Rank;
use crate::wait_mode::WaitMode;

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

/// The listening sockets and their thread. Contexts keep their device alive.
pub struct Device {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    monitor: Option<Monitor>,
    layer_data: LayerData,
}

/// An identity to which connections are taken, though its context is not made yet.
struct Expected {
    handle: Handle,
    shared: Arc<Shared>,
}

impl Drop for Expected {
    /// A context that has taken it over may have ended before, and is gone then.
    fn drop(&mut self) {
        self.shared.remove_context(&self.handle, None);
    }
}

/// Those of the device's contexts.
fn reports(shared: &Shared) -> Vec<Report> {
    let contexts = shared.contexts();
    let contexts = contexts.by_handle.values().filter_map(|entry| Some((entry.number, entry.context.clone()?)));
    // In the order in which they were made.
    let contexts: BTreeMap<u64, Weak<dyn BackgroundProgress>> = contexts.collect();
    let report = |context: Weak<dyn BackgroundProgress>| -> Report {
        Box::new(move |question| context.upgrade()?.report(question))
    };
    contexts.into_values().map(report).collect()
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
    /// Creates a device, for contexts that use the transports of `providers`, too, and starts its thread. Listens at
    /// once if the options name an address or an interface.
    pub fn over(options: &DeviceOptions, providers: Vec<Box<dyn Provider>>) -> Result<Arc<Device>> {
        let choice = Choice::make(options.interface.as_deref(), options.hostname.as_deref())?;
        let port_range = PortRange::choose(options.port_range.as_deref())?;
        if options.port != 0 && options.port_range.is_some() {
            return Err(Error::invalid(format!(
                "port is {}, and port_range is set: one of them says where to listen",
                options.port
            )));
        }
        let failed = |e: io::Error| Error::io("cannot create a device", &e);
        let log = options.log.clone();
        let transport = Transport::choose(options.transport.as_ref())?;
        let security = Security::of(&transport, log.as_ref())?;
        let wanted = streams(options.streams)?;
        let streams = if transport.has_streams() { wanted } else { 1 };
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
            providers,
            transport,
            security,
            streams,
            wait: options.wait,
            #[cfg(feature = "tls")]
            relays: Relays::default(),
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
        let thread = {
            let shared = shared.clone();
            let work = move || Thread::new(shared).run();
            std::thread::Builder::new().name("gloo_rs".into()).spawn(work).map_err(failed)?
        };
        let mut device = Device { shared, thread: Some(thread), monitor: None, layer_data: LayerData::default() };
        if options.monitor == Some(true) {
            let shared = device.shared.clone();
            let monitor = Monitor::start(move || reports(&shared));
            device.monitor = Some(monitor.map_err(|e| Error::io("cannot listen for `gloo-rs top`", &e))?);
        }
        Ok(Arc::new(device))
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

    /// The connections of a rank with this `address`, which also uses the transports of `providers`.
    fn connect_by(&self, token: &JobToken, address: Address, providers: &[Box<dyn Provider>]) -> Result<Connections> {
        let shared = &self.shared;
        // What has come for an identity that was expected.
        let expected =
            shared.contexts().by_handle.get(&handshake::handle(&address.identity)).map(|e| e.arrivals.clone());
        let arrivals = expected.unwrap_or_default();
        let connector = TcpConnector::new(token, address.identity, shared.clone(), arrivals.clone())?;
        let entry = Entry { context: None, number: shared.next_number(), key: connector.key(), arrivals, notice: None };
        shared.contexts().by_handle.insert(connector.handle(), entry);
        let keeper = shared.clone();
        let linger: Linger = Arc::new(move |draining| keeper.keep(draining));
        let sources = (vec![connector.source()], shared.transport.poller().of_pollers());
        Connections::new(address, connector, sources, providers, (token, &linger, shared.log.as_ref()))
    }

    /// Counters of incoming connections. May be called by any thread at any time.
    pub fn statistics(&self) -> ConnectionStatistics {
        self.shared.listeners.statistics()
    }
}

impl transport::Device for Device {
    fn connections(self: Arc<Self>, token: &JobToken) -> Result<Connections> {
        let sockets = transport::Device::provisional_sockets(self.as_ref(), None)?;
        let identity = sys::random().map_err(|e| Error::io("cannot create a context", &e))?;
        let address = self.shared.address(identity, sockets)?;
        self.connect_by(token, address, &self.shared.providers)
    }

    fn expect(
        self: Arc<Self>,
        token: &JobToken,
        address: &Address,
        context: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Send>> {
        let (handle, number) = (handshake::handle(&address.identity), self.shared.next_number());
        let (key, arrivals) = (handshake::key(token, &address.identity), Arrivals::default());
        let entry = Entry { context: Some(context), number, key, arrivals, notice: None };
        self.shared.contexts().by_handle.insert(handle, entry);
        Ok(Box::new(Expected { handle, shared: self.shared.clone() }))
    }

    fn expected_connections(self: Arc<Self>, token: &JobToken, address: &Address) -> Result<Connections> {
        self.connect_by(token, address.clone(), &[])
    }

    fn watch(
        self: Arc<Self>,
        connections: &Connections,
        context: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Watch>> {
        let mut descriptors = Vec::new();
        connections.descriptors(&mut descriptors);
        let mut contexts = self.shared.contexts();
        let entry = contexts.by_handle.get_mut(&handshake::handle(&connections.address().identity));
        let (Some(entry), Some(Pollable::Poller(poller)), 1) = (entry, descriptors.pop(), 1 + descriptors.len()) else {
            return Err(Error::new(ErrorKind::Internal, "the connections belong to another device"));
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

    fn layer_data(&self) -> Option<&LayerData> {
        Some(&self.layer_data)
    }

    fn accept_error(&self) -> Option<io::Error> {
        self.shared.listeners.accept_error()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.shared.mark.is_child() {
            // The threads belong to the parent process, as does the eventfd.
            self.monitor.take().into_iter().for_each(Monitor::abandon);
            return std::mem::forget(self.thread.take());
        }
        // Before the thread, which its contexts need.
        self.monitor = None;
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
