//! Gather up a binomial tree with blocks of different lengths (Thakur, Rabenseifner and Gropp 2005). Best for small
//! blocks and many ranks. Every rank needs the root's counts; the call distributes them first.
//!
//! Six ranks, root 0: rank 1 sends its block to 0, 3 to 2, 5 to 4; rank 2 sends blocks 2 and 3 to 0, rank 4 blocks 4
//! and 5 to 0. A message whose blocks are all empty is not sent.
//!
//! Steps: `ceil(lg P)`. The root receives all blocks but its own. A block is sent as many times as its rank, relative
//! to the root, has bits set. Inner nodes store their subtree's blocks in scratch memory.

use super::super::blocks::{Blocks, gather_tree, root_counts_tree_cost};
use super::super::{Algorithm, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "binomial", generate, cost: root_counts_tree_cost, uses: Uses::Counts };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    Ok(gather_tree(shape, &Blocks::of_root_counts(shape)?))
}
