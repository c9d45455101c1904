//! Messages that are not sent, but read by the receiver from the sender's memory, on links that support this.
//!
//! The sender registers the message with the link and offers it, in order with other messages. The receive that matches
//! the offer reads the message, and then acknowledges this (`Taken`), which completes the send. If the sender's buffer
//! is cancelled before that, its memory is unregistered and a copy of the message is sent, since the receiver waits for
//! it. If the sender's collective is cancelled, no copy is sent: its context is closed, which ends the receive.
//!
//! Messages with the same key (peer, space and slot) complete in order, like those that are sent. A message behind an
//! offer that was not taken is offered too, or waits.

use std::io;

use crate::error::{Error, Result};
use crate::hash::QuickMap;
use crate::log::Level;
use crate::messaging::endpoint::Endpoint;
use crate::messaging::inbox::{DIRECT_BYTES, Finish, Reading, Target};
use crate::messaging::matching::Arrival;
use crate::messaging::operation::{Outcome, Send, Token};
use crate::messaging::peer::Peer;
use crate::messaging::queues::Key;
use crate::transport::RemoteMemory;
use crate::types::Rank;
use crate::wire::{Envelope, Message};

/// Bytes read from one rank before others are read.
const TURN_BYTES: usize = 4 << 20;

/// Reads the next bytes of `reading`, into their destination or into `staging`. Returns how many, and whether into
/// `staging`.
fn read(memory: &mut dyn RemoteMemory, reading: &Reading, staging: &mut [u8]) -> io::Result<(usize, bool)> {
    let Reading { key, incoming, .. } = reading;
    let wanted = incoming.remaining();
    match incoming.target {
        Target::Memory(into) if wanted >= DIRECT_BYTES => {
            // SAFETY: `done` is at most `bytes`, for which the poster of the receive keeps the memory valid.
            let place = unsafe { std::slice::from_raw_parts_mut(into.add(incoming.done), wanted.min(TURN_BYTES)) };
            memory.read(*key, incoming.done, place).map(|n| (n, false))
        }
        _ => {
            let wanted = wanted.min(staging.len());
            memory.read(*key, incoming.done, &mut staging[..wanted]).map(|n| (n, true))
        }
    }
}

/// Offered messages: those of this rank, and those that it reads.
#[derive(Default)]
pub struct Offers {
    /// Messages that were offered and not yet read by the receiver, by key.
    by_key: QuickMap<u32, Send>,
    next_key: u32,
    /// Ranks whose offered messages are being read.
    reading: Vec<Rank>,
}

impl Offers {
    /// Whether no message of this rank is offered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Whether a message with this key was offered and not taken.
    pub fn has(&self, order: Key) -> bool {
        !self.by_key.is_empty() && self.sends().any(|send| send.key() == order)
    }

    /// The messages that were offered and not yet read by the receiver.
    pub fn sends(&self) -> impl Iterator<Item = &Send> {
        self.by_key.values()
    }

    /// Offers a message; returns `false` if it cannot be registered.
    pub fn offer(&mut self, send: &Send, ep: &mut Endpoint) -> bool {
        let key = self.next_key;
        let registered = ep.peer(send.to).remote_memory().map(|memory| {
            // SAFETY: the poster keeps the memory valid until the event or the cancellation, both of which follow the
            // call of `unregister`.
            unsafe { memory.register(key, send.from, send.bytes) }
        });
        match registered {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                let text = format!("rank {}: {} bytes for rank {}: {error}", ep.rank, send.bytes, send.to);
                ep.log(Level::Detail, &text);
                return false;
            }
            None => return false,
        }
        self.next_key = key.wrapping_add(1);
        self.by_key.insert(key, *send);
        ep.push_header(send.to, &Message::Offer { envelope: send.envelope(), key });
        true
    }

    /// `rank` has read the message that was offered under `key`: messages with the key that is returned, which wait
    /// behind it, can go on. Ignored if the send was cancelled meanwhile.
    pub fn taken(&mut self, rank: Rank, peer: &mut Peer, key: u32, ep: &mut Endpoint) -> Option<Key> {
        let send = self.by_key.get(&key).copied().filter(|send| send.to == rank)?;
        self.by_key.remove(&key);
        if let Some(memory) = peer.remote_memory() {
            memory.unregister(key);
        }
        peer.traffic.add(false, send.bytes as u64);
        ep.event(send.token, Outcome::Done { rank, bytes: send.bytes });
        Some(send.key())
    }

    /// Cancels the offers of `owner`. Returns the keys of messages that may wait behind them.
    ///
    /// # Safety
    /// The offered memory is still valid.
    pub unsafe fn cancel(&mut self, owner: u32, ep: &mut Endpoint, starved: &mut Vec<(Rank, Error)>) -> Vec<Key> {
        let cancelled: Vec<(u32, Send)> = self.by_key.extract_if(|_, send| send.token.owner == owner).collect();
        for (key, send) in &cancelled {
            if let Some(memory) = ep.peer(send.to).remote_memory() {
                memory.unregister(*key);
            }
            if send.space.is_user() {
                let message = Message::Replacement { envelope: send.envelope(), key: *key };
                // SAFETY: the caller guarantees that the memory is valid.
                unsafe { ep.push_copy(send, &message, starved) };
            }
        }
        cancelled.iter().map(|(_, send)| send.key()).collect()
    }

    /// The link to `rank` has ended, so the peer cannot read offered memory any more: returns the tokens of its
    /// messages.
    pub fn disconnect(&mut self, rank: Rank) -> Vec<Token> {
        self.reading.retain(|other| *other != rank);
        self.by_key.extract_if(|_, send| send.to == rank).map(|(_, send)| send.token).collect()
    }

    /// `rank` offers a message.
    pub fn offered(
        &mut self,
        rank: Rank,
        peer: &mut Peer,
        envelope: &Envelope,
        key: u32,
        ep: &mut Endpoint,
    ) -> Result<()> {
        if peer.remote_memory().is_none() {
            return Err(ep.violation(rank, "offers memory that the link cannot read"));
        }
        if let Some(op) = ep.receives.offer(rank, envelope, key) {
            self.begin_reading(rank, peer, op, envelope, key, ep);
        }
        Ok(())
    }

    /// A receive that was just posted has matched an offer of `rank`.
    pub fn read_later(&mut self, rank: Rank, op: u32, envelope: &Envelope, key: u32, ep: &mut Endpoint) {
        if let Some(mut peer) = ep.peers.take(rank) {
            self.begin_reading(rank, &mut peer, op, envelope, key, ep);
            ep.peers.put_back(rank, peer);
            ep.mark_dirty(rank);
        }
    }

    fn begin_reading(
        &mut self,
        rank: Rank,
        peer: &mut Peer,
        op: u32,
        envelope: &Envelope,
        key: u32,
        ep: &mut Endpoint,
    ) {
        let incoming = ep.destination(rank, envelope, Arrival::Op(op));
        if matches!(incoming.target, Target::Discard) {
            // The message was refused.
            return peer.queue.push_control(&Message::Taken { key });
        }
        let order = Key::new(rank, envelope.space, envelope.slot);
        peer.readings.push_back(Reading { key, order, incoming, revoked: false });
        if !self.reading.contains(&rank) {
            self.reading.push(rank);
        }
    }

    /// A message arrives that was offered under `key`: its destination.
    pub fn replaced(
        &mut self,
        rank: Rank,
        peer: &mut Peer,
        envelope: &Envelope,
        key: u32,
        ep: &mut Endpoint,
    ) -> Arrival {
        let index = peer.readings.iter().position(|reading| reading.key == key);
        match index.and_then(|index| peer.readings.remove(index)).map(|reading| reading.incoming.finish) {
            Some(Finish::Recv(op)) => Arrival::Op(op),
            _ => ep.receives.replace(rank, envelope, key),
        }
    }

    /// Cancels the readings for these receives.
    pub fn cancel_readings(&mut self, receives: &[u32], ep: &mut Endpoint) {
        for rank in &self.reading {
            let Some(peer) = ep.peers.get_mut(*rank) else { continue };
            let mut unwanted = Vec::new();
            peer.readings.retain(|reading| {
                let ends = matches!(reading.incoming.finish, Finish::Recv(op) if receives.contains(&op));
                unwanted.extend(ends.then_some(reading.key));
                !ends
            });
            unwanted.into_iter().for_each(|key| peer.queue.push_control(&Message::Taken { key }));
            ep.mark_dirty(*rank);
        }
    }

    /// Whether an offered message can be read further.
    pub fn can_read(&self, ep: &Endpoint) -> bool {
        let goes_on = |rank: &Rank| ep.peers.get(*rank).is_some_and(|p| p.readings.iter().any(|r| !r.revoked));
        self.reading.iter().any(goes_on)
    }

    /// The number of ranks from which offered messages are being read.
    #[inline]
    pub fn reading(&self) -> usize {
        self.reading.len()
    }

    /// Reads offered messages of the rank with this index among those that are read, as far as possible without
    /// blocking, up to [`TURN_BYTES`]. Returns the rank, whether anything moved, and the error if the link is broken.
    pub fn read(&mut self, index: usize, staging: &mut [u8], ep: &mut Endpoint) -> Option<(Rank, bool, Option<Error>)> {
        let rank = *self.reading.get(index)?;
        let mut peer = ep.peers.take(rank)?;
        let (mut moved, mut error) = (false, None);
        let (mut next, mut left) = (0, TURN_BYTES);
        while left > 0 && next < peer.readings.len() {
            let order = peer.readings[next].order;
            let blocked = peer.readings.range(..next).any(|before| before.order == order);
            let Some(memory) = peer.link.as_deref_mut().and_then(|link| link.remote_memory()) else { break };
            let reading = &mut peer.readings[next];
            let result = match blocked || reading.revoked {
                true => Err(io::ErrorKind::WouldBlock.into()),
                false if reading.incoming.remaining() == 0 => Ok((0, false)),
                false => read(memory, reading, staging),
            };
            match result {
                Ok((n, staged)) => {
                    moved = true;
                    left = left.saturating_sub(n);
                    peer.traffic.add(true, n as u64);
                    match staged {
                        true => reading.incoming.store(&staging[..n]),
                        false => reading.incoming.done += n,
                    }
                    if reading.incoming.remaining() == 0
                        && let Some(Reading { key, incoming, .. }) = peer.readings.remove(next)
                    {
                        peer.queue.push_control(&Message::Taken { key });
                        if let Finish::Recv(op) = incoming.finish {
                            ep.complete(rank, op, incoming.done);
                        }
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => next += 1,
                Err(e) if e.kind() == io::ErrorKind::NotFound => reading.revoked = true,
                Err(e) => {
                    error = Some(ep.broke_while(rank, "reading its memory", &e));
                    break;
                }
            }
        }
        if peer.readings.is_empty() {
            self.reading.swap_remove(index);
        }
        ep.peers.put_back(rank, peer);
        Some((rank, moved, error))
    }
}
