//! The device of a simulated process with queue pairs.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::Fabric;
use crate::error::Result;
use crate::log::LogCallback;
use crate::net::address::Address;
use crate::secret::JobToken;
use crate::sys::PollerKind;
use crate::transport::ibverbs::rail::{PathOptions, Rail};
use crate::transport::ibverbs::{IbverbsConnector, Linger};
use crate::transport::loopback::{Network, Node, NodeStatus};
use crate::transport::{BackgroundProgress, Clock, Connector, Device, Lingering, Watch};
use crate::types::Rank;

/// How long a link that has ended is kept for its peer.
const LINGER: Duration = Duration::from_secs(30);

/// What ended links have left behind: the node, and until when it is kept.
type Left = (usize, Box<dyn Lingering>, Instant);

/// What the links of a network's nodes have left behind. It goes on when a node wakes, and by [`LeftBehind::finish`].
#[derive(Clone)]
pub struct LeftBehind {
    network: Network,
    left: Arc<Mutex<Vec<Left>>>,
}

impl LeftBehind {
    /// Nothing yet.
    pub fn new(network: &Network) -> Self {
        Self { network: network.clone(), left: Arc::default() }
    }

    fn keep(&self, node: usize, lingering: Box<dyn Lingering>) {
        let until = self.network.now() + LINGER;
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push((node, lingering, until));
    }

    /// Goes on with all of it.
    pub fn go_on(&self) {
        // Out of the lock, since links may end meanwhile.
        let mut left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        let now = self.network.now();
        left.retain_mut(|(node, lingering, until)| {
            self.network.status(*node) != NodeStatus::Crashed && now < *until && lingering.linger()
        });
        self.left.lock().unwrap_or_else(PoisonError::into_inner).append(&mut left);
    }

    /// Lets time pass until nothing is left.
    pub fn finish(&self, fabric: &Fabric) {
        loop {
            self.go_on();
            if self.left.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                return;
            }
            let next = fabric.next_event().unwrap_or(self.network.now() + LINGER);
            self.network.step(next);
        }
    }
}

/// A node of a loopback network whose links are made into those by queue pairs of a fabric.
pub struct FabricNode {
    inner: Arc<Node>,
    number: usize,
    network: Network,
    rails: Vec<Arc<Rail>>,
    path: PathOptions,
    left: LeftBehind,
}

impl FabricNode {
    /// A node of `network`, as [`Node::new`], whose process has the fabric's node of the same number.
    pub fn new(
        network: &Network,
        fabric: &Fabric,
        left: &LeftBehind,
        path: PathOptions,
        sleep: impl Fn(Instant) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let pump = left.clone();
        let inner = Node::new(network, move |until| {
            sleep(until);
            pump.go_on();
        });
        let number = inner.number();
        Arc::new(Self {
            number,
            network: network.clone(),
            rails: fabric.rails(number),
            path,
            left: left.clone(),
            inner,
        })
    }
}

impl Device for FabricNode {
    fn connector(self: Arc<Self>, token: &JobToken) -> Result<Box<dyn Connector>> {
        let inner = self.inner.clone().connector(token)?;
        let (left, process) = (self.left.clone(), self.network.process(self.number));
        let linger: Linger = Arc::new(move |lingering| left.keep(process, lingering));
        let (rails, kind) = (self.rails.clone(), PollerKind::Poll);
        Ok(Box::new(IbverbsConnector::over(inner, rails, self.path, linger, kind, None)?))
    }

    fn watch(
        self: Arc<Self>,
        connector: &dyn Connector,
        context: Weak<dyn BackgroundProgress>,
    ) -> Result<Box<dyn Watch>> {
        self.inner.clone().watch(connector, context)
    }

    fn provisional_sockets(&self, store: Option<SocketAddr>) -> Result<Vec<SocketAddr>> {
        self.inner.provisional_sockets(store)
    }

    fn listen(&self, store: Option<SocketAddr>, all: &[Address], rank: Rank) -> Result<Vec<SocketAddr>> {
        self.inner.listen(store, all, rank)
    }

    fn listen_anywhere(&self) -> Result<Vec<SocketAddr>> {
        self.inner.listen_anywhere()
    }

    fn log(&self) -> Option<LogCallback> {
        None
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn transport(&self) -> &'static str {
        "ibverbs"
    }

    fn is_inherited(&self) -> bool {
        false
    }

    fn accept_error(&self) -> Option<io::Error> {
        None
    }
}
