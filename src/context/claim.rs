//! A rank's claim to its rank, the first thing that it writes to a store. The only I/O is the store's.
//!
//! A rank appends its claim to a key of its own, and reads the key back. If another process has claimed the same rank,
//! both fail: the second at once, the first when it reads the key; and rank 0, which reads all keys, notifies all
//! ranks. So two jobs on one store, two processes with one rank, and entries of an earlier job are detected.
//!
//! Ranks of two jobs that claim different ranks, for example rank 0 of one and rank 1 of the other, are distinguished
//! only by the number of ranks and the name of the job, which the user or the batch system has given (see
//! [`JOB_VARIABLES`]). If two jobs are equal in these, only a token or a prefix can separate them.
//!
//! A claim is a random number of its process (8 bytes), the process id (4, little-endian), the version of the library
//! (8), the host name (64, padded with zeros), the number of ranks (4), the job name (64, padded with zeros), and the
//! content that the rank publishes. What precedes the host name is the same in every version.

use std::sync::OnceLock;
use std::time::Duration;

use crate::context::versions::take;
use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::Store;
use crate::sys;
use crate::types::Rank;
use crate::version::{VERSION_BYTES, Version};

/// Random number and process id: the first bytes of a claim.
const OWNER_BYTES: usize = 12;
/// Length of the host name and of the job name.
const NAME_BYTES: usize = 64;
const HOST_AT: usize = OWNER_BYTES + VERSION_BYTES;
const SIZE_AT: usize = HOST_AT + NAME_BYTES;
const JOB_AT: usize = SIZE_AT + 4;
const CONTENT_AT: usize = JOB_AT + NAME_BYTES;

/// The first of these environment variables that is set names the job: the user's own, then those of batch systems,
/// which are the same for all processes of one submission (`SLURM_HET_JOB_ID` is for heterogeneous Slurm jobs).
const JOB_VARIABLES: [&str; 5] = ["GLOO_RS_JOB", "SLURM_HET_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];

/// The job name of this process, with its variable; empty if there is none.
fn job() -> Vec<u8> {
    let named = |name: &&str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
        Some([name.as_bytes(), b"=", value.as_encoded_bytes()].concat())
    };
    JOB_VARIABLES.iter().find_map(named).unwrap_or_default()
}

/// The claim of this process, which runs `version`, to a rank of `size`, with this content.
pub(super) fn make(version: Version, size: usize, content: &[u8]) -> Result<Vec<u8>> {
    make_for(&job(), version, size, content)
}

fn make_for(job: &[u8], version: Version, size: usize, content: &[u8]) -> Result<Vec<u8>> {
    // These bytes stand for the process, not for a context: a new context of this process may repeat a claim of an
    // earlier one.
    static PROCESS: OnceLock<[u8; 8]> = OnceLock::new();
    let random = match PROCESS.get() {
        Some(random) => *random,
        None => {
            let new = sys::random().map_err(|error| Error::io("cannot get random bytes", &error))?;
            *PROCESS.get_or_init(|| new)
        }
    };
    let host = sys::host_name().map_err(|error| Error::io("cannot tell the name of this host", &error))?;
    let cut = |name: &[u8]| {
        let mut name = name[..name.len().min(NAME_BYTES)].to_vec();
        name.resize(NAME_BYTES, 0);
        name
    };
    let (host, job, size) = (cut(&host), cut(job), (size as u32).to_le_bytes());
    let id = std::process::id().to_le_bytes();
    Ok([&random[..], &id, &version.encode(), &host, &size, &job, content].concat())
}

/// Appends a claim to those at `key`. A store that sees this process die takes it back until all ranks have come. If
/// the store cannot append, it replaces them, so that only the last one of each rank remains.
pub(super) fn put(store: &dyn Store, key: &str, claim: &[u8], timeout: Duration) -> Result<()> {
    match store.claim_within(key, claim, timeout) {
        Err(error) if error.kind() == ErrorKind::Unsupported => store.set_within(key, claim, timeout),
        result => result,
    }
}

/// The claims to one rank.
pub(super) struct Claims<'a> {
    rank: Rank,
    /// At least one; all of equal length.
    claims: Vec<&'a [u8]>,
}

impl<'a> Claims<'a> {
    /// Parses the `value` at the key of `rank`; claims have `length` bytes. Fails unless the version in it works with
    /// `own`, this rank and its version.
    pub(super) fn read(rank: Rank, value: &'a [u8], length: usize, own: (Rank, Version)) -> Result<Self> {
        take(rank, value.get(OWNER_BYTES..).unwrap_or_default(), own)?;
        if value.is_empty() || !value.len().is_multiple_of(length) {
            let bytes = value.len();
            let text =
                format!("the claim of rank {rank} has {bytes} bytes, not {length}: another build of this version?");
            return Err(Error::new(ErrorKind::Mismatch, text).with_rank(rank));
        }
        Ok(Self { rank, claims: value.chunks_exact(length).collect() })
    }

    /// Whether the process of `claim` was the first to claim this rank.
    pub(super) fn is_led_by(&self, claim: &[u8]) -> bool {
        self.claims[0][..OWNER_BYTES] == claim[..OWNER_BYTES]
    }

    /// The content of the last claim. Fails if several processes claim this rank.
    pub(super) fn content(&self) -> Result<&'a [u8]> {
        let first = self.claims[0];
        match self.claims.iter().find(|other| other[..OWNER_BYTES] != first[..OWNER_BYTES]) {
            Some(other) => Err(self.claimed_twice(other)),
            None => Ok(&self.claims[self.claims.len() - 1][CONTENT_AT..]),
        }
    }

    /// Fails if the last claim is of another job than the claim `own`.
    pub(super) fn is_of_the_same_job(&self, own: &[u8]) -> Result<()> {
        let claim = self.claims[self.claims.len() - 1];
        let (theirs, here) = (size(claim), size(own));
        let differ = if theirs != here {
            format!("is one of {theirs} ranks, and this is a job of {here}")
        } else {
            // Names from different variables cannot be compared.
            let (theirs, here) = (name(&claim[JOB_AT..CONTENT_AT]), name(&own[JOB_AT..CONTENT_AT]));
            let by = |name: &str| name.split_once('=').map(|(by, _)| by.to_owned());
            if theirs == here || by(&theirs) != by(&here) {
                return Ok(());
            }
            format!("is of {theirs}, and this is {here}")
        };
        let text = format!("rank {}, {}, {differ}; {SEPARATE}", self.rank, owner(claim));
        Err(Error::new(ErrorKind::Mismatch, text).with_rank(self.rank))
    }

    /// The contents of all claims but the last.
    pub(super) fn earlier_contents(&self) -> impl Iterator<Item = &'a [u8]> {
        self.claims[..self.claims.len() - 1].iter().map(|claim| &claim[CONTENT_AT..])
    }

    /// The error for the first claim and `other`.
    pub(super) fn claimed_twice(&self, other: &[u8]) -> Error {
        let (rank, first, other) = (self.rank, owner(self.claims[0]), owner(other));
        let text = format!("rank {rank} is claimed twice: by {first}, and by {other}; {SEPARATE}");
        Error::new(ErrorKind::Mismatch, text).with_rank(rank)
    }
}

/// Possible causes, and what to do.
pub(super) const SEPARATE: &str = "two processes have the same rank, another job uses this store, too, or an earlier job has left \
                                   its entries there: give each job and attempt a directory, port or prefix of its own";

fn owner(claim: &[u8]) -> String {
    let id = u32::from_le_bytes(std::array::from_fn(|i| claim[OWNER_BYTES - 4 + i]));
    format!("process {id} on {}", name(&claim[HOST_AT..SIZE_AT]))
}

/// The number of ranks in a claim.
fn size(claim: &[u8]) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| claim[SIZE_AT + i]))
}

/// A name in a claim, for messages.
fn name(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_process_is_named_and_the_same_one_may_come_again() {
        let own = make(Version::OWN, 2, b"one").unwrap();
        let again = make(Version::OWN, 2, b"two").unwrap();
        let mut other = own.clone();
        other[0] ^= 1;
        other[8..12].copy_from_slice(&77_u32.to_le_bytes());
        other[HOST_AT..SIZE_AT].fill(0);
        other[HOST_AT..HOST_AT + 5].copy_from_slice(b"node7");

        let value = [&own[..], &again].concat();
        let claims = Claims::read(3, &value, own.len(), (0, Version::OWN)).unwrap();
        assert!(claims.is_led_by(&again) && !claims.is_led_by(&other));
        assert_eq!(claims.content().unwrap(), b"two");
        assert_eq!(claims.earlier_contents().collect::<Vec<_>>(), [b"one"]);

        let value = [&other[..], &own].concat();
        let claims = Claims::read(3, &value, own.len(), (0, Version::OWN)).unwrap();
        assert!(!claims.is_led_by(&own));
        let error = claims.content().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        let own = format!("and by process {} on ", std::process::id());
        for part in ["rank 3 is claimed twice: by process 77 on node7, ", &own, "prefix of its own"] {
            assert!(error.message().contains(part), "{error}");
        }
    }

    #[test]
    fn ranks_that_know_that_they_are_of_different_jobs_are_told_apart() {
        let check = |job: &str, size| {
            let made = |job: &str, size| make_for(job.as_bytes(), Version::OWN, size, b"").unwrap();
            let (own, other) = (made("SLURM_JOB_ID=17", 2), made(job, size));
            Claims::read(1, &other, own.len(), (0, Version::OWN))
                .unwrap()
                .is_of_the_same_job(&own)
                .map_err(|error| error.message().to_owned())
        };
        // Unknown names, and names from different variables, are not compared.
        for job in ["SLURM_JOB_ID=17", "", "GLOO_RS_JOB=mine"] {
            assert_eq!(check(job, 2), Ok(()));
        }
        let process = format!("rank 1, process {} on ", std::process::id());
        for (job, size, what) in [
            ("SLURM_JOB_ID=18", 2, ", is of SLURM_JOB_ID=18, and this is SLURM_JOB_ID=17; "),
            ("SLURM_JOB_ID=17", 4, ", is one of 4 ranks, and this is a job of 2; "),
        ] {
            let error = check(job, size).unwrap_err();
            assert!(error.starts_with(&process) && error.contains(what) && error.ends_with("of its own"), "{error}");
        }
    }

    #[test]
    fn what_is_no_claim_is_refused() {
        let own = (0, Version::OWN);
        for value in [&b""[..], b"short", &[0; OWNER_BYTES + VERSION_BYTES - 1]] {
            let error = Claims::read(1, value, 80, own).err().unwrap();
            assert!(error.message().contains("is nothing that a rank gives"), "{error}");
        }
        let claim = make(Version::OWN, 2, b"content").unwrap();
        let error = Claims::read(1, &claim, claim.len() - 1, own).err().unwrap();
        assert!(error.message().contains(": another build of this version?"), "{error}");
        // What another version writes behind it may be anything.
        let other = Version { minor: Version::OWN.minor + 1, ..Version::OWN };
        let claim = [&claim[..OWNER_BYTES], &other.encode(), b"anything"].concat();
        let error = Claims::read(1, &claim, 80, own).err().unwrap();
        assert!(error.message().contains(&format!("rank 1 runs {other}: ")), "{error}");
    }
}
