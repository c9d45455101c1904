//! In-memory links under virtual time, for simulations of whole jobs and for tests.
//!
//! A [`Network`] has nodes, one per simulated process; a node is a [`Device`](crate::transport::Device). The behaviour
//! of a network is a function of its seed and of the actions of its nodes: the delay of bytes, the sizes of the pieces
//! in which they arrive, the order in which links are reported ready. Time advances only by [`Network::step`].
//!
//! Some links can read or place messages. What is placed is written late, at a time of its own, so that memory which is
//! used after it was taken back is noticed.
//!
//! Failures are scripted: a node can crash (its links end; bytes in transit may or may not arrive) or become silent
//! (its links stay open, and nothing more is sent).

mod connector;
mod device;
mod link;
mod network;

pub use device::Node;
pub use network::{LinkModel, Network, NodeStatus, Random};
