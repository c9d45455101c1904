//! Links that hold bytes of which their sockets know nothing, as TLS does: decrypted ones that were not received, or encrypted ones that
//! the socket has not taken.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys::{Pollable, Waker};
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
    fn set(&self, rank: Rank, holds: Holds) {
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

/// One link's entry, which ends with it.
pub struct Holding {
    held: Option<Arc<Held>>,
    rank: Rank,
    holds: Holds,
}

impl Holding {
    /// Of a link that may hold something if there is a list.
    pub fn new(held: Option<Arc<Held>>, rank: Rank) -> Self {
        Self { held, rank, holds: Holds::default() }
    }

    /// Whether the link may hold something.
    #[inline]
    pub fn may_hold(&self) -> bool {
        self.held.is_some()
    }

    /// Says what the link holds now. Returns whether that has changed.
    pub fn set(&mut self, holds: Holds) -> bool {
        let changed = holds != std::mem::replace(&mut self.holds, holds);
        if let Some(held) = self.held.as_ref().filter(|_| changed) {
            held.set(self.rank, holds);
        }
        changed
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.set(Holds::default());
    }
}

impl From<&Held> for Pollable {
    fn from(held: &Held) -> Self {
        Self::from(&held.waker)
    }
}
