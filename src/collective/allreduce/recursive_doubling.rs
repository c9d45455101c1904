//! Recursive doubling (butterfly): ranks exchange whole buffers with partners at distance 1, 2, 4, ... (Thakur,
//! Rabenseifner and Gropp 2005). It has the fewest steps: best for small buffers.
//!
//! Eight ranks: rank 5 exchanges with 4, then with 7, then with 1, and in each step both ranks reduce the two buffers.
//! For other numbers, neighbouring ranks are paired until a power of two is left. Six ranks: rank 1 sends its elements
//! to rank 0 and rank 3 to rank 2; 0, 2, 4, 5 run the algorithm for four ranks; 0 and 2 send the result to 1 and 3.
//!
//! Lower ranks are always the left operand: all ranks evaluate the same expression and get bitwise equal results, and
//! the operation need not commute. A buffer is not overwritten while it is being sent: versions alternate between the
//! output and scratch memory.
//!
//! Steps: `lg P`, and two more if `P` is not a power of two. For a power of two a rank sends `S lg P` bytes.

use super::super::phases::{Versions, contribution, fan_out, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "recursive_doubling", generate, cost, uses: Uses::Sizes };

/// `lg P (α + S/B + γS)`; if P is not a power of two, `2 (α + S/B) + γS` more.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, gamma, size) = (case.bytes(), case.network.gamma, case.shape.size);
    let bits = size.ilog2();
    let core = 1 << bits;
    let (core, pairs) = (core as f64, (size - core) as f64);
    let next = case.link(1);
    let (up, down) = match pairs > 0.0 {
        true => (case.step(next, bytes, gamma), case.stream(next, 1.0, bytes, 0.0)),
        false => (0.0, 0.0),
    };
    let links = (0..bits).map(|bit| case.link(1 << bit));
    let butterfly = case.series(links, bytes, gamma);
    let messages = core * f64::from(bits) + 2.0 * pairs;
    Cost {
        path: up + butterfly + down,
        messages: messages * case.pieces(bytes),
        sent: messages * bytes,
        reduced: (messages - pairs) * bytes,
    }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, .. } = *shape;
    let output = shape.output(0);
    let current = contribution(&mut b, &sources(shape), 0, output.len, output);
    let bits = size.ilog2();
    // The first `2 * pairs` ranks form pairs; the even rank of each takes part in the butterfly.
    let pairs = size - (1 << bits);
    if rank < 2 * pairs && rank % 2 == 1 {
        b.send(rank - 1, current);
        b.recv(rank - 1, output);
        fan_out(&mut b, shape, output);
        return Ok(b.build());
    }
    let paired = rank < 2 * pairs;
    let mut versions = Versions::new(current, output, bits as usize + usize::from(paired));
    if paired {
        versions.combine(&mut b, rank + 1, Side::Right, false);
    }
    let index = if paired { rank / 2 } else { rank - pairs };
    for bit in 0..bits {
        let peer = index ^ (1 << bit);
        let to = if peer < pairs { 2 * peer } else { peer + pairs };
        b.send(to, versions.current());
        versions.combine(&mut b, to, if peer < index { Side::Left } else { Side::Right }, true);
    }
    versions.finish(&mut b);
    b.divide(output, shape.divisor());
    if paired {
        b.send(rank + 1, output);
    }
    fan_out(&mut b, shape, output);
    Ok(b.build())
}
