//! The port of rank 0's store.

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use gloo_rs::net::ports::PortRange;
use socket2::{Domain, Socket, Type};

/// Ports that no system reserves and that most do not assign by themselves.
const CANDIDATES: RangeInclusive<u16> = 10_000..=29_999;

/// Candidates to try before the system chooses.
const TRIES: usize = 50;

/// A TCP port that was free just before at `address`, for rank 0 to bind.
///
/// The port is a random one of those that the system does not assign to outgoing connections and to sockets bound to
/// port 0. If the system assigned the port, another process would often get it before rank 0 does. Keeping it bound
/// here would prevent that, but also prevent rank 0 from binding it without SO_REUSEADDR.
///
/// If `range` is the value of `GLOO_RS_PORT_RANGE`, the port is one of that.
pub fn free(address: Ipv4Addr, range: Option<OsString>) -> io::Result<u16> {
    let range = PortRange::of_variable(range).map_err(|error| io::Error::other(error.message().to_owned()))?;
    if let Some(range) = range {
        return free_of(&range, address);
    }
    let assigned = assigned_by_the_system();
    for _ in 0..TRIES {
        let port = CANDIDATES.start() + (RandomState::new().hash_one(()) % CANDIDATES.len() as u64) as u16;
        if !assigned.contains(&port) && bind(address, port).is_ok() {
            return Ok(port);
        }
    }
    bind(address, 0)
}

/// Begins at a random port, so that jobs that start at the same time get different ones.
fn free_of(range: &PortRange, address: Ipv4Addr) -> io::Result<u16> {
    let mut ports = range.ports_from(RandomState::new().hash_one(()) as usize);
    let free = ports.find(|port| bind(address, *port).is_ok());
    free.ok_or_else(|| io::Error::other(format!("no port of {range} is free at {address}")))
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
        let ports: Vec<_> = (0..20).map(|_| free(Ipv4Addr::LOCALHOST, None).unwrap()).collect();
        assert!(ports.iter().all(|port| CANDIDATES.contains(port) && !assigned.contains(port)), "{ports:?}");
        assert!(
            ports.iter().any(|port| *port != ports[0]),
            "jobs that start at the same time get the same port {ports:?}"
        );
    }

    #[test]
    fn a_range_is_respected() {
        let range = PortRange::of_variable(Some("22000-22001".into())).unwrap().unwrap();
        // An address that no other test uses.
        let here = Ipv4Addr::new(127, 83, 17, 1);
        let mut taken = vec![std::net::TcpListener::bind((here, 22000)).unwrap()];
        assert_eq!(free_of(&range, here).unwrap(), 22001);
        taken.push(std::net::TcpListener::bind((here, 22001)).unwrap());
        let error = free_of(&range, here).unwrap_err().to_string();
        assert!(error.contains("GLOO_RS_PORT_RANGE=22000-22001") && error.contains("127.83.17.1"), "{error}");
        drop(taken);
    }

    #[test]
    fn a_port_that_is_taken_is_not_free() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(bind(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port()).is_err());
    }
}
