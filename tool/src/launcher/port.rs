//! The port of rank 0's store.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use socket2::{Domain, Socket, Type};

/// Ports that no system reserves and that most do not assign by themselves.
const CANDIDATES: RangeInclusive<u16> = 10_000..=29_999;

/// Candidates to try before the system chooses.
const TRIES: usize = 50;

/// A TCP port that was free just before at `address`, for rank 0 to bind.
///
/// It is a random one of those that the system does not assign to outgoing connections and to sockets bound to port 0. With one of
/// those, another process would often get it before rank 0 does. Keeping it bound here would prevent that, but also prevent rank 0
/// from binding it without SO_REUSEADDR.
pub fn free(address: Ipv4Addr) -> io::Result<u16> {
    let assigned = assigned_by_the_system();
    for _ in 0..TRIES {
        let port = CANDIDATES.start() + (RandomState::new().hash_one(()) % CANDIDATES.len() as u64) as u16;
        if !assigned.contains(&port) && bind(address, port).is_ok() {
            return Ok(port);
        }
    }
    bind(address, 0)
}

/// Binds a socket for a moment; returns its port.
fn bind(address: Ipv4Addr, port: u16) -> io::Result<u16> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((address, port)).into())?;
    let address = socket.local_addr()?.as_socket();
    address.map(|address| address.port()).ok_or_else(|| io::Error::other("the socket has no address"))
}

fn assigned_by_the_system() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = text.split_whitespace().map(str::parse);
    match (ends.next(), ends.next()) {
        (Some(Ok(first)), Some(Ok(last))) => first..=last,
        // Linux's default.
        _ => 32_768..=60_999,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_free_and_not_one_that_the_system_assigns() {
        let assigned = assigned_by_the_system();
        let ports: Vec<_> = (0..20).map(|_| free(Ipv4Addr::LOCALHOST).unwrap()).collect();
        assert!(ports.iter().all(|port| CANDIDATES.contains(port) && !assigned.contains(port)), "{ports:?}");
        assert!(
            ports.iter().any(|port| *port != ports[0]),
            "jobs that start at the same time get the same port {ports:?}"
        );
    }

    #[test]
    fn a_port_that_is_taken_is_not_free() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(bind(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port()).is_err());
    }
}
