//! TCP over non-blocking sockets.
//!
//! One [`Device`] listens for a process; one [`endpoint::Endpoint`] per context holds the connections to its peers, at most
//! one to each, made on first use by either side. When both sides connect at the same time, the connection of the lower rank
//! is kept.

pub mod address;
mod connection;
pub mod device;
pub mod endpoint;
mod greeting;
pub mod handshake;
pub mod interface;

pub use device::{Device, DeviceOptions};
