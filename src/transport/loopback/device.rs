//! The device of a simulated process.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::connector::LoopbackConnector;
use super::network::Network;
use crate::error::Result;
use crate::hash::QuickMap;
use crate::log::LogCallback;
use crate::net::address::Address;
use crate::secret::JobToken;
use crate::transport::{BackgroundProgress, Clock, Connector, Device, Watch};
use crate::types::Rank;

/// A node of a network: the device of a simulated process with one context.
pub struct Node {
    network: Network,
    number: usize,
    clock: Arc<dyn Clock>,
}

impl Node {
    /// Creates a node. Its context waits by calling `sleep` with a deadline; `sleep` may return earlier.
    pub fn new(network: &Network, sleep: impl Fn(Instant) + Send + Sync + 'static) -> Arc<Self> {
        let clock = Arc::new(VirtualClock { network: network.clone(), sleep: Box::new(sleep) });
        Arc::new(Self { network: network.clone(), number: network.state().add_node(), clock })
    }

    /// The number of the node, starting with 0.
    pub fn number(&self) -> usize {
        self.number
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

    fn sleep(&self, _: &[RawFd], until: Instant) -> bool {
        (self.sleep)(until);
        true
    }
}

/// Whether the device is responsible for progress. The caller of [`Network::step`] makes progress for contexts on which
/// no thread waits.
struct ArmedFlag(AtomicBool);

impl Watch for ArmedFlag {
    fn arm(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn disarm(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Device for Node {
    fn connector(self: Arc<Self>, _: &JobToken) -> Result<Box<dyn Connector>> {
        let mut identity = [0; 16];
        identity[..8].copy_from_slice(&self.number.to_le_bytes());
        let address = Address { identity, sockets: Vec::new(), host: 1, cores: 1 };
        let (network, node) = (self.network.clone(), self.number);
        Ok(Box::new(LoopbackConnector { network, node, address, peers: QuickMap::default() }))
    }

    fn watch(self: Arc<Self>, _: &dyn Connector, context: Weak<dyn BackgroundProgress>) -> Result<Box<dyn Watch>> {
        self.network.state().nodes[self.number].context = Some(context);
        Ok(Box::new(ArmedFlag(AtomicBool::new(true))))
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

    fn is_inherited(&self) -> bool {
        false
    }

    fn accept_error(&self) -> Option<io::Error> {
        None
    }
}
