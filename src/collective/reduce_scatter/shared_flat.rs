//! Every rank publishes its elements in shared memory, as a block for each other rank or, if they are few, at once, and
//! reduces its own block of those of all ranks in rank order. One step: best on one host.
//!
//! Three ranks with the elements a, b and c, each of three blocks: all publish their elements; rank 1 fetches block 1
//! of a, reduces it with its own block 1 of b and the result with block 1 of c. The operation need not commute. In
//! place the result is reduced in scratch memory and copied to the start of the output when the other ranks have read
//! from there.
//!
//! Steps: `P - 1`, since a rank fetches one block after the other. It reads and reduces `S (P - 1) / P` bytes if the
//! blocks are equal.

use super::super::blocks::Blocks;
use super::super::phases::sources;
use super::super::shape::sum;
use super::super::shared::{begin, path_of_parts, publish_parts, reduce_in_order, stable_contribution};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Schedule, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "shared_flat", generate, cost, uses: Uses::SharedMemory };

/// `σ + (P - 1) (f(n) + γn) + w` for the longest block n: σ is the time of a signal, f that of a fetch, w that of the
/// wait for readers.
fn cost(case: &Case<'_>) -> Cost {
    let (all, longest, _) = case.blocks(case.shape.recv_counts);
    let others = case.ranks() - 1.0;
    let path = path_of_parts(case, (all, longest), sum(case.shape.recv_counts), others * longest);
    Cost { path, messages: 0.0, sent: others * all, reduced: others * all }
}

pub(super) fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = begin(shape)?;
    let all = sum(shape.recv_counts);
    if all == 0 {
        return Ok(b.build());
    }
    let blocks = Blocks::new(shape.recv_counts);
    let (offset, len) = blocks.of_rank(shape.rank);
    let result = shape.output(0).slice(0, len);
    let sources = sources(shape);
    let in_place = shape.inputs == 0;
    let own = if in_place { Span::new(sources[0], 0, all) } else { stable_contribution(&mut b, shape, 0, all) };
    let place = publish_parts(&mut b, shape, own, &|reader| blocks.of_rank(reader));
    let into = if in_place { b.scratch(len) } else { result };
    reduce_in_order(&mut b, shape.rank, 0..shape.size, place, own.slice(offset, len), into);
    b.divide(into, shape.divisor());
    if shape.size > 1 {
        b.await_readers();
    }
    b.copy(into, result);
    Ok(b.build())
}
