//! The version of this library that each rank runs. What a rank publishes for others begins with its version, so that
//! it is known before anything else is read, whatever carries the bytes later. Ranks whose versions do not work
//! together refuse each other. The others name their versions where calls do not match.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, ErrorKind, Result};
use crate::types::Rank;
use crate::version::{VERSION_BYTES, Version};

/// The versions that a context knows.
pub(super) struct Versions {
    /// This rank.
    rank: Rank,
    own: Version,
    /// The versions of other ranks that differ from `own`.
    others: Mutex<BTreeMap<Rank, Version>>,
}

impl Versions {
    /// Those that `rank` knows, which runs `own`, before it has read what others publish.
    pub fn new(rank: Rank, own: Version) -> Self {
        Self { rank, own, others: Mutex::default() }
    }

    /// This rank and its version.
    pub fn own(&self) -> (Rank, Version) {
        (self.rank, self.own)
    }

    /// What this rank publishes: its version and `content`.
    pub fn publish(&self, content: &[u8]) -> Vec<u8> {
        [&self.own.encode(), content].concat()
    }

    /// The content in what `rank` has [published](Versions::publish).
    pub fn read<'a>(&self, rank: Rank, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let (version, content) = take(rank, bytes, self.own())?;
        self.set(rank, version);
        Ok(content)
    }

    /// Takes over the versions of `ranks` of `parent`, which are the ranks of this context in their order.
    pub fn inherit(&self, parent: &Self, ranks: &[Rank]) {
        for (rank, former) in ranks.iter().enumerate() {
            self.set(rank, parent.find(|rank| rank == *former).map_or(self.own, |found| found.1));
        }
    }

    /// `error`, with the versions if ranks disagree and run different ones: that of the rank that it is about, or else
    /// the first other one.
    pub fn added_to(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Mismatch || error.message().contains(RUNS) {
            return error;
        }
        let about = error.details().rank.filter(|rank| *rank != self.rank);
        match self.find(|rank| about.is_none_or(|about| about == rank)) {
            Some(other) => error.and(format_args!("; {}", both(other, self.own()))),
            None => error,
        }
    }

    fn set(&self, rank: Rank, version: Version) {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if version == self.own {
            others.remove(&rank);
        } else {
            others.insert(rank, version);
        }
    }

    fn find(&self, is_meant: impl Fn(Rank) -> bool) -> Option<(Rank, Version)> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.iter().find(|(rank, _)| is_meant(**rank)).map(|(rank, version)| (*rank, *version))
    }
}

/// What precedes the versions in errors.
const RUNS: &str = "runs gloo_rs";

/// `rank 0 runs gloo_rs 0.2.0, rank 3 runs 0.2.1`: in the same words on both ranks.
fn both(one: (Rank, Version), other: (Rank, Version)) -> String {
    let ((first, version), (second, others)) = if one.0 < other.0 { (one, other) } else { (other, one) };
    format!("rank {first} {RUNS} {version}, rank {second} runs {others}")
}

/// Takes the version of `rank` off the beginning of its `bytes`. Fails unless it works with `own`, this rank and its
/// version.
pub(super) fn take(rank: Rank, bytes: &[u8], own: (Rank, Version)) -> Result<(Version, &[u8])> {
    let Some((version, rest)) = Version::decode(bytes) else {
        let begin = &bytes[..bytes.len().min(VERSION_BYTES)];
        let text =
            format!("what should come from rank {rank} is nothing that a rank gives: it begins with {begin:02x?}");
        return Err(Error::new(ErrorKind::Mismatch, text).with_rank(rank));
    };
    if !version.works_with(own.1) {
        let both = both((rank, version), own);
        let text = format!("{both}: these versions do not work together, install one of them for all ranks");
        return Err(Error::new(ErrorKind::Mismatch, text).with_rank(rank));
    }
    Ok((version, rest))
}
