//! The network interfaces of this host.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

use std::net::SocketAddr;

#[cfg(target_os = "linux")]
pub use linux::{exists, list};
#[cfg(not(target_os = "linux"))]
pub use other::{exists, list};

/// One address of one network interface. An interface with several addresses has several entries, one without addresses
/// has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name: `eth0`.
    pub name: String,
    /// The address, with port 0. A link-local IPv6 address has its scope id, which is needed to bind to it.
    pub address: SocketAddr,
    /// Whether it is administratively up and has a carrier.
    pub up: bool,
    /// Whether it is a loopback interface.
    pub loopback: bool,
    /// Speed of the link in Mbit/s, if the driver reports it.
    pub speed_mbps: Option<u32>,
}
