//! Sockets: sending and receiving without blocking.

use std::io::{self, IoSlice, IoSliceMut};
#[cfg(target_os = "linux")]
use std::mem::MaybeUninit;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

#[cfg(all(unix, not(target_os = "linux")))]
pub use std::os::fd::OwnedFd as OwnedSocket;
#[cfg(unix)]
pub use std::os::fd::RawFd as RawSocket;
#[cfg(windows)]
pub use std::os::windows::io::{OwnedSocket, RawSocket};

#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, OwnedFd};
#[cfg(unix)]
use std::os::fd::{AsRawFd, BorrowedFd as BorrowedSocket};
#[cfg(windows)]
use std::os::windows::io::{AsRawSocket, BorrowedSocket};

#[cfg(windows)]
use windows_sys::Win32::Networking::WinSock;

#[cfg(target_os = "linux")]
use super::{NotInherited, check};

/// What has a socket; on unix, a descriptor.
pub trait AsRaw {
    /// The socket, which is open at least as long as this lives.
    fn raw(&self) -> RawSocket;
}

#[cfg(unix)]
impl<T: AsRawFd + ?Sized> AsRaw for T {
    fn raw(&self) -> RawSocket {
        self.as_raw_fd()
    }
}

#[cfg(windows)]
impl<T: AsRawSocket + ?Sized> AsRaw for T {
    fn raw(&self) -> RawSocket {
        self.as_raw_socket()
    }
}

/// A socket that a child by fork does not keep.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub struct OwnedSocket {
    /// Dropped before the socket is closed.
    _registered: NotInherited,
    socket: OwnedFd,
}

#[cfg(target_os = "linux")]
macro_rules! from {
    ($($socket:ty),*) => {
        $(impl From<$socket> for OwnedSocket {
            fn from(socket: $socket) -> Self {
                let socket = OwnedFd::from(socket);
                Self { _registered: NotInherited::new(socket.as_raw_fd()), socket }
            }
        })*
    };
}

#[cfg(target_os = "linux")]
from!(Socket);
#[cfg(all(target_os = "linux", any(test, fuzzing)))]
from!(OwnedFd, std::net::TcpStream, std::os::unix::net::UnixStream);

#[cfg(target_os = "linux")]
impl AsFd for OwnedSocket {
    fn as_fd(&self) -> BorrowedSocket<'_> {
        self.socket.as_fd()
    }
}

#[cfg(target_os = "linux")]
impl AsRawFd for OwnedSocket {
    fn as_raw_fd(&self) -> RawSocket {
        self.socket.as_raw_fd()
    }
}

/// Makes operations on a descriptor of another library fail with [`io::ErrorKind::WouldBlock`] where they would block.
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
pub fn set_nonblocking(fd: RawSocket) -> io::Result<()> {
    // SAFETY: these commands access no memory.
    unsafe {
        let flags = check(libc::fcntl(fd, libc::F_GETFL))?;
        check(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)).map(drop)
    }
}

/// Repeats `call` while signals interrupt it.
#[cfg(target_os = "linux")]
pub(super) fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let n = call();
        if n >= 0 {
            return Ok(n as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Up to this total size, several buffers are copied into one before sending: the kernel then has no I/O vector to
/// process, which saves 0.1 µs of the 2 µs of a small message.
#[cfg(target_os = "linux")]
const GATHERED_BYTES: usize = 512;

/// Sends from several buffers with one system call, without SIGPIPE if the peer has closed. Returns the number of bytes
/// sent; does not block. The socket must be
/// non-blocking where the system has no flag for that.
#[cfg(target_os = "linux")]
pub fn send(fd: RawSocket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    const FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let total: usize = parts.iter().map(|part| part.len()).sum();
    if total <= GATHERED_BYTES {
        let mut gathered = [MaybeUninit::<u8>::uninit(); GATHERED_BYTES];
        let mut have = 0;
        for part in parts {
            // SAFETY: `have + part.len() <= total <= GATHERED_BYTES`, so the target is inside `gathered`; `part` is a
            // valid slice elsewhere.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), gathered[have..].as_mut_ptr().cast(), part.len()) };
            have += part.len();
        }
        // SAFETY: the first `have` bytes of `gathered` were initialised by the loop, and are valid during the call.
        return retry(|| unsafe { libc::send(fd, gathered.as_ptr().cast(), have, FLAGS) });
    }
    // SAFETY: a zeroed msghdr is a valid value: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: `IoSlice` is guaranteed to have the layout of `iovec`, and `parts` is valid during the call, which only
    // reads it.
    retry(|| unsafe { libc::sendmsg(fd, &message, FLAGS) })
}

/// Receives into several buffers with one system call. Returns the number of bytes received; does not block.
#[cfg(target_os = "linux")]
pub fn receive(fd: RawSocket, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    if let [part] = parts {
        // `recv` needs three quarters of the time of `recvmsg` to report that no data is available.
        // SAFETY: the pointer and the length describe the only part, which is valid for writes during the call.
        return retry(|| unsafe { libc::recv(fd, part.as_mut_ptr().cast(), part.len(), libc::MSG_DONTWAIT) });
    }
    // SAFETY: a zeroed msghdr is a valid value: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr().cast();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: `IoSliceMut` is guaranteed to have the layout of `iovec`; `parts` and its buffers are valid for writes
    // during the call.
    retry(|| unsafe { libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) })
}

/// Calls `body` with the socket `fd` as an object.
fn with_socket<T>(fd: RawSocket, body: impl FnOnce(&Socket) -> T) -> T {
    // SAFETY: callers pass open sockets, which stay open during the call.
    let borrowed = unsafe { BorrowedSocket::borrow_raw(fd) };
    body(&SockRef::from(&borrowed))
}

/// Repeats `call` while signals interrupt it.
#[cfg(not(target_os = "linux"))]
fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Sends from several buffers with one system call, without SIGPIPE if the peer has closed. Returns the number of bytes
/// sent; does not block, since the socket is non-blocking.
#[cfg(not(target_os = "linux"))]
pub fn send(fd: RawSocket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    // Where there is no flag against the signal, socket2 sets the socket's option when it creates or accepts it.
    retry(|| with_socket(fd, |socket| socket.send_vectored(parts)))
}

/// Receives into several buffers with one system call. Returns the number of bytes received; does not block, since the
/// socket is non-blocking.
#[cfg(not(target_os = "linux"))]
pub fn receive(fd: RawSocket, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    retry(|| with_socket(fd, |mut socket| io::Read::read_vectored(&mut socket, parts)))
}

/// A stream socket that does not block.
pub fn stream(domain: Domain) -> io::Result<Socket> {
    #[cfg(target_os = "linux")]
    return Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP));
    #[cfg(not(target_os = "linux"))]
    {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

/// Accepts a connection as a socket that does not block.
pub fn accept(listener: &OwnedSocket) -> io::Result<(Socket, SockAddr)> {
    let listener = SockRef::from(listener);
    #[cfg(target_os = "linux")]
    return listener.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    #[cfg(not(target_os = "linux"))]
    {
        let (socket, from) = listener.accept()?;
        socket.set_nonblocking(true)?;
        Ok((socket, from))
    }
}

/// Whether `error`, of connecting a socket that does not block, says that the connection is being made.
pub fn is_in_progress(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || cfg!(unix) && error.raw_os_error() == Some(libc::EINPROGRESS)
}

/// The error of a connection that the other side refuses.
pub fn refused() -> io::Error {
    #[cfg(unix)]
    return io::Error::from_raw_os_error(libc::ECONNREFUSED);
    #[cfg(windows)]
    io::Error::from_raw_os_error(WinSock::WSAECONNREFUSED)
}

/// Whether the system, or this process's limits, lack descriptors or memory.
pub fn is_exhausted(error: &io::Error) -> bool {
    #[cfg(unix)]
    let numbers = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    #[cfg(windows)]
    let numbers = [WinSock::WSAEMFILE, WinSock::WSAENOBUFS, WinSock::WSA_NOT_ENOUGH_MEMORY];
    error.raw_os_error().is_some_and(|number| numbers.contains(&number))
}

/// What the system said; `None` if it does not tell. Fails if it could not be asked, for lack of descriptors or memory:
/// another time, the answer may be another.
pub fn told<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if is_exhausted(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Whether the system, or this process's limit, lacks descriptors.
pub fn lacks_descriptors(error: &io::Error) -> bool {
    #[cfg(unix)]
    let numbers = [libc::EMFILE, libc::ENFILE];
    #[cfg(windows)]
    let numbers = [WinSock::WSAEMFILE];
    error.raw_os_error().is_some_and(|number| numbers.contains(&number))
}

/// Whether `error`, of connecting, says that there is no way to the other host, or that it does not answer the network.
pub fn is_unreachable(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable};
    #[cfg(unix)]
    let down = libc::EHOSTDOWN;
    #[cfg(windows)]
    let down = WinSock::WSAEHOSTDOWN;
    matches!(error.kind(), HostUnreachable | NetworkUnreachable | NetworkDown) || error.raw_os_error() == Some(down)
}

/// Whether `error` says that no socket of this host can have an address: it is no local one, or there is no such
/// family.
pub fn is_foreign_address(error: &io::Error) -> bool {
    #[cfg(unix)]
    let numbers = [libc::EADDRNOTAVAIL, libc::EAFNOSUPPORT];
    #[cfg(windows)]
    let numbers = [WinSock::WSAEADDRNOTAVAIL, WinSock::WSAEAFNOSUPPORT];
    error.raw_os_error().is_some_and(|number| numbers.contains(&number))
}

/// Whether the peer has closed the connection and all data that it sent has been read.
pub fn has_ended(fd: RawSocket) -> bool {
    with_socket(fd, |socket| matches!(socket.peek(&mut [std::mem::MaybeUninit::uninit()]), Ok(0)))
}

/// Number of bytes sent on a socket that the peer's kernel has not acknowledged. Fails with
/// [`io::ErrorKind::Unsupported`] where the system does not tell.
pub fn unacknowledged(fd: RawSocket) -> io::Result<usize> {
    #[cfg(target_os = "linux")]
    {
        let mut bytes: libc::c_int = 0;
        // SAFETY: TIOCOUTQ writes one int, and `bytes` is a valid int.
        check(unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &mut bytes) })?;
        Ok(bytes as usize)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = fd;
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn parts_arrive_in_order_whether_they_are_copied_or_not() {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let bytes: Vec<u8> = (0..2000u32).map(|i| (i * 7) as u8).collect();
        for lengths in
            [&[40, 0, 4][..], &[GATHERED_BYTES], &[GATHERED_BYTES - 1, 2], &[GATHERED_BYTES, GATHERED_BYTES], &[1], &[]]
        {
            let mut rest = &bytes[..];
            let parts: Vec<_> = lengths.iter().map(|n| IoSlice::new(rest.split_off(..*n).unwrap())).collect();
            let total = lengths.iter().sum::<usize>();
            assert_eq!(send(here.as_raw_fd(), &parts).unwrap(), total);
            let mut one = vec![0; total];
            let (mut left, mut right) = (vec![0; total / 2], vec![0; total.div_ceil(2)]);
            if total > 0 {
                assert_eq!(receive(there.as_raw_fd(), &mut [IoSliceMut::new(&mut one)]).unwrap(), total);
                assert_eq!(send(here.as_raw_fd(), &parts).unwrap(), total);
                let two = &mut [IoSliceMut::new(&mut left), IoSliceMut::new(&mut right)];
                assert_eq!(receive(there.as_raw_fd(), two).unwrap(), total);
            }
            assert_eq!(one, bytes[..total]);
            assert_eq!([left, right].concat(), bytes[..total]);
        }
        let error = receive(there.as_raw_fd(), &mut [IoSliceMut::new(&mut [0])]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(there);
        assert_eq!(send(here.as_raw_fd(), &[IoSlice::new(&[1])]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
