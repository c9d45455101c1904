//! The control groups of this process, and how much processor time they let it have.

use std::fs::read_to_string;
use std::io;
use std::path::{Path, PathBuf};

use super::socket::told;

/// The folders of the control groups of this process with `controller`, and of those above them. A folder that does not
/// exist may be among them. Fails if the system could not be asked, as [`told`].
pub(super) fn groups(controller: &str) -> io::Result<Vec<PathBuf>> {
    let list = told(read_to_string("/proc/self/cgroup"))?.unwrap_or_default();
    Ok(below(Path::new("/sys/fs/cgroup"), &list, controller))
}

/// What [`groups`] returns if `list` is `/proc/self/cgroup`. In a container, what is mounted at `root` may be a group
/// itself, whose path is then not found below it.
pub(super) fn below(root: &Path, list: &str, controller: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in list.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let roots: &[&str] = match controllers {
            "" => &["", "unified"],
            _ if controllers.split(',').any(|own| own == controller) => &[controller],
            _ => &[],
        };
        for root in roots.iter().map(|below| root.join(below)) {
            let group: PathBuf = root.join(path.trim_start_matches('/'));
            found.extend(group.ancestors().take_while(|group| group.starts_with(&root)).map(Path::to_owned));
        }
    }
    found
}

/// How many cores' time all threads of this process's control groups get together; `None` if nothing limits it, or that
/// is not known.
pub fn processor_quota() -> Option<f64> {
    min_quota(groups("cpu").unwrap_or_default())
}

fn min_quota(groups: Vec<PathBuf>) -> Option<f64> {
    groups.iter().filter_map(|group| quota(group)).min_by(f64::total_cmp)
}

/// The limit of one group: the time that it gets in each period, as a fraction of that; `None` if it has none.
fn quota(group: &Path) -> Option<f64> {
    let text = |file: &str| read_to_string(group.join(file)).ok();
    let text = match text("cpu.max") {
        Some(text) => text,
        // -1 if there is none.
        None => format!("{} {}", text("cpu.cfs_quota_us")?, text("cpu.cfs_period_us")?),
    };
    let mut numbers = text.split_whitespace().map(str::parse::<f64>);
    let (Some(Ok(time)), Some(Ok(period))) = (numbers.next(), numbers.next()) else { return None };
    (time >= 0.0 && period > 0.0).then_some(time / period)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn the_least_quota_of_all_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, file: &str, text: &str| {
            let group = root.path().join(group);
            std::fs::create_dir_all(&group).unwrap();
            std::fs::write(group.join(file), text).unwrap();
        };
        let min = |list: &str| min_quota(below(root.path(), list, "cpu"));
        assert_eq!(min("0::/a/b\n"), None);
        write("a/b", "cpu.max", "max 100000\n");
        assert_eq!(min("0::/a/b\n"), None);
        write("a", "cpu.max", "250000 100000\n");
        assert_eq!(min("0::/a/b\n"), Some(2.5));
        write("", "cpu.max", "50000 100000\n");
        assert_eq!([min("0::/of/the/host\n"), min("0::/a/b\n")], [Some(0.5); 2]);
        write("a/b", "cpu.max", "20000 100000\n");
        assert_eq!(min("0::/a/b\n"), Some(0.2));
        write("cpu/job", "cpu.cfs_quota_us", "-1\n");
        write("cpu/job", "cpu.cfs_period_us", "50000\n");
        assert_eq!(min("7:cpu,cpuacct:/job\n4:memory:/\n"), None);
        write("cpu/job", "cpu.cfs_quota_us", "200000\n");
        assert_eq!(min("7:cpuacct,cpu:/job\n4:memory:/\n"), Some(4.0));
        assert_eq!(min("7:memory:/job\n"), None);
        write("cpu/job", "cpu.cfs_period_us", "0\n");
        assert_eq!(min("7:cpu:/job\n"), None);
    }
}
