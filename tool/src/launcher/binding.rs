//! Assigns cores to ranks.

use std::io;

use serde::{Deserialize, Serialize};

/// What to bind each rank to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Bind {
    /// An equal share of the host's cores for each rank; with more ranks than cores, one core that it shares with
    /// others
    Core,
    /// Do not bind
    None,
}

/// The cores of each of `ranks` ranks, or `None` if they are not bound: if that is requested or, by default,
/// if there are more ranks than cores.
pub fn sets(bind: Option<Bind>, ranks: usize) -> Result<Option<Vec<libc::cpu_set_t>>, String> {
    if bind == Some(Bind::None) {
        return Ok(None);
    }
    let cores = match allowed() {
        Ok(cores) => cores,
        Err(_) if bind.is_none() => return Ok(None),
        Err(error) => return Err(format!("--bind-to core: cannot tell this host's cores: {error}")),
    };
    if ranks > cores.len() && bind.is_none() {
        return Ok(None);
    }
    Ok(Some(shares(&cores, ranks).map(set_of).collect()))
}

/// The cores that this process may use; hardware threads of one core are adjacent.
fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: a zeroed `cpu_set_t` is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes at most the size of `set`, which is passed.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is smaller than the number of bits in the set.
    let mut cores: Vec<usize> =
        (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect();
    let topology = |core: usize, what: &str| -> u32 {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/topology/{what}"));
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    // If the system does not report the topology, the order stays. The sort is stable, so equal entries keep the order
    // of numbers.
    cores.sort_by_cached_key(|core| (topology(*core, "physical_package_id"), topology(*core, "core_id")));
    Ok(cores)
}

/// Splits `cores` into `ranks` parts whose sizes differ by at most one; if there are more ranks than cores, gives each
/// rank one, so that the numbers of ranks on each differ by at most one.
fn shares(cores: &[usize], ranks: usize) -> impl Iterator<Item = &[usize]> {
    let first = move |rank| rank * cores.len() / ranks;
    (0..ranks).map(move |rank| &cores[first(rank)..first(rank + 1).max(first(rank) + 1)])
}

fn set_of(cores: &[usize]) -> libc::cpu_set_t {
    // SAFETY: a zeroed `cpu_set_t` is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the numbers are smaller than the number of bits in the set.
    cores.iter().for_each(|core| unsafe { libc::CPU_SET(*core, &mut set) });
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_equal_shares() {
        for (cores, ranks, expected) in [
            (&[0, 1, 2, 3][..], 2, &[&[0, 1][..], &[2, 3]][..]),
            (&[0, 4, 1, 5, 2], 2, &[&[0, 4], &[1, 5, 2]]),
            (&[7], 1, &[&[7]]),
            (&[3, 5, 9], 3, &[&[3], &[5], &[9]]),
            (&[3, 5], 4, &[&[3], &[3], &[5], &[5]]),
            (&[3, 5, 9], 5, &[&[3], &[3], &[5], &[5], &[9]]),
        ] {
            assert_eq!(shares(cores, ranks).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn more_ranks_than_cores_are_bound_if_that_is_requested() {
        let cores = allowed().unwrap().len();
        assert!(cores > 0);
        assert_eq!(sets(None, cores).unwrap().unwrap().len(), cores);
        assert!(sets(Some(Bind::None), 1).unwrap().is_none());
        assert!(sets(None, cores + 1).unwrap().is_none());
        let bound = sets(Some(Bind::Core), 2 * cores + 1).unwrap().unwrap();
        // SAFETY: the sets are valid.
        let counts: Vec<i32> = bound.iter().map(|set| unsafe { libc::CPU_COUNT(set) }).collect();
        assert_eq!(counts, vec![1; 2 * cores + 1]);
    }
}
