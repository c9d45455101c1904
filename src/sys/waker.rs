//! Waking a thread that polls, from another thread.

use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

#[cfg(target_os = "linux")]
use super::check;

/// Wakes a thread that polls: an eventfd.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub struct Waker(OwnedFd);

#[cfg(target_os = "linux")]
impl Waker {
    /// Creates an eventfd.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers. `check` ensures that the descriptor is valid, and nothing else owns it.
        unsafe { Ok(Self(OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?))) }
    }

    /// Makes the descriptor readable.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: `one` has eight readable bytes. If the counter is full the call fails, but the descriptor is readable
        // already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes the descriptor not readable.
    pub fn clear(&self) {
        let mut count = [0; 8];
        // SAFETY: `count` has eight writable bytes. If the counter is 0 the call fails, but the descriptor is not
        // readable already.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

#[cfg(target_os = "linux")]
impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Wakes a thread that polls: a UDP socket that is connected to itself, so that only its own datagrams arrive.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub struct Waker(std::net::UdpSocket);

#[cfg(not(target_os = "linux"))]
impl Waker {
    /// Creates a socket on loopback.
    pub fn new() -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(socket.local_addr()?)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Makes the socket readable.
    pub fn wake(&self) {
        // If its buffer is full the call fails, but the socket is readable already.
        let _ = self.0.send(&[1]);
    }

    /// Makes the socket not readable.
    pub fn clear(&self) {
        while self.0.recv(&mut [0]).is_ok() {}
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
impl std::os::fd::AsRawFd for Waker {
    fn as_raw_fd(&self) -> super::RawSocket {
        self.0.as_raw_fd()
    }
}

#[cfg(windows)]
impl std::os::windows::io::AsRawSocket for Waker {
    fn as_raw_socket(&self) -> super::RawSocket {
        self.0.as_raw_socket()
    }
}
