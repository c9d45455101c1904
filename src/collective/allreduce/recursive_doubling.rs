//! Recursive doubling, the butterfly: everyone exchanges everything with partners at distance 1, 2, 4, ... (Thakur,
//! Rabenseifner and Gropp 2005). The fewest steps, so the best for small buffers.
//!
//! Eight ranks: rank 5 exchanges with 4, then with 7, then with 1, and each time both combine both. For other numbers so many
//! pairs of neighbours step forward as one that a power of two is left. Six ranks: rank 1 gives its elements to rank 0 and
//! rank 3 to rank 2; 0, 2, 4, 5 exchange as four; 0 and 2 give the result back to 1 and 3.
//!
//! Lower ranks always stand on the left: all ranks compute the same expression and so the same bits, and the operation need
//! not commute. What is being sent is not overwritten: versions alternate between the output and scratch memory.
//!
//! Steps: `lg P`, and two more if `P` is not a power of two. A power of two sends `S lg P` bytes.

use super::super::phases::{Versions, contribution, fan_out, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Side};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "recursive_doubling", generate, cost, uses: Uses::Sizes };

/// `lg P (α + S/B + γS)`, and for other numbers than powers of two `2 (α + S/B) + γS` before and after.
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
    let held = contribution(&mut b, &sources(shape), 0, output.len, output);
    let bits = size.ilog2();
    // The first `2 * pairs` ranks pair up, the even one of each takes part in the butterfly.
    let pairs = size - (1 << bits);
    if rank < 2 * pairs && rank % 2 == 1 {
        b.send(rank - 1, held);
        b.recv(rank - 1, output);
        fan_out(&mut b, shape, output);
        return Ok(b.build());
    }
    let paired = rank < 2 * pairs;
    let mut versions = Versions::new(held, output, bits as usize + usize::from(paired));
    if paired {
        versions.combine(&mut b, rank + 1, Side::Right, false);
    }
    let index = if paired { rank / 2 } else { rank - pairs };
    for bit in 0..bits {
        let peer = index ^ (1 << bit);
        let to = if peer < pairs { 2 * peer } else { peer + pairs };
        b.send(to, versions.held());
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
