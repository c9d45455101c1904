//! The system calls that the transport needs and the standard library lacks: epoll, eventfd, scatter and gather on sockets,
//! a mark that tells processes apart.
//! All descriptors are close-on-exec, and calls that a signal interrupts are made again.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Readiness to wait for, and readiness found.
pub const READ: u32 = libc::EPOLLIN as u32;
/// Likewise, for writing.
pub const WRITE: u32 = libc::EPOLLOUT as u32;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An epoll instance; clones are the same one.
#[derive(Clone, Debug)]
pub struct Epoll(Arc<OwnedFd>);

impl Epoll {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; a descriptor that the call returns is ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Self(Arc::new(fd)))
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, interest: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: data };
        // SAFETY: `event` outlives the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd, &mut event) }).map(|_| ())
    }

    /// Begins to watch `fd`.
    pub fn add(&self, fd: RawFd, interest: u32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest, data)
    }

    /// Changes what is watched for.
    pub fn modify(&self, fd: RawFd, interest: u32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, data)
    }

    /// Ends watching.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    /// Fills `events` from the front; returns how many. `None` waits without end.
    pub fn wait(&self, events: &mut [libc::epoll_event], timeout: Option<Duration>) -> io::Result<usize> {
        // Rounded up, so that a deadline has passed when the wait for it returns.
        let ms = timeout.map_or(-1, |t| t.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32);
        // SAFETY: the pointer and the length are those of `events`.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, ms) };
        match check(n) {
            Ok(n) => Ok(n as usize),
            // The caller looks at its clock and comes back.
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

/// Wakes an epoll instance from another thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; a descriptor that the call returns is ours alone.
        unsafe { Ok(Self(OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?))) }
    }

    /// Makes the descriptor readable.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes. A full counter is readable already, so the result does not matter.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes it silent again.
    pub fn clear(&self) {
        let mut count = [0; 8];
        // SAFETY: eight writable bytes. An empty counter is silent already.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Waits until one of `descriptors` is readable, or for so long, or until a signal comes. Whether the first is readable.
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
    // SAFETY: the pointer and the length are those of `entries`.
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

/// Up to so many bytes from several places are sent from one. Then the system does not have to look for them: 0.1 µs less of
/// the 2 that a small message takes.
const GATHERED_BYTES: usize = 512;

/// Sends from several places at once, without a signal if the peer is gone.
pub fn send(fd: RawFd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    const FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let total: usize = parts.iter().map(|part| part.len()).sum();
    if total <= GATHERED_BYTES {
        let mut gathered = [MaybeUninit::<u8>::uninit(); GATHERED_BYTES];
        let mut have = 0;
        for part in parts {
            // SAFETY: the lengths so far and this one's add up to at most `total`, which fits.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), gathered[have..].as_mut_ptr().cast(), part.len()) };
            have += part.len();
        }
        // SAFETY: `have` bytes were written just now.
        return retry(|| unsafe { libc::send(fd, gathered.as_ptr().cast(), have, FLAGS) });
    }
    // SAFETY: a zeroed msghdr is valid: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: `IoSlice` has the layout of `iovec`; `parts` outlives the call, which only reads.
    retry(|| unsafe { libc::sendmsg(fd, &message, FLAGS) })
}

/// Receives into several places at once.
pub fn receive(fd: RawFd, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    if let [part] = parts {
        // Finds out that nothing has come in three quarters of the time.
        // SAFETY: the pointer and the length are those of the one part.
        return retry(|| unsafe { libc::recv(fd, part.as_mut_ptr().cast(), part.len(), libc::MSG_DONTWAIT) });
    }
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr().cast();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: `IoSliceMut` has the layout of `iovec`; `parts` outlives the call.
    retry(|| unsafe { libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) })
}

/// Waits until `fd` is ready for `interest` ([`READ`] or [`WRITE`]), has failed, or a signal came; `false` if `timeout` was over
/// before that. Exact, unlike a socket's own timers (`SO_RCVTIMEO`), which the kernel rounds up: 17 s to as much as 19.
fn await_ready(fd: RawFd, interest: u32, timeout: Duration) -> io::Result<bool> {
    let mut polled = libc::pollfd { fd, events: interest as libc::c_short, revents: 0 };
    let seconds = libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX);
    let timeout = libc::timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos() as _ };
    // SAFETY: one pollfd and one timespec, which outlive the call; no signals are masked.
    match check(unsafe { libc::ppoll(&mut polled, 1, &timeout, std::ptr::null()) }) {
        Ok(ready) => Ok(ready > 0),
        // The caller looks at its clock and comes back.
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(e) => Err(e),
    }
}

/// Repeats `call`, which does not wait, as often as `fd` is ready for `interest`, for as long as `left` says; then fails with
/// `WouldBlock`. Calls at least once.
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

/// Whether the peer has ended the connection, and everything it sent before has been read.
pub fn has_ended(fd: RawFd) -> bool {
    let mut byte = 0u8;
    // SAFETY: one writable byte.
    let peek = || unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    matches!(retry(peek), Ok(0))
}

/// Bytes sent on a socket that the peer's system has not acknowledged.
pub fn unacknowledged(fd: RawFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int, to `bytes`.
    check(unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &mut bytes) })?;
    Ok(bytes as usize)
}

/// Keeps signals from this thread: they belong to the host program's.
pub fn block_signals() {
    // SAFETY: the set is initialised by sigfillset before it is used; only this thread's mask changes.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// How many descriptors this process may have now.
pub fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call fills `limit`, or leaves it as it is.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur
}

/// Random bytes from the system.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut have = 0;
    while have < N {
        // SAFETY: the pointer and the length are those of the rest of `bytes`.
        have += retry(|| unsafe { libc::getrandom(bytes[have..].as_mut_ptr().cast(), N - have, 0) })?;
    }
    Ok(bytes)
}

/// Tells the process that made it from its children by fork, without a system call: memory that the system empties in a
/// child.
#[derive(Debug)]
pub struct ForkMark {
    page: *mut AtomicU32,
    /// Whether the system empties it. Where it cannot (Linux before 4.14), the process is asked who it is.
    emptied: bool,
}

// SAFETY: an atomic in memory that lives as long as the mark.
unsafe impl Send for ForkMark {}
// SAFETY: likewise.
unsafe impl Sync for ForkMark {}

const MARK_BYTES: usize = size_of::<AtomicU32>();

impl ForkMark {
    /// Of the calling process.
    pub fn new() -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, at a place of the system's choice; the length is rounded up to a page.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), MARK_BYTES, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the memory just made.
        let emptied = unsafe { libc::madvise(page, MARK_BYTES, libc::MADV_WIPEONFORK) } == 0;
        let mark = Self { page: page.cast(), emptied };
        mark.word().store(std::process::id(), Ordering::Relaxed);
        Ok(mark)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped until `drop`, and aligned as a page is.
        unsafe { &*self.page }
    }

    /// Whether this is another process than the one that made the mark.
    #[inline]
    pub fn is_child(&self) -> bool {
        let maker = self.word().load(Ordering::Relaxed);
        if self.emptied { maker == 0 } else { maker != std::process::id() }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: the mapping is the mark's own.
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
    fn a_mark_knows_a_child() {
        let mark = ForkMark::new().unwrap();
        let asked = ForkMark { page: ForkMark::new().map(std::mem::ManuallyDrop::new).unwrap().page, emptied: false };
        assert!(!mark.is_child() && !asked.is_child());
        // SAFETY: the child makes system calls only, and looks at memory.
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
