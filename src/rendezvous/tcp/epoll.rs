//! The two system calls that tell the server which sockets are ready, level-triggered.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// What to be told of, or what is so, about one descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Readiness {
    pub(super) read: bool,
    pub(super) write: bool,
    /// The peer sends no more, or the connection broke. Always told.
    pub(super) gone: bool,
}

pub(super) struct Epoll {
    descriptor: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let raw = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and open, and nothing else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Self { descriptor, events: vec![libc::epoll_event { events: 0, u64: 0 }; 256] })
    }

    /// Begins to watch `fd`. Closing it ends that.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Readiness) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    pub(super) fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Readiness) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    fn control(&self, operation: i32, fd: BorrowedFd<'_>, token: u64, interest: Readiness) -> io::Result<()> {
        let mut events = libc::EPOLLRDHUP;
        if interest.read {
            events |= libc::EPOLLIN;
        }
        if interest.write {
            events |= libc::EPOLLOUT;
        }
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: both descriptors are open while borrowed, and the system only reads `event`, during the call.
        match unsafe { libc::epoll_ctl(self.descriptor.as_raw_fd(), operation, fd.as_raw_fd(), &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sleeps until something is ready or `timeout` is over (`None`: never), and lists the tokens that are ready.
    pub(super) fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<(u64, Readiness)>) -> io::Result<()> {
        ready.clear();
        // Rounded up, so that a deadline has passed when its sleep ends.
        let milliseconds =
            timeout.map_or(-1, |time| i32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        // SAFETY: the pointer and length are those of `events`, which outlives the call.
        let count = unsafe {
            libc::epoll_wait(
                self.descriptor.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as i32,
                milliseconds,
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        };
        ready.extend(self.events[..count].iter().map(|event| {
            let (events, token) = (event.events as i32, event.u64);
            let broken = events & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
            let readiness = Readiness {
                read: events & libc::EPOLLIN != 0,
                write: events & libc::EPOLLOUT != 0,
                gone: broken || events & libc::EPOLLRDHUP != 0,
            };
            (token, readiness)
        }));
        Ok(())
    }
}
