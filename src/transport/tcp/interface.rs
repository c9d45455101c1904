//! The network interfaces of this host, and the choice of the address that a device binds.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

use super::DeviceOptions;
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
        let has = |flags: libc::c_int| entry.ifa_flags & flags as libc::c_uint == flags as libc::c_uint;
        let speed_mbps = match found.iter().find(|other| other.name == name) {
            Some(other) => other.speed_mbps,
            None => link_speed(&name),
        };
        let (up, loopback) = (has(libc::IFF_UP | libc::IFF_RUNNING), has(libc::IFF_LOOPBACK));
        found.push(Interface { name, address, up, loopback, speed_mbps });
    }
    Ok(found)
}

/// The address that a device with `options` binds, with the port of `options`, and the interface that has it.
///
/// - An interface: its first IPv4 address, else its first IPv6 address, those that routers forward before link-local ones.
/// - A host name or an address: the first of its addresses that this host (and that interface, if one is named) has,
///   IPv4 first.
/// - Neither: as if the host's own name had been given; if that is not an address of this host that others could reach,
///   the loopback address.
///
/// Fails with `InvalidArgument`, and a list of what there is, if nothing fits; with `Io` if the system cannot list its
/// interfaces. Asks the system's resolver for names, which may take as long as that does.
pub fn resolve(options: &DeviceOptions) -> Result<(SocketAddr, Option<String>)> {
    select(options, &interfaces()?, host_name(), &lookup)
}

/// [`resolve`] without the system: `own_name` is the name of the host, `lookup` the resolver.
fn select(
    options: &DeviceOptions,
    interfaces: &[Interface],
    own_name: Option<String>,
    lookup: &dyn Fn(&str) -> io::Result<Vec<SocketAddr>>,
) -> Result<(SocketAddr, Option<String>)> {
    let chosen = match (&options.interface, &options.hostname) {
        (interface, Some(host)) => {
            let candidates = candidates(interfaces, interface.as_deref())?;
            let addresses = lookup(host)
                .map_err(|error| Error::invalid(format!("cannot resolve the device's host name {host:?}: {error}")))?;
            let owned: Vec<_> = addresses.iter().filter_map(|address| own(*address, &candidates)).collect();
            best(owned).ok_or_else(|| {
                let resolved: Vec<_> = addresses.iter().map(|address| address.ip().to_string()).collect();
                let place = match interface {
                    Some(name) => format!("interface {name}"),
                    None => "this host".to_owned(),
                };
                let resolved = if resolved.is_empty() { "no address".to_owned() } else { resolved.join(", ") };
                Error::invalid(format!(
                    "{host:?} resolves to {resolved}, which {place} does not have; there are {}",
                    describe(interfaces)
                ))
            })?
        }
        (Some(name), None) => {
            let addresses =
                candidates(interfaces, Some(name))?.iter().map(|i| (i.address, Some(i.name.clone()))).collect();
            best(addresses).expect("candidates() returns at least one address or an error")
        }
        (None, None) => {
            let up: Vec<_> = interfaces.iter().filter(|interface| interface.up).collect();
            let named = own_name.and_then(|name| lookup(&name).ok()).unwrap_or_default();
            let owned = named.iter().filter_map(|address| own(*address, &up)).filter(|(address, _)| reachable(address));
            best(owned.collect()).unwrap_or_else(|| {
                let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                own(loopback, &up).unwrap_or((loopback, None))
            })
        }
    };
    let (mut address, interface) = chosen;
    address.set_port(options.port);
    Ok((address, interface))
}

/// The addresses of the interface `name`, or of all interfaces; only of those that are up. Never empty for a name.
fn candidates<'a>(interfaces: &'a [Interface], name: Option<&str>) -> Result<Vec<&'a Interface>> {
    let Some(name) = name else { return Ok(interfaces.iter().filter(|interface| interface.up).collect()) };
    let named: Vec<_> = interfaces.iter().filter(|interface| interface.name == name).collect();
    if named.is_empty() {
        let what = if exists(name) { "has no IP address" } else { "does not exist" };
        return Err(Error::invalid(format!("interface {name:?} {what}; there are {}", describe(interfaces))));
    }
    let up: Vec<_> = named.into_iter().filter(|interface| interface.up).collect();
    if up.is_empty() {
        return Err(Error::invalid(format!("interface {name:?} is down; there are {}", describe(interfaces))));
    }
    Ok(up)
}

/// `address` as this host has it, and where; `None` if it is not among `interfaces`.
fn own(address: SocketAddr, interfaces: &[&Interface]) -> Option<(SocketAddr, Option<String>)> {
    let ip = address.ip().to_canonical();
    let scope = |address: &SocketAddr| if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
    let same_scope = |own: &SocketAddr| scope(&address) == 0 || scope(&address) == scope(own);
    if let Some(interface) = interfaces.iter().find(|i| i.address.ip() == ip && same_scope(&i.address)) {
        return Some((interface.address, Some(interface.name.clone())));
    }
    // Linux takes all of 127.0.0.0/8 for its own, though the interface lists only 127.0.0.1; Debian gives hosts 127.0.1.1.
    if !matches!(ip, IpAddr::V4(v4) if v4.is_loopback()) {
        return None;
    }
    let loopback = interfaces.iter().find(|i| i.loopback && i.address.is_ipv4())?;
    Some((SocketAddr::new(ip, 0), Some(loopback.name.clone())))
}

/// The first of the most useful addresses: IPv4, then IPv6, then link-local IPv6.
fn best(addresses: Vec<(SocketAddr, Option<String>)>) -> Option<(SocketAddr, Option<String>)> {
    addresses.into_iter().min_by_key(|(address, _)| match address.ip() {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
    })
}

/// Whether other hosts could connect to it without knowing more than the address.
fn reachable(address: &SocketAddr) -> bool {
    !address.ip().is_loopback() && !matches!(address.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// `lo (127.0.0.1, ::1), eth0 (10.0.0.2; down)`.
fn describe(interfaces: &[Interface]) -> String {
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
fn exists(name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: `name` ends in NUL and is only read.
    unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
}

/// What the driver says; it says -1, or fails, where it does not know (loopback, a link that is down).
fn link_speed(name: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?.trim().parse().ok().filter(|&speed| speed > 0)
}

fn lookup(host: &str) -> io::Result<Vec<SocketAddr>> {
    Ok((host, 0).to_socket_addrs()?.collect())
}

fn host_name() -> Option<String> {
    let mut buffer = [0u8; 256];
    // SAFETY: the buffer is writable for the length given; the last byte stays NUL, so that a cut name still ends.
    let status = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    let name = std::ffi::CStr::from_bytes_until_nul(&buffer).ok()?.to_str().ok()?;
    (status == 0 && !name.is_empty()).then(|| name.to_owned())
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
#[path = "interface_tests.rs"]
mod tests;
