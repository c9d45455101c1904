//! The address on which a server listens, given the host name that all ranks have.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use crate::net::interface;
use crate::net::ports::{self, PortRange};
use crate::sys;

/// Listens so that ranks that connect to `host` reach it:
/// - an address: on that address. If it is not one of this host, because a router or load balancer forwards it: on all
///   addresses of its family;
/// - `localhost`: on the first loopback address;
/// - another name: on all addresses of this host, since other hosts may resolve it to another address (a host's own
///   table often maps its name to 127.0.1.1).
///
/// If `port` is 0, a range or the system gives one.
pub(super) fn listen(host: &str, port: u16, range: Option<&PortRange>) -> io::Result<TcpListener> {
    listen_on_first(&candidates(host), port, range)
}

fn candidates(host: &str) -> [IpAddr; 2] {
    let any4 = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let any6 = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    match host.parse::<IpAddr>() {
        Ok(address) => [address, if address.is_ipv4() { any4 } else { any6 }],
        Err(_) if host.eq_ignore_ascii_case("localhost") => [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        Err(_) => [any6, any4],
    }
}

/// Tries the next address only if this host does not have the address or its family.
fn listen_on_first(addresses: &[IpAddr], port: u16, range: Option<&PortRange>) -> io::Result<TcpListener> {
    let mut result = Err(io::Error::from(ErrorKind::AddrNotAvailable));
    for &address in addresses {
        result = ports::listen(SocketAddr::new(address, port), true, range);
        match &result {
            Err(error) if sys::socket::is_foreign_address(error) => continue,
            _ => break,
        }
    }
    result
}

/// If none of the addresses of `host` is this one's: a text that says so. Other ranks reach the server only if
/// something forwards them, such as a load balancer. Asks the system's resolver.
pub(super) fn elsewhere(host: &str) -> Option<String> {
    let addresses: Vec<SocketAddr> = match (host, 0).to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => {
            return Some(format!("rank 0's host, which serves the store, cannot resolve {host:?} itself: {error}"));
        }
    };
    // Nothing is said if that is not known.
    if addresses.iter().any(|address| sys::connect::is_own(*address).unwrap_or(true)) {
        return None;
    }
    let mut found: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
    found.dedup();
    let resolved = if found == [host] { String::new() } else { format!(" ({})", found.join(", ")) };
    let own =
        interface::interfaces().map(|own| format!(": there are {}", interface::describe(&own))).unwrap_or_default();
    Some(format!(
        "{host:?}{resolved} is no address of rank 0's host, which serves the store{own}; other ranks come only if something forwards them \
         here, else the store's address (MASTER_ADDR, or the URL) must be one of rank 0's host"
    ))
}

/// The addresses at which this host reaches a listener at `address`, which are tried in turn: `address`, or loopback
/// for a listener on all addresses. One for both families can be bound where IPv6 is switched off, and then loopback
/// has only an IPv4 address.
pub(super) fn reachable(address: SocketAddr) -> Vec<SocketAddr> {
    let loopback: &[IpAddr] = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
        IpAddr::V6(ip) if ip.is_unspecified() => &[IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)],
        _ => return vec![address],
    };
    loopback.iter().map(|ip| SocketAddr::new(*ip, address.port())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_tried_first_and_a_name_means_all() {
        assert_eq!(candidates("127.0.0.7"), [address("127.0.0.7"), address("0.0.0.0")]);
        assert_eq!(candidates("fe80::1"), [address("fe80::1"), address("::")]);
        assert_eq!(candidates("LocalHost"), [address("127.0.0.1"), address("::1")]);
        assert_eq!(candidates("node-0.cluster"), [address("::"), address("0.0.0.0")]);
    }

    #[test]
    fn the_next_address_is_tried_only_when_this_host_lacks_the_first() {
        // 192.0.2.0/24 is reserved for documentation: no host has it.
        let listener = listen_on_first(&[address("192.0.2.1"), address("127.0.0.1")], 0, None).unwrap();
        let taken = listener.local_addr().unwrap();
        assert_eq!(taken.ip(), address("127.0.0.1"));
        let error = listen_on_first(&[address("127.0.0.1"), address("127.0.0.2")], taken.port(), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn an_address_that_this_host_lacks_is_said_to_be_elsewhere() {
        for host in ["127.0.0.1", "localhost", "127.83.12.9"] {
            assert_eq!(elsewhere(host), None, "{host}");
        }
        let text = elsewhere("192.0.2.1").unwrap();
        for part in ["\"192.0.2.1\" is no address of rank 0's host", "lo (127.0.0.1", "MASTER_ADDR"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_listener_on_all_addresses_is_reached_over_loopback() {
        for (bound, reached) in [
            ("0.0.0.0:5", &["127.0.0.1:5"][..]),
            ("[::]:5", &["[::1]:5", "127.0.0.1:5"]),
            ("10.0.0.1:5", &["10.0.0.1:5"]),
        ] {
            let reached: Vec<SocketAddr> = reached.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(reachable(bound.parse().unwrap()), reached);
        }
    }
}
