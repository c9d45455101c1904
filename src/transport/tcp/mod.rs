//! TCP over non-blocking sockets.
//!
//! One [`Device`] listens for a process. Each of its contexts has a [`connector`], which establishes at most one
//! connection to each peer, on first use, from either side.

mod connector;
pub mod device;
mod held;
mod link;

pub use crate::net::stream::Transport;
pub use device::{Device, DeviceOptions};
