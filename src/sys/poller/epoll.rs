//! epoll.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::{Event, Pollable, Poller, milliseconds};
use crate::sys::check;

/// One call takes this many events.
const EVENTS_AT_ONCE: usize = 64;

/// An epoll instance; clones share it.
#[derive(Clone, Debug)]
pub struct Epoll(Arc<OwnedFd>);

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers. `check` ensures that the descriptor is valid, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Self(Arc::new(fd)))
    }

    /// The instance's descriptor, which is readable while there are events.
    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, interest: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: data };
        // SAFETY: `event` is valid for reads during the call, which does not keep the pointer.
        check(unsafe { libc::epoll_ctl(self.fd(), operation, fd, &mut event) }).map(|_| ())
    }

    pub(super) fn add(&self, what: &Pollable, interest: u32, data: u64) -> io::Result<RawFd> {
        let fd = match what {
            Pollable::Socket(fd) => *fd,
            Pollable::Poller(Poller::Epoll(other)) => other.fd(),
            Pollable::Poller(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        self.control(libc::EPOLL_CTL_ADD, fd, interest, data)?;
        Ok(fd)
    }

    pub(super) fn modify(&self, fd: RawFd, interest: u32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, data)
    }

    pub(super) fn remove(&self, fd: RawFd) {
        // The call fails only if the descriptor is not watched.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    pub(super) fn wait(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        let mut found = [MaybeUninit::<libc::epoll_event>::uninit(); EVENTS_AT_ONCE];
        let room = events.len().min(EVENTS_AT_ONCE) as libc::c_int;
        // SAFETY: `found` is valid for writes of `room` events during the call.
        let n = unsafe { libc::epoll_wait(self.fd(), found.as_mut_ptr().cast(), room, milliseconds(timeout)) };
        match check(n) {
            Ok(n) => {
                for (event, found) in events.iter_mut().zip(&found[..n as usize]) {
                    // SAFETY: the call has written the first `n`.
                    let found = unsafe { found.assume_init() };
                    *event = Event { number: found.u64, ready: found.events };
                }
                Ok(n as usize)
            }
            // The caller checks its clock and calls again.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(e) => Err(e),
        }
    }
}
