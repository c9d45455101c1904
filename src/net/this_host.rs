//! Which host this is, for ranks to find out who shares one.

use std::io;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::sys;

/// Identifies the host: processes get the same number if the boot id, the host name and the network namespace are
/// equal.
pub fn host() -> Result<u64> {
    let (boot, namespace) = (boot()?, namespace()?);
    let name = sys::host_name().map_err(|error| untold("ask for its name", &error))?;
    let mut bytes = [&boot[..], namespace.as_os_str().as_encoded_bytes(), &name].concat();
    if boot.is_empty() || namespace.as_os_str().is_empty() {
        // A sandbox may hide these. The addresses of the interfaces then distinguish hosts of one name.
        let own = told("list the network interfaces", sys::interfaces::list())?;
        bytes.extend(own.iter().filter(|i| !i.loopback).flat_map(|i| i.address.to_string().into_bytes()));
    }
    Ok(digest(&bytes))
}

/// Identifies what an address belongs to: processes get the same number if the boot id and the network namespace are
/// equal, as in containers with names of their own that use their host's network; 0 if that is not known.
pub fn network() -> Result<u32> {
    let (boot, namespace) = (boot()?, namespace()?);
    if boot.is_empty() || namespace.as_os_str().is_empty() {
        return Ok(0);
    }
    let digest = digest(&[&boot[..], namespace.as_os_str().as_encoded_bytes()].concat());
    Ok((digest >> 32) as u32 ^ digest as u32)
}

/// Whether there are these files. Another system may have some of that name: wine shows Linux's.
const IS_LINUX: bool = cfg!(any(target_os = "linux", target_os = "android"));

fn boot() -> Result<Vec<u8>> {
    if !IS_LINUX {
        return Ok(Vec::new());
    }
    told("read /proc/sys/kernel/random/boot_id", std::fs::read("/proc/sys/kernel/random/boot_id"))
}

fn namespace() -> Result<PathBuf> {
    if !IS_LINUX {
        return Ok(PathBuf::new());
    }
    told("read /proc/self/ns/net", std::fs::read_link("/proc/self/ns/net"))
}

/// What the system said, or nothing if it hides it, as from all processes in a sandbox. A rank that could not ask must
/// not take itself for another host, so any other error is one.
fn told<T: Default>(what: &str, answer: io::Result<T>) -> Result<T> {
    use io::ErrorKind::{InvalidInput, NotADirectory, NotFound, PermissionDenied, Unsupported};
    answer.or_else(|error| match error.kind() {
        NotFound | NotADirectory | PermissionDenied | Unsupported | InvalidInput => Ok(T::default()),
        // The system does not have the family of sockets by which interfaces are listed.
        _ if sys::socket::is_foreign_address(&error) => Ok(T::default()),
        _ => Err(untold(what, &error)),
    })
}

fn untold(what: &str, error: &io::Error) -> Error {
    Error::io(format_args!("cannot tell which host this is: cannot {what}"), error)
}

/// FNV-1a; only equality matters.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_hidden_from_all_processes_may_be_missing() {
        let answer = |number: i32| told("ask", Err::<Vec<u8>, _>(io::Error::from_raw_os_error(number)));
        for hidden in [libc::ENOENT, libc::ENOTDIR, libc::EACCES, libc::EPERM, libc::ENOSYS, libc::EAFNOSUPPORT] {
            assert!(answer(hidden).unwrap().is_empty());
        }
        for failed in [libc::EIO, libc::EMFILE, libc::ENOMEM, libc::ESTALE] {
            let error = answer(failed).unwrap_err();
            assert!(error.message().starts_with("cannot tell which host this is: cannot ask: "), "{error}");
        }
    }
}
