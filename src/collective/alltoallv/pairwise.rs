//! In step `i` everyone sends to the rank `i` after it and receives from the rank `i` before it (Thakur, Rabenseifner and
//! Gropp 2005).
//!
//! Six ranks: rank 0 sends to 1 and receives from 5, then to 2 and from 4, to 3 and from 3, to 4 and from 2, to 5 and from 1.
//! No step waits for another; empty blocks are not sent.
//!
//! Steps: 1, since none of the `P - 1` messages waits for another. Every rank sends all blocks but its own.

use super::super::shape::block;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::{Builder, Schedule, Span};

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "pairwise", generate, cost: |case| Case::unpriced(case), uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let part = |of: Span, counts: &[usize], rank: usize| {
        let (offset, len) = block(counts, rank);
        of.slice(offset, len)
    };
    let sent = |rank| part(shape.input(0), shape.send_counts, rank);
    let received = |rank| part(shape.output(0), shape.recv_counts, rank);
    for distance in 1..shape.size {
        let (to, from) = (shape.after(distance), shape.before(distance));
        b.send(to, sent(to));
        b.recv(from, received(from));
    }
    b.copy(sent(shape.rank), received(shape.rank));
    Ok(b.build())
}
