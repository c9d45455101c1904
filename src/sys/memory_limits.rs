//! How much memory this process can have.

use std::fs;
use std::io;
use std::path::Path;

use super::control_group;
use super::socket::told;

/// The maximum number of bytes: the host's memory and swap, or less where a control group limits this process. `None`
/// if that is unknown. Fails if the system could not be asked, as [`told`].
pub fn max_bytes() -> io::Result<Option<u64>> {
    let Some((memory, swap)) = of_host() else { return Ok(None) };
    let mut max_bytes = memory.saturating_add(swap);
    for group in control_group::groups("memory")? {
        max_bytes = limit(&group, swap)?.map_or(max_bytes, |limit| limit.min(max_bytes));
    }
    Ok(Some(max_bytes))
}

/// Whether the system promises no more memory than there is, so that memory that is only counted when it is written may
/// lack then. Fails as [`max_bytes`].
pub fn is_strict() -> io::Result<bool> {
    Ok(told(fs::read_to_string("/proc/sys/vm/overcommit_memory"))?.is_some_and(|mode| mode.trim() == "2"))
}

/// Bytes of memory and of swap.
fn of_host() -> Option<(u64, u64)> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: zeros are a valid value of this struct of integers.
        let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
        // SAFETY: the struct lives until the call returns.
        let known = unsafe { libc::sysinfo(&mut info) } == 0;
        // Some of these fields are shorter on some systems.
        #[allow(clippy::unnecessary_cast, clippy::useless_conversion, reason = "their types differ between systems")]
        let [memory, swap] =
            [info.totalram, info.totalswap].map(|n| (n as u64).saturating_mul(u64::from(info.mem_unit)));
        known.then_some((memory, swap))
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// The limit on memory and swap together of one group; `None` if it has none.
fn limit(group: &Path, swap: u64) -> io::Result<Option<u64>> {
    let number = |file: &str| -> io::Result<Option<u64>> {
        let text = told(fs::read_to_string(group.join(file)))?;
        Ok(text.and_then(|text| text.trim().parse().ok()))
    };
    if let Some(both) = number("memory.memsw.limit_in_bytes")? {
        return Ok(Some(both));
    }
    let memory = match number("memory.max")? {
        None => number("memory.limit_in_bytes")?,
        known => known,
    };
    let Some(memory) = memory else { return Ok(None) };
    Ok(Some(memory.saturating_add(number("memory.swap.max")?.map_or(swap, |max_bytes| max_bytes.min(swap)))))
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_all_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, file: &str, text: &str| {
            let group = root.path().join(group);
            std::fs::create_dir_all(&group).unwrap();
            std::fs::write(group.join(file), text).unwrap();
        };
        let groups = |list: &str| control_group::below(root.path(), list, "memory");
        let min = |list: &str| groups(list).iter().filter_map(|group| limit(group, 100).unwrap()).min();
        assert_eq!(min("0::/a/b\n"), None);
        write("a/b", "memory.max", "max\n");
        assert_eq!(min("0::/a/b\n"), None);
        write("a", "memory.max", "5000\n");
        assert_eq!(min("0::/a/b\n"), Some(5100));
        write("a", "memory.swap.max", "0\n");
        assert_eq!(min("0::/a/b\n"), Some(5000));
        write("", "memory.max", "3000\n");
        assert_eq!(min("0::/of/the/host\n"), Some(3100));
        write("memory/job", "memory.limit_in_bytes", "2000\n");
        assert_eq!(min("7:cpu:/job\n4:memory:/job\n"), Some(2100));
        write("memory/job", "memory.memsw.limit_in_bytes", "2050\n");
        assert_eq!(min("7:cpu:/job\n4:cpuset,memory:/job\n"), Some(2050));
    }
}
