//! Connections that have not proven yet that they belong to a context: the device's side of the handshake.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::net::admission::{MAX_GREETINGS, Refusal};
use crate::net::handshake::{Accepting, Acceptor, HELLO_BYTES, Handle, Nonce, Proven};
use crate::secret::SecretKey;
use crate::sys;

/// Time that a new connection has for the whole handshake.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that was dropped.
#[derive(Debug)]
pub struct Dropped {
    /// The address that it came from.
    pub from: String,
    /// The rank that it said it was, to a context that is here.
    pub claims: Option<u32>,
    /// Why.
    pub refusal: Refusal,
}

/// A connection that has not proven itself.
struct Greeting {
    socket: OwnedFd,
    from: String,
    acceptor: Acceptor,
    since: Instant,
}

impl Greeting {
    fn dropped(self, refusal: Refusal) -> Dropped {
        Dropped { from: self.from, claims: self.acceptor.claims(), refusal }
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
        let dropped = if self.0.len() < MAX_GREETINGS { None } else { self.make_room(Duration::ZERO) };
        self.0.insert(number, Greeting { socket, from, acceptor: Acceptor::new(nonce), since: Instant::now() });
        dropped
    }

    /// Drops one that has not proven itself in this time, if there is one; see [`Greetings::insert`].
    pub fn make_room(&mut self, chance: Duration) -> Option<Dropped> {
        let silent = self.0.iter().find(|(_, greeting)| !greeting.acceptor.is_challenged());
        let victim = silent.or_else(|| self.0.first_key_value());
        let victim = *victim.filter(|(_, greeting)| greeting.since.elapsed() >= chance)?.0;
        self.0.remove(&victim).map(|greeting| greeting.dropped(Refusal::CrowdedOut))
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
        let refusal = match sys::receive(fd, &mut [IoSliceMut::new(&mut bytes[..wanted])]) {
            Ok(0) => Refusal::Incomplete,
            Ok(n) => match greeting.acceptor.take(&bytes[..n], find) {
                Ok(Accepting::Waiting) => return None,
                // It fits into the buffer of a socket that nothing was sent on.
                Ok(Accepting::Send(challenge)) => match sys::send(fd, &[IoSlice::new(&challenge)]) {
                    Ok(sent) if sent == challenge.len() => return None,
                    _ => Refusal::Incomplete,
                },
                Ok(Accepting::Proven(proven)) => return self.0.remove(&number).map(|g| Ok((g.socket, proven))),
                Err(fault) => {
                    if let Some(answer) = fault.answer() {
                        // Of another version there may be more: closed with bytes unread, the answer would be lost.
                        let _ = sys::receive(fd, &mut [IoSliceMut::new(&mut [0; 1024])]);
                        let _ = sys::send(fd, &[IoSlice::new(&answer.encode())]);
                    }
                    Refusal::Fault(fault)
                }
            },
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => Refusal::Incomplete,
        };
        self.0.remove(&number).map(|g| Err(g.dropped(refusal)))
    }

    /// Drops one whose time is up at `now`, if there is one.
    pub fn expire(&mut self, now: Instant) -> Option<Dropped> {
        let oldest = self.0.first_entry().filter(|entry| now.duration_since(entry.get().since) >= TIMEOUT)?;
        Some(oldest.remove().dropped(Refusal::TimedOut))
    }
}
