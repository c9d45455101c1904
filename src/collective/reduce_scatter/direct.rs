//! Every rank sends each other rank its block; the receiver reduces. It has one step, but `P - 1` messages per rank:
//! best for few ranks, and where each pair has its own link, as on one host.
//!
//! Six ranks: rank 2 sends block 3 to rank 3, then 4 to 4, 5 to 5, 0 to 0, 1 to 1; at any time all ranks receive the
//! same amount. It receives its block from ranks 1 and 0, in this order, and reduces each as the left operand with its
//! own. It receives its block from 5, 4 and 3 and reduces them in scratch memory, each as the left operand; the sum
//! becomes the right operand of the result. So the operation need not commute, and only one block of scratch memory is
//! needed.
//!
//! A call in the order of ranks reduces the blocks from rank 0 on. If it is reproducible, a rank receives all
//! contributions to its block, and reduces them at once.
//!
//! Steps: 1, since no message waits for another; received blocks are reduced one after the other. Every rank sends `S
//! (P - 1) / P` bytes if the blocks are equal.

use super::super::blocks::Blocks;
use super::super::phases::{apart, combine_apart, combine_from_left, contribution, relocate, sources};
use super::super::{Algorithm, Case, Order, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "direct", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, .. } = *shape;
    let (sources, blocks) = (sources(shape), Blocks::new(shape.recv_counts));
    for to in (1..size).map(|distance| shape.after(distance)) {
        let (offset, len) = blocks.of_rank(to);
        if shape.order == Order::Reproducible {
            apart(&sources, Span::new(sources[0], offset, len)).for_each(|part| b.send(to, part));
            continue;
        }
        // A single input is sent directly, without a copy.
        let target = b.scratch(if shape.inputs > 1 { len } else { 0 });
        let from = contribution(&mut b, &sources, offset, len, target);
        b.send(to, from);
    }
    let (offset, len) = blocks.of_rank(rank);
    let result = shape.output(0).slice(0, len);
    // In place, the start of the output may still be being sent; this rank's own block is not sent.
    let target = if shape.inputs == 0 { blocks.span(shape.output(0), rank) } else { result };
    if shape.order == Order::Reproducible {
        let own = apart(&sources, Span::new(sources[0], offset, len)).collect();
        combine_apart(&mut b, (1..size).map(|distance| shape.before(distance)), own, target);
        b.divide(target, shape.divisor());
        relocate(&mut b, target, result);
        return Ok(b.build());
    }
    let mut current = contribution(&mut b, &sources, offset, len, target);
    if shape.order == Order::Ranks {
        current = combine_from_left(&mut b, (rank, size), |from| from, current, target);
        b.divide(current, shape.divisor());
        relocate(&mut b, current, result);
        return Ok(b.build());
    }
    for from in (0..rank).rev() {
        b.recv_reduce(from, target, current, Side::Left);
        current = target;
    }
    let mut right = None;
    for from in (rank + 1..size).rev() {
        match right {
            // There is only one rank above this one.
            None if from == rank + 1 => {
                b.recv_reduce(from, target, current, Side::Right);
                current = target;
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
        b.reduce(current, right, target);
        current = target;
    }
    b.divide(current, shape.divisor());
    relocate(&mut b, current, result);
    Ok(b.build())
}

/// `α + S (P - 1) / (P B)`, plus the time by which the receiver's reductions exceed that.
fn cost(case: &Case<'_>) -> Cost {
    let (all, longest, pieces) = case.blocks(case.shape.recv_counts);
    let (others, gamma) = (case.ranks() - 1.0, case.network.gamma);
    // Either the transfers decide: after them the last segment is reduced twice. Or the reductions decide: they start
    // with the second block, since the first is only stored.
    let (segment, two) = (longest.min(case.segment_bytes as f64), others.min(2.0));
    let messages = others * case.pieces(longest);
    let sending = case.at_once(others * longest, longest, messages, true) + two * gamma * segment;
    let first = case.at_once((two - 1.0) * longest + segment, segment, two, true);
    let busy = case.network.far().both(messages * case.leaving());
    let reducing = first.max(busy) + others * gamma * longest;
    Cost { path: sending.max(reducing), messages: others * pieces, sent: others * all, reduced: others * all }
}
