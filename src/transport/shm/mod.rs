//! Ranks of one host that share memory.
//!
//! Each rank of a context has a [`segment`], memory that it alone writes and that the other ranks of its host map for reading.
//! A [`group`] is what these ranks have of each other.

mod connector;
pub mod group;
mod link;
mod ring;
pub mod segment;

pub use connector::ShmConnector;
pub use group::HostGroup;

use crate::error::{Error, ErrorKind, Result};

/// The environment variable that forbids sharing memory.
pub const VARIABLE: &str = "GLOO_RS_SHM";

/// What a rank has found about the memory of the other ranks of its host, which decides what they all do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharing {
    /// It cannot map all their segments.
    Nothing = 0,
    /// It has mapped all of them.
    Segments = 1,
    /// It has, and it can read the memory of their processes.
    Processes = 2,
}

impl Sharing {
    /// Its number for other ranks.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Parses what `size` ranks have found.
    pub fn parse(numbers: &[u8], size: usize) -> Result<Vec<Self>> {
        let known = [Self::Nothing, Self::Segments, Self::Processes];
        let one = |number: &u8| known.into_iter().find(|sharing| sharing.number() == *number);
        numbers.iter().map(one).collect::<Option<Vec<_>>>().filter(|all| all.len() == size).ok_or_else(|| {
            let text = format!("{numbers:?} is not what {size} ranks have found about their hosts' memory");
            Error::new(ErrorKind::Mismatch, text)
        })
    }
}

#[cfg(all(test, loom))]
mod model;
// Miri knows no shared memory.
#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests;
