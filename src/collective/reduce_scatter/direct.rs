//! Everyone sends every rank its block; the receiver combines. One step, but `P - 1` messages for each rank: best for few ranks,
//! and where each pair has a link of its own, as on one host.
//!
//! Six ranks: rank 2 sends block 3 to rank 3, then 4 to 4, 5 to 5, 0 to 0, 1 to 1; so at any time all ranks receive the same
//! amount. It receives its own block of the ranks 1 and 0, in this order, which go on the left of its own; then those of 5, 4
//! and 3, which are combined in scratch memory, each on the left of the ones before; in the end these go on the right. So the
//! operation need not commute, and nothing but that one block needs memory.
//!
//! Steps: 1, since no message waits for another; what arrives is combined one after the other. Every rank sends
//! `S (P - 1) / P` bytes if the blocks are equal.

use super::super::blocks::Blocks;
use super::super::phases::{contribution, relocate, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "direct", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, .. } = *shape;
    let (sources, blocks) = (sources(shape), Blocks::new(shape.recv_counts));
    for to in (1..size).map(|distance| shape.after(distance)) {
        let (offset, len) = blocks.of_rank(to);
        // One input is sent from where it lies.
        let place = b.scratch(if shape.inputs > 1 { len } else { 0 });
        let from = contribution(&mut b, &sources, offset, len, place);
        b.send(to, from);
    }
    let (offset, len) = blocks.of_rank(rank);
    let result = shape.output(0).slice(0, len);
    // In place the start of the output may still be on its way out; the own block is not.
    let place = if shape.inputs == 0 { blocks.span(shape.output(0), rank) } else { result };
    let mut held = contribution(&mut b, &sources, offset, len, place);
    for from in (0..rank).rev() {
        b.recv_reduce(from, place, held, Side::Left);
        held = place;
    }
    let mut right = None;
    for from in (rank + 1..size).rev() {
        match right {
            // The only one.
            None if from == rank + 1 => {
                b.recv_reduce(from, place, held, Side::Right);
                held = place;
            }
            None => {
                let scratch = b.scratch(len);
                b.recv(from, scratch);
                right = Some(scratch);
            }
            Some(scratch) => b.recv_reduce(from, scratch, scratch, Side::Left),
        }
    }
    if let Some(right) = right {
        b.reduce(held, right, place);
        held = place;
    }
    b.divide(held, shape.divisor());
    relocate(&mut b, held, result);
    Ok(b.build())
}

/// `α + S (P - 1) / (P B)`, and what the receiver's reductions need beyond that.
fn cost(case: &Case<'_>) -> Cost {
    let (all, longest, pieces) = case.blocks(case.shape.recv_counts);
    let (others, gamma) = (case.ranks() - 1.0, case.network.gamma);
    // Once all has arrived, the last segment is combined twice; or else the reductions are what takes time: they begin with
    // the second block, the first being only stored.
    let (segment, two) = (longest.min(case.segment_bytes as f64), others.min(2.0));
    let messages = others * case.pieces(longest);
    let sending = case.at_once(others * longest, longest, messages, true) + two * gamma * segment;
    let first = case.at_once((two - 1.0) * longest + segment, segment, two, true);
    let busy = case.network.far().both(messages * case.leaving());
    let reducing = first.max(busy) + others * gamma * longest;
    Cost { path: sending.max(reducing), messages: others * pieces, sent: others * all, reduced: others * all }
}
