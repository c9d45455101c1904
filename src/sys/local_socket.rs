//! Sockets of this host that have a name in Linux's abstract namespace: no file stands for them, and a name ends with
//! its socket, also when the process is killed.

use std::io;
use std::mem::size_of;

use socket2::{Domain, SockAddr, Socket, Type};

use super::{AsRaw, check};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// The process at the other end of a connection, as the system knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number in this process's namespace; 0 if it has none there.
    pub process: u32,
    /// Its effective user when it began to listen, or connected.
    pub user: u32,
}

/// The address of the abstract socket with this name.
fn address(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

/// Listens under `name`; neither this socket nor those that it accepts block.
pub fn listen(name: &str) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    socket.bind(&address(name)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Connects to the socket that listens under `name`. Does not wait: fails with [`io::ErrorKind::WouldBlock`] if too many
/// connections wait there. The socket blocks afterwards.
pub fn connect(name: &str) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    socket.connect(&address(name)?)?;
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// The names in the abstract namespace that begin with `prefix` and have a socket that listens.
pub fn listening(prefix: &str) -> io::Result<Vec<String>> {
    let text = std::fs::read_to_string("/proc/net/unix")?;
    Ok(names_in(&text, prefix).map(str::to_owned).collect())
}

/// What `/proc/net/unix` says: a line for each socket, whose flags have a bit if it listens; `@` begins an abstract name.
fn names_in<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    const LISTENS: &str = "00010000";
    text.lines().filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace();
        let name = fields.by_ref().nth(7)?.strip_prefix('@')?;
        let flags = line.split_ascii_whitespace().nth(3)?;
        (flags == LISTENS && name.starts_with(prefix)).then_some(name)
    })
}

/// Who is at the other end of a connection.
pub fn peer(socket: &impl AsRaw) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` is valid for a write of `length` bytes, and `length` for reads and writes.
    check(unsafe {
        libc::getsockopt(socket.raw(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast(), &raw mut length)
    })?;
    Ok(Peer { process: u32::try_from(found.pid).unwrap_or(0), user: found.uid })
}

/// The effective user of this process.
pub fn user() -> u32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_sockets_that_listen() {
        let text = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 123 @gloo_rs/1/a
0000000000000000: 00000003 00000000 00000000 0001 03 124 @gloo_rs/1/a
0000000000000000: 00000002 00000000 00010000 0001 01 125 /run/gloo_rs/1/a
0000000000000000: 00000002 00000000 00010000 0001 01 126
0000000000000000: 00000002 00000000 00010000 0001 01 127 @other
";
        assert_eq!(names_in(text, "gloo_rs/").collect::<Vec<_>>(), ["gloo_rs/1/a"]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no Unix sockets with names")]
    fn both_ends_know_each_other_and_a_name_is_of_one_socket() {
        let name = format!("gloo_rs_test/{}/names", std::process::id());
        let listener = listen(&name).unwrap();
        assert_eq!(listening(&name).unwrap(), [&*name]);
        let client = connect(&name).unwrap();
        let (server, _) = listener.accept().unwrap();
        let own = Peer { process: std::process::id(), user: user() };
        assert_eq!((peer(&client).unwrap(), peer(&server).unwrap()), (own, own));
        assert_eq!(listen(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
