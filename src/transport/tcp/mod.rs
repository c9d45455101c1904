//! TCP over non-blocking sockets.
//!
//! One [`Device`] listens for a process. Each of its contexts has a [`connector`], which establishes at most one
//! link to each peer, on first use, from either side: one connection, or as many as both want.

mod connector;
pub mod device;
mod held;
mod link;
#[cfg(feature = "tls")]
mod relay;
mod streams;

pub use crate::net::stream::Transport;
pub use device::{Device, DeviceOptions};

use crate::types::Rank;

/// The number of the events of the connection at `index` of the link to `rank`.
fn number(rank: Rank, index: usize) -> u64 {
    (index as u64) << 32 | rank as u64
}

/// The rank, and the position of the connection, of an event's number.
fn of_number(number: u64) -> (Rank, usize) {
    (number as u32 as Rank, (number >> 32) as usize)
}
