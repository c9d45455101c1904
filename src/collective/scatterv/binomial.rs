//! Scatter down a binomial tree, with blocks of different lengths (Thakur, Rabenseifner and Gropp 2005). Best for small blocks
//! and many ranks. Every rank needs the root's counts: the call brings them to everyone first.
//!
//! Six ranks, root 0: rank 0 sends the blocks 4 and 5 to rank 4, then 2 and 3 to rank 2, then 1 to rank 1; rank 4 sends block 5
//! on, rank 2 block 3. Where all blocks of a message are empty it is not sent.
//!
//! Steps: `ceil(lg P)`. The root sends all blocks but its own; a block travels as many steps as its rank, counted from the root,
//! has bits that are set. Ranks between keep their subtree's blocks in scratch memory.

use super::super::blocks::{Blocks, scatter_tree, told_tree_cost};
use super::super::{Algorithm, Shape, Uses};
use crate::error::Result;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "binomial", generate, cost: told_tree_cost, uses: Uses::Counts };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let blocks = Blocks::told(shape)?;
    let whole = if shape.inputs == 0 { shape.output(0) } else { shape.input(0) };
    Ok(scatter_tree(Builder::new(), shape, &blocks, whole))
}
