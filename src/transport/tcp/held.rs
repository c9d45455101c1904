//! Links that hold bytes of which their sockets know nothing, as TLS does: decrypted ones that were not received, or encrypted ones that
//! the socket has not taken.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sys::Waker;
use crate::types::Rank;

/// What a link holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Received bytes, while it is watched for them.
    pub received: bool,
    /// Bytes that the socket has not taken. It is watched for room.
    pub unsent: bool,
}

/// The links of a context that hold something. Its descriptor is readable while one holds received bytes.
pub struct Held {
    links: Mutex<Vec<(Rank, Holds)>>,
    waker: Waker,
}

impl Held {
    pub fn new() -> io::Result<Self> {
        Ok(Self { links: Mutex::default(), waker: Waker::new()? })
    }

    fn links(&self) -> MutexGuard<'_, Vec<(Rank, Holds)>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the link to `rank` holds from now on.
    pub fn set(&self, rank: Rank, holds: Holds) {
        let mut links = self.links();
        let received = |links: &[(Rank, Holds)]| links.iter().any(|(_, holds)| holds.received);
        let before = received(&links);
        links.retain(|(its, _)| *its != rank);
        if holds != Holds::default() {
            links.push((rank, holds));
        }
        match (before, received(&links)) {
            (false, true) => self.waker.wake(),
            (true, false) => self.waker.clear(),
            _ => {}
        }
    }

    pub fn is_empty(&self) -> bool {
        self.links().is_empty()
    }

    pub fn ranks(&self) -> Vec<Rank> {
        self.links().iter().map(|(rank, _)| *rank).collect()
    }
}

impl AsRawFd for Held {
    fn as_raw_fd(&self) -> RawFd {
        self.waker.as_raw_fd()
    }
}
