//! Recursive doubling: halves of aligned groups exchange what they have, distance 1, 2, 4, ... (Thakur, Rabenseifner and Gropp,
//! "Optimization of collective communication operations in MPICH", 2005). Best for small blocks and a power of two.
//!
//! Eight ranks: rank 5 exchanges its block with rank 4, then the blocks 4 and 5 for 6 and 7 with rank 7, then four blocks with
//! rank 1. For other numbers the last group's second half is shorter: its ranks take turns to serve those of the first half
//! that have no partner. Six ranks: the pairs 0-1, 2-3, 4-5 exchange, then 0-2 and 1-3, then 0-4 and 1-5; rank 4 also sends the
//! blocks 4 and 5 to rank 2, rank 5 to rank 3. No step more is needed, unlike in MPICH, which lets the first half pass them on.
//!
//! Steps: `ceil(lg P)`. A power of two sends `S (P - 1) / P` bytes each, `S` being those of the output; else so much on
//! average, and a rank of a short half up to `S`.

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
        // The first ranks of this half and of the other, and how many each has.
        let (first, other) = (rank / half * half, (rank / half * half) ^ half);
        if other >= size {
            continue;
        }
        let (ranks, others) = (half.min(size - first), half.min(size - other));
        let (place, held) = (rank - first, if half == 1 { own } else { blocks(first, ranks) });
        for served in (place..others).step_by(ranks) {
            b.send(other + served, held);
        }
        b.recv(other + place % others, blocks(other, others));
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
        // Ranks of a short second half, and how many each of them serves.
        let short = rest.saturating_sub(half);
        let serves = if short > 0 { half.div_ceil(short) } else { 0 };
        let serving = serves * short;
        let busiest = if full > 0 { half.max(serving) } else { serving };
        // A short half has little to wait for: what it sends is early, and in the way of others.
        cost.path += case.stream(case.link(half), 1.0, (busiest + short) as f64 * block, 0.0);
        let (whole, part) = (half as f64 * block, short as f64 * block);
        cost.messages += (full * 2 * half + short) as f64 * case.pieces(whole);
        cost.messages += if short > 0 { half as f64 * case.pieces(part) } else { 0.0 };
        cost.sent += (full * 2 * half + 2 * short) as f64 * whole;
    }
    cost
}
