//! What several algorithms' prices have in common.

use super::{Case, shape::sum};
use crate::schedule::cost::Cost;

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
    /// share a card. On one host the work at both ends makes a link's bandwidth, and only the half at this rank comes in turn.
    pub(super) fn in_turn(&self) -> f64 {
        let others = self.ranks() - 1.0;
        if self.network.per_host >= self.shape.size { (others + 1.0) / 2.0 } else { others }
    }

    /// Seconds until a rank has sent `bytes` to the others together, or received them, with messages that do not wait for
    /// one another; the longest has `longest` bytes. With `everyone`, all ranks do that at once.
    pub(super) fn at_once(&self, bytes: f64, longest: f64, everyone: bool) -> f64 {
        let size = self.shape.size;
        let near = self.network.per_host.min(size);
        if size == 1 || bytes <= 0.0 {
            return 0.0;
        }
        // On its host each pair has a link of its own.
        let inside = if near > 1 { self.network.local.time(longest) } else { 0.0 };
        if near == size {
            return inside;
        }
        let leaving = bytes * (size - near) as f64 / (size - 1) as f64;
        inside.max(self.network.remote.time(if everyone { leaving * near as f64 } else { leaving }))
    }
}

/// What cannot be priced, and so is never chosen: an algorithm whose counts are not known.
pub(super) const UNKNOWN: Cost = Cost { path: f64::INFINITY, messages: 0.0, sent: 0.0, reduced: 0.0 };
