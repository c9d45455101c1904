//! In step `i` everyone sends what it has to the rank `2^i` after it and puts what arrives on the left of its own (Hillis
//! and Steele, "Data parallel algorithms", 1986). No rank is special, whatever their number.
//!
//! Six ranks, `a-b` being the combination of the ranks `a` to `b`: after the first step they have 0, 0-1, 1-2, 2-3, 3-4, 4-5;
//! after the second 0, 0-1, 0-2, 0-3, 1-4, 2-5; after the third 0-0 to 0-5.
//!
//! Steps: `ceil(lg P)`. A rank sends `S` bytes in each step in which someone is there to receive.

use super::super::phases::{Versions, rounds, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "recursive_doubling", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, count, .. } = *shape;
    let held = Span::new(sources(shape)[0], 0, count);
    let receives = (usize::BITS - rank.leading_zeros()) as usize;
    let mut versions = Versions::new(held, shape.output(0), receives);
    for distance in (0..rounds(size)).map(|round| 1 << round) {
        let sends = rank + distance < size;
        if sends {
            b.send(rank + distance, versions.held());
        }
        if distance <= rank {
            versions.combine(&mut b, rank - distance, Side::Left, sends);
        }
    }
    versions.finish(&mut b);
    Ok(b.build())
}

/// `lg P (α + S / B + γ S)`.
fn cost(case: &Case<'_>) -> Cost {
    let (size, steps, bytes) = (case.shape.size, rounds(case.shape.size), case.bytes());
    // In step `i` the last `P - 2^i` ranks receive.
    let received: usize = (0..steps).map(|step| size - (1 << step)).sum();
    let received = received as f64;
    Cost {
        path: case.stream(case.link(size), steps.into(), bytes, case.network.gamma),
        messages: received * case.pieces(bytes),
        sent: received * bytes,
        reduced: received * bytes,
    }
}
