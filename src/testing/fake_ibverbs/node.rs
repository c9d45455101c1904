//! The device of a simulated process with queue pairs, and what its links leave behind.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Fabric;
use crate::testing::loopback::{Network, Node, NodeStatus};
use crate::transport::connections::Linger;
use crate::transport::ibverbs::Provider;
use crate::transport::ibverbs::rail::PathOptions;
use crate::transport::{self, DrainingLink};

/// How long a link that has ended is kept for its peer.
const LINGER: Duration = Duration::from_secs(30);

/// What ended links have left behind: the node, and until when it is kept.
type Left = (usize, Box<dyn DrainingLink>, Instant);

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

    fn keep(&self, node: usize, draining: Box<dyn DrainingLink>) {
        let until = self.network.now() + LINGER;
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push((node, draining, until));
    }

    /// Goes on with all of it.
    pub fn progress(&self) {
        // Out of the lock, since links may end meanwhile.
        let mut left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        let now = self.network.now();
        left.retain_mut(|(node, draining, until)| {
            self.network.status(*node) != NodeStatus::Crashed && now < *until && draining.linger()
        });
        self.left.lock().unwrap_or_else(PoisonError::into_inner).append(&mut left);
    }

    /// Lets time pass until nothing is left.
    pub fn finish(&self, fabric: &Fabric) {
        loop {
            self.progress();
            if self.left.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                return;
            }
            let next = fabric.next_event().unwrap_or(self.network.now() + LINGER);
            self.network.step(next);
        }
    }
}

/// A node of `network`, as [`Node::new`], whose links are made into those by queue pairs of the fabric's node of the
/// same number.
pub fn fabric_node(
    network: &Network,
    fabric: &Fabric,
    left: &LeftBehind,
    path: PathOptions,
    sleep: impl Fn(Instant) + Send + Sync + 'static,
) -> Arc<Node> {
    let (keeper, pump) = (left.clone(), left.clone());
    let provide = |number| -> (Vec<Box<dyn transport::Provider>>, Linger) {
        let linger = move |draining| keeper.keep(number, draining);
        (vec![Box::new(Provider { rails: fabric.rails(number), path })], Arc::new(linger))
    };
    let sleep = move |until| {
        sleep(until);
        pump.progress();
    };
    Node::over(network, 1, provide, sleep)
}
