//! Messages that are not sent, but read by the receiver from the sender's memory, on links that support this.
//!
//! The sender registers the message with the link and offers it, in order with other messages. The receive that matches the offer
//! reads the message, and then acknowledges this (`Taken`), which completes the send. If the sender's buffer is cancelled before
//! that, its memory is unregistered and a copy of the message is sent, since the receiver waits for it. If the sender's
//! collective is cancelled, no copy is sent: its context is closed, which ends the receive.
//!
//! Messages with the same key (peer, space and slot) complete in order, like those that are sent. A message behind an offer that
//! was not taken is offered too, or waits.

use std::io;

use super::inbox::{Finish, Incoming, Target};
use super::matching::Arrival;
use super::operation::{Outcome, Send};
use super::peer::Peer;
use super::queues::Key;
use super::{DIRECT_BYTES, Messenger};
use crate::error::{Error, ErrorKind, Result};
use crate::log::Level;
use crate::transport::RemoteMemory;
use crate::types::Rank;
use crate::wire::{Envelope, Message};

/// Bytes read from one rank before others are read.
const BYTES_PER_TURN: usize = 4 << 20;

/// An offered message that is being read.
#[derive(Debug)]
pub struct Reading {
    key: u32,
    order: Key,
    /// Its destination and progress.
    pub(super) incoming: Incoming,
    /// The sender has unregistered it: a replacement follows, or the connection ends.
    revoked: bool,
}

/// Reads the next bytes of `reading`, into their destination or into `staging`. Returns how many, and whether into `staging`.
fn read(memory: &mut dyn RemoteMemory, reading: &Reading, staging: &mut [u8]) -> io::Result<(usize, bool)> {
    let Reading { key, incoming, .. } = reading;
    let wanted = incoming.remaining();
    match incoming.target {
        Target::Memory(into) if wanted >= DIRECT_BYTES => {
            // SAFETY: `done` is at most `bytes`, for which the poster of the receive keeps the memory valid.
            let place = unsafe { std::slice::from_raw_parts_mut(into.add(incoming.done), wanted.min(BYTES_PER_TURN)) };
            memory.read(*key, incoming.done, place).map(|n| (n, false))
        }
        _ => {
            let wanted = wanted.min(staging.len());
            memory.read(*key, incoming.done, &mut staging[..wanted]).map(|n| (n, true))
        }
    }
}

impl Messenger {
    /// Whether a message with this key was offered and not taken.
    pub(super) fn has_offers(&self, order: Key) -> bool {
        !self.offers.is_empty() && self.offers.values().any(|send| send.key() == order)
    }

    /// Offers a message; returns `false` if it cannot be registered.
    pub(super) fn offer(&mut self, send: &Send) -> bool {
        let key = self.next_offer;
        let registered = self.peer(send.to).remote_memory().map(|memory| {
            // SAFETY: the poster keeps the memory valid until the event or the cancellation, both of which follow the call of
            // `unregister`.
            unsafe { memory.register(key, send.from, send.bytes) }
        });
        match registered {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                self.log(
                    Level::Detail,
                    &format!("rank {}: {} bytes for rank {}: {error}", self.rank, send.bytes, send.to),
                );
                return false;
            }
            None => return false,
        }
        self.next_offer = key.wrapping_add(1);
        self.offers.insert(key, *send);
        let message = Message::Offer { envelope: send.envelope(), key };
        self.peer(send.to).push(&message, std::ptr::null(), None, false);
        self.mark_dirty(send.to);
        true
    }

    /// `rank` has read the message that was offered under `key`. Ignored if the send was cancelled meanwhile.
    pub(super) fn taken(&mut self, rank: Rank, peer: &mut Peer, key: u32) {
        if let Some(send) = self.offers.get(&key).copied().filter(|send| send.to == rank) {
            self.offers.remove(&key);
            if let Some(memory) = peer.remote_memory() {
                memory.unregister(key);
            }
            self.event(send.token, Outcome::Done { rank, bytes: send.bytes });
            self.unblocked.push(send.key());
        }
    }

    /// Cancels the offers of `owner`.
    pub(super) fn cancel_offers(&mut self, owner: u32) {
        let given_up: Vec<(u32, Send)> = self.offers.extract_if(|_, send| send.token.owner == owner).collect();
        for (key, send) in given_up {
            if let Some(memory) = self.peer(send.to).remote_memory() {
                memory.unregister(key);
            }
            if send.space.is_user() {
                // SAFETY: the poster keeps the memory valid until `cancel`, which calls this, returns.
                unsafe { self.push_copy(&send, &Message::Replacement { envelope: send.envelope(), key }) };
            }
            self.release(send.key());
        }
    }

    /// `rank` offers a message.
    pub(super) fn offered(&mut self, rank: Rank, peer: &mut Peer, envelope: &Envelope, key: u32) -> Result<()> {
        if peer.remote_memory().is_none() {
            let text = format!("{} offers memory that the link cannot read", self.peer_name(rank));
            return Err(Error::new(ErrorKind::Mismatch, text));
        }
        if let Some(op) = self.receives.offer(rank, envelope, key) {
            self.begin_reading(rank, peer, op, envelope, key);
        }
        Ok(())
    }

    /// A receive that was just posted has matched an offer of `rank`.
    pub(super) fn read_later(&mut self, rank: Rank, op: u32, envelope: &Envelope, key: u32) {
        if let Some(mut peer) = self.peers.take(rank) {
            self.begin_reading(rank, &mut peer, op, envelope, key);
            self.peers.put_back(rank, peer);
            self.mark_dirty(rank);
        }
    }

    fn begin_reading(&mut self, rank: Rank, peer: &mut Peer, op: u32, envelope: &Envelope, key: u32) {
        let incoming = self.begin_arrival(rank, envelope, Arrival::Op(op));
        if matches!(incoming.target, Target::Discard) {
            // The message was refused.
            return peer.push_control(&Message::Taken { key });
        }
        let order = Key::new(rank, envelope.space, envelope.slot);
        peer.readings.push_back(Reading { key, order, incoming, revoked: false });
        if !self.reading.contains(&rank) {
            self.reading.push(rank);
        }
    }

    /// A message arrives that was offered under `key`.
    pub(super) fn begin_replacement(&mut self, rank: Rank, peer: &mut Peer, envelope: &Envelope, key: u32) -> Incoming {
        let met = peer.readings.iter().position(|reading| reading.key == key);
        let arrival = match met.and_then(|index| peer.readings.remove(index)).map(|reading| reading.incoming.finish) {
            Some(Finish::Recv(op)) => Arrival::Op(op),
            _ => self.receives.replace(rank, envelope, key),
        };
        self.begin_arrival(rank, envelope, arrival)
    }

    /// Cancels the readings for these receives.
    pub(super) fn cancel_readings(&mut self, receives: &[u32]) {
        for index in 0..self.reading.len() {
            let rank = self.reading[index];
            let Some(peer) = self.peers.get_mut(rank) else { continue };
            let mut unwanted = Vec::new();
            peer.readings.retain(|reading| {
                let its = matches!(reading.incoming.finish, Finish::Recv(op) if receives.contains(&op));
                unwanted.extend(its.then_some(reading.key));
                !its
            });
            unwanted.into_iter().for_each(|key| peer.push_control(&Message::Taken { key }));
            self.mark_dirty(rank);
        }
    }

    /// Whether an offered message can be read further.
    pub fn is_reading(&self) -> bool {
        let goes_on = |rank: &Rank| self.peers.get(*rank).is_some_and(|p| p.readings.iter().any(|r| !r.revoked));
        self.reading.iter().any(goes_on)
    }

    /// Reads offered messages as far as possible without blocking, up to [`BYTES_PER_TURN`] from each rank. Returns whether
    /// anything moved.
    pub(super) fn read_offers(&mut self) -> bool {
        let mut moved = false;
        for index in (0..self.reading.len()).rev() {
            // If a peer disconnects, it is removed from the list.
            if let Some(rank) = self.reading.get(index).copied() {
                moved |= self.read_offers_of(rank);
                if self.peers.get(rank).is_none_or(|peer| peer.readings.is_empty()) {
                    self.reading.retain(|other| *other != rank);
                }
            }
        }
        moved
    }

    fn read_offers_of(&mut self, rank: Rank) -> bool {
        let Some(mut peer) = self.peers.take(rank) else { return false };
        let mut staging = std::mem::take(&mut self.staging);
        let (mut moved, mut error) = (false, None);
        let (mut index, mut left) = (0, BYTES_PER_TURN);
        while left > 0 && index < peer.readings.len() {
            let order = peer.readings[index].order;
            let blocked = peer.readings.range(..index).any(|before| before.order == order);
            let Some(memory) = peer.link.as_deref_mut().and_then(|link| link.remote_memory()) else { break };
            let reading = &mut peer.readings[index];
            let result = match blocked || reading.revoked {
                true => Err(io::ErrorKind::WouldBlock.into()),
                false if reading.incoming.remaining() == 0 => Ok((0, false)),
                false => read(memory, reading, &mut staging),
            };
            match result {
                Ok((n, staged)) => {
                    moved = true;
                    left = left.saturating_sub(n);
                    match staged {
                        true => error = self.place(rank, &mut reading.incoming, &staging[..n]).err(),
                        false => reading.incoming.done += n,
                    }
                    if error.is_none()
                        && reading.incoming.remaining() == 0
                        && let Some(Reading { key, incoming, .. }) = peer.readings.remove(index)
                    {
                        peer.push_control(&Message::Taken { key });
                        error = self.finish(rank, &mut peer, incoming).err();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => index += 1,
                Err(e) if e.kind() == io::ErrorKind::NotFound => reading.revoked = true,
                Err(e) => error = Some(self.broke_while(rank, "reading its memory", &e)),
            }
            if error.is_some() {
                break;
            }
        }
        self.staging = staging;
        let dirty = peer.has_output();
        self.peers.put_back(rank, peer);
        match error {
            Some(error) => self.fail_connection(rank, error),
            // Sent now, because the sender waits for this message.
            None if dirty => drop(self.flush_to(rank)),
            None => {}
        }
        moved
    }
}
