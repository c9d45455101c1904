//! Every rank publishes each other rank's block in shared memory, and fetches its own from all others. One step: best
//! on one host.
//!
//! Three ranks: rank 0 publishes its blocks for ranks 1 and 2, rank 1 those for 0 and 2, rank 2 those for 0 and 1. Then
//! rank 0 fetches from 1 and 2, rank 1 from 2 and 0, rank 2 from 0 and 1. A block is a publication of its own, because
//! its reader does not know where it is among the others; so empty blocks are published, too.
//!
//! Steps: 1. Every rank reads all blocks for it but its own.

use super::super::blocks::{Blocks, all_counts};
use super::super::shape::sum;
use super::super::shared::{begin, number, others, publish_blocks};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `(P - 1) (p(S/P) + f(S/P)) + σ + w` for equal blocks, with at most `(P - 2) p(S/P)` less for σ: σ is the time of a
/// signal, p that of a publication, f that of a fetch, w that of the wait for readers. The counts are used only if all
/// ranks know them.
fn cost(case: &Case<'_>) -> Cost {
    let Ok(counts) = all_counts(case.shape) else { return Cost::default() };
    let longest = case.of(counts.iter().copied().max().unwrap_or(0));
    let others = case.ranks() - 1.0;
    let path = case.shared_path(1.0, &[(others, longest)], &[(others, longest, longest)], 0.0);
    // The first block is visible while the others are published.
    let memory = &case.network.memory;
    let path = path - ((others - 1.0) * memory.publish(longest, false)).min(case.signal()).min(path);
    let own = counts.iter().step_by(case.shape.size + 1);
    let sent = case.of(sum(counts) - own.sum::<usize>());
    Cost { path, messages: 0.0, sent, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = begin(shape)?;
    let (outgoing, incoming) = (Blocks::new(shape.send_counts), Blocks::new(shape.recv_counts));
    let sent = |rank| outgoing.span(shape.input(0), rank);
    let received = |rank| incoming.span(shape.output(0), rank);
    publish_blocks(&mut b, shape, sent);
    for from in others(shape) {
        b.fetch(from, number(shape.size, from, shape.rank), 0, received(from));
    }
    b.copy(sent(shape.rank), received(shape.rank));
    if shape.size > 1 {
        b.await_readers();
    }
    Ok(b.build())
}
