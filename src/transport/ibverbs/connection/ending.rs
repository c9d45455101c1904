//! How a connection breaks or ends, and the close notices of either side.

use std::io::{self, IoSliceMut};
use std::time::Instant;

use ibverbs_sys as ffi;

use super::{Connection, Ending, Exposure, Local, Pair};
use crate::transport::ibverbs::common::{Common, GRACE, KEEP_ALIVE};
use crate::transport::ibverbs::endpoint::{Broke, End};
use crate::transport::{Interest, Link, ReceivedNotice};

/// Why a connection is unusable whose requests ended without having been processed.
pub(super) const FLUSHED: &str = "a queue pair has failed";

/// The maximum number of bytes of the peer's close notice: the rest of a message, and a text.
const MAX_END_BYTES: usize = 8 << 20;

impl Connection {
    /// Whether [`Connection::receive`] has something to say about the end.
    pub(super) fn has_ended(&self, common: &Common) -> bool {
        let waits = self.grace.zip(common.now).is_none_or(|(until, now)| now < until);
        match &self.ending {
            Ending::No => self.broken.is_some() && !waits,
            Ending::Gone => true,
            Ending::Peer(end) => end.total == self.received_bytes || self.broken.is_some() || !waits,
        }
    }

    /// Whether it is broken, or the peer has ended it, so that [`Connection::tick`] must be called.
    pub fn is_ending(&self) -> bool {
        self.broken.is_some() || !matches!(self.ending, Ending::No)
    }

    /// Time has passed. Returns when to call this again, if the connection waits for what is missing at its end.
    pub fn tick(&mut self, now: Instant, common: &mut Common) -> Option<Instant> {
        if !self.is_ending() {
            self.keep_alive(now, common);
            return None;
        }
        let until = *self.grace.get_or_insert(now + GRACE);
        if self.has_ended(common) {
            self.touch(common);
            return None;
        }
        Some(until)
    }

    /// What follows the bytes that have arrived, if the connection has ended.
    pub(super) fn receive_end(&mut self, into: &mut [u8], common: &Common) -> io::Result<usize> {
        if let Some((bytes, done)) = &mut self.tail {
            let n = into.len().min(bytes.len() - *done);
            into[..n].copy_from_slice(&bytes[*done..*done + n]);
            *done += n;
            return Ok(n);
        }
        if !self.has_ended(common) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let Ending::Peer(end) = &mut self.ending else {
            return match &self.broken {
                Some(text) => Err(io::Error::new(io::ErrorKind::ConnectionReset, text.clone())),
                None => Ok(0),
            };
        };
        let end = std::mem::take(end);
        self.ending = Ending::Gone;
        if end.total != self.received_bytes {
            return Err(io::Error::other(ReceivedNotice(end.notice)));
        }
        self.tail = Some(([end.rest, end.notice].concat(), 0));
        self.receive_end(into, common)
    }

    /// Looks for the peer's close notice, or for the end of its process.
    pub fn look(&mut self, common: &mut Common) {
        let Some(inner) = &mut self.inner else { return };
        let mut bytes = [0; 1024];
        let ended = loop {
            match inner.receive(&mut [IoSliceMut::new(&mut bytes)]) {
                Ok(0) => break End::decode(&self.inner_bytes).ok_or(None),
                Ok(_) if self.inner_bytes.len() > MAX_END_BYTES => break Err(Some(io::ErrorKind::InvalidData.into())),
                Ok(n) => self.inner_bytes.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) => break Err(Some(e)),
            }
        };
        let _ = inner.watch(Interest::default());
        common.is_ending = true;
        if !matches!(self.ending, Ending::No) {
            return;
        }
        self.ending = match ended {
            Ok(end) => Ending::Peer(end),
            Err(error) => {
                let broke = Broke::decode(&self.inner_bytes).map(|broke| format!("its side says: {}", broke.why));
                if let Some(why) = broke.or_else(|| error.map(|error| error.to_string())) {
                    self.fail(&why, common);
                }
                Ending::Gone
            }
        };
        self.touch(common);
    }

    /// Finds out whether the peer's device is still there, if nothing has come from it for long.
    fn keep_alive(&mut self, now: Instant, common: &mut Common) {
        if std::mem::take(&mut self.has_heard) || self.heard.is_none() {
            self.heard = Some(now);
        }
        if self.silent_until().is_some_and(|until| until <= now) {
            self.heard = Some(now);
            self.probe_rail(0, common);
        }
    }

    /// Until when the peer may be silent.
    pub fn silent_until(&self) -> Option<Instant> {
        self.heard.filter(|_| !self.is_ending()).map(|heard| heard + KEEP_ALIVE)
    }

    /// The connection is unusable.
    pub fn fail(&mut self, why: &str, common: &mut Common) {
        match &mut self.broken {
            // The reason may come later, by another queue.
            Some(text) if text == FLUSHED => why.clone_into(text),
            Some(_) => {}
            None => self.broken = Some(why.to_owned()),
        }
        common.is_ending = true;
        self.touch(common);
    }

    /// Goes on to send what an ended link has taken. Returns whether the peer has all of it, or cannot have it any
    /// more.
    pub fn drain(&mut self, common: &mut Common) -> bool {
        self.progress(common);
        if self.unsignaled > 0 && self.pieces.is_empty() {
            self.probe(common);
        }
        let over = |pair: &Pair| pair.posted == pair.retired;
        self.broken.is_some() || self.pieces.is_empty() && self.pairs.iter().all(over)
    }

    /// Ends the connection: the peer gets what was sent, then these bytes. Returns the connection for the close notice,
    /// and the notice, which the caller sends by it; and whether this must be kept until it is drained.
    pub fn end(
        &mut self,
        rest: Vec<u8>,
        notice: Vec<u8>,
        common: &mut Common,
    ) -> (Option<Box<dyn Link>>, Vec<u8>, bool) {
        self.watched = Interest::default();
        let end = End { total: self.sent_bytes, rest, notice };
        // The program gets its memory back now.
        let direct = self.exposures.values().any(|exposure| matches!(exposure, Exposure::Direct))
            || self.placements.iter().any(|(_, placement)| matches!(placement.local, Local::Program));
        if direct {
            self.kill("the link has ended", common);
        }
        (self.inner.take(), end.encode(), !self.drain(common))
    }

    /// The link of a broken connection is dropped. Returns the connection for the close notice, and the notice: only
    /// this side may know the reason.
    pub fn part(&mut self) -> Option<(Box<dyn Link>, Vec<u8>)> {
        let why = self.broken.clone().filter(|_| matches!(self.ending, Ending::No))?;
        Some((self.inner.take()?, Broke { why }.encode()))
    }

    /// Finds out whether the peer is still reached by `rail`: by a write of no bytes, unless a request waits for its
    /// completion anyway, which comes in any case. Nothing else is done by other rails than the first while no message
    /// is divided among them.
    pub fn probe_rail(&mut self, rail: usize, common: &mut Common) {
        if rail == 0 && self.pairs.first().is_some_and(|pair| pair.signals.is_empty()) {
            self.probe(common);
        }
    }

    /// Whether its queue pairs include one of `rail`.
    pub fn uses(&self, rail: usize) -> bool {
        rail < self.pairs.len()
    }

    /// Posts a write of no bytes: its completion tells that all before it is over, and that the peer's device is there.
    pub fn probe(&mut self, common: &mut Common) {
        if self.broken.is_some() || self.room(0) == 0 {
            return;
        }
        self.unsignaled = 0;
        let mut request =
            self.request(0, ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE, ffi::ibv_send_flags::IBV_SEND_SIGNALED.0);
        self.signal(0, &mut request, None);
        self.push(request, (0, 0), 0);
        common.counters.writes += 1;
        self.post(0, common);
    }

    /// Gives back what belongs to all connections, after the queue pairs have been destroyed.
    pub fn close(mut self, common: &mut Common) {
        self.pairs.clear();
        self.give_back_buffers(common);
    }
}
