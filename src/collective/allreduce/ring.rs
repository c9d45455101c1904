//! The classic ring: every rank's whole buffer moves around the ring, and each rank forwards what it receives and adds
//! it to its own (Gloo's `allreduce_ring`). Only neighbours communicate and nothing is cut: best for small buffers
//! where neighbours are much closer than other ranks.
//!
//! Six ranks: rank 2 sends its elements to 3 and receives those of 1, which it forwards while it receives those of 0,
//! then those of 5, 4, 3. If ranks added the buffers in order of arrival, they would round differently. All ranks
//! therefore reduce in the same balanced tree over the ranks: `((0 1) (2 3)) (4 5)`. Rank 2 keeps 2 and 1; when 0
//! arrives it reduces 0 and 1; it keeps 5, reduces 4 and 5, and when 3 arrives reduces the rest. That takes scratch
//! memory for at most `2 lg P + 2` buffers, and keeps the order of ranks.
//!
//! Steps: `P - 1`. Every rank sends `S (P - 1)` bytes. Forwarding does not wait for the reduction.

use std::collections::VecDeque;

use super::super::phases::{contribution, fan_out, rounds, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Buffer, Builder, Schedule, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "ring", generate, cost, uses: Uses::Sizes };

/// Number of free buffers that are not reused immediately, so that receives do not wait for reductions which still read
/// them.
const RESERVED_BUFFERS: usize = 2;

/// `(P - 1) (α + S/B) + lg P γS`: no message waits for a reduction, and after the last message `lg P` reductions
/// remain. It is more if reductions take longer than messages: then reductions are still outstanding when a message
/// arrives. Their number is highest just before a message that completes many sums: of `j = 2^k - 2` messages and its
/// own, a rank may still have `2k - 2` parts.
fn cost(case: &Case<'_>) -> Cost {
    if case.is_empty() {
        return Cost::default();
    }
    let (bytes, gamma, link) = (case.bytes(), case.network.gamma, case.link(1));
    let (others, rounds) = (case.ranks() - 1.0, f64::from(rounds(case.shape.size)));
    // Where messages cost CPU time, a rank forwards a message only after the current reduction.
    let between_hosts = if link.busy > 0.0 { gamma } else { 0.0 };
    let (segment, each) = (case.segment(bytes), case.step(link, bytes, between_hosts));
    let from = |message: f64, parts: f64| {
        let busy = (others - message) * case.pieces(bytes) * link.busy;
        (message - 1.0) * each + link.time(segment) + (others - message + parts) * gamma * bytes + busy
    };
    let last = (others - 1.0) * each + case.stream(link, 1.0, bytes, 0.0) + rounds * gamma * segment;
    let ends = [last, from(1.0, 1.0), from(others, rounds)].into_iter();
    let between = (2..usize::BITS).map(|k| (f64::from(k), ((1_usize << k) - 2) as f64));
    let between = between.take_while(|(_, message)| *message < others);
    let path = ends.chain(between.map(|(k, message)| from(message, 2.0 * k - 2.0))).fold(0.0, f64::max);
    let messages = case.ranks() * others;
    Cost { path, messages: messages * case.pieces(bytes), sent: messages * bytes, reduced: messages * bytes }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let output = shape.output(0);
    let mut current = contribution(&mut b, &sources(shape), 0, shape.count, output);
    let mut sum = BalancedSum::new(shape.size, output, current);
    sum.add(&mut b, shape.rank, current);
    for step in 0..shape.size - 1 {
        b.send(shape.after(1), current);
        current = sum.free_buffer(&mut b);
        b.recv(shape.before(1), current);
        sum.add(&mut b, shape.before(step + 1), current);
    }
    if shape.size == 1 {
        b.copy(current, output);
    }
    b.divide(output, shape.divisor());
    fan_out(&mut b, shape, output);
    Ok(b.build())
}

/// Reduces the ranks' buffers, in any order of arrival, in one balanced tree: neighbours first, then pairs of them, and
/// so on.
struct BalancedSum {
    size: usize,
    output: Span,
    /// Partial sums whose sibling is missing: level, index, location. The sum covers up to `1 << level` ranks from
    /// `index << level` on.
    waiting: Vec<(u32, usize, Span)>,
    /// Free buffers, in the order in which they became free, except that the last may still be being sent. Reductions
    /// that read the last ones may not have run yet.
    free: VecDeque<Span>,
    /// Number of reductions left.
    left: usize,
}

impl BalancedSum {
    /// `own` is this rank's contribution, which may be in the output.
    fn new(size: usize, output: Span, own: Span) -> Self {
        let free = (own != output).then_some(output).into_iter().collect();
        Self { size, output, waiting: Vec::new(), free, left: size - 1 }
    }

    /// A buffer for the next receive.
    fn free_buffer(&mut self, b: &mut Builder) -> Span {
        let reusable = if self.free.len() > RESERVED_BUFFERS { self.free.pop_front() } else { None };
        reusable.unwrap_or_else(|| b.scratch(self.output.len))
    }

    /// Adds the contribution of `rank`.
    fn add(&mut self, b: &mut Builder, rank: usize, arrived: Span) {
        let mut newest = arrived;
        let mut index = rank;
        for level in 0..rounds(self.size) {
            let sibling = index ^ 1;
            if sibling << level < self.size {
                let Some(at) = self.waiting.iter().position(|&(l, i, _)| (l, i) == (level, sibling)) else {
                    return self.waiting.push((level, index, newest));
                };
                let (_, _, older) = self.waiting.swap_remove(at);
                self.left -= 1;
                // Do not overwrite the newest buffer, which is still being sent.
                let into = match older.buffer {
                    _ if self.left == 0 => self.output,
                    Buffer::Input(_) => self.free_buffer(b),
                    _ => older,
                };
                if sibling < index {
                    b.reduce(older, newest, into);
                } else {
                    b.reduce(newest, older, into);
                }
                if newest == arrived {
                    self.free.push_back(newest);
                } else {
                    // In front of the buffer that may still be being sent.
                    self.free.insert(self.free.len() - 1, newest);
                }
                newest = into;
            }
            index /= 2;
        }
    }
}
