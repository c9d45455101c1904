//! Assigns cores to ranks.

use std::io;

use serde::{Deserialize, Serialize};

/// What to bind each rank to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Bind {
    /// An equal share of the host's cores for each rank
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
    if ranks > cores.len() {
        let why = format!("--bind-to core: {ranks} ranks, but this process may use {} cores of the host", cores.len());
        return if bind.is_none() { Ok(None) } else { Err(why) };
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
    // If the system does not report the topology, the order stays. The sort is stable, so equal entries keep the order of numbers.
    cores.sort_by_cached_key(|core| (topology(*core, "physical_package_id"), topology(*core, "core_id")));
    Ok(cores)
}

/// Splits `cores` into `ranks` parts whose sizes differ by at most one.
fn shares(cores: &[usize], ranks: usize) -> impl Iterator<Item = &[usize]> {
    (0..ranks).map(move |rank| &cores[rank * cores.len() / ranks..(rank + 1) * cores.len() / ranks])
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
    fn every_core_belongs_to_one_rank() {
        for (cores, ranks, expected) in [
            (&[0, 1, 2, 3][..], 2, &[&[0, 1][..], &[2, 3]][..]),
            (&[0, 4, 1, 5, 2], 2, &[&[0, 4], &[1, 5, 2]]),
            (&[7], 1, &[&[7]]),
            (&[3, 5, 9], 3, &[&[3], &[5], &[9]]),
        ] {
            assert_eq!(shares(cores, ranks).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn more_ranks_than_cores_are_bound_to_nothing_or_refused() {
        let cores = allowed().unwrap().len();
        assert!(cores > 0);
        assert_eq!(sets(None, cores).unwrap().unwrap().len(), cores);
        assert!(sets(Some(Bind::None), 1).unwrap().is_none());
        assert!(sets(None, cores + 1).unwrap().is_none());
        let error = sets(Some(Bind::Core), cores + 1).err().unwrap();
        assert!(
            error.contains(&format!("{} ranks", cores + 1)) && error.contains(&format!("{cores} cores")),
            "{error}"
        );
    }
}
