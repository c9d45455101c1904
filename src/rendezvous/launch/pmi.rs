//! Which launcher with PMI has started this process (MPICH's and Intel MPI's mpiexec, and others).
//!
//! Such a launcher leaves every process one end of a socket, PMI_FD. Nothing is said on it: a launcher that has heard one request
//! takes a process that ends without `finalize` for one that has crashed, and kills the others; and `finalize` closes the socket,
//! so that no MPI in the same process could start, nor a program that the process executes next.

use std::os::fd::RawFd;

use crate::error::{Error, Result};

/// The process id of the launcher on this host, at the other end of PMI_FD; `number` is that variable's value.
pub fn launcher(number: &str) -> Result<libc::pid_t> {
    let wrong = |why: &str| Error::invalid(format!("the environment variable PMI_FD={number:?} {why}"));
    let fd = number.parse().ok().filter(|fd| *fd >= 0).ok_or_else(|| wrong("is not a descriptor's number"))?;
    // Who ends MPI closes it, and its number becomes another file's.
    let at_the_other_end = peer(fd).ok_or_else(|| {
        wrong("is not the launcher's socket; was it closed, by MPI_Finalize or on the way to this program?")
    })?;
    // As the system says of one in a container that this process is not in.
    if at_the_other_end == 0 {
        return Err(wrong("leads to a launcher that this process cannot see"));
    }
    Ok(at_the_other_end)
}

/// The process that made the socket `fd` and its other end, if it is a socket between processes of one host.
fn peer(fd: RawFd) -> Option<libc::pid_t> {
    // A pair's ends have no names, but credentials; what was never connected has neither.
    let mut found = libc::ucred { pid: -1, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the call writes at most `length` bytes, a ucred, and refuses a number that is no such socket's.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast(), &mut length) };
    (result == 0 && found.uid != u32::MAX && found.pid >= 0).then_some(found.pid)
}
