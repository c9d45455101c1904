//! The descriptors that a child by fork does not keep.
//!
//! While a child has a copy of a connection's socket, the peer does not see that the parent has ended. So there is one
//! register of such descriptors in a process, the only state of this library that belongs to no object, and `fork`
//! calls [`give_up_all`] in the child. The register is empty while no device and no store lives. If the library is
//! unloaded, the system forgets the function.

use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Higher descriptors are not registered. The register takes memory only for those that are used: pages of zeros.
const MAX_DESCRIPTORS: usize = 1 << 20;

/// A bit for each descriptor. Atomic words and no lock: in the child, another thread of the parent might hold it for
/// ever.
static REGISTERED: [AtomicU64; MAX_DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];
/// How many words have had a bit.
static WORDS: AtomicUsize = AtomicUsize::new(0);
static AT_FORK: Once = Once::new();

/// The registration of a descriptor. Whoever owns both drops this first: another one may get the number once the
/// descriptor is closed.
#[derive(Debug)]
pub struct NotInherited(RawFd);

impl NotInherited {
    /// Registers an open descriptor.
    pub fn new(fd: RawFd) -> Self {
        AT_FORK.call_once(|| {
            // SAFETY: the function may run in a child of a process with several threads. If it cannot be registered,
            // children keep copies.
            unsafe { libc::pthread_atfork(None, None, Some(give_up_all)) };
        });
        if let Some((word, bit)) = place(fd) {
            WORDS.fetch_max(word + 1, Ordering::Relaxed);
            REGISTERED[word].fetch_or(bit, Ordering::Relaxed);
        }
        Self(fd)
    }
}

impl Drop for NotInherited {
    fn drop(&mut self) {
        if let Some((word, bit)) = place(self.0) {
            REGISTERED[word].fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

fn place(fd: RawFd) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok().filter(|fd| *fd < MAX_DESCRIPTORS)?;
    Some((fd / 64, 1 << (fd % 64)))
}

fn unconnected() -> RawFd {
    // SAFETY: the call accesses no memory.
    unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }
}

/// Puts a socket that is connected to nothing in the place of all registered descriptors. Their numbers stay in use,
/// because objects of the parent, which the child may destroy, close them. The child's register is empty afterwards: it
/// may use the numbers for files of its own, which its own children keep. Runs in the child, and only makes system
/// calls that may be made there.
extern "C" fn give_up_all() {
    let mut nothing = -1;
    let words = WORDS.load(Ordering::Relaxed).min(REGISTERED.len());
    for (index, word) in REGISTERED[..words].iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = (index * 64) as RawFd + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            // SAFETY: the calls access no memory, and the descriptor is of this library: it is registered only while it
            // is open.
            unsafe {
                nothing = if nothing < 0 { unconnected() } else { nothing };
                if nothing >= 0 {
                    // The number may be beyond a limit that was lowered since.
                    if libc::dup3(nothing, fd, libc::O_CLOEXEC) < 0 {
                        libc::close(fd);
                    }
                } else {
                    // No descriptor is free but this one, which the next socket gets.
                    libc::close(fd);
                    unconnected();
                }
            }
        }
    }
    if nothing >= 0 {
        // SAFETY: the call accesses no memory; the descriptor was made above.
        unsafe { libc::close(nothing) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::sys::fork;

    /// Runs `body` in a child, which lives until `release` is dropped, and `meanwhile` here; returns the child's
    /// status.
    fn held_in_a_child(body: impl FnOnce() -> bool, meanwhile: impl FnOnce()) -> i32 {
        let (release, mut held) = UnixStream::pair().unwrap();
        // SAFETY: after fork, the child makes async-signal-safe system calls only.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                drop(release);
                let right = body();
                let _ = held.read(&mut [0]);
                libc::_exit(i32::from(!right));
            }
            meanwhile();
            drop(release);
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            status
        }
    }

    #[test]
    fn a_child_keeps_the_number_of_a_registered_descriptor_and_not_the_socket() {
        let (own, mut peer) = UnixStream::pair().unwrap();
        let (kept, mut other) = UnixStream::pair().unwrap();
        peer.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        other.set_nonblocking(true).unwrap();
        drop(NotInherited::new(kept.as_raw_fd()));
        let registered = NotInherited::new(own.as_raw_fd());
        let number = own.as_raw_fd();
        let is_open_and_unconnected = || {
            let mut byte = 0u8;
            // SAFETY: the first call accesses no memory, the second writes to a byte.
            unsafe {
                libc::fcntl(number, libc::F_GETFD) == libc::FD_CLOEXEC
                    && libc::recv(number, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) < 0
                    && *libc::__errno_location() == libc::EINVAL
            }
        };
        let is_the_childs_own = || {
            // SAFETY: system calls that a child may make, with a path that ends with NUL.
            unsafe {
                let log = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
                libc::dup2(log, number);
                fork::in_a_child(|| libc::write(number, [0u8].as_ptr().cast(), 1) == 1)
            }
        };
        let status = held_in_a_child(
            || is_open_and_unconnected() && is_the_childs_own(),
            || {
                drop(registered);
                drop(own);
                assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the end arrives though the child lives");
                drop(kept);
                let error = other.read(&mut [0]).unwrap_err();
                assert_eq!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock,
                    "the child keeps what is not registered any more"
                );
            },
        );
        assert_eq!(status, 0);
    }

    #[test]
    fn a_descriptor_beyond_a_limit_that_was_lowered_is_closed() {
        const HIGH: RawFd = 900;
        let (own, _peer) = UnixStream::pair().unwrap();
        drop(NotInherited::new(own.as_raw_fd()));
        let closes = || {
            // SAFETY: system calls that a child may make. Whatever has the number, this child does not use it.
            unsafe {
                libc::dup2(own.as_raw_fd(), HIGH);
                let _registered = NotInherited::new(HIGH);
                let limit = libc::rlimit { rlim_cur: HIGH as u64, rlim_max: HIGH as u64 };
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
                fork::in_a_child(|| libc::fcntl(HIGH, libc::F_GETFD) == -1)
            }
        };
        // SAFETY: the child makes system calls that it may make.
        assert!(unsafe { fork::in_a_child(closes) });
    }
}
