//! How processes connect on a network and prove that they belong to one job: addresses and their selection, the gate
//! for incoming connections, admission, handshakes; shared by contexts and the TCP store. Also who tells a user what the
//! contexts are doing.

pub mod address;
pub mod admission;
pub mod choice;
pub mod gate;
pub mod handshake;
pub mod host;
pub mod interface;
pub mod monitor;
pub mod pattern;
pub mod ports;
pub mod stream;
pub mod this_host;
#[cfg(feature = "tls")]
pub mod tls;

/// A TCP port of loopback that refuses connections: bound, so that no other test gets it, and not listening.
#[cfg(test)]
pub(crate) fn closed() -> std::net::SocketAddr {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    std::mem::forget(socket);
    address
}
