//! Which last-level cache and which socket the calling thread may use: `/sys/devices/system/cpu`, and the thread's CPU
//! affinity.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use super::socket;

/// Where a thread runs. Numbers are those of this host; threads with equal numbers share the cache, or the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The first CPU of the last-level cache; `None` if the thread may run on CPUs of several caches, or if the system
    /// does not say.
    pub cache: Option<u32>,
    /// The socket, in the same way.
    pub socket: Option<u32>,
}

/// The number of a cache for algorithms: with that of its socket in the upper 16 bits.
pub const fn domain(socket: u32, cache: u32) -> u32 {
    (socket << 16) | cache
}

/// The socket of a [`domain`].
pub const fn socket(domain: u32) -> u32 {
    domain >> 16
}

/// [`Place::of_cpus`] of the CPUs on which the calling thread may run.
pub fn place() -> io::Result<Place> {
    #[cfg(test)]
    if let Some(place) = PRETENDED.get() {
        return Ok(place);
    }
    affinity().map_or(Ok(Place::default()), |cpus| Place::of_cpus(&cpus, Path::new("/sys/devices/system/cpu")))
}

impl Place {
    /// The place of a thread that may run on `cpus`, as `folder`, which is `/sys/devices/system/cpu` or one like it,
    /// describes them.
    fn of_cpus(cpus: &BTreeSet<u32>, folder: &Path) -> io::Result<Self> {
        let Some(first) = cpus.first() else { return Ok(Self::default()) };
        let cpu = folder.join(format!("cpu{first}"));
        let text = |path: &str| socket::told(fs::read_to_string(cpu.join(path)));
        // Instruction caches are of the first level, so the last one holds data, too.
        let mut caches = Vec::new();
        while let Some(level) =
            text(&format!("cache/index{}/level", caches.len()))?.and_then(|text| text.trim().parse::<u32>().ok())
        {
            caches.push((level, caches.len()));
        }
        let last = match caches.into_iter().max() {
            Some((_, index)) => text(&format!("cache/index{index}/shared_cpu_list"))?,
            None => None,
        };
        // Linux before 5.7 has the second name only.
        let socket = match text("topology/package_cpus_list")? {
            None => text("topology/core_siblings_list")?,
            known => known,
        };
        let around = |list: Option<String>| parse_list(list?.trim()).filter(|all| cpus.is_subset(all));
        Ok(Self {
            cache: around(last).and_then(|all| all.first().copied()),
            socket: around(socket).and_then(|all| all.first().copied()),
        })
    }

    /// Encodes the place in eight bytes for other ranks.
    pub fn serialize(&self) -> [u8; 8] {
        let number = |number: Option<u32>| number.unwrap_or(u32::MAX).to_le_bytes();
        let (cache, socket) = (number(self.cache), number(self.socket));
        std::array::from_fn(|at| if at < 4 { cache[at] } else { socket[at - 4] })
    }

    /// The inverse of [`Place::serialize`].
    pub fn deserialize(bytes: [u8; 8]) -> Self {
        let number = |at: usize| {
            let number = u32::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
            Some(number).filter(|number| *number != u32::MAX)
        };
        Self { cache: number(0), socket: number(4) }
    }
}

/// The CPUs on which the calling thread may run; `None` if the system does not say.
#[cfg(target_os = "linux")]
pub fn affinity() -> Option<BTreeSet<u32>> {
    // More CPUs than Linux can be built for, as far as we know: with fewer bits than it has, the call fails.
    let mut mask = [0u64; 8192 / u64::BITS as usize];
    // SAFETY: the mask is valid for writes of its size, and every bit pattern is valid.
    let bytes = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    let bits = |(at, word): (usize, &u64)| {
        let (first, word) = (at as u32 * u64::BITS, *word);
        (0..u64::BITS).filter(move |bit| word >> bit & 1 != 0).map(move |bit| first + bit)
    };
    (bytes == 0).then(|| mask.iter().enumerate().flat_map(bits).collect())
}

/// The CPUs on which the calling thread may run; `None`, since this system does not say.
#[cfg(not(target_os = "linux"))]
pub fn affinity() -> Option<BTreeSet<u32>> {
    None
}

#[cfg(test)]
thread_local! {
    /// What tests say in place of [`place`] on a thread.
    pub static PRETENDED: std::cell::Cell<Option<Place>> = const { std::cell::Cell::new(None) };
}

/// Parses a list of CPUs: `0-3,8`.
pub(super) fn parse_list(text: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= 1 << 20 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        let list = |text: &str| parse_list(text).map(|cpus| cpus.into_iter().collect::<Vec<_>>());
        assert_eq!(list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(list("5"), Some(vec![5]));
        for text in ["", "-", "1-", "a", "1,,2", "0-4294967295"] {
            assert_eq!(list(text), None, "{text}");
        }
    }

    /// Two sockets, each of two caches of two CPUs; the CPUs of a socket are not consecutive.
    fn machine(package_list: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for cpu in 0..8 {
            let (socket, cache) = (cpu % 2, cpu / 4);
            let own = folder.path().join(format!("cpu{cpu}"));
            let write = |path: &str, text: &str| {
                let path = own.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{text}\n")).unwrap();
            };
            for (index, level) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
                write(&format!("cache/index{index}/level"), &level.to_string());
                let first = 4 * cache + socket;
                let list = if level == 3 { format!("{first},{}", first + 2) } else { cpu.to_string() };
                write(&format!("cache/index{index}/shared_cpu_list"), &list);
            }
            write(
                &format!("topology/{package_list}"),
                &format!("{socket},{},{},{}", socket + 2, socket + 4, socket + 6),
            );
        }
        folder
    }

    #[test]
    fn a_thread_is_in_the_cache_and_the_socket_that_have_all_its_cpus() {
        for list in ["package_cpus_list", "core_siblings_list"] {
            let machine = machine(list);
            let place = |cpus: &[u32]| {
                let Place { cache, socket } = Place::of_cpus(&cpus.iter().copied().collect(), machine.path()).unwrap();
                (cache, socket)
            };
            assert_eq!(place(&[0]), (Some(0), Some(0)));
            assert_eq!(place(&[5, 7]), (Some(5), Some(1)));
            assert_eq!(place(&[1, 5]), (None, Some(1)), "two caches");
            assert_eq!(place(&[0, 1]), (None, None), "two sockets");
            assert_eq!(place(&[]), (None, None));
            assert_eq!(place(&[9]), (None, None), "a CPU that the folder does not have");
        }
    }

    #[test]
    fn places_for_other_ranks() {
        for cache in [None, Some(0), Some(77)] {
            for socket in [None, Some(0), Some(1 << 30)] {
                let place = Place { cache, socket };
                assert_eq!(Place::deserialize(place.serialize()), place);
            }
        }
    }

    #[test]
    fn this_thread_is_somewhere() {
        let cpus = affinity().unwrap();
        assert!(!cpus.is_empty());
        let number = std::thread::available_parallelism().unwrap().get();
        assert!(cpus.len() >= number, "{cpus:?}, {number}");
    }
}
