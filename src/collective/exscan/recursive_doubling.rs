//! As scan's `recursive_doubling` (Hillis and Steele 1986), but the result leaves the rank's own elements out; they are put
//! on the right of it only for what is sent on.
//!
//! Six ranks, `a-b` being the combination of the ranks `a` to `b`: the ranks 1 to 5 receive 0, 1, 2, 3, 4 in the first step;
//! in the second ranks 2 to 5 receive 0, 0-1, 1-2, 2-3 on the left of that; in the third ranks 4 and 5 receive 0 and 0-1. In
//! place, the rank's own elements are copied to scratch memory first.
//!
//! Steps: `ceil(lg P)`. A rank sends `S` bytes in each step in which someone is there to receive.

use super::super::phases::{rounds, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::{Builder, Schedule, Side, Span};

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "recursive_doubling", generate, cost: |case| Case::unpriced(case), uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { rank, size, count, .. } = *shape;
    let result = shape.output(0);
    let mut own = Span::new(sources(shape)[0], 0, count);
    let distances = || (0..rounds(size)).map(|round| 1 << round);
    let forwards = rank > 0 && rank + 1 < size;
    if forwards && shape.inputs == 0 {
        let aside = b.scratch(count);
        b.copy(own, aside);
        own = aside;
    }
    // The result so far and the own elements, for others.
    let total = if forwards && rank + 2 < size { b.scratch(count) } else { own };
    let mut held = own;
    for distance in distances() {
        if rank + distance < size {
            b.send(rank + distance, held);
        }
        if distance > rank {
            continue;
        }
        if distance == 1 {
            b.recv(rank - distance, result);
        } else {
            b.recv_reduce(rank - distance, result, result, Side::Left);
        }
        if rank + 2 * distance < size {
            b.reduce(result, own, total);
            held = total;
        }
    }
    Ok(b.build())
}
