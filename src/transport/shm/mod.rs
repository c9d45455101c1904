//! Ranks of one host that share memory.
//!
//! Each rank of a context has a [`segment`], memory that it alone writes and that the other ranks of its host map for
//! reading. A [`group`] is what these ranks have of each other. A rank's [`allocations`] are memory of their own, which
//! others read in place.

pub mod allocations;
mod connector;
pub mod group;
mod link;
mod listing;
mod processes;
pub mod ptracer;
mod registration;
mod ring;
pub mod segment;

pub use allocations::Allocations;
pub use connector::Provider;
pub use group::HostGroup;
use processes::Processes;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::sys;
use crate::sys::process::{Descriptor, Process};
use crate::sys::shared_memory::SharedMemory;
use segment::{OwnSegment, PeerSegment, Secret};

/// A segment of this process with which another process tries whether they can share memory.
pub struct Trial {
    _segment: (OwnSegment, SharedMemory),
    /// What the other process passes to [`Trial::attempt`].
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

    /// In another process: opens the segment that `text` names. Returns why it cannot read the memory of its process,
    /// if so; fails if the two cannot share memory.
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

#[cfg(all(test, loom))]
mod model;
// Miri knows no shared memory.
#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests;
