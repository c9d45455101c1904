//! Which cores a rank may use.

use std::io;

use serde::{Deserialize, Serialize};

/// What to bind each rank to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Bind {
    /// Its share of the host's cores, an equal part for each rank
    Core,
    /// Nothing
    None,
}

/// The cores of each of `ranks` ranks, or `None` if they are to go where they like: where that is asked for, and, if nothing
/// is asked for, where there are more ranks than cores.
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

/// The cores that this process may use, those that share one core's hardware side by side.
fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: a zeroed set is an empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as long as said.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is one of the set's.
    let mut cores: Vec<usize> =
        (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect();
    let topology = |core: usize, what: &str| -> u32 {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/topology/{what}"));
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    // Where the system does not tell, the order stays. Stable, so that numbers decide among equals.
    cores.sort_by_cached_key(|core| (topology(*core, "physical_package_id"), topology(*core, "core_id")));
    Ok(cores)
}

/// Splits `cores` into `ranks` parts whose sizes differ by one at most.
fn shares(cores: &[usize], ranks: usize) -> impl Iterator<Item = &[usize]> {
    (0..ranks).map(move |rank| &cores[rank * cores.len() / ranks..(rank + 1) * cores.len() / ranks])
}

fn set_of(cores: &[usize]) -> libc::cpu_set_t {
    // SAFETY: a zeroed set is an empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the numbers are below the set's size.
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
