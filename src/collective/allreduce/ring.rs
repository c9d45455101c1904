//! The classic ring: everyone's whole buffer goes around, and each rank passes on what it receives and adds it to its own
//! (Gloo's `allreduce_ring`). Only neighbours talk and nothing is cut, so it is best for small buffers where those are
//! much closer than the others.
//!
//! Six ranks: rank 2 sends its elements to 3 and receives those of 1, which it passes on while it receives those of 0, then
//! those of 5, 4, 3. If it just added them as they come, ranks would round differently. So all combine alike, in a balanced
//! tree over the ranks: `((0 1) (2 3)) (4 5)`. Rank 2 keeps 2 and 1; when 0 comes it combines 0 and 1, keeps 5, combines 4
//! and 5, and when 3 comes at last the rest. That takes scratch memory for `2 lg P + 2` buffers at most, and keeps
//! the order of ranks.
//!
//! Steps: `P - 1`. Every rank sends `S (P - 1)` bytes. What is passed on does not wait for the reduction.

use std::collections::VecDeque;

use super::super::phases::{contribution, fan_out, rounds, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Buffer, Builder, Schedule, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "ring", generate, cost, uses: Uses::Sizes };

/// Places that are not received into at once when they are no longer needed, so that receives do not wait for reductions.
const RESTING: usize = 2;

/// `(P - 1) (α + S/B) + lg P γS`: no message waits for a reduction, and after the last one `lg P` are left. More where
/// reductions do not keep up: they are not done before those that are left when some message comes. Just before a message that
/// completes many sums most are: of `j = 2^k - 2` messages and its own, a rank may still have `2k - 2` parts.
fn cost(case: &Case<'_>) -> Cost {
    if case.is_empty() {
        return Cost::default();
    }
    let (bytes, gamma, link) = (case.bytes(), case.network.gamma, case.link(1));
    let (others, rounds) = (case.ranks() - 1.0, f64::from(rounds(case.shape.size)));
    // Who does something for each message passes it on only when it has done with the reduction before.
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
    let mut held = contribution(&mut b, &sources(shape), 0, shape.count, output);
    let mut sum = BalancedSum::new(shape.size, output, held);
    sum.add(&mut b, shape.rank, held);
    for step in 0..shape.size - 1 {
        b.send(shape.after(1), held);
        held = sum.place(&mut b);
        b.recv(shape.before(1), held);
        sum.add(&mut b, shape.before(step + 1), held);
    }
    if shape.size == 1 {
        b.copy(held, output);
    }
    b.divide(output, shape.divisor());
    fan_out(&mut b, shape, output);
    Ok(b.build())
}

/// Combines what comes from the ranks, in whatever order, in one tree: neighbours first, then pairs of them, and so on.
struct BalancedSum {
    size: usize,
    output: Span,
    /// What waits for its other half: of the ranks from `index << level` on, up to `1 << level` of them.
    waiting: Vec<(u32, usize, Span)>,
    /// Places that are no longer needed, the one that has been so for longest first; except that the last may still be on its
    /// way out, and that the reductions which read the last ones may still wait for their turn.
    free: VecDeque<Span>,
    /// Combinations that are left.
    left: usize,
}

impl BalancedSum {
    /// `own` is this rank's, which may lie in the output.
    fn new(size: usize, output: Span, own: Span) -> Self {
        let free = (own != output).then_some(output).into_iter().collect();
        Self { size, output, waiting: Vec::new(), free, left: size - 1 }
    }

    /// Where the next one may be received.
    fn place(&mut self, b: &mut Builder) -> Span {
        let rested = if self.free.len() > RESTING { self.free.pop_front() } else { None };
        rested.unwrap_or_else(|| b.scratch(self.output.len))
    }

    /// Takes in what `rank` contributes.
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
                // Not where the newest is: that is still being sent.
                let into = match older.buffer {
                    _ if self.left == 0 => self.output,
                    Buffer::Input(_) => self.place(b),
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
                    // Before the one that may still be on its way out.
                    self.free.insert(self.free.len() - 1, newest);
                }
                newest = into;
            }
            index /= 2;
        }
    }
}
