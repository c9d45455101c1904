//! Every rank publishes its block in shared memory and fetches those of all other ranks. One step: best on one host.
//!
//! Three ranks, of which rank 1 has no elements: ranks 0 and 2 publish their blocks; rank 0 fetches block 2, rank 1
//! both, rank 2 block 0. No fetch waits for another.
//!
//! Steps: 1. Every rank reads all blocks but its own.

use super::super::blocks::Blocks;
use super::super::shape::sum;
use super::super::shared::{all_others, begin};
use super::super::{Algorithm, Case, Shape, Uses};
use super::own;
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Readers, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + (P - 1) f(S/P) + w` for equal blocks: σ is the time of a signal, f that of a fetch, w that of the wait for
/// readers.
fn cost(case: &Case<'_>) -> Cost {
    let counts = case.shape.recv_counts;
    let longest = case.of(counts.iter().copied().max().unwrap_or(0));
    // The rank with the shortest block reads the most.
    let shortest = counts.iter().enumerate().min_by_key(|(_, count)| **count).map_or(0, |(rank, _)| rank);
    let others = counts.iter().enumerate().filter(|(rank, count)| *rank != shortest && **count > 0);
    let fetches: Vec<_> = others.map(|(_, &count)| (1.0, case.of(count), case.of(count))).collect();
    let path = case.shared_path(1.0, &[(1.0, longest)], &fetches, 0.0);
    Cost { path, messages: 0.0, sent: (case.ranks() - 1.0) * case.of(sum(counts)), reduced: 0.0 }
}

pub(super) fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = begin(shape)?;
    let blocks = Blocks::new(shape.recv_counts);
    let own = own(&mut b, shape, &blocks);
    let publishes = own.len > 0 && shape.size > 1;
    if publishes {
        b.publish(Readers::All, own);
    }
    for from in all_others(shape) {
        let block = blocks.span(shape.output(0), from);
        if block.len > 0 {
            b.fetch(from, 0, 0, block);
        }
    }
    if publishes {
        b.await_readers();
    }
    Ok(b.build())
}
