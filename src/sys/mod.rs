//! System calls that the transport needs and the standard library lacks: epoll, eventfd, scatter/gather on sockets,
//! detection of a fork, memory that processes share. All descriptors are close-on-exec. Calls interrupted by a signal are repeated.

pub mod process;
pub mod shared_memory;
pub mod topology;

use std::ffi::{CStr, c_void};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Interest in, or readiness for, reading.
pub const READ: u32 = libc::EPOLLIN as u32;
/// Interest in, or readiness for, writing.
pub const WRITE: u32 = libc::EPOLLOUT as u32;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An epoll instance; clones share it.
#[derive(Clone, Debug)]
pub struct Epoll(Arc<OwnedFd>);

impl Epoll {
    /// Creates an epoll instance.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers. `check` ensures that the descriptor is valid, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Self(Arc::new(fd)))
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, interest: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: data };
        // SAFETY: `event` is valid for reads during the call, which does not keep the pointer.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd, &mut event) }).map(|_| ())
    }

    /// Starts watching `fd`; `data` is returned with its events.
    pub fn add(&self, fd: RawFd, interest: u32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest, data)
    }

    /// Changes the interest in `fd`.
    pub fn modify(&self, fd: RawFd, interest: u32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, data)
    }

    /// Stops watching `fd`.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    /// Waits for events and fills `events` from the front. Returns their number; 0 after `timeout` or a signal. `None`
    /// waits indefinitely.
    pub fn wait(&self, events: &mut [libc::epoll_event], timeout: Option<Duration>) -> io::Result<usize> {
        // Rounded up, so that a deadline has passed when the wait returns.
        let ms = timeout.map_or(-1, |t| t.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32);
        // SAFETY: the pointer and the length describe `events`, which is valid for writes during the call.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, ms) };
        match check(n) {
            Ok(n) => Ok(n as usize),
            // The caller checks its clock and calls again.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(e) => Err(e),
        }
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// An eventfd that wakes an epoll instance from another thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

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

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Waits until one of `descriptors` is readable, for at most `timeout`, or until a signal arrives. Returns whether the
/// first is readable.
pub fn poll(descriptors: &[RawFd], timeout: Duration) -> bool {
    // Rounded up, so that a deadline has passed when the wait for it returns.
    let ms = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
    let entry = |fd: &RawFd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    let mut few = [libc::pollfd { fd: -1, events: 0, revents: 0 }; 4];
    let mut many = Vec::new();
    let entries = if descriptors.len() <= few.len() {
        few.iter_mut().zip(descriptors).for_each(|(slot, fd)| *slot = entry(fd));
        &mut few[..descriptors.len()]
    } else {
        many.extend(descriptors.iter().map(entry));
        &mut many[..]
    };
    // SAFETY: the pointer and the length describe `entries`, which is valid for reads and writes during the call.
    let n = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as _, ms) };
    n > 0 && entries.first().is_some_and(|first| first.revents != 0)
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
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
const GATHERED_BYTES: usize = 512;

/// Sends from several buffers with one system call, without SIGPIPE if the peer has closed. Returns the number of bytes
/// sent; does not block.
pub fn send(fd: RawFd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
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
pub fn receive(fd: RawFd, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
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

/// Waits until `fd` is ready for `interest` ([`READ`] or [`WRITE`]), has failed, or a signal arrived; returns `false`
/// if `timeout` expired before that. Precise, unlike a socket's own timeouts (`SO_RCVTIMEO`), which the kernel rounds
/// up: 17 s to as much as 19 s.
fn await_ready(fd: RawFd, interest: u32, timeout: Duration) -> io::Result<bool> {
    let mut polled = libc::pollfd { fd, events: interest as libc::c_short, revents: 0 };
    let seconds = libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX);
    let timeout = libc::timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos() as _ };
    // SAFETY: `polled` and `timeout` are valid during the call, and the length is 1; a null signal mask is permitted.
    match check(unsafe { libc::ppoll(&mut polled, 1, &timeout, std::ptr::null()) }) {
        Ok(ready) => Ok(ready > 0),
        // The caller checks its clock and calls again.
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(e) => Err(e),
    }
}

/// Repeats the non-blocking `call` whenever `fd` is ready for `interest`, until `left` returns that no time is left;
/// then fails with `WouldBlock`. Calls at least once.
pub fn call_when_ready(
    fd: RawFd,
    interest: u32,
    left: impl Fn() -> Duration,
    mut call: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !await_ready(fd, interest, left())? {
                    return Err(error);
                }
            }
            result => return result,
        }
    }
}

/// Whether the peer has closed the connection and all data that it sent has been read.
pub fn has_ended(fd: RawFd) -> bool {
    let mut byte = 0u8;
    // SAFETY: `byte` is valid for writing one byte during the call.
    let peek = || unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    matches!(retry(peek), Ok(0))
}

/// Whether a TCP socket is connected to itself: without a listener, that happens if its own port is the target port.
pub fn is_connected_to_itself(socket: &impl AsFd) -> bool {
    let socket = socket2::SockRef::from(socket);
    let (own, peer) = (socket.local_addr(), socket.peer_addr());
    matches!((own, peer), (Ok(own), Ok(peer)) if own.as_socket() == peer.as_socket())
}

/// Number of bytes sent on a socket that the peer's kernel has not acknowledged.
pub fn unacknowledged(fd: RawFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ writes one int, and `bytes` is a valid int.
    check(unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &mut bytes) })?;
    Ok(bytes as usize)
}

/// Blocks all signals in this thread, because they are meant for the host program.
pub fn block_signals() {
    // SAFETY: a zeroed sigset_t is a valid value that sigfillset initialises; the calls change only this thread's mask,
    // and a null pointer for the old mask is permitted.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// The soft limit on the number of descriptors of this process.
pub fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is a valid rlimit; the call fills it or, on failure, leaves its initial value.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur
}

/// Random bytes from the kernel.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut have = 0;
    while have < N {
        // SAFETY: `have < N`, so the pointer and the length `N - have` describe the rest of `bytes`.
        have += retry(|| unsafe { libc::getrandom(bytes[have..].as_mut_ptr().cast(), N - have, 0) })?;
    }
    Ok(bytes)
}

/// Distinguishes the process that created the mark from children created by fork, without a system call: the kernel
/// clears a page of memory in the child.
#[derive(Debug)]
pub struct ForkMark {
    page: *mut AtomicU32,
    /// Whether the kernel clears the page. If it cannot (Linux before 4.14), process ids are compared.
    emptied: bool,
}

// SAFETY: the mark owns the mapping, which contains only an atomic and is not tied to a thread.
unsafe impl Send for ForkMark {}
// SAFETY: shared references only access an atomic.
unsafe impl Sync for ForkMark {}

const MARK_BYTES: usize = size_of::<AtomicU32>();

impl ForkMark {
    /// A mark of the calling process.
    pub fn new() -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address chosen by the kernel does not affect existing memory; the length
        // is rounded up to a page.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), MARK_BYTES, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the page was mapped just now with at least this length, and the advice does not invalidate it in this
        // process.
        let emptied = unsafe { libc::madvise(page, MARK_BYTES, libc::MADV_WIPEONFORK) } == 0;
        let mark = Self { page: page.cast(), emptied };
        mark.word().store(std::process::id(), Ordering::Relaxed);
        Ok(mark)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped until `drop`, page-aligned, and contains a valid `AtomicU32`; it is accessed only
        // as such.
        unsafe { &*self.page }
    }

    /// Whether this process is not the one that created the mark.
    #[inline]
    pub fn is_child(&self) -> bool {
        let maker = self.word().load(Ordering::Relaxed);
        if self.emptied { maker == 0 } else { maker != std::process::id() }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: the mark owns the mapping, and no reference to it can exist any more.
        unsafe { libc::munmap(self.page.cast(), MARK_BYTES) };
    }
}

/// Runs `write` so that a pipe without readers is an error of it and no signal, which would end a host program that left
/// SIGPIPE as it was. For descriptors that are no sockets; [`send`] does without signals.
pub fn without_sigpipe<T>(write: impl FnOnce() -> T) -> T {
    // SAFETY: `sigset_t` may be zeroed, and each call gets valid sets of this function's.
    unsafe {
        let (mut pipe, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        let was_pending = libc::sigismember(&pending, libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before);
        let result = write();
        // The signal of a failed write is this thread's, and waits.
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        if !was_pending {
            while libc::sigtimedwait(&pipe, std::ptr::null_mut(), &now) == -1
                && *libc::__errno_location() == libc::EINTR
            {}
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// Calls `body` with the address of `symbol` in `library`; `None` if this process has not loaded the library, or it has no such
/// symbol. The library stays loaded during the call.
pub fn with_loaded_symbol<T>(library: &CStr, symbol: &CStr, body: impl FnOnce(*mut c_void) -> T) -> Option<T> {
    // SAFETY: strings that end with NUL. With RTLD_NOLOAD no code of the library runs.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: an open handle.
    let address = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
    let result = (!address.is_null()).then(|| body(address));
    // SAFETY: opened above, and closed once.
    unsafe { libc::dlclose(handle) };
    result
}

#[cfg(test)]
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

    #[test]
    fn a_write_without_readers_is_an_error_and_no_signal() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        // SAFETY: the child makes system calls only. SIGPIPE would end it.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                let written = without_sigpipe(|| libc::write(writer.as_raw_fd(), [0u8].as_ptr().cast(), 1));
                libc::_exit(if written == -1 && *libc::__errno_location() == libc::EPIPE { 0 } else { 1 });
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            status
        };
        assert_eq!(status, 0);
    }

    #[test]
    fn a_fork_mark_recognises_a_child() {
        let mark = ForkMark::new().unwrap();
        let asked = ForkMark { page: ForkMark::new().map(std::mem::ManuallyDrop::new).unwrap().page, emptied: false };
        assert!(!mark.is_child() && !asked.is_child());
        // SAFETY: after fork, the child only reads memory and makes async-signal-safe system calls.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(if mark.is_child() && asked.is_child() { 0 } else { 1 });
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            status
        };
        assert_eq!(status, 0);
        assert!(!mark.is_child());
    }
}
