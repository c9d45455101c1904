//! Gather up a binomial tree: few messages at the root, so the best for small blocks and many ranks (Thakur, Rabenseifner and
//! Gropp, "Optimization of collective communication operations in MPICH", 2005).
//!
//! Six ranks, root 0: rank 1 sends its block to 0, 3 to 2, 5 to 4; rank 2 sends the blocks 2 and 3 to 0, rank 4 the blocks 4
//! and 5 to 0. With root 3 rank 1 sends the blocks 1 and 2, and rank 5 sends 5 and 0, in two messages, since they do not adjoin
//! at the root.
//!
//! Steps: `ceil(lg P)`. The root receives `S (P - 1) / P` bytes, `S` being those of its output; a block travels as many steps
//! as its rank, counted from the root, has bits that are set. Ranks between keep their subtree's blocks in scratch memory.

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
