//! InfiniBand and RoCE, by verbs.
//!
//! A [`connector`] makes links to the peers out of the connections of another connector, TCP's: over such a connection
//! two ranks exchange what their queue pairs need ([`endpoint`]), and it stays as the sign of life and for the close
//! notice. The bytes of a [`link`] travel by reliable-connected queue pairs, one for each pair of [`rail`]s: small ones
//! by sends into receive buffers that the peer has posted, large ones by RDMA writes.

pub mod choice;
mod common;
mod connection;
mod connector;
mod endpoint;
mod frame;
pub mod handles;
mod joining;
pub mod library;
mod link;
mod memory;
pub mod options;
pub mod port;
mod queue_pair;
pub mod rail;
mod shared;
mod status;
pub mod sysfs;

pub use choice::choose;
pub use connector::Provider;
pub use options::Options;
