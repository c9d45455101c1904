//! As scan's `recursive_doubling` (Hillis and Steele 1986), but the result leaves the rank's own elements out; they are put
//! on the right of it only for what is sent on.
//!
//! Six ranks, `a-b` being the combination of the ranks `a` to `b`: the ranks 1 to 5 receive 0, 1, 2, 3, 4 in the first step;
//! in the second ranks 2 to 5 receive 0, 0-1, 1-2, 2-3 on the left of that; in the third ranks 4 and 5 receive 0 and 0-1. In
//! place, the rank's own elements are copied to scratch memory first.
//!
//! Steps: `ceil(lg P)`. A rank sends `S` bytes in each step in which someone is there to receive.

use super::super::phases::{rounds, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "recursive_doubling", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, count, .. } = *shape;
    let result = shape.output(0);
    let mut own = Span::new(sources(shape)[0], 0, count);
    let distances = || (0..rounds(size)).map(|round| 1 << round);
    let forwards = rank > 0 && rank + 1 < size;
    if forwards && shape.inputs == 0 {
        let aside = b.scratch(count);
        b.copy(own, aside);
        own = aside;
    }
    // The result so far and the own elements, for others.
    let total = if forwards && rank + 2 < size { b.scratch(count) } else { own };
    let mut held = own;
    for distance in distances() {
        if rank + distance < size {
            b.send(rank + distance, held);
        }
        if distance > rank {
            continue;
        }
        if distance == 1 {
            b.recv(rank - distance, result);
        } else {
            b.recv_reduce(rank - distance, result, result, Side::Left);
        }
        if rank + 2 * distance < size {
            b.reduce(result, own, total);
            held = total;
        }
    }
    Ok(b.build())
}

/// `lg P (α + S / B) + 2 (lg P - 1) γ S`: in the first step nothing is combined with what arrives, after the last nothing
/// is sent on; else what arrives is combined with the result, and the result with the own elements.
fn cost(case: &Case<'_>) -> Cost {
    let (size, steps, bytes) = (case.shape.size, rounds(case.shape.size), case.bytes());
    let gamma = case.network.gamma;
    // In step `i` the last `P - 2^i` ranks receive; of these the first `P - 3 * 2^i` send on what they then have.
    let received = |step: u32| size - (1 << step);
    let sent: usize = (0..steps).map(received).sum();
    let combined: usize = (1..steps).map(received).sum();
    let totals: usize = (0..steps).map(|step| size.saturating_sub(3 << step)).sum();
    // Each step but the first and the last ones has two reductions; so many more than one in each.
    let segment = bytes.min(case.segment_bytes as f64);
    let more = f64::from(steps) - 2.0;
    let path = case.stream(case.link(size), steps.into(), bytes, gamma)
        + if steps > 1 { more * gamma * segment } else { -gamma * segment };
    Cost {
        path: if bytes > 0.0 { path } else { 0.0 },
        messages: sent as f64 * case.pieces(bytes),
        sent: sent as f64 * bytes,
        reduced: (combined + totals) as f64 * bytes,
    }
}
