//! Which sockets are ready, level-triggered, and which peers have hung up.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::sys;

/// What to be told of, or what is so, about one descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Readiness {
    pub(super) read: bool,
    pub(super) write: bool,
    /// The peer sends no more, or the connection broke. Always told.
    pub(super) gone: bool,
}

impl Readiness {
    fn interest(self) -> u32 {
        let mut interest = libc::EPOLLRDHUP as u32;
        if self.read {
            interest |= sys::READ;
        }
        if self.write {
            interest |= sys::WRITE;
        }
        interest
    }
}

pub(super) struct Epoll {
    inner: sys::Epoll,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { inner: sys::Epoll::new()?, events: vec![libc::epoll_event { events: 0, u64: 0 }; 256] })
    }

    /// Begins to watch `fd`. Closing it ends that.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Readiness) -> io::Result<()> {
        self.inner.add(fd.as_raw_fd(), interest.interest(), token)
    }

    pub(super) fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Readiness) -> io::Result<()> {
        self.inner.modify(fd.as_raw_fd(), interest.interest(), token)
    }

    /// Sleeps until something is ready or `timeout` is over (`None`: never), and lists the tokens that are ready.
    pub(super) fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<(u64, Readiness)>) -> io::Result<()> {
        ready.clear();
        let count = self.inner.wait(&mut self.events, timeout)?;
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
