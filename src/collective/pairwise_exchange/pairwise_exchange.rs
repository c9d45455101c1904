//! Step `i` exchanges block `i` with the rank whose number differs in bit `i` (Gloo's `pairwise_exchange`), for
//! bandwidth tests. The number of ranks must be a power of two. Eight ranks and three destinations: rank 5 exchanges
//! with 4, 7 and 1.
//!
//! Steps: 1; the exchanges do not wait for each other. Every rank sends `destinations` blocks.

use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "pairwise_exchange", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    for step in 0..shape.destinations {
        let peer = shape.rank ^ (1 << step);
        let offset = step * shape.count;
        b.send(peer, shape.input(0).slice(offset, shape.count));
        b.recv(peer, shape.output(0).slice(offset, shape.count));
    }
    Ok(b.build())
}

/// `α + D S / B` for `D` destinations and blocks of `S` bytes.
fn cost(case: &Case<'_>) -> Cost {
    let (destinations, block) = (case.shape.destinations as f64, case.bytes());
    // Partners whose numbers differ in a high bit are on other hosts.
    let near = if case.network.consecutive { case.network.per_host.min(case.shape.size).ilog2() } else { 0 };
    let far = (destinations - f64::from(near)).max(0.0);
    let inside = if far < destinations { case.network.local.time(block) } else { 0.0 };
    let card = far * block * case.network.per_host as f64;
    let outside = case.outside(case.network.far(), card, block, far * case.pieces(block), true);
    let sent = case.ranks() * destinations;
    Cost {
        path: if sent * block == 0.0 { 0.0 } else { inside.max(if far > 0.0 { outside } else { 0.0 }) },
        messages: sent * case.pieces(block),
        sent: sent * block,
        reduced: 0.0,
    }
}
