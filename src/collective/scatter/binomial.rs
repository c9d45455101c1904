//! Scatter down a binomial tree (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
//! in MPICH", 2005). The root sends few messages: best for small blocks and many ranks.
//!
//! Six ranks, root 0: rank 0 sends blocks 4 and 5 to rank 4, then 2 and 3 to rank 2, then 1 to rank 1; rank 4 forwards
//! block 5, rank 2 block 3. With root 3, blocks 5 and 0 are sent to rank 5 in two messages, because they are not
//! adjacent in the root's input.
//!
//! Steps: `ceil(lg P)`. The root sends `S (P - 1) / P` bytes; `S` is the size of its input. A block is sent as many
//! times as its rank, relative to the root, has bits set. Inner nodes store their subtree's blocks in scratch memory;
//! so does a root whose blocks are in separate inputs.

use super::super::blocks::{Blocks, scatter_tree, tree_cost};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "binomial", generate, cost, uses: Uses::Sizes };

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { size, count, .. } = *shape;
    let whole = match shape.inputs {
        0 => shape.output(0),
        1 => shape.input(0),
        _ => {
            let whole = b.scratch(size * count);
            for rank in (0..size).filter(|&rank| rank != shape.root) {
                b.copy(shape.input(rank), whole.slice(rank * count, count));
            }
            whole
        }
    };
    Ok(scatter_tree(b, shape, &Blocks::equal(shape.size, shape.count), whole))
}

/// `lg P α + S (P - 1) / (P B)` for powers of two.
fn cost(case: &Case<'_>) -> Cost {
    tree_cost(case, &Blocks::equal(case.shape.size, case.shape.count))
}
