//! TCP over non-blocking sockets.
//!
//! One [`Device`] listens for a process. Each of its contexts has a [`connector`], which establishes at most one
//! link to each peer, on first use, from either side: one connection, or as many as both want.

mod buffered;
mod closing;
mod connector;
pub mod device;
mod link;
#[cfg(feature = "tls")]
mod relay;
mod shared;
mod streams;

pub use crate::net::stream::Transport;
pub use device::Device;

use std::time::Duration;

use crate::types::Rank;

/// Interval at which the thread makes progress for contexts on which no thread has waited since, and at which closed
/// connections are looked at.
pub const TICK: Duration = Duration::from_millis(5);
/// How long a closed connection is kept for the peer to acknowledge all data.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes that one connection carries before it is the next one's turn. So many that a small message rarely needs two
/// calls of the system, and so few that the buffers of sockets hold more: all connections then send at the same time.
const STRIPE_BYTES: usize = 64 << 10;

/// The number of the events of the connection at `index` of the link to `rank`.
fn number(rank: Rank, index: usize) -> u64 {
    (index as u64) << 32 | rank as u64
}

/// The rank, and the position of the connection, of an event's number.
fn of_number(number: u64) -> (Rank, usize) {
    (number as u32 as Rank, (number >> 32) as usize)
}
