//! Reduction up a binomial tree to rank 0, then broadcast down the same tree. It has few messages in total: best for
//! small buffers where ranks share cores or a network that transfers one message at a time.
//!
//! Six ranks: ranks 1, 3, 5 send to 0, 2, 4; then 2 sends to 0; then 4 sends to 0, and rank 0 has the result. It sends
//! to 4, 2, 1; rank 4 sends to 5 and rank 2 to 3. Segments are pipelined: the first may be on their way down while
//! others are on their way up.
//!
//! Steps: `2 ceil(lg P)`. All ranks together send `2 (P - 1)` messages of `S` bytes, rank 0 `ceil(lg P)` of them
//! (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, for the two
//! halves).

use super::super::phases::{Binomial, combine_children, contribution, fan_out, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "tree", generate, cost, uses: Uses::Sizes };

/// `lg P (2α + 2S/B + γS)`, less the overlap: the broadcast starts with the first complete segment, so the last message
/// up and the first down overlap, and, if latency leaves time for it, also the messages before and after these.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    let top = case.lone_link(case.shape.size / 2);
    // If the root's CPU time is the limit, the two directions do not overlap.
    let gap = if top.gap > top.busy { case.later(bytes) * top.gap } else { 0.0 };
    let rest = if case.is_empty() { 0.0 } else { ((bytes - case.segment(bytes)) / top.bandwidth).max(gap) };
    let turning = case.constants.tree_turn_latencies * top.latency;
    let both_ways = rest + if case.shape.size > 3 { (rest - turning).max(0.0) } else { 0.0 };
    Cost {
        path: case.tree(bytes, case.network.gamma) + case.tree_down(bytes) - both_ways,
        messages: 2.0 * others * case.pieces(bytes),
        sent: 2.0 * others * bytes,
        reduced: others * bytes,
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let tree = Binomial::new(&Shape { root: 0, ..*shape });
    let output = shape.output(0);
    let current = contribution(&mut b, &sources(shape), 0, shape.count, output);
    let children = tree.children();
    let current = combine_children(&mut b, children.iter().map(|&child| (child, Side::Right)), current, output);
    match tree.parent() {
        Some(parent) => {
            b.send(parent, current);
            b.recv(parent, output);
        }
        None => {
            b.copy(current, output);
            b.divide(output, shape.divisor());
        }
    }
    for &child in children.iter().rev() {
        b.send(child, output);
    }
    fan_out(&mut b, shape, output);
    Ok(b.build())
}
