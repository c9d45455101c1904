//! Every rank sends to rank 0, which reduces in rank order and sends the result to every rank. It has two steps, but
//! rank 0's link carries all data: best for the smallest buffers, few ranks and high latency.
//!
//! Six ranks: rank 0 receives from 1 to 5 concurrently, adds them to its own elements one after the other, and sends
//! the sum to all five.
//!
//! In a reproducible call rank 0 receives all contributions of the others, and reduces them at once.
//!
//! Steps: 2. Rank 0 sends `S (P - 1)` bytes and needs as much scratch memory; the other ranks send `S`. There is no
//! publication to cite: this is the straightforward algorithm.

use super::super::phases::{apart, at_root, combine_apart, combine_at_root, contribution, fan_out, sources};
use super::super::{Algorithm, Case, Order, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "reduce_broadcast", generate, cost, uses: Uses::Sizes };

/// `2 (α + n S/B) + γS`, where `n` is P - 1 or [`Case::in_turn`], or with `(P - 1) γS` instead of all receives but one
/// if that is more. Segments of all ranks arrive in turns and are sent back at once.
pub(super) fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    let link = case.link(case.shape.size / 2);
    let (segment, outside) = (case.segment(bytes), case.leaving() * others);
    let back = case.outside(link, case.in_turn() * segment, segment, outside, false);
    // Sends during the receives add to the root's CPU time.
    let path = at_root(case, outside * case.later(bytes)) + back;
    Cost {
        path: if case.is_empty() { 0.0 } else { path },
        messages: 2.0 * others * case.pieces(bytes),
        sent: 2.0 * others * bytes,
        reduced: others * bytes,
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let output = shape.output(0);
    let sources = sources(shape);
    let mut own: Vec<Span> = apart(&sources, output).collect();
    if shape.order != Order::Reproducible {
        own = vec![contribution(&mut b, &sources, 0, shape.count, output)];
    }
    if shape.rank == 0 {
        match shape.order {
            Order::Reproducible => combine_apart(&mut b, 1..shape.size, own, output),
            _ => combine_at_root(&mut b, shape, own[0], output),
        }
        b.divide(output, shape.divisor());
        for to in 1..shape.size {
            b.send(to, output);
        }
    } else {
        own.into_iter().for_each(|own| b.send(0, own));
        b.recv(0, output);
    }
    fan_out(&mut b, shape, output);
    Ok(b.build())
}
