//! How both ends of a link of another transport connect queue pairs over it.

use std::io::{self, IoSlice, IoSliceMut};

use super::endpoint::{OFFER_BYTES, Offer, READY};
use super::shared::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::transport::{Interest, Link};
use crate::types::Rank;

/// A connection over which queue pairs are being connected.
pub(super) struct Joining {
    /// The name of the peer.
    pub name: String,
    pub link: Box<dyn Link>,
    /// The number of the connection for headers.
    pub number: u32,
    /// The connection of queue pairs; `None` if they could not be created.
    pub id: Option<u32>,
    /// Why they could not be, or why the peer's do not fit.
    pub failed: Option<Error>,
    pub out: Vec<u8>,
    pub sent: usize,
    pub received: Vec<u8>,
    pub is_connected: bool,
}

impl Joining {
    /// Sends and receives what is possible now.
    pub fn step(&mut self, rank: Rank, shared: &Shared) -> Result<Step> {
        let name = self.name.clone();
        let lost = |e: &dyn std::fmt::Display| {
            let text = format!("{name}: the connection broke while queue pairs were being connected: {e}");
            Error::new(ErrorKind::ConnectionLost, text).with_rank(rank)
        };
        loop {
            while self.sent < self.out.len() {
                match self.link.send(&[IoSlice::new(&self.out[self.sent..])]) {
                    Ok(n) => self.sent += n,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) => return Err(lost(&e)),
                }
            }
            let writable = self.sent < self.out.len();
            self.link.watch(Interest { readable: true, writable }).map_err(|e| lost(&e))?;
            let wanted = OFFER_BYTES + 1 - self.received.len();
            if wanted == 0 {
                return Ok(if self.is_connected && !writable { Step::Joined } else { Step::Waits });
            }
            let mut bytes = [0; OFFER_BYTES + 1];
            match self.link.receive(&mut [IoSliceMut::new(&mut bytes[..wanted])]) {
                Ok(0) => return Err(lost(&"the peer has ended it")),
                Ok(n) => self.received.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Step::Waits),
                Err(e) => return Err(lost(&e)),
            }
            if !Offer::may_begin(&self.received) {
                return Ok(Step::Messages(0));
            }
            if self.received.len() >= OFFER_BYTES && !self.is_connected {
                self.connect_pairs(rank, shared)?;
                self.is_connected = true;
                self.out.push(READY);
            }
            if self.received.get(OFFER_BYTES).is_some_and(|byte| *byte != READY) {
                return Ok(Step::Messages(OFFER_BYTES));
            }
        }
    }

    /// Connects the queue pairs to those that the peer has offered.
    fn connect_pairs(&mut self, rank: Rank, shared: &Shared) -> Result<()> {
        let name = &self.name;
        let offer: [u8; OFFER_BYTES] = self.received[..OFFER_BYTES].try_into().expect("so many");
        let offer = Offer::decode(&offer).map_err(|e| e.context(name).with_rank(rank))?;
        if let Some(error) = self.failed.take() {
            return Err(error.context(format_args!("no queue pair to {name}")));
        }
        if !offer.reason.is_empty() {
            let text = format!("{name} has no queue pair for this rank: {}", offer.reason);
            return Err(Error::new(ErrorKind::ConnectionLost, text).with_rank(rank));
        }
        let mut state = shared.lock();
        let id = self.id.expect("it was created, or there is an error");
        let (connection, common) = state.connection(id).expect("it is removed with its link");
        connection.connect(&offer, common).map_err(|e| e.context(name).with_rank(rank))
    }
}

/// What comes of an attempt to connect queue pairs.
pub(super) enum Step {
    /// This side waits for the peer, or for room to send.
    Waits,
    /// Both sides' queue pairs are connected.
    Joined,
    /// The peer has sent messages instead, from this byte on: the close notice of a context that has ended.
    Messages(usize),
}

/// A link of which some bytes were received already.
pub(super) struct Begun {
    pub bytes: Vec<u8>,
    pub link: Box<dyn Link>,
}

impl Link for Begun {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.link.send(parts)
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return self.link.receive(parts);
        }
        let n = io::Read::read_vectored(&mut &self.bytes[..], parts)?;
        self.bytes.drain(..n);
        Ok(n)
    }

    fn flush(&mut self) {
        self.link.flush();
    }

    fn watch(&mut self, interest: Interest) -> io::Result<()> {
        self.link.watch(interest)
    }

    fn end(self: Box<Self>, rest: Vec<u8>, close_notice: Vec<u8>) {
        self.link.end(rest, close_notice);
    }
}
