//! The ring of [`ring_reduce_scatter`], with the caller's blocks, which may differ in length, as chunks (Patarasu and
//! Yuan 2009). Ranks send only to their neighbours: best for large blocks. The operation must commute.
//!
//! Six ranks: rank 0 sends its block 5, receives block 4, adds its own and sends the sum, and so on; in the fifth step
//! it receives block 0, which is complete once it has added its own. Partial results are in two blocks of scratch
//! memory or, in place, in the output.
//!
//! Steps: `P - 1`. Every rank sends all blocks but its own: `S (P - 1) / P` bytes if they are equal.

use super::super::blocks::Blocks;
use super::super::phases::{relocate, ring_reduce_scatter, two_scratch_buffers};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "ring", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let counts = shape.recv_counts;
    let blocks = Blocks::new(counts);
    let chunk = |index| blocks.of_rank(index);
    let output = shape.output(0);
    let result = output.slice(0, counts[shape.rank]);
    if shape.inputs == 0 {
        let target = |index| output.slice(chunk(index).0, chunk(index).1);
        let complete = ring_reduce_scatter(&mut b, shape, chunk, target);
        b.divide(complete, shape.divisor());
        relocate(&mut b, complete, result);
    } else {
        let longest = counts.iter().copied().max().unwrap_or(0);
        let mut scratch = two_scratch_buffers(&mut b, if shape.size > 1 { longest } else { 0 }, |index| counts[index]);
        let target = |index| if index == shape.rank { result } else { scratch(index) };
        let complete = ring_reduce_scatter(&mut b, shape, chunk, target);
        b.copy(complete, result);
        b.divide(result, shape.divisor());
    }
    Ok(b.build())
}

/// Every step takes as long as the longest block: `(P - 1) (α + S / (P B) + γ S / P)` for equal blocks.
fn cost(case: &Case<'_>) -> Cost {
    let (all, longest, pieces) = case.blocks(case.shape.recv_counts);
    let others = case.ranks() - 1.0;
    let path = case.stream(case.link(1), others, longest, case.network.gamma);
    Cost { path, messages: others * pieces, sent: others * all, reduced: others * all }
}
