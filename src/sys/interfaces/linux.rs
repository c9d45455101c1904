//! The network interfaces of this host: getifaddrs.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::Interface;

/// Every IPv4 and IPv6 address of this host, in the system's order.
pub fn list() -> io::Result<Vec<Interface>> {
    let list = AddressList::get()?;
    let mut found: Vec<Interface> = Vec::new();
    for entry in list.iter() {
        // SAFETY: `entry` is a node of a list that is not freed yet; the kernel's addresses have the length of their
        // family.
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

/// Whether packets can pass, by the interface's flags. An interface that has just come up has its carrier at once, but
/// RUNNING up to a second later; a dormant one (802.1X has not authenticated it) has a carrier only.
fn is_up(flags: libc::c_uint) -> bool {
    let has = |flag: libc::c_int| flags & flag as libc::c_uint != 0;
    has(libc::IFF_UP) && (has(libc::IFF_RUNNING) || has(libc::IFF_LOWER_UP) && !has(libc::IFF_DORMANT))
}

/// Whether an interface with this name exists, with or without addresses.
pub fn exists(name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: `name` is a string that ends in NUL and lives until the call returns.
    unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
}

/// The speed that the driver reports; it reports -1, or fails, if it is unknown (loopback, a link that is down).
fn link_speed(name: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?.trim().parse().ok().filter(|&speed| speed > 0)
}

/// The list that getifaddrs returned; freed on drop.
struct AddressList(*mut libc::ifaddrs);

impl AddressList {
    fn get() -> io::Result<Self> {
        let mut head = std::ptr::null_mut();
        // SAFETY: `head` may be written; the call stores the pointer there.
        if unsafe { libc::getifaddrs(&mut head) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(head))
    }

    fn iter(&self) -> impl Iterator<Item = &libc::ifaddrs> {
        // SAFETY: the head and every `ifa_next` is null or a node of the list, which lives as long as `self`.
        let head = unsafe { self.0.as_ref() };
        // SAFETY: a non-null pointer to a node, as for the head.
        std::iter::successors(head, |node| unsafe { node.ifa_next.as_ref() })
    }
}

impl Drop for AddressList {
    fn drop(&mut self) {
        // SAFETY: the list came from getifaddrs and is freed only here.
        unsafe { libc::freeifaddrs(self.0) }
    }
}

/// The IP address in `address`, with port 0; `None` for null and other families.
///
/// # Safety
/// `address` must be null or point to a socket address with the length of its family.
unsafe fn socket_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and every socket address begins with its family.
    match libc::c_int::from(unsafe { (&raw const (*address).sa_family).read_unaligned() }) {
        libc::AF_INET => {
            // SAFETY: the address has the length of its family, so it is a `sockaddr_in`.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            // `s_addr` is in network byte order, so its bytes in memory are those of the address.
            Some(SocketAddrV4::new(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()), 0).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the address has the length of its family, so it is a `sockaddr_in6`.
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
            // Just brought up: the kernel has not updated its operational state yet.
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
