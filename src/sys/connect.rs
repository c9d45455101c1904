//! Sockets that connect: without connections to themselves, and what it means if local ports run out.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket};

use super::poller::WRITE;
use super::poller::entries::{entry, poll_entries};
use super::socket::{self, AsRaw, is_in_progress};

/// A socket, which does not block, for a connection to an address of this `domain`.
///
/// If the system gives it the very port of a server that does not listen yet, that server can bind to the port all the
/// same.
pub fn client(domain: Domain) -> io::Result<Socket> {
    let socket = socket::stream(domain)?;
    // On Windows, where it means something else, such a server must try again.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// Lets connections of `socket` leave from `address`, whose port must be 0. Where the system can, the port is chosen
/// when it connects: then one local port serves connections to several destinations, so that ports do not run out
/// early.
pub fn leave_from(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let on: libc::c_int = 1;
        let size = size_of_val(&on) as libc::socklen_t;
        // SAFETY: the call reads one int, which lives until it returns. If it fails, the port is chosen at once.
        unsafe {
            libc::setsockopt(
                socket.raw(),
                libc::IPPROTO_IP,
                libc::IP_BIND_ADDRESS_NO_PORT,
                (&raw const on).cast(),
                size,
            )
        };
    }
    socket.bind(&address.into())
}

/// Connects to `to`, for at most `time`. The socket does not block.
pub fn connect(to: SocketAddr, time: Duration) -> io::Result<Socket> {
    let socket = client(Domain::for_address(to))?;
    match socket.connect(&to.into()) {
        Err(error) if !is_in_progress(&error) => return Err(error),
        _ => {}
    }
    let end = Instant::now().checked_add(time);
    loop {
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        match poll_entries(&mut [entry(socket.raw(), WRITE)], Some(left)) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out")),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    refuse_self_connection(&socket)?;
    Ok(socket)
}

/// Fails as a port without a listener does if `socket` is connected to itself: without a listener, that happens if its
/// own port is the target port. It is then closed by a reset, since the port would else be in TIME_WAIT when the server
/// wants to listen there.
pub fn refuse_self_connection<T>(socket: &T) -> io::Result<()>
where
    for<'a> SockRef<'a>: From<&'a T>,
{
    let socket = SockRef::from(socket);
    let (own, peer) = (socket.local_addr(), socket.peer_addr());
    if matches!((own, peer), (Ok(own), Ok(peer)) if own.as_socket() == peer.as_socket()) {
        socket.set_linger(Some(Duration::ZERO))?;
        return Err(socket::refused());
    }
    Ok(())
}

/// Whether `error`, of connecting to `to`, says that no local port is left, and not that there is no way to that
/// address.
pub fn lacks_ports(error: &io::Error, to: SocketAddr) -> bool {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable};
    matches!(error.kind(), AddrInUse | AddrNotAvailable) && !matches!(source(to), Ok(None))
}

/// An error of a lack of local ports, with what to raise.
pub fn ports_in_words(error: &io::Error) -> String {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let range: Vec<&str> = range.split_whitespace().collect();
    let range = if let [low, high] = range[..] { format!(", {low} to {high}") } else { String::new() };
    format!(
        "{error}: this host has no free port left among those that the system chooses{range}; a connection that has ended can keep its port \
         for 60 s; widen the range (net.ipv4.ip_local_port_range)"
    )
}

/// The address from which packets to `to` leave, without sending anything; `None` if there is no way.
pub fn source(to: SocketAddr) -> io::Result<Option<IpAddr>> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let leaving = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    Ok(socket::told(leaving)?.map(|address| address.ip()))
}

/// Whether `address`, whose port must be 0, is one of this host. Fails if the system could not be asked, as
/// [`socket::told`].
pub fn is_own(address: SocketAddr) -> io::Result<bool> {
    match UdpSocket::bind(address) {
        Err(error) if socket::is_exhausted(&error) => Err(error),
        Err(error) => Ok(!socket::is_foreign_address(&error)),
        Ok(_) => Ok(true),
    }
}
