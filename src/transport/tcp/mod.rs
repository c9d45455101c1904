//! TCP over non-blocking sockets.
//!
//! One [`Device`] listens for a process; each of its contexts has a [`connector`], which makes connections to its peers: at
//! most one to each, on first use, by either side.

mod connector;
pub mod device;
mod link;

pub use device::{Device, DeviceOptions};
