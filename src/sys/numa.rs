//! How far parts of this host are from the calling thread: `/sys/devices/system/node`, and the thread's CPU affinity.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use super::socket::told;
use super::topology;

/// The distance of NUMA nodes from a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nearness {
    /// The thread's node; `None` if the system does not say.
    pub node: Option<u32>,
    /// Nodes and their distance from that one; 10 is the node itself.
    distances: Vec<(u32, u32)>,
}

impl Nearness {
    /// The nearness of the calling thread: of the node that has all CPUs on which it may run, else of the node where it
    /// runs now.
    pub fn here() -> io::Result<Self> {
        Self::of(&topology::affinity().unwrap_or_default(), current_cpu(), Path::new("/sys/devices/system/node"))
    }

    /// The nearness of a thread on node `node`, with a distance for each node.
    pub fn on(node: u32, distances: &[(u32, u32)]) -> Self {
        Self { node: Some(node), distances: distances.to_vec() }
    }

    /// The nearness of a thread that may run on `cpus` and runs on `current`; `folder` is `/sys/devices/system/node` or
    /// one like it.
    fn of(cpus: &BTreeSet<u32>, current: Option<u32>, folder: &Path) -> io::Result<Self> {
        let nodes = nodes(folder)?;
        let all = nodes.iter().find(|(_, of_node)| !cpus.is_empty() && cpus.is_subset(of_node));
        let now = || nodes.iter().find(|(_, of_node)| current.is_some_and(|cpu| of_node.contains(&cpu)));
        let Some((node, _)) = all.or_else(now) else { return Ok(Self::default()) };
        let text = told(fs::read_to_string(folder.join(format!("node{node}/distance"))))?.unwrap_or_default();
        // One number for each node, in the order of the nodes' numbers.
        let numbers = text.split_whitespace().map_while(|number| number.parse().ok());
        Ok(Self { node: Some(*node), distances: nodes.iter().map(|(node, _)| *node).zip(numbers).collect() })
    }

    /// The distance of something on `node`; the largest if that is unknown, and 0 if the thread's own node is.
    pub fn distance(&self, node: Option<u32>) -> u32 {
        let Some(own) = self.node else { return 0 };
        let known = self.distances.iter().find(|(other, _)| Some(*other) == node).map(|(_, distance)| *distance);
        known.unwrap_or(if node == Some(own) { 10 } else { u32::MAX })
    }
}

/// The nodes in order, with their CPUs; some have memory only.
fn nodes(folder: &Path) -> io::Result<Vec<(u32, BTreeSet<u32>)>> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("node")?.parse::<u32>().ok();
    let entries = told(fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>))?;
    let mut numbers: Vec<_> = entries.into_iter().flatten().filter_map(number).collect();
    numbers.sort_unstable();
    let cpus = |node: u32| {
        let list = told(fs::read_to_string(folder.join(format!("node{node}/cpulist"))))?.unwrap_or_default();
        Ok((node, topology::parse_list(list.trim()).unwrap_or_default()))
    };
    numbers.into_iter().map(cpus).collect()
}

/// The CPU on which this thread runs now.
fn current_cpu() -> Option<u32> {
    // SAFETY: the call has no preconditions.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::is_exhausted;

    /// Two nodes with two CPUs each, and one with memory only.
    fn machine() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (node, cpus, distance) in [(0, "0-1", "10 21 30"), (1, "2-3", "21 10 40"), (4, "", "30 40 10")] {
            let own = folder.path().join(format!("node{node}"));
            fs::create_dir(&own).unwrap();
            fs::write(own.join("cpulist"), format!("{cpus}\n")).unwrap();
            fs::write(own.join("distance"), format!("{distance}\n")).unwrap();
        }
        fs::write(folder.path().join("online"), "0-1,4\n").unwrap();
        folder
    }

    #[test]
    fn a_thread_is_on_the_node_of_all_its_cpus_or_of_the_current_one() {
        let machine = machine();
        let node = |cpus: &[u32], current| {
            Nearness::of(&cpus.iter().copied().collect(), current, machine.path()).unwrap().node
        };
        assert_eq!(node(&[2, 3], Some(0)), Some(1), "it may not run on CPU 0 any more");
        assert_eq!((node(&[0, 1, 2, 3], Some(2)), node(&[], Some(0))), (Some(1), Some(0)));
        assert_eq!((node(&[7], Some(7)), node(&[0, 2], None)), (None, None));
    }

    #[test]
    fn distances_belong_to_the_nodes_that_exist() {
        let machine = machine();
        let near = Nearness::of(&BTreeSet::from([2]), None, machine.path()).unwrap();
        assert_eq!(near, Nearness::on(1, &[(0, 21), (1, 10), (4, 40)]));
        assert_eq!([Some(1), Some(0), Some(4)].map(|node| near.distance(node)), [10, 21, 40]);
        assert_eq!((near.distance(Some(2)), near.distance(None)), (u32::MAX, u32::MAX));
        assert_eq!(Nearness::default().distance(Some(3)), 0);
    }

    #[test]
    fn a_system_without_the_folder_says_nothing() {
        let near = Nearness::of(&BTreeSet::from([0]), Some(0), Path::new("/nowhere")).unwrap();
        assert_eq!(near, Nearness::default());
        // Whatever this host says.
        let here = Nearness::here().unwrap();
        assert!(here.distance(here.node) <= 10);
    }

    #[test]
    fn a_process_without_descriptors_does_not_take_itself_for_a_host_without_nodes() {
        let machine = machine();
        let fails = || Nearness::of(&BTreeSet::from([2]), None, machine.path()).is_err_and(|e| is_exhausted(&e));
        assert!(crate::sys::without_descriptors(fails));
    }
}
