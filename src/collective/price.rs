//! What several algorithms' prices have in common.

use super::{Case, shape::sum};
use crate::schedule::cost::{Cost, Hop};

impl Case<'_> {
    /// Bytes of a number of elements.
    pub(super) fn of(&self, elements: usize) -> f64 {
        elements as f64 * self.element_bytes as f64
    }

    /// Bytes of all blocks and of the longest, and how many messages they are if each is sent once.
    pub(super) fn blocks(&self, counts: &[usize]) -> (f64, f64, f64) {
        let longest = counts.iter().copied().max().unwrap_or(0);
        let pieces = counts.iter().map(|&count| self.pieces(self.of(count))).sum();
        (self.of(sum(counts)), self.of(longest), pieces)
    }

    /// As many messages fill the time of a rank that gets one from each of the others, or sends one to each: all of them if they
    /// share a card. On one host the work at both ends makes a link's bandwidth, and only the part at this rank comes in turn.
    pub(super) fn in_turn(&self) -> f64 {
        let others = self.ranks() - 1.0;
        let one_host = self.network.per_host >= self.shape.size;
        if one_host { 1.0 + (others - 1.0) * self.constants.root_turn } else { others }
    }

    /// Seconds until a rank has sent `bytes` in so many messages to the others together, or received them, where these do not
    /// wait for one another; the longest has `longest` bytes. With `everyone`, all ranks do that at once.
    pub(super) fn at_once(&self, bytes: f64, longest: f64, messages: f64, everyone: bool) -> f64 {
        let size = self.shape.size;
        let near = self.network.per_host.min(size);
        if size == 1 || bytes <= 0.0 {
            return 0.0;
        }
        // On its host each pair has a link of its own.
        let inside = if near > 1 { self.network.near().time(longest) } else { 0.0 };
        if near == size {
            return inside;
        }
        let part = self.leaving();
        let card = if everyone { bytes * part * near as f64 } else { bytes * part };
        inside.max(self.outside(self.network.far(), card, longest, messages * part, everyone))
    }

    /// The part of the others that are on other hosts.
    pub(super) fn leaving(&self) -> f64 {
        let size = self.shape.size;
        size.saturating_sub(self.network.per_host) as f64 / (size - 1).max(1) as f64
    }

    /// The same over one link, which `bytes` pass.
    pub(super) fn outside(&self, link: Hop, bytes: f64, longest: f64, messages: f64, everyone: bool) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        let own = if everyone { link.both(messages) } else { 0.0 };
        let in_turn = link.time(self.segment(longest)) + (messages - 1.0).max(0.0) * link.turn();
        link.time(bytes).max(in_turn).max(own)
    }
}

/// What cannot be priced, and so is never chosen: an algorithm whose counts are not known.
pub(super) const UNKNOWN: Cost = Cost { path: f64::INFINITY, messages: 0.0, sent: 0.0, reduced: 0.0 };
