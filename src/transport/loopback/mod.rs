//! Links in memory, under virtual time: for simulations of whole jobs, and for tests.
//!
//! A [`Network`] has nodes, one for each process that is simulated; a node is a [`Device`](crate::transport::Device). Whatever a
//! network of a seed does is a function of that seed and of what its nodes do: how long bytes are on their way, in which pieces
//! they arrive, in which order links are reported ready. Time passes only when [`Network::step`] says so.
//!
//! What can go wrong is scripted: a node can die (its links end where they are, bytes under way included or not), or fall
//! silent (its links stay, and nothing comes from it any more).

mod connector;
mod device;
mod link;
mod network;

pub use device::Node;
pub use network::{LinkModel, Network, NodeStatus, Random};
