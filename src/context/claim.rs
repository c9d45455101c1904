//! A rank's claim to its place in the job: the first thing that it tells over a store. Without I/O but for the store's.
//!
//! A rank appends its claim to a key of its own, and reads the key back. Where another process's claim lies there, too, both
//! hear of it: the second at once, the first when it looks, and rank 0, which reads all keys, tells everybody. So two jobs on
//! one store, two processes with one rank, and what an earlier job has left are not mistaken for this job's ranks.
//!
//! Ranks of two jobs whose claims do not meet, rank 0 of the one and rank 1 of the other, say, are told apart only by what
//! processes know of their jobs: how many ranks there are, and its name, which the user or the batch system has given (see
//! [`JOB_VARIABLES`]). Where two jobs are alike in these, a token or a prefix must tell them apart: nothing else does.
//!
//! A claim is a number of its process that is random (8 bytes), the process's id (4, little-endian), its host's name (64, filled
//! up with zeros), the number of ranks (4), the job's name (64), and what the rank tells.

use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::Store;
use crate::sys;
use crate::types::Rank;

/// Who claims: the first bytes of a claim.
const OWNER_BYTES: usize = 12;
/// Of the host's name and the job's.
const NAME_BYTES: usize = 64;
const SIZE_AT: usize = OWNER_BYTES + NAME_BYTES;
const JOB_AT: usize = SIZE_AT + 4;
const TOLD_AT: usize = JOB_AT + NAME_BYTES;

/// The first of these environment variables that is set names the job: the user's own, then those of batch systems, which give
/// all processes of one submission the same (the first is that of a Slurm job of several parts).
const JOB_VARIABLES: [&str; 5] = ["GLOO_RS_JOB", "SLURM_HET_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];

/// The name of this process's job, with the variable that it is from; empty where there is none.
fn job() -> Vec<u8> {
    let named = |name: &&str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
        Some([name.as_bytes(), b"=", value.as_encoded_bytes()].concat())
    };
    JOB_VARIABLES.iter().find_map(named).unwrap_or_default()
}

/// The claim of this process to a rank of `size`, which tells `told`.
pub(super) fn make(size: usize, told: &[u8]) -> Result<Vec<u8>> {
    make_for(&job(), size, told)
}

fn make_for(job: &[u8], size: usize, told: &[u8]) -> Result<Vec<u8>> {
    static PROCESS: OnceLock<[u8; 8]> = OnceLock::new();
    let random = match PROCESS.get() {
        Some(random) => *random,
        None => {
            let new = sys::random().map_err(|error| Error::io("cannot get random bytes", &error))?;
            *PROCESS.get_or_init(|| new)
        }
    };
    let host = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    let cut = |name: &[u8]| {
        let mut name = name[..name.len().min(NAME_BYTES)].to_vec();
        name.resize(NAME_BYTES, 0);
        name
    };
    let (host, job, size) = (cut(host.trim_ascii()), cut(job), (size as u32).to_le_bytes());
    Ok([&random[..], &std::process::id().to_le_bytes(), &host, &size, &job, told].concat())
}

/// Puts a claim behind those that `key` has. A store whose maker cannot append has only the last one of each rank.
pub(super) fn put(store: &dyn Store, key: &str, claim: &[u8], timeout: Duration) -> Result<()> {
    match store.append_within(key, claim, timeout) {
        Err(error) if error.kind() == ErrorKind::Unsupported => store.set_within(key, claim, timeout),
        result => result,
    }
}

/// What lies at the key of one rank.
pub(super) struct Claims<'a> {
    rank: Rank,
    /// At least one; all of one length.
    claims: Vec<&'a [u8]>,
}

impl<'a> Claims<'a> {
    /// `value` is of the key of `rank`; claims have `length` bytes.
    pub(super) fn read(rank: Rank, value: &'a [u8], length: usize) -> Result<Self> {
        if value.is_empty() || !value.len().is_multiple_of(length) {
            let bytes = value.len();
            let text = format!("what rank {rank} tells of itself has {bytes} bytes, not {length}: another version?");
            return Err(Error::new(ErrorKind::Mismatch, text).with_rank(rank));
        }
        Ok(Self { rank, claims: value.chunks_exact(length).collect() })
    }

    /// Whether the process that made `claim` was first.
    pub(super) fn is_led_by(&self, claim: &[u8]) -> bool {
        self.claims[0][..OWNER_BYTES] == claim[..OWNER_BYTES]
    }

    /// What the one process tells that claims this rank: last, if it does so for another context. Fails if they are several.
    pub(super) fn told(&self) -> Result<&'a [u8]> {
        let first = self.claims[0];
        match self.claims.iter().find(|other| other[..OWNER_BYTES] != first[..OWNER_BYTES]) {
            Some(other) => Err(self.claimed_twice(other)),
            None => Ok(&self.claims[self.claims.len() - 1][TOLD_AT..]),
        }
    }

    /// Fails if whoever claims this rank knows that it is of another job than the process that made `own`.
    pub(super) fn is_of_the_same_job(&self, own: &[u8]) -> Result<()> {
        let claim = self.claims[self.claims.len() - 1];
        let (theirs, here) = (size(claim), size(own));
        let differ = if theirs != here {
            format!("is one of {theirs} ranks, and this is a job of {here}")
        } else {
            // Names from different sources cannot be compared.
            let (theirs, here) = (name(&claim[JOB_AT..TOLD_AT]), name(&own[JOB_AT..TOLD_AT]));
            let by = |name: &str| name.split_once('=').map(|(by, _)| by.to_owned());
            if theirs == here || by(&theirs) != by(&here) {
                return Ok(());
            }
            format!("is of {theirs}, and this is {here}")
        };
        let text = format!("rank {}, {}, {differ}; {SEPARATE}", self.rank, owner(claim));
        Err(Error::new(ErrorKind::Mismatch, text).with_rank(self.rank))
    }

    /// What its process has told before the last time.
    pub(super) fn told_before(&self) -> impl Iterator<Item = &'a [u8]> {
        self.claims[..self.claims.len() - 1].iter().map(|claim| &claim[TOLD_AT..])
    }

    /// The error for the first of the claims and `other`.
    pub(super) fn claimed_twice(&self, other: &[u8]) -> Error {
        let (rank, first, other) = (self.rank, owner(self.claims[0]), owner(other));
        let text = format!("rank {rank} is claimed twice: by {first}, and by {other}; {SEPARATE}");
        Error::new(ErrorKind::Mismatch, text).with_rank(rank)
    }
}

/// How it comes to that, and what to do.
pub(super) const SEPARATE: &str = "two processes have the same rank, another job uses this store, too, or an earlier job has left \
                                   its entries there: give each job and attempt a directory, port or prefix of its own";

fn owner(claim: &[u8]) -> String {
    let id = u32::from_le_bytes(std::array::from_fn(|i| claim[OWNER_BYTES - 4 + i]));
    format!("process {id} on {}", name(&claim[OWNER_BYTES..SIZE_AT]))
}

/// How many ranks the maker of `claim` believes that there are.
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
        let own = make(2, b"one").unwrap();
        let again = make(2, b"two").unwrap();
        let mut other = own.clone();
        other[0] ^= 1;
        other[8..12].copy_from_slice(&77_u32.to_le_bytes());
        other[OWNER_BYTES..SIZE_AT].fill(0);
        other[OWNER_BYTES..OWNER_BYTES + 5].copy_from_slice(b"node7");

        let value = [&own[..], &again].concat();
        let claims = Claims::read(3, &value, own.len()).unwrap();
        assert!(claims.is_led_by(&again) && !claims.is_led_by(&other));
        assert_eq!(claims.told().unwrap(), b"two");
        assert_eq!(claims.told_before().collect::<Vec<_>>(), [b"one"]);

        let value = [&other[..], &own].concat();
        let claims = Claims::read(3, &value, own.len()).unwrap();
        assert!(!claims.is_led_by(&own));
        let error = claims.told().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        let own = format!("and by process {} on ", std::process::id());
        for part in ["rank 3 is claimed twice: by process 77 on node7, ", &own, "prefix of its own"] {
            assert!(error.message().contains(part), "{error}");
        }
    }

    #[test]
    fn ranks_that_know_that_they_are_of_different_jobs_are_told_apart() {
        let check = |job: &str, size| {
            let (own, other) =
                (make_for(b"SLURM_JOB_ID=17", 2, b"").unwrap(), make_for(job.as_bytes(), size, b"").unwrap());
            Claims::read(1, &other, own.len())
                .unwrap()
                .is_of_the_same_job(&own)
                .map_err(|error| error.message().to_owned())
        };
        // What is not known, or known from somebody else, says nothing.
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
        for value in [&b""[..], b"short", &[0; 81]] {
            let error = Claims::read(0, value, 80).err().unwrap();
            assert!(error.message().contains("not 80: another version?"), "{error}");
        }
    }
}
