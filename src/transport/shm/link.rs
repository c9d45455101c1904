//! A link between two ranks that share memory.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::group::HostGroup;
use super::ptracer;
use super::registration::Registration;
use super::ring::{self, Consumer, Producer};
use super::segment::{LAST_BYTES, LINES, Lane, REGISTRATIONS};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::{self, Pollable, Poller};
use crate::transport::local::{LocalRanks, MESSAGES};
use crate::transport::{Interest, Link, RemoteMemory};

/// From this length on it is faster to read a message out of the sender's memory than to copy it twice.
const EAGER_BYTES: usize = 16 << 10;
/// A link that finds nothing this many times in succession looks whether the peer's process has ended.
const TURNS: u32 = 1024;

/// What the connector knows of a link.
pub(super) struct Port {
    readable: AtomicBool,
    writable: AtomicBool,
    /// Where this rank is in the ring to the peer if it waits for room there.
    waits_at: AtomicU64,
    /// Whether the system has said that the peer's process has ended.
    exited: AtomicBool,
}

impl Port {
    /// No link.
    pub fn new() -> Self {
        Self {
            readable: AtomicBool::new(false),
            writable: AtomicBool::new(false),
            waits_at: AtomicU64::new(0),
            exited: AtomicBool::new(false),
        }
    }

    /// The peer's process has ended: from now on every condition for which a context waits may be true.
    pub fn set_exited(&self) {
        self.exited.store(true, Ordering::Relaxed);
    }

    /// The conditions for which a context waits.
    pub fn interest(&self) -> Interest {
        let [readable, writable] = [&self.readable, &self.writable].map(|flag| flag.load(Ordering::Relaxed));
        Interest { readable, writable }
    }

    fn set(&self, Interest { readable, writable }: Interest) {
        self.readable.store(readable, Ordering::Relaxed);
        self.writable.store(writable, Ordering::Relaxed);
    }

    /// The watched conditions that are true now for the link to the member at `index`.
    pub fn ready(&self, group: &HostGroup, index: usize) -> Interest {
        let Interest { readable, writable } = self.interest();
        if self.exited.load(Ordering::Relaxed) {
            return Interest { readable, writable };
        }
        let (own, theirs) = (group.own_lane(index), group.lane(index));
        let has_bytes = || {
            let consumed = own.consumed.0.load(Ordering::Relaxed);
            // SAFETY: the lane has so many lines.
            let record = unsafe { ring::has_record(theirs.lines.as_ptr(), LINES, consumed) };
            record || theirs.ended.0.load(Ordering::Relaxed) != 0
        };
        let has_room = || {
            let consumed = theirs.consumed.0.load(Ordering::Relaxed);
            ring::has_room(LINES, consumed, self.waits_at.load(Ordering::Relaxed))
        };
        Interest { readable: readable && has_bytes(), writable: writable && has_room() }
    }
}

/// A link to a member of the group.
pub struct ShmLink {
    group: Arc<HostGroup>,
    /// The peer's position in the group.
    index: usize,
    ports: Arc<[Port]>,
    /// Watches the peer's process.
    poller: Poller,
    watched: Option<sys::Registration>,
    producer: Producer,
    consumer: Consumer,
    /// How many of the peer's last bytes have been taken.
    taken: usize,
    /// Times that nothing was found.
    turns: u32,
}

impl ShmLink {
    /// The only link to the member at `index`, another rank; the connector watches `ports[index]` and `poller`.
    pub(super) fn new(group: Arc<HostGroup>, index: usize, ports: Arc<[Port]>, poller: Poller) -> io::Result<Self> {
        let (own, theirs) = (group.own_lane(index), group.lane(index));
        // SAFETY: the lanes live as long as the group, which the link keeps; there is no other link that writes to this
        // rank's.
        let (producer, consumer) = unsafe {
            let producer = Producer::new(own.lines.as_ptr(), LINES, &theirs.consumed.0);
            (producer, Consumer::new(theirs.lines.as_ptr(), LINES, &own.consumed.0))
        };
        let mut link = Self { group, index, ports, poller, watched: None, producer, consumer, taken: 0, turns: TURNS };
        link.watch(Interest { readable: true, writable: false })?;
        Ok(link)
    }

    fn own(&self) -> &Lane {
        self.group.own_lane(self.index)
    }

    fn theirs(&self) -> &Lane {
        self.group.lane(self.index)
    }

    fn port(&self) -> &Port {
        &self.ports[self.index]
    }

    /// Fails if the peer's process has ended, which is looked at now and then.
    #[inline]
    fn look(&mut self) -> io::Result<()> {
        self.turns += 1;
        if self.turns < TURNS && !self.port().exited.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.turns = 0;
        if !self.group.has_exited(self.index) {
            return Ok(());
        }
        // Again the next time, after what it had sent has been received.
        self.turns = TURNS;
        Err(self.exited())
    }

    #[cold]
    fn exited(&self) -> io::Error {
        let text = format!("its process, {}, has ended", self.group.process_id(self.index));
        io::Error::new(io::ErrorKind::ConnectionReset, text)
    }

    fn pop(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (got, crossed) = self.consumer.pop(parts)?;
        if crossed && self.theirs().wants_room.must_be_woken(MESSAGES) {
            self.group.wake(self.index);
        }
        if got == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(got) }
    }

    /// Takes what follows the ring, `length` bytes.
    fn receive_last(&mut self, length: u64, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let length = usize::try_from(length).ok().filter(|length| *length <= LAST_BYTES);
        let Some(length) = length else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "malformed shared memory: the length of its end"));
        };
        let mut got = 0;
        for part in parts {
            let n = part.len().min(length.saturating_sub(self.taken));
            // SAFETY: `taken + n <= length <= LAST_BYTES`. A peer that obeys the rules does not write there any more;
            // one that does not can only change what is copied.
            unsafe {
                let from = self.theirs().last.get().cast::<u8>().add(self.taken);
                std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), n);
            }
            self.taken += n;
            got += n;
        }
        Ok(got)
    }

    /// Ends the link with these bytes.
    fn finish(&mut self, last: &[u8]) {
        // A child by fork must leave the parent's memory and poller alone.
        if self.group.is_inherited() {
            return;
        }
        let _ = self.watch(Interest::default());
        let own = self.own();
        // The second call is that of `drop`.
        if own.ended.0.load(Ordering::Relaxed) != 0 {
            return;
        }
        own.registrations.iter().for_each(Registration::clear);
        // Bytes beyond the room are too many for any peer that is not stuck; it then sees an abrupt end.
        let last = if last.len() <= LAST_BYTES { last } else { &[] };
        // SAFETY: the room is this long, and nobody reads it before `ended` is set.
        unsafe { std::ptr::copy_nonoverlapping(last.as_ptr(), own.last.get().cast(), last.len()) };
        own.ended.0.store(last.len() as u64 + 1, Ordering::Release);
        self.group.wake(self.index);
    }

    /// Where the message `key` is registered.
    fn registration(lane: &Lane, key: u32) -> &Registration {
        &lane.registrations[key as usize % REGISTRATIONS]
    }
}

impl Link for ShmLink {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.theirs().ended.0.load(Ordering::Relaxed) != 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut sent = self.producer.push(parts);
        if matches!(&sent, Err(e) if e.kind() == io::ErrorKind::WouldBlock) {
            self.port().waits_at.store(self.producer.position(), Ordering::Relaxed);
            self.own().wants_room.begin(MESSAGES);
            sent = self.producer.push(parts);
        }
        if sent.is_ok() {
            self.own().wants_room.end(MESSAGES);
            self.group.wake(self.index);
        }
        sent
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self.pop(parts) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
        let alive = self.look();
        let ended = self.theirs().ended.0.load(Ordering::Acquire);
        if ended == 0 && alive.is_ok() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // What the peer published before its end.
        match self.pop(parts) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && ended == 0 => Err(alive.err().unwrap_or(e)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.receive_last(ended - 1, parts),
            result => result,
        }
    }

    fn watch(&mut self, interest: Interest) -> io::Result<()> {
        let is_any = |Interest { readable, writable }: Interest| readable || writable;
        let before = self.port().interest();
        self.port().set(interest);
        let Some(process) = self.group.process(self.index) else { return Ok(()) };
        match (is_any(before), is_any(interest)) {
            (false, true) => {
                let watched = self.poller.add(Pollable::Socket(process), sys::READ, self.index as u64)?;
                self.watched = Some(watched);
            }
            (true, false) => self.watched.take().into_iter().for_each(sys::Registration::end),
            _ => {}
        }
        Ok(())
    }

    fn remote_memory(&mut self) -> Option<&mut dyn RemoteMemory> {
        if self.group.reads_memory() { Some(self) } else { None }
    }

    fn end(mut self: Box<Self>, mut rest: Vec<u8>, close_notice: Vec<u8>) {
        rest.extend(close_notice);
        self.finish(&rest);
    }
}

impl RemoteMemory for ShmLink {
    fn eager_bytes(&self) -> usize {
        EAGER_BYTES
    }

    unsafe fn register(&mut self, key: u32, memory: *const u8, bytes: usize) -> Result<()> {
        if Self::registration(self.own(), key).begin(key, memory as u64, bytes as u64) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::ResourceExhausted, "the table of readable memory has no room for this key"))
    }

    fn unregister(&mut self, key: u32) {
        Self::registration(self.own(), key).end(key);
    }

    fn read(&mut self, key: u32, offset: usize, into: &mut [u8]) -> io::Result<usize> {
        let registration = Self::registration(self.theirs(), key);
        let (address, bytes) = registration.load(key).ok_or(io::ErrorKind::NotFound)?;
        let end = (offset as u64).checked_add(into.len() as u64);
        let read = if end.is_some_and(|end| end <= bytes) {
            // SAFETY: a slice is valid for writes of its length.
            unsafe {
                let address = address.wrapping_add(offset as u64);
                self.group.read_memory(self.index, address, into.as_mut_ptr(), into.len())
            }
        } else {
            Err(io::ErrorKind::NotFound.into())
        };
        if registration.has_ended(key) {
            return Err(io::ErrorKind::NotFound.into());
        }
        match read {
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Err(self.exited()),
            // The memory could be read when the ranks connected, so the system's settings have changed.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => Err(io::Error::other(ptracer::why_unreadable(&e))),
            read => read.map(|()| into.len()),
        }
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.finish(&[]);
    }
}
