//! Recursive doubling: in steps of distance 1, 2, 4, ... the two halves of aligned groups exchange all blocks that they
//! have (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005). Best
//! for small blocks and a power of two.
//!
//! Eight ranks: rank 5 exchanges its block with rank 4, then blocks 4 and 5 for 6 and 7 with rank 7, then four blocks
//! with rank 1. If P is not a power of two, the second half of the last group has fewer ranks; each of them also serves
//! ranks of the first half that have no partner. Six ranks: the pairs 0-1, 2-3, 4-5 exchange, then 0-2 and 1-3, then
//! 0-4 and 1-5; rank 4 also sends blocks 4 and 5 to rank 2, rank 5 to rank 3. MPICH needs extra steps here, in which
//! the first half forwards blocks.
//!
//! Steps: `ceil(lg P)`. For a power of two each rank sends `S (P - 1) / P` bytes, where `S` is the size of the output;
//! otherwise that is the average, and a rank in a half with fewer ranks sends up to `S`.

use super::super::phases::rounds;
use super::super::{Algorithm, Case, Shape, Uses};
use super::{assemble, block_bytes};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "recursive_doubling", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, .. } = *shape;
    let own = assemble(&mut b, shape);
    let blocks = |first: usize, many: usize| shape.output(0).slice(first * own.len, many * own.len);
    for half in (0..rounds(size)).map(|bit| 1 << bit) {
        // The first rank of this half and of the other half; then the number of ranks in each.
        let (first, other) = (rank / half * half, (rank / half * half) ^ half);
        if other >= size {
            continue;
        }
        let (ranks, others) = (half.min(size - first), half.min(size - other));
        let (index, current) = (rank - first, if half == 1 { own } else { blocks(first, ranks) });
        for served in (index..others).step_by(ranks) {
            b.send(other + served, current);
        }
        b.recv(other + index % others, blocks(other, others));
    }
    Ok(b.build())
}

/// `lg P α + S (P - 1) / (P B)` for powers of two.
fn cost(case: &Case<'_>) -> Cost {
    let (size, block) = (case.shape.size, block_bytes(case));
    let mut cost = Cost::default();
    if block == 0.0 {
        return cost;
    }
    for half in (0..rounds(size)).map(|bit| 1 << bit) {
        let (full, rest) = (size / (2 * half), size % (2 * half));
        // The number of ranks of an incomplete second half, and how many ranks each of them serves.
        let short = rest.saturating_sub(half);
        let serves = if short > 0 { half.div_ceil(short) } else { 0 };
        let serving = serves * short;
        let busiest = if full > 0 { half.max(serving) } else { serving };
        // An incomplete half waits for little, so its messages are sent early and delay others.
        cost.path += case.stream(case.link(half), 1.0, (busiest + short) as f64 * block, 0.0);
        let (whole, part) = (half as f64 * block, short as f64 * block);
        cost.messages += (full * 2 * half + short) as f64 * case.pieces(whole);
        cost.messages += if short > 0 { half as f64 * case.pieces(part) } else { 0.0 };
        cost.sent += (full * 2 * half + 2 * short) as f64 * whole;
    }
    cost
}
