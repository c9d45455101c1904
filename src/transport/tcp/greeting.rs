//! Connections that have not proven yet that they belong to a context: the device's side of the handshake.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::secret::SecretKey;
use crate::sys;
use crate::transport::tcp::handshake::{Accepting, Acceptor, Fault, HELLO_BYTES, Handle, Nonce, Proven};

/// Time that a new connection has for the whole handshake.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that may be in the handshake at once.
const MAX: usize = 512;

/// How a handshake ended that came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The other side did not keep to the protocol, or proved nothing.
    Fault(Fault),
    /// The connection ended or broke in the middle.
    Ended,
    /// It took too long.
    Slow,
    /// It made room for a newer one.
    Crowded,
}

/// A connection that was dropped.
#[derive(Debug)]
pub struct Dropped {
    /// The address that it came from.
    pub from: String,
    /// The rank that it said it was, to a context that is here.
    pub claims: Option<u32>,
    /// Why.
    pub failure: Failure,
}

/// A connection that has not proven itself.
struct Greeting {
    socket: OwnedFd,
    from: String,
    acceptor: Acceptor,
    until: Instant,
}

impl Greeting {
    fn dropped(self, failure: Failure) -> Dropped {
        Dropped { from: self.from, claims: self.acceptor.claims(), failure }
    }
}

/// All of them, by number: the oldest has the smallest.
#[derive(Default)]
pub struct Greetings(BTreeMap<u64, Greeting>);

impl Greetings {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `number` is one of them.
    pub fn contains(&self, number: u64) -> bool {
        self.0.contains_key(&number)
    }

    /// Begins with a connection, which is non-blocking. Numbers grow. If there are too many, the oldest that has not named a
    /// context that is here makes room, or else the oldest: an honest rank takes two round trips, so it is among the
    /// youngest however many strangers come.
    pub fn insert(&mut self, number: u64, socket: OwnedFd, from: String, nonce: Nonce) -> Option<Dropped> {
        let victim = if self.0.len() < MAX {
            None
        } else {
            let silent = self.0.iter().find(|(_, greeting)| !greeting.acceptor.is_challenged());
            silent.or_else(|| self.0.first_key_value()).map(|(number, _)| *number)
        };
        let dropped = victim.and_then(|victim| self.0.remove(&victim)).map(|g| g.dropped(Failure::Crowded));
        let until = Instant::now() + TIMEOUT;
        self.0.insert(number, Greeting { socket, from, acceptor: Acceptor::new(nonce), until });
        dropped
    }

    /// Reads what has come for `number`, and answers. The connection, once it has proven itself; why it was dropped; or
    /// nothing yet.
    pub fn advance(
        &mut self,
        number: u64,
        find: impl FnOnce(&Handle) -> Option<SecretKey>,
    ) -> Option<Result<(OwnedFd, Proven), Dropped>> {
        let greeting = self.0.get_mut(&number)?;
        let fd = greeting.socket.as_raw_fd();
        let mut bytes = [0; HELLO_BYTES];
        let wanted = greeting.acceptor.wanted();
        let failure = match sys::receive(fd, &mut [IoSliceMut::new(&mut bytes[..wanted])]) {
            Ok(0) => Failure::Ended,
            Ok(n) => match greeting.acceptor.take(&bytes[..n], find) {
                Ok(Accepting::Waiting) => return None,
                // It fits into the buffer of a socket that nothing was sent on.
                Ok(Accepting::Send(challenge)) => match sys::send(fd, &[IoSlice::new(&challenge)]) {
                    Ok(sent) if sent == challenge.len() => return None,
                    _ => Failure::Ended,
                },
                Ok(Accepting::Proven(proven)) => return self.0.remove(&number).map(|g| Ok((g.socket, proven))),
                Err(fault) => {
                    if let Some(answer) = fault.answer() {
                        // Of another version there may be more: closed with bytes unread, the answer would be lost.
                        let _ = sys::receive(fd, &mut [IoSliceMut::new(&mut [0; 1024])]);
                        let _ = sys::send(fd, &[IoSlice::new(&answer.encode())]);
                    }
                    Failure::Fault(fault)
                }
            },
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => Failure::Ended,
        };
        self.0.remove(&number).map(|g| Err(g.dropped(failure)))
    }

    /// Drops one whose time is up at `now`, if there is one.
    pub fn expire(&mut self, now: Instant) -> Option<Dropped> {
        let oldest = self.0.first_entry().filter(|entry| entry.get().until <= now)?;
        Some(oldest.remove().dropped(Failure::Slow))
    }
}
