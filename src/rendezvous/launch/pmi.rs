//! Identifies the PMI launcher that started this process (MPICH's and Intel MPI's mpiexec, and others).
//!
//! Such a launcher passes every process one end of a socket, PMI_FD. This code sends nothing on it: after the first
//! request, the launcher treats a process that ends without `finalize` as crashed and kills the others; and `finalize`
//! closes the socket, so that no MPI could start in the same process, nor in a program that the process executes next.

use crate::error::{Error, Result};

/// The process id of the launcher on this host, at the other end of PMI_FD; `number` is that variable's value.
pub fn launcher(number: &str) -> Result<i32> {
    let wrong = |why: &str| Error::invalid(format!("the environment variable PMI_FD={number:?} {why}"));
    let fd = number.parse().ok().filter(|fd| *fd >= 0).ok_or_else(|| wrong("is not a descriptor's number"))?;
    // MPI_Finalize closes it, and the number may then be reused for another file.
    let at_the_other_end = peer(fd).ok_or_else(|| {
        wrong("is not the launcher's socket; was it closed, by MPI_Finalize or on the way to this program?")
    })?;
    // The kernel reports 0 for a process in a container that is not visible from here.
    if at_the_other_end == 0 {
        return Err(wrong("is connected to a launcher that is not visible from this process's container"));
    }
    Ok(at_the_other_end)
}

/// The process that made the socket `fd` and its other end, if it is a socket between processes of one host.
#[cfg(target_os = "linux")]
fn peer(fd: i32) -> Option<i32> {
    // The ends of a socket pair have no addresses, but credentials; a socket that was never connected has neither.
    let mut found = libc::ucred { pid: -1, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` and `length` outlive the call, which writes at most `length` bytes to `found`, the size of a
    // ucred; for a descriptor that is not such a socket it fails without writing.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast(), &mut length) };
    (result == 0 && found.uid != u32::MAX && found.pid >= 0).then_some(found.pid)
}

/// `None`: this system does not tell which process is at the other end.
#[cfg(not(target_os = "linux"))]
fn peer(_fd: i32) -> Option<i32> {
    None
}
