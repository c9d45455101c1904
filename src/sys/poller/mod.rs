//! Waiting for sockets, with one contract for every way that a system offers: epoll (Linux), poll (every system), libuv
//! (cargo feature `uv`). All are level-triggered: what is ready is reported at each wait until it is no longer ready.

pub mod entries;
#[cfg(target_os = "linux")]
mod epoll;
mod poll;
#[cfg(test)]
mod tests;
#[cfg(feature = "uv")]
mod uv;

use std::io;
use std::time::Duration;

use super::RawSocket;
#[cfg(target_os = "linux")]
use epoll::Epoll;
use poll::Poll;
#[cfg(feature = "uv")]
use uv::Uv;

/// Interest in, or readiness for, reading. The numbers are those of epoll.
pub const READ: u32 = 0x1;
/// Interest in, or readiness for, writing.
pub const WRITE: u32 = 0x4;
/// Readiness of a connection that has failed. Reported whatever the interest is, unless that is 0.
pub const BROKEN: u32 = 0x8;
/// Readiness of a connection of which both directions have ended. Reported like [`BROKEN`].
pub const HANGUP: u32 = 0x10;
/// Interest in the end of what the peer sends, without interest in the bytes before it, where the system can tell
/// (Linux); elsewhere only [`HANGUP`] is reported.
pub const PEER_ENDED: u32 = 0x2000;

/// What is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The number with which it is registered.
    pub number: u64,
    /// [`READ`], [`WRITE`], [`BROKEN`], [`HANGUP`], [`PEER_ENDED`].
    pub ready: u32,
}

/// A way to wait for sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollerKind {
    /// epoll.
    #[cfg(target_os = "linux")]
    Epoll,
    /// poll, which Windows calls WSAPoll.
    Poll,
    /// A loop of libuv.
    #[cfg(feature = "uv")]
    Uv,
}

impl PollerKind {
    /// What this system does best.
    #[cfg(target_os = "linux")]
    pub const SYSTEM: Self = Self::Epoll;
    /// What this system does best.
    #[cfg(not(target_os = "linux"))]
    pub const SYSTEM: Self = Self::Poll;

    /// The kind that can wait for pollers of this kind. One loop of libuv cannot wait for another on every system.
    pub fn of_pollers(self) -> Self {
        match self {
            #[cfg(target_os = "linux")]
            Self::Epoll => Self::Epoll,
            _ => Self::Poll,
        }
    }
}

/// Watches sockets, and other pollers. Clones share it. Thread-safe.
#[derive(Clone, Debug)]
pub enum Poller {
    /// epoll.
    #[cfg(target_os = "linux")]
    Epoll(Epoll),
    /// poll.
    Poll(Poll),
    /// libuv.
    #[cfg(feature = "uv")]
    Uv(Uv),
}

/// What a poller, or [`poll`](super::poll), waits for.
#[derive(Clone, Debug)]
pub enum Pollable {
    /// A socket, or on Linux any descriptor.
    Socket(RawSocket),
    /// A poller: readable while it has events.
    Poller(Poller),
}

impl Poller {
    /// A poller of this kind.
    pub fn new(kind: PollerKind) -> io::Result<Self> {
        Ok(match kind {
            #[cfg(target_os = "linux")]
            PollerKind::Epoll => Self::Epoll(Epoll::new()?),
            PollerKind::Poll => Self::Poll(Poll::new()?),
            #[cfg(feature = "uv")]
            PollerKind::Uv => Self::Uv(Uv::new()?),
        })
    }

    /// Starts watching `what`; `number` is returned with its events. A socket must not be registered twice at one
    /// poller. Fails with [`io::ErrorKind::Unsupported`] for a poller that this kind cannot watch
    /// ([`PollerKind::of_pollers`]).
    pub fn add(&self, what: impl Into<Pollable>, interest: u32, number: u64) -> io::Result<Registration> {
        let what = what.into();
        let key = match self {
            #[cfg(target_os = "linux")]
            Self::Epoll(epoll) => Key::Descriptor(epoll.add(&what, interest, number)?),
            Self::Poll(poll) => Key::Entry(poll.add(what, interest, number)),
            #[cfg(feature = "uv")]
            Self::Uv(uv) => Key::Entry(uv.add(what, interest, number)?),
        };
        Ok(Registration { poller: self.clone(), key: Some(key) })
    }

    /// Waits for events and fills `events` from the front. Returns their number; 0 after `timeout`, after a signal, or
    /// if only the registrations have changed. `None` waits indefinitely.
    pub fn wait(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Epoll(epoll) => epoll.wait(events, timeout),
            Self::Poll(poll) => poll.wait(events, timeout),
            #[cfg(feature = "uv")]
            Self::Uv(uv) => uv.wait(events, timeout),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
impl Poller {
    /// Puts a file that is never readable in the place of epoll's descriptor, so that waits fail, and nothing wakes who
    /// sleeps until the poller is readable.
    pub fn break_down(&self) {
        let Self::Epoll(epoll) = self else { panic!("only epoll has a descriptor") };
        let (other, writer) = std::io::pipe().unwrap();
        // SAFETY: the number stays that of an open descriptor, which the poller closes.
        assert_eq!(unsafe { libc::dup2(super::AsRaw::raw(&other), epoll.fd()) }, epoll.fd());
        // Without a writer, it would be readable.
        std::mem::forget(writer);
    }
}

impl Pollable {
    /// The only entry of poll's list that asks whether this is readable; `None` if there are several, or if other
    /// threads must know that this one sleeps.
    pub(super) fn entry(&self) -> Option<entries::Entry> {
        match self {
            Self::Socket(socket) => Some(entries::entry(*socket, READ)),
            #[cfg(target_os = "linux")]
            Self::Poller(Poller::Epoll(epoll)) => Some(entries::entry(epoll.fd(), READ)),
            Self::Poller(_) => None,
        }
    }
}

impl From<Poller> for Pollable {
    fn from(poller: Poller) -> Self {
        Self::Poller(poller)
    }
}

impl<T: super::AsRaw> From<&T> for Pollable {
    fn from(socket: &T) -> Self {
        Self::Socket(socket.raw())
    }
}

/// How a poller finds a registration.
#[derive(Clone, Copy, Debug)]
enum Key {
    #[cfg(target_os = "linux")]
    Descriptor(std::os::fd::RawFd),
    Entry(u64),
}

/// A poller's interest in a socket, until this is dropped. It must be dropped before the socket is closed.
#[derive(Debug)]
pub struct Registration {
    poller: Poller,
    /// `None` once it has ended.
    key: Option<Key>,
}

impl Registration {
    /// Changes the interest and the number. With interest 0 nothing is reported, but on Linux that the connection has
    /// failed or ended.
    pub fn set(&self, interest: u32, number: u64) -> io::Result<()> {
        match (&self.poller, self.key) {
            #[cfg(target_os = "linux")]
            (Poller::Epoll(epoll), Some(Key::Descriptor(fd))) => epoll.modify(fd, interest, number),
            (Poller::Poll(poll), Some(Key::Entry(entry))) => {
                poll.set(entry, interest, number);
                Ok(())
            }
            #[cfg(feature = "uv")]
            (Poller::Uv(uv), Some(Key::Entry(entry))) => uv.set(entry, interest, number),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Ends it although the socket stays open.
    pub fn end(mut self) {
        match (&self.poller, self.key.take()) {
            #[cfg(target_os = "linux")]
            (Poller::Epoll(epoll), Some(Key::Descriptor(fd))) => epoll.remove(fd),
            (_, key) => self.key = key,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        match (&self.poller, self.key) {
            // The kernel does it when the descriptor is closed. In a child by fork it does not, and must not: the
            // parent's poller, which is the same, watches on.
            #[cfg(target_os = "linux")]
            (Poller::Epoll(_), _) => {}
            (Poller::Poll(poll), Some(Key::Entry(entry))) => poll.remove(entry),
            #[cfg(feature = "uv")]
            (Poller::Uv(uv), Some(Key::Entry(entry))) => uv.remove(entry),
            _ => {}
        }
    }
}

/// A socket that a poller watches while something is of interest.
#[derive(Debug, Default)]
pub struct Watched {
    /// `None` while nothing is.
    registration: Option<Registration>,
    interest: u32,
}

impl Watched {
    /// With a registration of this interest.
    pub fn of(registration: Registration, interest: u32) -> Self {
        Self { registration: Some(registration), interest }
    }

    /// Changes the interest in `socket`, always the same one. With interest 0 nothing is reported.
    pub fn set<T: super::AsRaw>(&mut self, poller: &Poller, socket: &T, interest: u32, number: u64) -> io::Result<()> {
        if self.interest == interest {
            return Ok(());
        }
        match &self.registration {
            // Without a registration: with empty interest, epoll would still report a broken connection, and wake its
            // user repeatedly.
            _ if interest == 0 => self.registration.take().into_iter().for_each(Registration::end),
            Some(registration) => registration.set(interest, number)?,
            None => self.registration = Some(poller.add(socket, interest, number)?),
        }
        self.interest = interest;
        Ok(())
    }

    /// Ends it although the socket stays open.
    pub fn end(self) {
        self.registration.into_iter().for_each(Registration::end);
    }
}

/// Milliseconds for the system's calls, rounded up, so that a deadline has passed when the wait for it returns; -1 for
/// `None`.
pub(super) fn milliseconds(timeout: Option<Duration>) -> i32 {
    timeout.map_or(-1, |timeout| timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32)
}

/// What a blocking wait watches, with what must be told when it has ended.
#[derive(Default)]
pub(super) struct Sleep {
    entries: Vec<entries::Entry>,
    /// Pollers without a descriptor whose changes wake this wait.
    asleep: Vec<Poll>,
}

impl Sleep {
    /// Adds the entries of `what`, which are those in the returned range.
    pub(super) fn add(&mut self, what: &Pollable) -> std::ops::Range<usize> {
        let from = self.entries.len();
        match (what.entry(), what) {
            (Some(entry), _) => self.entries.push(entry),
            (None, Pollable::Poller(Poller::Poll(poll))) => self.add_watched(poll),
            #[cfg(feature = "uv")]
            (None, Pollable::Poller(Poller::Uv(uv))) => self.add_watched(uv.watched()),
            (None, _) => {}
        }
        from..self.entries.len()
    }

    fn add_watched(&mut self, poll: &Poll) {
        poll.fall_asleep(self);
        self.asleep.push(poll.clone());
    }

    /// Waits; may return earlier. Returns whether an entry in `first` is ready.
    pub(super) fn wait(&mut self, timeout: Option<Duration>, first: std::ops::Range<usize>) -> io::Result<bool> {
        let ready = entries::wait_for_entries(&mut self.entries, timeout)?;
        Ok(ready > 0 && self.entries[first].iter().any(|entry| entries::ready(entry) != 0))
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.asleep.iter().for_each(Poll::wake_up);
    }
}
