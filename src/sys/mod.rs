//! The system: every system call that the standard library lacks, with one contract for all systems. Linux has all; on
//! others, what needs shared memory is absent. All descriptors are close-on-exec. Calls interrupted by a signal are
//! repeated.

mod fork;
#[cfg(target_os = "linux")]
mod inheritance;
mod signal;
mod time_stamp;
mod waker;

pub mod connect;
pub mod control_group;
#[cfg(target_os = "linux")]
pub mod doorbell;
#[cfg(not(target_os = "linux"))]
#[path = "absent/doorbell.rs"]
pub mod doorbell;
pub mod file;
pub mod interfaces;
#[cfg(target_os = "linux")]
pub mod local_socket;
pub mod memory_limits;
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
pub mod numa;
pub mod poller;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(not(target_os = "linux"))]
#[path = "absent/process.rs"]
pub mod process;
#[cfg(all(unix, not(miri)))]
pub mod shared_library;
#[cfg(not(all(unix, not(miri))))]
#[path = "absent/shared_library.rs"]
pub mod shared_library;
#[cfg(target_os = "linux")]
pub mod shared_memory;
#[cfg(not(target_os = "linux"))]
#[path = "absent/shared_memory.rs"]
pub mod shared_memory;
pub mod socket;
pub mod topology;

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use poller::entries;

pub use fork::ForkMark;
#[cfg(all(test, target_os = "linux"))]
pub use fork::{in_a_child, without_descriptors};
#[cfg(target_os = "linux")]
pub use inheritance::NotInherited;
pub use poller::entries::call_when_ready;
pub use poller::{Pollable, Poller, PollerKind, READ, Registration, WRITE};
pub use signal::{block_signals, keep_errno, without_sigpipe};
pub use socket::{AsRaw, OwnedSocket, RawSocket, has_ended, receive, send, unacknowledged};
pub use time_stamp::time_stamp;
pub use waker::Waker;

#[cfg(target_os = "linux")]
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// What the system's monotonic clock shows, in nanoseconds.
pub fn monotonic_nanoseconds() -> u64 {
    // SAFETY: zeros are a valid value.
    let mut now: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `now` is valid for a write. The clock exists on every system.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How long a thread sleeps that the system refuses to tell when to wake up.
const BLIND_SLEEP: Duration = Duration::from_millis(1);

/// Waits until one of `sources` is readable, for at most `timeout`, or until a signal arrives. Returns whether the
/// first is readable. If the system refuses to wait, as it does for lack of memory or in a process that may have no
/// more descriptors, a short sleep takes its place: the caller looks again, and does not keep a core busy.
pub fn poll(sources: &[Pollable], timeout: Duration) -> bool {
    let mut few = [entries::NO_ENTRY; 4];
    // Without memory from the heap, as a thread sleeps often.
    if let Some(entries) = few.get_mut(..sources.len())
        && entries.iter_mut().zip(sources).all(|(entry, source)| source.entry().map(|of| *entry = of).is_some())
    {
        let ready = entries::wait_for_entries(entries, Some(timeout));
        let first = |n| n > 0 && entries.first().is_some_and(|first| entries::ready(first) != 0);
        return ready.map_or_else(|_| sleep_blindly(timeout), first);
    }
    let mut sleep = poller::Sleep::default();
    let mut first = 0..0;
    for (index, source) in sources.iter().enumerate() {
        let entries = sleep.add(source);
        if index == 0 {
            first = entries;
        }
    }
    sleep.wait(Some(timeout), first).unwrap_or_else(|_| sleep_blindly(timeout))
}

/// Nothing is known to be readable after it.
#[cold]
fn sleep_blindly(timeout: Duration) -> bool {
    std::thread::sleep(timeout.min(BLIND_SLEEP));
    false
}

/// The name of this host; empty where no system call tells it. It is known where a sandbox hides `/proc`, too.
pub fn host_name() -> io::Result<Vec<u8>> {
    #[cfg(unix)]
    {
        // SAFETY: zeros are a valid value of this struct of characters.
        let mut names: libc::utsname = unsafe { std::mem::zeroed() };
        // SAFETY: the struct is valid for writes.
        if unsafe { libc::uname(&mut names) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(names.nodename.iter().map(|byte| byte.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect())
    }
    #[cfg(not(unix))]
    Ok(Vec::new())
}

/// Whether `thread` is the calling one.
pub fn is_current(thread: &JoinHandle<()>) -> bool {
    // `std::thread::current` would allocate thread-local memory in a thread of the host program.
    #[cfg(unix)]
    {
        use std::os::unix::thread::JoinHandleExt;
        // SAFETY: `pthread_self` has no preconditions.
        thread.as_pthread_t() == unsafe { libc::pthread_self() }
    }
    #[cfg(not(unix))]
    {
        thread.thread().id() == std::thread::current().id()
    }
}

/// How many bytes of memory this process may lock; `None` if as many as it likes.
#[cfg(all(feature = "ibverbs", target_os = "linux"))]
pub fn locked_memory_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The limits on the number of descriptors of this process, soft and hard.
pub fn descriptor_limits() -> (u64, u64) {
    #[cfg(unix)]
    {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: `limit` is a valid rlimit; the call fills it or, on failure, leaves its initial value.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
        (limit.rlim_cur, limit.rlim_max)
    }
    #[cfg(not(unix))]
    (u64::MAX, u64::MAX)
}

/// The soft limit on the number of descriptors of this process.
pub fn descriptor_limit() -> u64 {
    descriptor_limits().0
}

/// Random bytes from the kernel.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    #[cfg(target_os = "linux")]
    {
        let mut have = 0;
        while have < N {
            // glibc has this function since 2.25 only.
            have += socket::retry(|| {
                let rest = &mut bytes[have..];
                // SAFETY: the kernel writes at most the bytes of `rest`.
                unsafe { libc::syscall(libc::SYS_getrandom, rest.as_mut_ptr(), rest.len(), 0) as isize }
            })?;
        }
    }
    #[cfg(not(target_os = "linux"))]
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    #[test]
    fn the_name_of_this_host_is_that_in_proc() {
        let name = std::fs::read("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(super::host_name().unwrap(), name.trim_ascii());
    }
}
