//! Gather up a binomial tree (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", 2005). The root receives few messages: best for small blocks and many ranks.
//!
//! Six ranks, root 0: rank 1 sends its block to 0, 3 to 2, 5 to 4; rank 2 sends blocks 2 and 3 to 0, rank 4 blocks 4
//! and 5 to 0. With root 3, rank 1 sends blocks 1 and 2, and rank 5 sends blocks 5 and 0 in two messages, because they
//! are not adjacent in the root's output.
//!
//! Steps: `ceil(lg P)`. The root receives `S (P - 1) / P` bytes; `S` is the size of its output. A block is sent as many
//! times as its rank, relative to the root, has bits set. Inner nodes store their subtree's blocks in scratch memory.

use super::super::blocks::{Blocks, gather_tree, tree_cost};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;
use crate::schedule::cost::Cost;

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "binomial", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    Ok(gather_tree(shape, &Blocks::equal(shape.size, shape.count)))
}

/// `lg P α + S (P - 1) / (P B)` for powers of two.
fn cost(case: &Case<'_>) -> Cost {
    tree_cost(case, &Blocks::equal(case.shape.size, case.shape.count))
}
