//! The network interfaces of this host, by the crate if-addrs.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use super::Interface;

/// Every IPv4 and IPv6 address of this host, in the system's order.
pub fn list() -> io::Result<Vec<Interface>> {
    let found = if_addrs::get_if_addrs()?.into_iter().map(|of| Interface {
        address: match of.ip() {
            IpAddr::V4(_) => SocketAddr::new(of.ip(), 0),
            IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, 0, 0, of.index.unwrap_or(0)).into(),
            IpAddr::V6(_) => SocketAddr::new(of.ip(), 0),
        },
        up: of.is_oper_up(),
        loopback: of.is_loopback(),
        speed_mbps: None,
        name: of.name,
    });
    Ok(found.collect())
}

/// Whether an interface with this name exists and has an address.
pub fn exists(name: &str) -> bool {
    list().is_ok_and(|all| all.iter().any(|interface| interface.name == name))
}
