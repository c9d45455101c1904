//! Other processes of this host: their descriptors, their memory, who may read it, and whether they have ended.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use super::check;
use super::socket::retry;

/// A descriptor of another process, or of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The process, by the number that it has for itself.
    pub process: u32,
    /// The number of the descriptor there.
    pub number: u32,
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "descriptor {} of process {}", self.number, self.process)
    }
}

impl Descriptor {
    fn path(self) -> String {
        format!("/proc/{}/fd/{}", self.process, self.number)
    }

    /// What it refers to, such as `/memfd:name (deleted)`.
    pub fn target(self) -> io::Result<String> {
        Ok(std::fs::read_link(self.path())?.to_string_lossy().into_owned())
    }

    /// The file behind it.
    pub fn metadata(self) -> io::Result<Metadata> {
        std::fs::metadata(self.path())
    }

    /// Opens the file behind it for reading, without blocking. Only a user that may trace the process can do that.
    pub fn open(self) -> io::Result<File> {
        std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(self.path())
    }
}

/// A process, by a descriptor that becomes readable when it ends.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// The process with this number.
    pub fn open(process: u32) -> io::Result<Self> {
        // SAFETY: the call takes no pointers. `check` ensures that the descriptor is valid, and nothing else owns it.
        // The kernel makes it close-on-exec.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, process as libc::pid_t, 0);
            Ok(Self(OwnedFd::from_raw_fd(check(fd as libc::c_int)?)))
        }
    }

    /// The process's descriptor.
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Whether it has ended. A system call.
    pub fn has_ended(&self) -> bool {
        super::poll(&[super::Pollable::Socket(self.raw())], Duration::ZERO)
    }
}

/// How many descriptors this process has at least: so many numbers are taken before the first that is free.
pub fn descriptors() -> io::Result<u64> {
    Ok(super::Waker::new()?.as_raw_fd() as u64)
}

/// Reads another process's memory, from `address` on; returns the number of bytes, which may be less than `bytes`.
/// Needs the permission to trace that process.
///
/// # Safety
/// `into` is valid for writes of `bytes`.
pub unsafe fn read_memory(process: u32, address: u64, into: *mut u8, bytes: usize) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: bytes };
    // SAFETY: the caller guarantees that the local memory is valid; the kernel checks the remote addresses.
    retry(|| unsafe { libc::process_vm_readv(process as libc::pid_t, &local, 1, &remote, 1, 0) })
}

/// Whether the system lets processes read each other's memory: asked for this process's own, apart from what the
/// library finds out.
#[cfg(test)]
pub fn may_read_memory() -> bool {
    let (from, mut into) = ([7u8; 1], [0u8; 1]);
    let [local, remote] =
        [into.as_mut_ptr(), from.as_ptr().cast_mut()].map(|byte| libc::iovec { iov_base: byte.cast(), iov_len: 1 });
    // SAFETY: both describe a byte that lives until the call returns; the one that is written is not borrowed.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    match io::Error::last_os_error().raw_os_error() {
        _ if read == 1 => true,
        Some(libc::EPERM | libc::ENOSYS) => false,
        error => panic!("process_vm_readv returned {read}: {error:?}"),
    }
}

/// Says for messages why [`read_memory`] has failed with `error`, as far as the system tells.
pub fn why_unreadable(error: &io::Error) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let filtered = status_field(&status, "Seccomp") == Some("2");
    let why = match ptrace_scope() {
        _ if !matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => String::new(),
        None | Some(0) if filtered => {
            ", perhaps by the seccomp filter of this process, as in some containers".to_owned()
        }
        None | Some(0) => String::new(),
        Some(scope) => format!(", perhaps since kernel.yama.ptrace_scope is {scope}"),
    };
    format!("process_vm_readv: {error}{why}")
}

/// The value of a field in the text of `/proc/PID/status`.
fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// What Yama demands of a process that traces another one of its user: `kernel.yama.ptrace_scope`. 1: that it is an
/// ancestor, or one of the [`Tracers`]. `None`: the system has no Yama.
pub fn ptrace_scope() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

/// Processes that may trace this one although they are not its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracers {
    /// The process with this number, and those that descend from it.
    Descendants(u32),
    /// All of the same user.
    Any,
}

impl Tracers {
    /// What PR_SET_PTRACER takes.
    fn argument(self) -> libc::c_ulong {
        match self {
            Self::Descendants(process) => libc::c_ulong::from(process),
            Self::Any => libc::PR_SET_PTRACER_ANY,
        }
    }
}

/// Lets `tracers` trace this process, in place of those that an earlier call has named, whoever made it. Fails without
/// Yama. A child by fork begins without tracers.
pub fn set_tracers(tracers: Tracers) -> io::Result<()> {
    let unused: libc::c_ulong = 0;
    // SAFETY: the call takes no pointers. The kernel reads five arguments, four of them unsigned long.
    let result = unsafe { libc::prctl(libc::PR_SET_PTRACER, tracers.argument(), unused, unused, unused) };
    check(result).map(drop)
}

/// Whether this process is `process` or descends from it.
pub fn descends_from(process: u32) -> bool {
    let mut at = std::process::id();
    while at != process {
        let status = std::fs::read_to_string(format!("/proc/{at}/status")).unwrap_or_default();
        match status_field(&status, "PPid").and_then(|parent| parent.parse().ok()) {
            None | Some(0) => return false,
            Some(parent) => at = parent,
        }
    }
    true
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn a_process_that_ends_is_noticed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(!process.has_ended());
        child.kill().unwrap();
        assert!(sys::poll(&[sys::Pollable::Socket(process.raw())], Duration::from_secs(60)) && process.has_ended());
        child.wait().unwrap();
        assert_eq!(Process::open(child.id()).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn memory_is_read_and_a_bad_address_is_an_error() {
        let (data, mut into) = ([1u8, 2, 3, 4], [0u8; 4]);
        // SAFETY: `into` has four bytes.
        unsafe {
            assert_eq!(read_memory(std::process::id(), data.as_ptr() as u64, into.as_mut_ptr(), 4).unwrap(), 4);
            assert_eq!(into, data);
            let error = read_memory(std::process::id(), 8, into.as_mut_ptr(), 4).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        }
    }

    #[test]
    fn a_process_descends_from_itself_and_its_ancestors() {
        assert!([std::process::id(), std::os::unix::process::parent_id()].into_iter().all(descends_from));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!descends_from(child.id()) && !descends_from(u32::MAX));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn tracers_are_named_as_the_kernel_wants() {
        assert_eq!([Tracers::Descendants(7), Tracers::Any].map(Tracers::argument), [7, libc::c_ulong::MAX]);
        // Without Yama the call is unknown. With it, tracers would change for all tests of this process.
        if ptrace_scope().is_none() {
            let error = set_tracers(Tracers::Any).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
    }
}
