//! Waking other processes of this host: a socket for datagrams, which takes a descriptor in the process that is woken,
//! and none in those that wake it.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::{NotInherited, check, random};

/// The name of a doorbell, which the kernel shows to everyone, and the key without which it does not ring; half of the
/// bytes each.
pub type Bell = [u8; 32];
const NAME_BYTES: usize = 16;

/// One call takes this many rings.
const RINGS_AT_ONCE: usize = 16;
/// The maximum number of such calls that silence a doorbell: who rings without end must not keep its owner there.
const MAX_CALLS: u32 = 16;

/// The doorbell of this process, by which it also rings those of others.
#[derive(Debug)]
pub struct Doorbell {
    /// Dropped before the socket is closed.
    _registered: NotInherited,
    socket: UnixDatagram,
    bell: Bell,
}

/// The doorbell of another process, or of this one.
#[derive(Debug)]
pub struct Remote {
    address: SocketAddr,
    bell: Bell,
}

/// A socket that only sends.
fn unbound() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The address of a doorbell, in the namespace of names that are no files.
fn address(bell: &Bell) -> io::Result<SocketAddr> {
    let name: String = bell[..NAME_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("gloo_rs/{name}"))
}

impl Doorbell {
    /// A doorbell that has not rung.
    pub fn new() -> io::Result<Self> {
        let bell = random()?;
        let socket = UnixDatagram::bind_addr(&address(&bell)?)?;
        socket.set_nonblocking(true)?;
        // Where the system has no filters, every process may ring: the owner then looks in vain.
        let _ = admit(&socket, &bell[NAME_BYTES..]);
        Ok(Self { _registered: NotInherited::new(socket.as_raw_fd()), socket, bell })
    }

    /// By which others find it. Only those who may ring should know it.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// The doorbell's descriptor, which is readable once it has rung.
    pub fn raw(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Rings another one. If its process is gone, nothing happens.
    pub fn ring(&self, other: &Remote) {
        let key = &other.bell[NAME_BYTES..];
        let sent = self.socket.send_to_addr(key, &other.address);
        // Either the other one has no room, so it has rung already; or too many others have not answered this one.
        if sent.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
            && let Ok(fresh) = unbound()
        {
            let _ = fresh.send_to_addr(key, &other.address);
        }
    }

    /// Makes the descriptor unreadable until it rings again.
    pub fn clear(&self) {
        // A buffer without room, so that what came is dropped. qemu receives nothing into no buffers, but says that it
        // did.
        let mut nowhere = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        for _ in 0..MAX_CALLS {
            // SAFETY: zeroed headers are valid.
            let mut rings: [libc::mmsghdr; RINGS_AT_ONCE] = unsafe { std::mem::zeroed() };
            for ring in &mut rings {
                (ring.msg_hdr.msg_iov, ring.msg_hdr.msg_iovlen) = (&raw mut nowhere, 1);
            }
            // SAFETY: the headers and the buffer live as long as the call.
            let n = unsafe {
                libc::recvmmsg(
                    self.raw(),
                    rings.as_mut_ptr(),
                    RINGS_AT_ONCE as _,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            };
            if n < RINGS_AT_ONCE as libc::c_int {
                return;
            }
        }
    }
}

impl Remote {
    /// The doorbell with this bell. Fails if there is none in this network namespace, or this process may not ring it.
    pub fn find(bell: Bell) -> io::Result<Self> {
        let address = address(&bell)?;
        unbound()?.connect_addr(&address)?;
        Ok(Self { address, bell })
    }
}

/// Lets the kernel drop what does not begin with `key`, before it makes `socket` readable.
fn admit(socket: &UnixDatagram, key: &[u8]) -> io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const COMPARE: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut steps = Vec::new();
    for (at, word) in key.chunks_exact(4).enumerate() {
        let word = u32::from_be_bytes(word.try_into().expect("4 bytes"));
        // To the last step, unless it is this word.
        let last = 2 * (3 - at as u8) + 1;
        steps.extend([step(LOAD, 0, 4 * at as u32), step(COMPARE, last, word)]);
    }
    // All of it, or none.
    steps.extend([step(RETURN, 0, u32::MAX), step(RETURN, 0, 0)]);
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let bytes = size_of_val(&program) as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the program and its steps live until the call returns, which only reads them.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const program).cast(), bytes) }).map(drop)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::sys::{Pollable, poll};
    use std::time::Duration;

    fn rings(doorbell: &Doorbell) -> bool {
        poll(&[Pollable::Socket(doorbell.raw())], Duration::ZERO)
    }

    #[test]
    fn a_doorbell_rings_until_it_is_cleared() {
        let [one, other] = [Doorbell::new().unwrap(), Doorbell::new().unwrap()];
        let remote = Remote::find(*other.bell()).unwrap();
        assert!(!rings(&other), "to find it does not ring it");
        for times in [1, 2, 1000] {
            (0..times).for_each(|_| one.ring(&remote));
            assert!(rings(&other) && !rings(&one));
            other.clear();
            assert!(!rings(&other), "after {times}");
        }
        drop(other);
        one.ring(&remote);
        assert!(Remote::find([1; 32]).is_err());
    }

    #[test]
    fn only_who_has_the_key_can_ring() {
        let [one, other] = [Doorbell::new().unwrap(), Doorbell::new().unwrap()];
        let bell = *other.bell();
        for wrong in NAME_BYTES..bell.len() {
            let mut bell = bell;
            bell[wrong] ^= 1;
            one.ring(&Remote::find(bell).unwrap());
        }
        for content in [&[] as &[u8], &bell[NAME_BYTES..bell.len() - 1]] {
            unbound().unwrap().send_to_addr(content, &address(&bell).unwrap()).unwrap();
        }
        assert!(!rings(&other));
        one.ring(&Remote::find(bell).unwrap());
        assert!(rings(&other));
    }

    #[test]
    fn who_has_rung_many_that_do_not_answer_can_ring_one_more() {
        let one = Doorbell::new().unwrap();
        // The least that the system allows.
        socket2::SockRef::from(&one.socket).set_send_buffer_size(1).unwrap();
        let others: Vec<_> = (0..100).map(|_| Doorbell::new().unwrap()).collect();
        for other in &others {
            one.ring(&Remote::find(*other.bell()).unwrap());
            assert!(rings(other));
        }
    }
}
