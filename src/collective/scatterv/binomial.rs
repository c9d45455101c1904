//! Scatter down a binomial tree with blocks of different lengths (Thakur, Rabenseifner and Gropp 2005). Best for small
//! blocks and many ranks. Every rank needs the root's counts; the call distributes them first.
//!
//! Six ranks, root 0: rank 0 sends blocks 4 and 5 to rank 4, then 2 and 3 to rank 2, then 1 to rank 1; rank 4 forwards
//! block 5, rank 2 block 3. A message whose blocks are all empty is not sent.
//!
//! Steps: `ceil(lg P)`. The root sends all blocks but its own. A block is sent as many times as its rank, relative to
//! the root, has bits set. Inner nodes store their subtree's blocks in scratch memory.

use super::super::blocks::{Blocks, root_counts_tree_cost, scatter_tree};
use super::super::{Algorithm, Shape, Uses};
use crate::error::Result;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "binomial", generate, cost: root_counts_tree_cost, uses: Uses::Counts };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let blocks = Blocks::of_root_counts(shape)?;
    let whole = if shape.inputs == 0 { shape.output(0) } else { shape.input(0) };
    Ok(scatter_tree(Builder::new(), shape, &blocks, whole))
}
