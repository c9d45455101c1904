//! The network interfaces of this host.

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::error::{Error, Result};

/// One address of one network interface. An interface with several addresses appears several times, one without any not
/// at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name: `eth0`.
    pub name: String,
    /// The address, with port 0. A link-local IPv6 address keeps its scope id, without which nothing could be bound to it.
    pub address: SocketAddr,
    /// Whether it is switched on and has a carrier.
    pub up: bool,
    /// Whether it only reaches this host.
    pub loopback: bool,
    /// Speed of the link in Mbit/s, where the driver tells.
    pub speed_mbps: Option<u32>,
}

/// Every IPv4 and IPv6 address of this host, in the system's order.
pub fn interfaces() -> Result<Vec<Interface>> {
    let list = AddressList::get()?;
    let mut found: Vec<Interface> = Vec::new();
    for entry in list.iter() {
        // SAFETY: `entry` is a node of the living list; the kernel's addresses are as long as their family says.
        let Some(address) = (unsafe { socket_address(entry.ifa_addr) }) else { continue };
        // SAFETY: getifaddrs gives every node a name that ends in NUL and lives as long as the list.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        let speed_mbps = match found.iter().find(|other| other.name == name) {
            Some(other) => other.speed_mbps,
            None => link_speed(&name),
        };
        let loopback = entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0;
        found.push(Interface { name, address, up: is_up(entry.ifa_flags), loopback, speed_mbps });
    }
    Ok(found)
}

/// What the flags say of whether packets pass. An interface that has just come up has its carrier at once, and RUNNING only when
/// the kernel gets to that, up to a second later; one that is dormant (802.1X has not let it in) has a carrier and no more.
fn is_up(flags: libc::c_uint) -> bool {
    let has = |flag: libc::c_int| flags & flag as libc::c_uint != 0;
    has(libc::IFF_UP) && (has(libc::IFF_RUNNING) || has(libc::IFF_LOWER_UP) && !has(libc::IFF_DORMANT))
}

/// `lo (127.0.0.1, ::1), eth0 (10.0.0.2; down)`.
pub(super) fn describe(interfaces: &[Interface]) -> String {
    let mut text = String::new();
    let mut seen: Vec<&str> = Vec::new();
    for interface in interfaces {
        if seen.contains(&interface.name.as_str()) {
            continue;
        }
        seen.push(&interface.name);
        let of_it = interfaces.iter().filter(|other| other.name == interface.name);
        let addresses: Vec<_> = of_it.map(|other| other.address.ip().to_string()).collect();
        let separator = if text.is_empty() { "" } else { ", " };
        let down = if interface.up { "" } else { "; down" };
        let _ = write!(text, "{separator}{} ({}{down})", interface.name, addresses.join(", "));
    }
    if text.is_empty() { "no interfaces with addresses".to_owned() } else { text }
}

/// Whether there is an interface of that name, with or without addresses.
pub(super) fn exists(name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: `name` ends in NUL and is only read.
    unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
}

/// What the driver says; it says -1, or fails, where it does not know (loopback, a link that is down).
fn link_speed(name: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?.trim().parse().ok().filter(|&speed| speed > 0)
}

/// What getifaddrs returned; freed on drop.
struct AddressList(*mut libc::ifaddrs);

impl AddressList {
    fn get() -> Result<Self> {
        let mut head = std::ptr::null_mut();
        // SAFETY: `head` is a valid place for the pointer that the call stores.
        if unsafe { libc::getifaddrs(&mut head) } != 0 {
            return Err(Error::io("cannot list the network interfaces", &io::Error::last_os_error()));
        }
        Ok(Self(head))
    }

    fn iter(&self) -> impl Iterator<Item = &libc::ifaddrs> {
        // SAFETY: the head is null or a node of the list, which lives as long as `self`; so is every `ifa_next`.
        let head = unsafe { self.0.as_ref() };
        // SAFETY: as above.
        std::iter::successors(head, |node| unsafe { node.ifa_next.as_ref() })
    }
}

impl Drop for AddressList {
    fn drop(&mut self) {
        // SAFETY: the list came from getifaddrs and is freed once.
        unsafe { libc::freeifaddrs(self.0) }
    }
}

/// The IP address in `address`, with port 0; `None` for null and other families.
///
/// # Safety
/// `address` is null or points to a socket address that is as long as its family says.
unsafe fn socket_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: every socket address begins with its family.
    match libc::c_int::from(unsafe { (&raw const (*address).sa_family).read_unaligned() }) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a whole `sockaddr_in`.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            // `s_addr` is in network order, so its bytes in memory are the address's.
            Some(SocketAddrV4::new(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()), 0).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is a whole `sockaddr_in6`.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(SocketAddrV6::new(Ipv6Addr::from(v6.sin6_addr.s6_addr), 0, 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_with_a_carrier_is_up_before_it_is_called_running() {
        for (flags, up) in [
            (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_LOWER_UP, true),
            (libc::IFF_UP | libc::IFF_RUNNING, true),
            // Just brought up: the kernel has not yet told its state on.
            (libc::IFF_UP | libc::IFF_LOWER_UP, true),
            (libc::IFF_UP | libc::IFF_LOWER_UP | libc::IFF_DORMANT, false),
            (libc::IFF_UP, false),
            (libc::IFF_LOWER_UP, false),
            (0, false),
        ] {
            assert_eq!(is_up(flags as libc::c_uint), up, "{flags:#x}");
        }
    }
}
