//! Where an operand is that a member has published, or this rank has: in this process, in another one's memory, or in a
//! ring.

use super::Shared;
use super::wait::Wait;
use crate::error::{Error, ErrorKind, Result};
use crate::publications::{Place, Publication};
use crate::transport::local::InPlace;

/// Where an operand is.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// In this process.
    Here(*const u8),
    /// At this address of a member's process.
    There { member: usize, address: u64 },
    /// Memory of a member's process that is mapped here.
    InPlace { member: usize, from: *const u8 },
    /// From byte `at` on of a publication of `bytes` bytes that its member writes piece by piece.
    Stream { member: usize, number: u32, cell: usize, bytes: usize, at: usize },
}

impl Source {
    /// From byte `at` on, `bytes` bytes of what `member` has published under this number.
    #[inline(always)] // On the path of small collectives.
    pub fn published(
        shared: &Shared,
        (member, number): (usize, u32),
        found: Option<Publication>,
        (at, bytes): (usize, usize),
    ) -> Result<Self> {
        let Publication { bytes: published, place } = found.ok_or_else(|| malformed(shared, member))?;
        if at.checked_add(bytes).is_none_or(|end| end > published) {
            return Err(too_short(shared, member, published, at, bytes));
        }
        Ok(match place {
            Place::Here(start) => Self::Here(start.wrapping_add(at)),
            Place::There(start) => Self::There { member, address: start.wrapping_add(at as u64) },
            Place::Stream { cell } => Self::Stream { member, number, cell, bytes: published, at },
        })
    }

    /// The member that can withdraw it while it is read.
    pub fn member(&self) -> Option<usize> {
        match *self {
            Self::Here(_) => None,
            Self::There { member, .. } | Self::InPlace { member, .. } | Self::Stream { member, .. } => Some(member),
        }
    }

    /// Its address in this process; null if it has none.
    pub fn here(&self) -> *const u8 {
        match *self {
            Self::Here(pointer) | Self::InPlace { from: pointer, .. } => pointer,
            Self::There { .. } | Self::Stream { .. } => std::ptr::null(),
        }
    }

    /// Finds it in this process, if it lies in memory that its process shares: as long as `mapped` has that memory.
    pub fn map(&mut self, shared: &Shared, bytes: usize, mapped: &mut Vec<InPlace>) {
        if let Self::There { member, address } = *self
            && let Some(here) = shared.local.in_place(member, address, bytes)
        {
            *self = Self::InPlace { member, from: here.start() };
            mapped.push(here);
        }
    }

    /// Where its bytes from `done` on are, at most `elements` elements of `element` bytes; for memory of another
    /// process: nowhere. Lowers `elements` to how many there are, or returns what to wait for if there are none.
    pub fn piece(
        &self,
        shared: &Shared,
        done: usize,
        element: usize,
        elements: &mut usize,
    ) -> Result<std::result::Result<Self, Wait>> {
        Ok(Ok(match *self {
            Self::Here(from) | Self::InPlace { from, .. } => Self::Here(from.wrapping_add(done)),
            Self::There { .. } => *self,
            Self::Stream { member, number, cell, at, .. } => {
                let (publications, impossible) = (&shared.publications, || malformed(shared, member));
                let stream = publications.incoming(member, number, cell).ok_or_else(impossible)?;
                let begin = at + done;
                let written = publications.written(&stream).saturating_sub(begin) / element;
                if written == 0 {
                    return Ok(Err(Wait::Piece { member, number, bytes: begin + element }));
                }
                let (from, bytes) = stream.place(begin);
                if bytes < element {
                    return Err(impossible());
                }
                *elements = (*elements).min(written).min(bytes / element);
                Self::Here(from)
            }
        }))
    }

    /// If it is a stream, says that this rank does not read its next `bytes` bytes any more, nor what lies before them.
    /// Returns whether the writer has to learn of that.
    pub fn consume(&self, shared: &Shared, bytes: usize) -> Result<bool> {
        let Self::Stream { member, number, cell, bytes: all, at } = *self else { return Ok(false) };
        let publications = &shared.publications;
        let stream = publications.incoming(member, number, cell).ok_or_else(|| malformed(shared, member))?;
        Ok(publications.consume(&stream, at.saturating_add(bytes).min(all)))
    }
}

/// Reads memory of a member's process.
///
/// # Safety
/// `into` is valid for writes of `bytes`.
pub(super) unsafe fn read(shared: &Shared, member: usize, address: u64, into: *mut u8, bytes: usize) -> Result<()> {
    debug_assert!(shared.reads, "a publication by reference where no process may read another");
    // SAFETY: the caller guarantees the destination.
    unsafe { shared.local.read_memory(member, address, into, bytes) }.map_err(|e| {
        let (rank, why) = (shared.rank(member), shared.local.why_unreadable(&e));
        let text = format!("cannot read {bytes} bytes of the memory of rank {rank}: {why}");
        Error::new(ErrorKind::ConnectionLost, text).with_rank(rank).with_errno(e.raw_os_error())
    })
}

#[cold]
fn malformed(shared: &Shared, member: usize) -> Error {
    let rank = shared.rank(member);
    let text = format!("what rank {rank} has published in shared memory has an impossible place");
    Error::new(ErrorKind::Mismatch, text).with_rank(rank)
}

#[cold]
fn too_short(shared: &Shared, member: usize, published: usize, at: usize, bytes: usize) -> Error {
    let rank = shared.rank(member);
    let text =
        format!("rank {rank} has published {published} bytes, of which this rank needs {bytes} from byte {at} on");
    Error::new(ErrorKind::Mismatch, text).with_rank(rank)
}
