//! Messages that the sender's link writes straight into memory that the receiver has exposed, on links that support
//! this.
//!
//! The grant of a receive carries a key of exposed memory: the receive's own, or a buffer of the link if it reduces.
//! The sender's link writes the message there, and a header without payload, in order with other messages, says that it
//! has been placed. If the receiver's link exposes no memory, or the sender's link cannot write to it, the message is
//! sent as on other links.
//!
//! A grant is for one receive, so both sides must agree on its message:
//! - Large receives of collectives send grants when they are posted, and are not announced. The messages of one key
//!   (peer, space and slot) match in order and are as long as their receives, so the n-th grant is for the n-th large
//!   message. For this, large messages that were to be sent before the link was established wait for grants, too, and
//!   receives that were posted before send theirs when it is.
//! - A large message of an unbound buffer is announced with a number, and the receive that matches the announcement
//!   answers with a grant for this number. If the sender has cancelled the message meanwhile and sent a copy, it
//!   ignores the grant.

use crate::error::Result;
use crate::messaging::endpoint::Endpoint;
use crate::messaging::matching::{Arrival, Exposed, Op, refusal};
use crate::messaging::operation::Outcome;
use crate::messaging::peer::Peer;
use crate::types::Rank;
use crate::wire::{Envelope, Message};

/// The memory of receives that is exposed to peers.
#[derive(Default)]
pub struct Exposures {
    /// Memory that was exposed to a rank for receives that were cancelled, by its key: a message may still be placed
    /// there.
    pub withdrawn: Vec<(Rank, u32)>,
    /// The last key of exposed memory.
    last_key: u32,
}

impl Exposures {
    /// Exposes memory for a message of `bytes` bytes that the receive `op` matches. Returns the key, or 0 if it is to
    /// be sent.
    pub fn expose(&mut self, rank: Rank, peer: &mut Peer, op: &mut Op, bytes: usize) -> u32 {
        let Some(placement) = peer.placement().filter(|_| op.exposed.is_none()) else { return 0 };
        let into = op.recv.reduce.is_none().then_some(op.recv.into);
        // Keys are not used again soon, because the peer may still have an old grant.
        let key = self.last_key.checked_add(1).unwrap_or(1);
        // SAFETY: the message fits into the receive, whose poster keeps the memory valid until the event or the
        // cancellation; both follow `withdraw` or the end of the link.
        if !unsafe { placement.expose(key, into, bytes) } {
            return 0;
        }
        self.last_key = key;
        op.exposed = Some(Exposed { from: rank, key, bytes });
        key
    }

    /// Withdraws all memory that is exposed for receives of `owner`. Their messages can still come, and are discarded
    /// then.
    pub fn cancel(&mut self, owner: u32, ep: &mut Endpoint) {
        for op in ep.receives.ops_mut().filter(|op| op.recv.token.owner == owner && !op.cancelled) {
            if let Some(exposed) = op.exposed
                && let Some(placement) = ep.peers.get_mut(exposed.from).and_then(Peer::placement)
            {
                placement.withdraw(exposed.key, false);
                // A receive that an announcement has matched stays until the message comes.
                if !op.recv.space.is_user() {
                    op.exposed = None;
                    self.withdrawn.push((exposed.from, exposed.key));
                }
            }
        }
    }

    /// Sends the grant for the message with `envelope`, which was announced with this number and matches the receive
    /// `op`.
    pub fn answer(&mut self, rank: Rank, peer: &mut Peer, op: &mut Op, envelope: &Envelope, announcement: u32) {
        let fits = |op: &Op| refusal(&op.recv, rank, envelope, String::new).is_none();
        let key = if peer.places() && fits(op) { self.expose(rank, peer, op, envelope.bytes as usize) } else { 0 };
        let Envelope { space, slot, .. } = *envelope;
        peer.queue.push_control(&Message::Grant { space, slot, announcement, key });
    }

    /// `rank` has placed a message under `key`.
    pub fn placed(
        &mut self,
        rank: Rank,
        peer: &mut Peer,
        envelope: &Envelope,
        announced: bool,
        key: u32,
        ep: &mut Endpoint,
    ) -> Result<()> {
        // The message's receive was cancelled and no other one is for it, as when a measurement of the link has taken
        // too long.
        if !envelope.space.is_user()
            && let Some(index) = self.withdrawn.iter().position(|withdrawn| *withdrawn == (rank, key))
        {
            self.withdrawn.swap_remove(index);
            peer.withdraw(key);
            return Ok(());
        }
        let bytes = envelope.bytes as usize;
        let here = Some(Exposed { from: rank, key, bytes });
        let op = match ep.receives.arrive_placed(rank, envelope, announced) {
            Some(Arrival::Op(op)) if ep.receives.op(op).exposed == here => ep.receives.finish(op),
            Some(Arrival::Discard(exposed)) if exposed == here => {
                peer.withdraw(key);
                return Ok(());
            }
            _ => None,
        };
        let (Some(op), Some(placement)) = (op, peer.placement()) else {
            let place = envelope.space.describe(envelope.slot);
            let what = format_args!("has placed a message of {bytes} bytes {place} where no memory is exposed for it");
            return Err(ep.violation(rank, what));
        };
        match placement.placed(key) {
            Some(data) => ep.deliver(&op, rank, envelope, &data[..bytes]),
            None => {
                let outcome = refusal(&op.recv, rank, envelope, || ep.peer_name(rank));
                ep.event(op.recv.token, outcome.unwrap_or(Outcome::Done { rank, bytes }));
            }
        }
        // The link must not access the memory any more when the caller takes the event.
        placement.withdraw(key, true);
        Ok(())
    }

    /// The link to `rank` has ended.
    pub fn disconnect(&mut self, rank: Rank) {
        self.withdrawn.retain(|(other, _)| *other != rank);
    }
}
