//! Links that hold bytes of which their sockets know nothing, as TLS does: decrypted ones that were not received, or
//! encrypted ones that the socket has not taken.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys::{ForkMark, Pollable, Waker};
use crate::types::Rank;

/// What a link holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffered {
    /// Received bytes, while it is watched for them.
    pub received: bool,
    /// Bytes that the socket has not taken. It is watched for room.
    pub unsent: bool,
}

/// The links of a context that hold something. Its descriptor is readable while one holds received bytes, or has
/// changed.
pub struct BufferedLinks {
    lists: Mutex<Lists>,
    waker: Waker,
    mark: ForkMark,
}

#[derive(Default)]
struct Lists {
    links: Vec<(Rank, Buffered)>,
    /// Ranks to whose links something has happened in another thread since the last [`BufferedLinks::ready`].
    changed: Vec<Rank>,
}

impl Lists {
    /// Whether a thread that waits must go on.
    fn calls(&self) -> bool {
        !self.changed.is_empty() || self.links.iter().any(|(_, buffered)| buffered.received)
    }
}

impl BufferedLinks {
    pub fn new() -> io::Result<Self> {
        Ok(Self { lists: Mutex::default(), waker: Waker::new()?, mark: ForkMark::new()? })
    }

    /// Changes the lists, and the descriptor with them.
    fn change<T>(&self, change: impl FnOnce(&mut Lists) -> T) -> T {
        let mut lists = self.lists();
        let before = lists.calls();
        let result = change(&mut lists);
        match (before, lists.calls()) {
            (false, true) => self.waker.wake(),
            (true, false) => self.waker.clear(),
            _ => {}
        }
        result
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the link to `rank` holds from now on. Does nothing in a child by fork, which destroys its copy of a link:
    /// the waker is the parent's as well.
    fn set(&self, rank: Rank, buffered: Buffered) {
        if self.mark.is_child() {
            return;
        }
        self.change(|lists| {
            lists.links.retain(|(other, _)| *other != rank);
            if buffered != Buffered::default() {
                lists.links.push((rank, buffered));
            }
        });
    }

    /// The link to `rank` can go on: bytes have come, there is room, or it has ended. Called by any thread.
    pub fn tell(&self, rank: Rank) {
        self.change(|lists| {
            if !lists.changed.contains(&rank) {
                lists.changed.push(rank);
            }
        });
    }

    pub fn is_empty(&self) -> bool {
        let lists = self.lists();
        lists.links.is_empty() && lists.changed.is_empty()
    }

    /// The ranks whose links may be able to go on. Those that have changed are not returned again.
    pub fn ready(&self) -> Vec<Rank> {
        if self.is_empty() {
            return Vec::new();
        }
        self.change(|lists| {
            let mut ranks = std::mem::take(&mut lists.changed);
            ranks.extend(
                lists.links.iter().map(|(rank, _)| *rank).filter(|rank| !ranks.contains(rank)).collect::<Vec<_>>(),
            );
            ranks
        })
    }
}

/// One link's entry, which ends with it.
pub struct BufferedLink {
    buffered_links: Option<Arc<BufferedLinks>>,
    rank: Rank,
    buffered: Buffered,
}

impl BufferedLink {
    /// Makes the entry of a link, which may hold bytes if there is a list.
    pub fn new(buffered_links: Option<Arc<BufferedLinks>>, rank: Rank) -> Self {
        Self { buffered_links, rank, buffered: Buffered::default() }
    }

    /// Whether the link may hold something.
    #[inline]
    pub fn may_buffer(&self) -> bool {
        self.buffered_links.is_some()
    }

    /// Says what the link holds now. Returns whether that has changed.
    pub fn set(&mut self, buffered: Buffered) -> bool {
        let changed = buffered != std::mem::replace(&mut self.buffered, buffered);
        if let Some(buffered_links) = self.buffered_links.as_ref().filter(|_| changed) {
            buffered_links.set(self.rank, buffered);
        }
        changed
    }
}

impl Drop for BufferedLink {
    fn drop(&mut self) {
        self.set(Buffered::default());
    }
}

impl From<&BufferedLinks> for Pollable {
    fn from(buffered_links: &BufferedLinks) -> Self {
        Self::from(&buffered_links.waker)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sys;

    #[test]
    fn a_child_by_fork_does_not_silence_its_parent() {
        let buffered_links = Arc::new(BufferedLinks::new().unwrap());
        let mut buffered_link = BufferedLink::new(Some(buffered_links.clone()), 3);
        buffered_link.set(Buffered { received: true, unsent: false });
        // SAFETY: the child makes system calls and takes a lock that no other thread has.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                drop(buffered_link);
                libc::_exit(0);
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            status
        };
        assert_eq!(status, 0);
        assert!(sys::poll(&[Pollable::from(&*buffered_links)], Duration::ZERO), "the link still holds bytes");
    }
}
