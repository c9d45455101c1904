//! Terms that several cost formulas share.

use super::{Case, shape::sum};
use crate::schedule::cost::{Cost, Hop};

impl Case<'_> {
    /// Size in bytes of `elements`.
    pub(super) fn of(&self, elements: usize) -> f64 {
        elements as f64 * self.element_bytes as f64
    }

    /// Bytes of all blocks together, bytes of the longest, and the number of messages if each block is sent once.
    pub(super) fn blocks(&self, counts: &[usize]) -> (f64, f64, f64) {
        let longest = counts.iter().copied().max().unwrap_or(0);
        let pieces = counts.iter().map(|&count| self.pieces(self.of(count))).sum();
        (self.of(sum(counts)), self.of(longest), pieces)
    }

    /// The number of messages of which the times add up at a rank that exchanges one message with each other rank: all
    /// of them if they share a network card. On one host the link's bandwidth is limited by CPU work at both ends, and
    /// only the work at this rank is serial.
    pub(super) fn in_turn(&self) -> f64 {
        let others = self.ranks() - 1.0;
        let one_host = self.network.per_host >= self.shape.size;
        if one_host { 1.0 + (others - 1.0) * self.constants.root_turn } else { others }
    }

    /// Seconds for a rank to send (or receive) `bytes` in `messages` independent messages to the other ranks; the
    /// longest has `longest` bytes. `all_ranks`: all ranks do the same at the same time.
    pub(super) fn at_once(&self, bytes: f64, longest: f64, messages: f64, all_ranks: bool) -> f64 {
        let size = self.shape.size;
        let near = self.network.per_host.min(size);
        if size == 1 || bytes <= 0.0 {
            return 0.0;
        }
        // On one host each pair of ranks has its own link.
        let inside = if near > 1 { self.network.near().time(longest) } else { 0.0 };
        if near == size {
            return inside;
        }
        let part = self.leaving();
        let card = if all_ranks { bytes * part * near as f64 } else { bytes * part };
        inside.max(self.outside(self.network.far(), card, longest, messages * part, all_ranks))
    }

    /// Fraction of the other ranks that are on other hosts.
    pub(super) fn leaving(&self) -> f64 {
        let size = self.shape.size;
        size.saturating_sub(self.network.per_host) as f64 / (size - 1).max(1) as f64
    }

    /// Like [`Case::at_once`], with all `bytes` on one link.
    pub(super) fn outside(&self, link: Hop, bytes: f64, longest: f64, messages: f64, all_ranks: bool) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        let own = if all_ranks { link.both(messages) } else { 0.0 };
        let in_turn = link.time(self.segment(longest)) + (messages - 1.0).max(0.0) * link.turn();
        link.time(bytes).max(in_turn).max(own)
    }
}

/// The cost of a call whose counts are not known. It is infinite, so the algorithm is never chosen.
pub(super) const UNKNOWN: Cost = Cost { path: f64::INFINITY, messages: 0.0, sent: 0.0, reduced: 0.0 };
