//! Gather up a binomial tree, with blocks of different lengths (Thakur, Rabenseifner and Gropp 2005). Best for small blocks and
//! many ranks. Every rank needs the root's counts: the call brings them to everyone first.
//!
//! Six ranks, root 0: rank 1 sends its block to 0, 3 to 2, 5 to 4; rank 2 sends the blocks 2 and 3 to 0, rank 4 the blocks 4
//! and 5 to 0. Where all blocks of a message are empty it is not sent.
//!
//! Steps: `ceil(lg P)`. The root receives all blocks but its own; a block travels as many steps as its rank, counted from the
//! root, has bits that are set. Ranks between keep their subtree's blocks in scratch memory.

use super::super::blocks::{Blocks, gather_tree, told_tree_cost};
use super::super::{Algorithm, Shape, Uses};
use crate::error::Result;
use crate::schedule::Schedule;

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "binomial", generate, cost: told_tree_cost, uses: Uses::Counts };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    Ok(gather_tree(shape, &Blocks::told(shape)?))
}
