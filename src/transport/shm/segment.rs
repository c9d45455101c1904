//! The memory of one rank in one context, which this rank alone writes, and its peers map for reading.
//!
//! A segment is anonymous: a peer opens it as `/proc/PID/fd/N`, with the numbers in the rank's address. It begins with
//! a header; the table follows, then a lane for each rank of the host, all without gaps. What a peer reads there is
//! checked like bytes from a socket, and read once. Only pages that have been written take memory.

use std::cell::UnsafeCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::listing::Table;
use super::registration::Registration;
use super::ring::Line;
use crate::error::{Error, ErrorKind, Result};
use crate::sync;
use crate::sys::RawSocket;
use crate::sys::doorbell::{Doorbell, Remote};
use crate::sys::process::{self, Descriptor, Process};
use crate::sys::shared_memory::{Access, Mapping, SharedMemory};
use crate::transport::local::{MESSAGES, Waiting};

/// What proves that a segment is the one of a certain context: only ranks of its job can compute it.
pub type Secret = [u8; 32];

/// The version of what segments contain, the table of publications included.
const VERSION: u64 = u64::from_le_bytes(*b"gloo_rs\x05");

/// Bytes of the table, in which a rank publishes data of collectives.
pub use crate::publications::TABLE_BYTES;
/// Offset of the table.
const TABLE_AT: usize = size_of::<Header>();
/// Offset of the first lane.
const LANES_AT: usize = TABLE_AT + TABLE_BYTES;
/// Lines of a ring.
pub const LINES: usize = 4096;
/// Messages that one peer can read out of this rank's memory at the same time. A prime number, since the place of one
/// in the table is the remainder of its key, and keys come in rows with all distances.
pub const REGISTRATIONS: usize = 113;
/// The maximum number of bytes for the end of a link: the rest of a message that has begun, and the close notice.
pub const LAST_BYTES: usize = (4 << 20) + (64 << 10);

/// The first page of a segment. Atomics throughout, since another process may write at any time what is read here.
#[repr(C, align(4096))]
struct Header {
    version: AtomicU64,
    secret: [AtomicU64; 4],
    /// Where the secret is in the memory of the process that owns the segment.
    secret_at: AtomicU64,
    /// How peers ring the owner's doorbell.
    bell: [AtomicU64; 4],
    waiting: Waiting,
    allocations: Table,
}

/// What the owner of a segment writes for the link to one peer, all zero at first.
#[repr(C, align(4096))]
pub(super) struct Lane {
    /// How far the owner has read the peer's ring.
    pub consumed: Padded,
    /// Whether the owner may wait for room in its ring.
    pub wants_room: Waiting,
    /// 0 while the link exists, then 1 more than the length of `last`.
    pub ended: Padded,
    /// Memory that the peer may read.
    pub registrations: [Registration; REGISTRATIONS],
    _rest: [AtomicU64; 36],
    /// The ring with what the owner sends.
    pub lines: [Line; LINES],
    /// The last bytes of the stream, behind those in the ring. Only touched if they are needed.
    pub last: UnsafeCell<[u8; LAST_BYTES]>,
}

/// A word with a cache line of its own.
#[repr(align(64))]
pub(super) struct Padded(pub sync::AtomicU64);

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Header>() == 4096);
#[cfg(not(all(test, loom)))]
const _: () = assert!(std::mem::offset_of!(Lane, lines) == 4096 && size_of::<Lane>().is_multiple_of(4096));

/// Bytes of the segment of a rank that shares its host with `members` ranks, itself included.
fn segment_bytes(members: usize) -> usize {
    LANES_AT + members * size_of::<Lane>()
}

/// A header in mapped memory.
///
/// # Safety
/// `mapping` is at least as long as a header, and lives at least as long as `'a`; so does the memory in it.
unsafe fn header<'a>(mapping: &Mapping) -> &'a Header {
    // SAFETY: mappings are aligned to pages, any bytes are a valid header, and it consists of atomics.
    unsafe { &*mapping.start().cast() }
}

/// The segment of this rank. It stays mapped; its descriptor is only needed until peers have mapped it, too.
#[derive(Debug)]
pub struct OwnSegment {
    /// The first page; the whole is mapped when the number of ranks on this host is known.
    first: Mapping,
    /// By which peers wake this rank, and this rank wakes them.
    doorbell: Doorbell,
    /// The doorbell's address for peers.
    bell: Remote,
}

impl OwnSegment {
    /// A segment that peers recognise by `secret`, and its memory, which they open.
    pub fn create(secret: &Secret) -> io::Result<(Self, SharedMemory)> {
        let memory = SharedMemory::create()?;
        memory.grow(size_of::<Header>() as u64)?;
        let doorbell = Doorbell::new()?;
        let bell = Remote::find(*doorbell.bell())?;
        let own = Self { first: memory.map(size_of::<Header>(), Access::Write)?, doorbell, bell };
        let header = own.header();
        for (words, bytes) in [(&header.secret, secret), (&header.bell, own.doorbell.bell())] {
            for (word, bytes) in words.iter().zip(bytes.chunks_exact(8)) {
                word.store(u64::from_ne_bytes(bytes.try_into().expect("8 bytes")), Ordering::Relaxed);
            }
        }
        header.secret_at.store(header.secret.as_ptr() as u64, Ordering::Relaxed);
        // No thread polls yet.
        header.waiting.begin(MESSAGES);
        header.version.store(VERSION, Ordering::Release);
        Ok((own, memory))
    }

    /// The descriptor that is readable when a peer has rung.
    pub fn doorbell(&self) -> RawSocket {
        self.doorbell.raw()
    }

    /// Rings the doorbell of this rank, for whoever answers it.
    pub fn ring(&self) {
        self.doorbell.ring(&self.bell);
    }

    /// The events for which peers must ring.
    #[inline]
    pub(super) fn waiting(&self) -> &Waiting {
        &self.header().waiting
    }

    /// Makes the doorbell unreadable until a peer rings again.
    pub(super) fn clear_doorbell(&self) {
        self.doorbell.clear();
        self.waiting().answer();
    }

    /// The table of the memory that this rank has allocated for data.
    pub(super) fn allocations(&self) -> &Table {
        &self.header().allocations
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping has the length of a header, which the memory has, too, and lives as long as `self`.
        unsafe { header(&self.first) }
    }
}

/// Maps all of the `memory` of this rank's segment, for `members` ranks on this host.
pub(super) fn map(memory: &SharedMemory, members: usize) -> io::Result<Mapping> {
    let bytes = segment_bytes(members);
    memory.grow(bytes as u64)?;
    memory.map(bytes, Access::Write)
}

/// The segment of a peer, and its process.
#[derive(Debug)]
pub(super) struct PeerSegment {
    /// What is mapped, until its size has been checked.
    memory: Option<SharedMemory>,
    mapping: Mapping,
    doorbell: Remote,
    /// When this rank has rung it last; see [`Waiting::must_be_rung`].
    rung: sync::AtomicU64,
    /// Unless it is this process.
    process: Option<Arc<Process>>,
    descriptor: Descriptor,
}

impl PeerSegment {
    /// Opens the segment of a peer with `secret`, on a host with `members` ranks; `watch` returns another process.
    /// Until [`PeerSegment::check_size`] has succeeded, only its header may be accessed.
    pub fn open(
        descriptor: Descriptor,
        secret: &Secret,
        members: usize,
        watch: impl FnOnce(u32) -> io::Result<Arc<Process>>,
    ) -> Result<Self> {
        let failed = |doing: &'static str| move |e: io::Error| Error::io(format_args!("cannot {doing}"), &e);
        let memory = SharedMemory::open(descriptor).map_err(failed("open its memory"))?;
        let mapping = memory.map(segment_bytes(members), Access::Read).map_err(failed("map its memory"))?;
        if memory.bytes().map_err(failed("open its memory"))? < size_of::<Header>() as u64 {
            return Err(Error::new(ErrorKind::Mismatch, format!("{descriptor} is too short")));
        }
        // SAFETY: the mapping is longer than a header, which the memory has been found to have; it is used before
        // `mapping` is moved.
        let header = unsafe { header(&mapping) };
        let load = |words: &[AtomicU64; 4]| -> [u8; 32] {
            let words = words.each_ref().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
            words.as_flattened().try_into().expect("32 bytes")
        };
        if header.version.load(Ordering::Acquire) != VERSION || load(&header.secret) != *secret {
            return Err(Error::new(ErrorKind::Mismatch, format!("{descriptor} is the memory of another context")));
        }
        let doorbell = Remote::find(load(&header.bell)).map_err(failed("find its doorbell"))?;
        let other = (descriptor.process != std::process::id()).then(|| watch(descriptor.process));
        let process = other.transpose().map_err(failed("watch its process by pidfd_open"))?;
        // If the process had ended before its descriptor was opened, another may have its number now.
        if !memory.is(descriptor).map_err(failed("open its memory"))? {
            return Err(Error::new(ErrorKind::Mismatch, format!("{descriptor} has changed")));
        }
        Ok(Self { memory: Some(memory), mapping, doorbell, rung: sync::AtomicU64::new(0), process, descriptor })
    }

    /// Fails unless the peer's segment is as long as it must be with `members` ranks on the host. From then on it takes
    /// no descriptor.
    pub fn check_size(&mut self) -> Result<()> {
        let Some(memory) = self.memory.take() else { return Ok(()) };
        let bytes = memory.bytes().map_err(|e| Error::io("cannot get the size of its memory", &e))?;
        if bytes < self.mapping.bytes() as u64 {
            let text = format!("its shared memory has {bytes} bytes instead of {}", self.mapping.bytes());
            return Err(Error::new(ErrorKind::Mismatch, text));
        }
        Ok(())
    }

    /// Tries with its secret whether the memory of the peer's process can be read; fails with the reason if not.
    pub fn try_reading(&self, secret: &Secret) -> io::Result<()> {
        let mut theirs = [0; size_of::<Secret>()];
        let address = self.header().secret_at.load(Ordering::Relaxed);
        // SAFETY: `theirs` is as long as is said.
        unsafe { self.read_memory(address, theirs.as_mut_ptr(), theirs.len()) }?;
        if theirs == *secret { Ok(()) } else { Err(io::Error::other("it reads other memory than its own")) }
    }

    /// Reads the memory of the peer's process, which was alive when this had succeeded.
    ///
    /// # Safety
    /// `into` is valid for writes of `bytes`.
    pub unsafe fn read_memory(&self, address: u64, into: *mut u8, bytes: usize) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            // SAFETY: `done < bytes`, so the rest of `into` is valid for writes of `bytes - done`.
            let n = unsafe {
                let address = address.wrapping_add(done as u64);
                process::read_memory(self.descriptor.process, address, into.add(done), bytes - done)?
            };
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += n;
        }
        // The number of a process that has ended may be another's.
        if self.has_exited() { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) }
    }

    /// Rings the peer's doorbell out of `own`, the segment of this rank, which is the member at `index`, if the peer
    /// waits for one of `events`. Called after one of them, with a sequentially consistent fence between.
    pub fn wake(&self, own: &OwnSegment, index: usize, events: u64) {
        if self.header().waiting.must_be_rung(events, index, &self.rung) {
            own.doorbell.ring(&self.doorbell);
        }
    }

    /// Whether the peer's process has ended.
    pub fn has_exited(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.has_ended())
    }

    /// The number of the peer's process.
    pub fn process_id(&self) -> u32 {
        self.descriptor.process
    }

    /// The descriptor that is readable when the peer's process, another one, has ended.
    pub fn process(&self) -> Option<RawSocket> {
        self.process.as_ref().map(|process| process.raw())
    }

    /// The table of the memory that the peer has allocated for data.
    pub fn allocations(&self) -> &Table {
        &self.header().allocations
    }

    /// The segment's mapping.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is longer than a header, which the memory has been found to have, and lives as long as
        // `self`.
        unsafe { header(&self.mapping) }
    }
}

/// The lane for the peer at `index` in the mapping of a segment for more members than that.
pub(super) fn lane(mapping: &Mapping, index: usize) -> *const Lane {
    let at = LANES_AT + index * size_of::<Lane>();
    debug_assert!(at < mapping.bytes());
    // SAFETY: every mapping of a whole segment contains the lanes of all members.
    unsafe { mapping.start().add(at).cast() }
}

/// The table in the mapping of a segment.
pub(super) fn table(mapping: &Mapping) -> *mut u8 {
    // SAFETY: every mapping of a whole segment contains the table.
    unsafe { mapping.start().add(TABLE_AT) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Ranks of two builds must not read each other's memory wrongly: who changes a length changes the version.
    #[test]
    fn the_version_changes_with_the_layout() {
        let version = VERSION.to_le_bytes()[7];
        assert_eq!((version, TABLE_BYTES, size_of::<Header>(), size_of::<Lane>()), (5, 37_261_312, 4096, 4_526_080));
    }
}
