//! What a process holds of its host, and a `/dev/shm` that nobody else uses.

use std::fs;
use std::io;
use std::time::Duration;

use crate::clock;

/// Rounds of a process after which its memory is expected not to grow.
const WARM_UP: usize = 5;
/// By how much resident memory may vary: queues and caches of plans reach sizes that they did not have before.
const SLACK_BYTES: usize = 8 << 20;
/// Time that the system and the device's thread may need to close what was released; only a test that fails waits so
/// long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Mounts an empty file system on `/dev/shm`, for this process and those that it forks. It must have no other threads.
pub fn mount_own_dev_shm() {
    // SAFETY: the call has no arguments and cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let namespaces = libc::CLONE_NEWNS | if user == 0 { 0 } else { libc::CLONE_NEWUSER };
    // SAFETY: the call accesses no memory.
    let mut done = check(unsafe { libc::unshare(namespaces) });
    if user != 0 {
        let map = |file: &str, text: &str| fs::write(format!("/proc/self/{file}"), text);
        done = done
            .and_then(|()| map("setgroups", "deny"))
            .and_then(|()| map("uid_map", &format!("0 {user} 1")))
            .and_then(|()| map("gid_map", &format!("0 {group} 1")));
    }
    let (no_text, no_data) = (std::ptr::null(), std::ptr::null());
    done = done.and_then(|()| {
        // SAFETY: the paths end with NUL, and these calls accept null pointers for the rest.
        check(unsafe { libc::mount(no_text, c"/".as_ptr(), no_text, libc::MS_REC | libc::MS_PRIVATE, no_data) })
    });
    done = done.and_then(|()| {
        let (kind, at) = (c"tmpfs".as_ptr(), c"/dev/shm".as_ptr());
        // SAFETY: as above.
        check(unsafe { libc::mount(kind, at, kind, 0, no_data) })
    });
    done.unwrap_or_else(|error| {
        panic!("this test mounts a /dev/shm of its own: it needs root with CAP_SYS_ADMIN, or user namespaces: {error}")
    });
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The names of the files in a directory.
pub fn files(directory: &str) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// What a process may hold between two contexts: what it held before.
#[derive(Default)]
pub struct Holdings {
    rounds: usize,
    descriptors: usize,
    memfds: usize,
    resident: usize,
}

impl Holdings {
    /// Panics if this process, which has no context now, holds more than after its first rounds.
    pub fn check(&mut self) {
        self.rounds += 1;
        if self.rounds == 1 {
            // The device listens from its first context on.
            (self.descriptors, self.memfds) = (descriptors().len(), memfds().len());
        }
        let deadline = clock() + PATIENCE.as_nanos() as u64;
        while (descriptors().len() > self.descriptors || memfds().len() > self.memfds) && clock() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
        let (now, memory) = (descriptors(), memfds());
        assert!(now.len() <= self.descriptors, "{} descriptors after the first round, now {now:?}", self.descriptors);
        assert!(memory.len() <= self.memfds, "{} memfds after the first round, now {memory:?}", self.memfds);
        // SAFETY: the call gives memory that nobody uses back to the system.
        unsafe { libc::malloc_trim(0) };
        let resident = resident_bytes();
        if self.rounds <= WARM_UP {
            self.resident = self.resident.max(resident);
        }
        let (before, rounds) = (self.resident, self.rounds);
        assert!(resident <= before + SLACK_BYTES, "from {before} to {resident} bytes resident after {rounds} rounds");
    }
}

/// What the descriptors of this process are open on.
fn descriptors() -> Vec<String> {
    let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    // The descriptor of the listing itself is closed by then, or shows this process' own folder.
    open.map(|at| at.to_string_lossy().into_owned()).filter(|at| !at.starts_with("/proc/")).collect()
}

/// The mappings of anonymous files.
fn memfds() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).map(str::to_owned).collect()
}

fn resident_bytes() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
