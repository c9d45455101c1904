//! The device of a simulated process.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::connector::LoopbackConnector;
use super::network::{Network, PendingEvent, State};
use crate::error::Result;
use crate::hash::QuickMap;
use crate::log::LogCallback;
use crate::net::address::Address;
use crate::net::handshake::Identity;
use crate::secret::JobToken;
use crate::sys::{self, Pollable, PollerKind};
use crate::transport::connections::Linger;
use crate::transport::tcp::TICK;
use crate::transport::{
    BackgroundProgress, Clock, Connections, Device, LayerData, Part, Provided, Provider, Watch, shm,
};
use crate::types::Rank;

/// A node of a network: the device of a simulated process. The first context is at this node, each later one at a node
/// of its own.
pub struct Node {
    /// Whether there has been a context at this node.
    taken: AtomicBool,
    network: Network,
    number: usize,
    clock: Arc<dyn Clock>,
    host: u64,
    /// The transports beside this one that its contexts use.
    providers: Vec<Box<dyn Provider>>,
    /// Keeps what their links leave behind.
    linger: Linger,
    layer_data: LayerData,
}

impl Node {
    /// Creates a node. Its context waits by calling `sleep` with a deadline; `sleep` may return earlier.
    pub fn new(network: &Network, sleep: impl Fn(Instant) + Send + Sync + 'static) -> Arc<Self> {
        Self::over(network, 1, |_| (Vec::new(), Arc::new(|_| ())), sleep)
    }

    /// A device for contexts that share memory with others of this host. The end of a process is not noticed there.
    pub fn sharing(network: &Network, host: u64, sleep: impl Fn(Instant) + Send + Sync + 'static) -> Arc<Self> {
        Self::over(network, host, |_| (vec![Box::new(shm::Provider::default())], Arc::new(|_| ())), sleep)
    }

    /// A device for contexts with the transports that `provide` returns for the node with this number, and what keeps
    /// what their links leave behind.
    pub fn over(
        network: &Network,
        host: u64,
        provide: impl FnOnce(usize) -> (Vec<Box<dyn Provider>>, Linger),
        sleep: impl Fn(Instant) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let clock = Arc::new(VirtualClock { network: network.clone(), sleep: Box::new(sleep) });
        let number = network.state().add_node(None);
        let (providers, linger) = provide(number);
        let (network, taken) = (network.clone(), AtomicBool::new(false));
        Arc::new(Self { taken, network, number, clock, host, providers, linger, layer_data: LayerData::default() })
    }

    /// The number of the node, starting with 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The connector of a context at this node, or at a new one, and the number of that.
    fn connector(&self) -> (LoopbackConnector, usize) {
        let (network, mut node) = (self.network.clone(), self.number);
        if self.taken.swap(true, Ordering::Relaxed) {
            node = network.state().add_node(Some(self.number));
        }
        (LoopbackConnector { network, node, peers: QuickMap::default() }, node)
    }
}

/// A node at which connections are taken, though its context is not made yet.
struct Expected {
    network: Network,
    node: usize,
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.network.state().close(self.node, Arc::new(|_| Vec::new()), false);
    }
}

/// A node beside the device of another network: its contexts have the identities that they have there.
impl Provider for Node {
    fn part(&self, provided: &mut Provided<'_>) -> Result<Part> {
        let (connector, node) = self.connector();
        self.network.state().nodes[node].identity = provided.address.identity;
        Ok(connector.into())
    }
}

struct VirtualClock {
    network: Network,
    sleep: Box<dyn Fn(Instant) + Send + Sync>,
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        self.network.now()
    }

    /// Whatever happens at the node ends the sleep, so only who sleeps for one of several sources looks which it was.
    fn sleep(&self, sources: &[Pollable], until: Instant) -> bool {
        let is_readable = |source: &Pollable| sys::poll(std::slice::from_ref(source), Duration::ZERO);
        let looks = sources.len() > 1;
        if !looks || !sources.iter().any(is_readable) {
            (self.sleep)(until);
        }
        !looks || is_readable(&sources[0])
    }

    /// All ranks of a simulation run on one thread. The system would give the core to other processes, for
    /// milliseconds.
    fn yield_now(&self) {}

    fn is_simulated(&self) -> bool {
        true
    }
}

impl Network {
    /// When something happens for the context of `node`, at least the current time: for the thread that waits on it, or
    /// if none does, for the device. `None` if nothing does, or there is no context.
    pub fn next_turn(&self, node: usize) -> Option<Instant> {
        let state = self.state();
        let context = state.context(node)?;
        let reminder = state.nodes[node].reminder.map(|at| at.max(state.now));
        let next = if context.is_polled() || state.is_armed(node) {
            state.next_event(node)
        } else {
            let ends = [state.next_arrival(node), Some(state.next_tick(node))];
            ends.into_iter().flatten().min().map(|at| at.max(state.now))
        };
        [next, reminder].into_iter().flatten().min()
    }

    /// What the device does for the context of `node` now, as one of sockets: it tells the context of connections that
    /// peers have made. If the context is armed, it progresses it when something has come; if not, it ticks. If a
    /// thread waits on it, that one does the rest. It reminds the context of what that is to be reminded of.
    pub fn drive(&self, node: usize) {
        let mut state = self.state();
        let (now, is_armed) = (state.now, state.is_armed(node));
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let (has_come, arrives) = (is_due(state.next_event(node)), is_due(state.next_arrival(node)));
        state.woken(node);
        let reminds = state.nodes[node].reminder.take_if(|at| *at <= now).is_some();
        let Some(context) = state.context(node) else { return };
        let is_polled = context.is_polled();
        let ticks = !is_polled && !is_armed && state.next_tick(node) <= now;
        if ticks {
            state.nodes[node].ticked = now;
        }
        drop(state);
        match is_polled {
            true => {}
            false if arrives => context.arrived(),
            false if is_armed && has_come => context.drive(),
            false => {}
        }
        if ticks {
            context.tick();
        }
        if reminds {
            context.reminded();
        }
    }
}

impl State {
    fn context(&self, node: usize) -> Option<Arc<dyn BackgroundProgress>> {
        self.nodes[node].context.as_ref()?.upgrade()
    }

    fn is_armed(&self, node: usize) -> bool {
        self.nodes[node].armed.load(Ordering::Relaxed)
    }

    /// When the next connection arrives that a peer has made to `node`.
    fn next_arrival(&self, node: usize) -> Option<Instant> {
        let arrivals = self.nodes[node].pending.iter().filter(|(_, event)| matches!(event, PendingEvent::Accepted(_)));
        arrivals.map(|(at, _)| *at).min()
    }

    /// When the device ticks next, if the context of `node` is not armed. As long as all are, it does not.
    fn next_tick(&self, node: usize) -> Instant {
        let since = self.now - self.nodes[node].ticked;
        // What it has left out, it does not make up for.
        let past = Duration::from_nanos((since.as_nanos() % TICK.as_nanos()) as u64);
        if since >= TICK && past.is_zero() { self.now } else { self.now + (TICK - past) }
    }
}

/// Whether the device is responsible for progress, and when it reminds the context.
struct NodeWatch {
    armed: Arc<AtomicBool>,
    network: Network,
    node: usize,
}

impl Watch for NodeWatch {
    fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
    }

    fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    fn remind(&self, time: Duration) {
        let mut state = self.network.state();
        let at = state.now + time;
        let reminder = &mut state.nodes[self.node].reminder;
        *reminder = Some(reminder.map_or(at, |other| other.min(at)));
    }
}

impl Node {
    /// The connections of `node`, which has this `connector` and this identity, or that of its number.
    fn connections_of(
        &self,
        token: &JobToken,
        (connector, node): (LoopbackConnector, usize),
        identity: Option<Identity>,
        providers: &[Box<dyn Provider>],
    ) -> Result<Connections> {
        let identity = identity.unwrap_or_else(|| {
            let mut identity = [0; 16];
            identity[..8].copy_from_slice(&node.to_le_bytes());
            identity
        });
        let address = Address {
            identity,
            sockets: Vec::new(),
            host: self.host,
            cores: 1,
            place: Default::default(),
            segment: None,
            ibverbs: false,
            network: 0,
            streams: 1,
        };
        let (sources, network) = ((Vec::new(), PollerKind::Poll), self.network.clone());
        let mut made = Connections::new(address, connector, sources, providers, (token, &self.linger, None))?;
        let node = &mut network.state().nodes[node];
        (node.identity, node.bell) = (identity, made.bell());
        Ok(made)
    }
}

impl Device for Node {
    fn connections(self: Arc<Self>, token: &JobToken) -> Result<Connections> {
        self.connections_of(token, self.connector(), None, &self.providers)
    }

    fn expect(
        self: Arc<Self>,
        _: &JobToken,
        address: &Address,
        context: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Send>> {
        let (_, node) = self.connector();
        let mut state = self.network.state();
        let expected = &mut state.nodes[node];
        (expected.identity, expected.context) = (address.identity, Some(context));
        expected.armed.store(true, Ordering::Relaxed);
        Ok(Box::new(Expected { network: self.network.clone(), node }))
    }

    fn expected_connections(self: Arc<Self>, token: &JobToken, address: &Address) -> Result<Connections> {
        let node = self.network.state().node_of(&address.identity);
        self.network.state().nodes[node].awaits_peers = true;
        let connector = LoopbackConnector { network: self.network.clone(), node, peers: QuickMap::default() };
        self.connections_of(token, (connector, node), Some(address.identity), &[])
    }

    fn watch(
        self: Arc<Self>,
        connections: &Connections,
        context: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Watch>> {
        let mut state = self.network.state();
        let node = state.node_of(&connections.address().identity);
        let own = &mut state.nodes[node];
        (own.context, own.armed) = (Some(context), Arc::new(AtomicBool::new(true)));
        Ok(Box::new(NodeWatch { armed: own.armed.clone(), network: self.network.clone(), node }))
    }

    fn provisional_sockets(&self, _: Option<SocketAddr>) -> Result<Vec<SocketAddr>> {
        Ok(Vec::new())
    }

    fn listen(&self, _: Option<SocketAddr>, _: &[Address], _: Rank) -> Result<Vec<SocketAddr>> {
        Ok(Vec::new())
    }

    fn listen_anywhere(&self) -> Result<Vec<SocketAddr>> {
        Ok(Vec::new())
    }

    fn log(&self) -> Option<LogCallback> {
        None
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    fn transport(&self) -> &'static str {
        "loopback"
    }

    fn layer_data(&self) -> Option<&LayerData> {
        Some(&self.layer_data)
    }

    fn is_inherited(&self) -> bool {
        false
    }

    fn accept_error(&self) -> Option<io::Error> {
        None
    }
}
