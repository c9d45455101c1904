//! Ranks of one host that share memory.
//!
//! Each rank of a context has a [`segment`], memory that it alone writes and that the other ranks of its host map for reading.
//! A [`group`] is what these ranks have of each other. A rank's [`allocations`] are memory of their own, which others read in place.

pub mod allocations;
mod connector;
pub mod group;
mod link;
mod processes;
pub mod ptracer;
mod registration;
mod ring;
pub mod segment;

pub use allocations::Allocations;
pub use connector::ShmConnector;
pub use group::HostGroup;
pub use processes::Processes;

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use crate::sys::process::{Descriptor, Process};
use crate::sys::shared_memory::SharedMemory;
use crate::types::Rank;
use segment::{OwnSegment, PeerSegment, Secret};

/// The environment variable that forbids sharing memory.
pub const VARIABLE: &str = "GLOO_RS_SHM";

/// A segment of this process with which another process tries whether they can share memory.
pub struct Trial {
    _segment: (OwnSegment, SharedMemory),
    /// For the other process: see [`Trial::attempt`].
    pub text: String,
}

impl Trial {
    /// A new segment.
    pub fn create() -> Result<Self> {
        let secret: Secret = sys::random().map_err(|e| Error::io("cannot share memory", &e))?;
        let segment = OwnSegment::create(&secret).map_err(|e| Error::io("cannot share memory", &e))?;
        let Descriptor { process, number } = segment.1.descriptor();
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { _segment: segment, text: format!("{process},{number},{secret}") })
    }

    /// In another process: opens the segment that `text` names. Returns why it cannot read the memory of its process, if so; fails
    /// if the two cannot share memory.
    pub fn attempt(text: &str) -> Result<Option<String>> {
        let wrong = || Error::invalid(format!("{text:?} names no segment"));
        let [process, descriptor, secret] = text.split(',').collect::<Vec<_>>()[..] else { return Err(wrong()) };
        let number = |text: &str| text.parse().map_err(|_| wrong());
        let segment = Descriptor { process: number(process)?, number: number(descriptor)? };
        let mut bytes: Secret = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let hex = secret.get(2 * at..2 * at + 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(hex, 16).map_err(|_| wrong())?;
        }
        let peer = PeerSegment::open(segment, &bytes, 2, |process| Process::open(process).map(Arc::new))?;
        Ok(peer.try_reading(&bytes).err().map(|e| ptracer::why_unreadable(&e)))
    }
}

/// What a rank has found about the memory of the other ranks of its host, which decides what they all do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharing {
    /// It cannot map all their segments.
    Nothing = 0,
    /// It has mapped all of them.
    Segments = 1,
    /// It has, and it can read the memory of their processes.
    Processes = 2,
    /// Its process has too few descriptors left for the context.
    NoRoom = 3,
}

impl Sharing {
    /// Its number for other ranks.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Parses what `size` ranks have found.
    pub fn parse(numbers: &[u8], size: usize) -> Result<Vec<Self>> {
        let known = [Self::Nothing, Self::Segments, Self::Processes, Self::NoRoom];
        let one = |number: &u8| known.into_iter().find(|sharing| sharing.number() == *number);
        numbers.iter().map(one).collect::<Option<Vec<_>>>().filter(|all| all.len() == size).ok_or_else(|| {
            let text = format!("{numbers:?} is not what {size} ranks have found about their hosts' memory");
            Error::new(ErrorKind::Mismatch, text)
        })
    }

    /// Fails, in the same words on all ranks, if one of the ranks that have found this has no room for the context.
    pub fn check_room(found: impl IntoIterator<Item = (Rank, Self)>) -> Result<()> {
        let Some((rank, _)) = found.into_iter().find(|(_, sharing)| *sharing == Self::NoRoom) else { return Ok(()) };
        let text = format!(
            "the process of rank {rank} has too few descriptors left for another context: raise its limit (ulimit -n), or destroy contexts"
        );
        Err(Error::new(ErrorKind::ResourceExhausted, text).with_rank(rank))
    }
}

#[cfg(all(test, loom))]
mod model;
// Miri knows no shared memory.
#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests;
