//! The entries of poll's list, each of which asks whether a socket is ready, and waits for them.

use std::io;
use std::time::Duration;

#[cfg(windows)]
use windows_sys::Win32::Networking::WinSock;

use super::{BROKEN, HANGUP, PEER_ENDED, READ, WRITE};
use crate::sys::RawSocket;
#[cfg(target_os = "linux")]
use crate::sys::check;

/// An entry of poll's list.
#[cfg(unix)]
pub type Entry = libc::pollfd;
/// An entry of poll's list.
#[cfg(windows)]
pub type Entry = WinSock::WSAPOLLFD;

/// An entry that poll skips.
pub const NO_ENTRY: Entry = Entry { fd: -1i32 as _, events: 0, revents: 0 };

/// The bits of poll that ask for each condition and report it.
#[cfg(target_os = "linux")]
const BITS: [(u32, libc::c_short, libc::c_short); 5] = [
    (READ, libc::POLLIN, libc::POLLIN),
    (WRITE, libc::POLLOUT, libc::POLLOUT),
    (PEER_ENDED, libc::POLLRDHUP, libc::POLLRDHUP),
    (BROKEN, 0, libc::POLLERR | libc::POLLNVAL),
    (HANGUP, 0, libc::POLLHUP),
];
/// The bits of poll that ask for each condition and report it.
#[cfg(all(unix, not(target_os = "linux")))]
const BITS: [(u32, libc::c_short, libc::c_short); 4] = [
    (READ, libc::POLLIN, libc::POLLIN),
    (WRITE, libc::POLLOUT, libc::POLLOUT),
    (BROKEN, 0, libc::POLLERR | libc::POLLNVAL),
    (HANGUP | PEER_ENDED, 0, libc::POLLHUP),
];
/// The bits of poll that ask for each condition and report it.
#[cfg(windows)]
const BITS: [(u32, i16, i16); 4] = [
    (READ, WinSock::POLLRDNORM, WinSock::POLLRDNORM),
    (WRITE, WinSock::POLLWRNORM, WinSock::POLLWRNORM),
    (BROKEN, 0, WinSock::POLLERR | WinSock::POLLNVAL),
    (HANGUP | PEER_ENDED, 0, WinSock::POLLHUP),
];

/// An entry that asks for `interest` of a socket, and for its failure.
pub fn entry(socket: RawSocket, interest: u32) -> Entry {
    let events = BITS.iter().filter(|(of, ..)| interest & of != 0).fold(0, |all, (_, wanted, _)| all | wanted);
    Entry { fd: socket as _, events, revents: 0 }
}

/// What a wait has found for an entry: [`READ`] and the others. What has failed or ended can be read and written, which
/// returns the error or the end.
pub fn ready(entry: &Entry) -> u32 {
    let found = BITS.iter().filter(|(.., bit)| entry.revents & bit != 0).fold(0, |all, (of, ..)| all | of);
    if cfg!(not(target_os = "linux")) && found & (BROKEN | HANGUP) != 0 { found | READ | WRITE } else { found }
}

/// Waits until one of `entries` is ready or a signal arrives, or for `timeout`; `None` waits indefinitely. Returns how
/// many are ready. Precise, unlike a socket's own timeouts (`SO_RCVTIMEO`), which Linux rounds up: 17 s to as much as
/// 19 s.
#[cfg(target_os = "linux")]
pub fn poll_entries(entries: &mut [Entry], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos() as _,
    });
    let limit = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the pointer and the length describe `entries`, which is valid for reads and writes during the call; the
    // time limit is null or valid; a null signal mask is permitted.
    check(unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as _, limit, std::ptr::null()) }).map(|n| n as usize)
}

/// Waits until one of `entries` is ready or a signal arrives, or for `timeout`, rounded up to a millisecond; `None`
/// waits indefinitely. Returns how many are ready.
#[cfg(not(target_os = "linux"))]
pub fn poll_entries(entries: &mut [Entry], timeout: Option<Duration>) -> io::Result<usize> {
    let ms = super::milliseconds(timeout);
    #[cfg(windows)]
    if entries.is_empty() {
        // WSAPoll refuses an empty list.
        std::thread::sleep(timeout.unwrap_or(Duration::MAX));
        return Ok(0);
    }
    // SAFETY: the pointer and the length describe `entries`, which is valid for reads and writes during the call.
    #[cfg(unix)]
    let n = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as _, ms) };
    // SAFETY: as above.
    #[cfg(windows)]
    let n = unsafe { WinSock::WSAPoll(entries.as_mut_ptr(), entries.len() as _, ms) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Like [`poll_entries`]; a signal is no error.
pub fn wait_for_entries(entries: &mut [Entry], timeout: Option<Duration>) -> io::Result<usize> {
    poll_entries(entries, timeout)
        .or_else(|error| if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) })
}

/// Waits until `fd` is ready for `interest` ([`READ`] or [`WRITE`]), has failed, or a signal arrived; returns `false`
/// if `timeout` expired before that.
fn await_ready(fd: RawSocket, interest: u32, timeout: Duration) -> io::Result<bool> {
    match poll_entries(&mut [entry(fd, interest)], Some(timeout)) {
        Ok(ready) => Ok(ready > 0),
        // The caller checks its clock and calls again.
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(e) => Err(e),
    }
}

/// Repeats the non-blocking `call` whenever `fd` is ready for `interest`, until `left` returns that no time is left;
/// then fails with `WouldBlock`. Calls at least once.
pub fn call_when_ready(
    fd: RawSocket,
    interest: u32,
    left: impl Fn() -> Duration,
    mut call: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !await_ready(fd, interest, left())? {
                    return Err(error);
                }
            }
            result => return result,
        }
    }
}
