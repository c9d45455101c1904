//! Broadcast down two binary trees at the same time, each for one half of the data (Sanders, Speck and Träff, "Two-tree
//! algorithms for full bandwidth broadcast, reduction and scan", 2009): best for large buffers on many ranks.
//!
//! Six ranks, root 0 (see [`DoubleBinaryTree`]; with a common root, the second tree is the first shifted by one): rank
//! 0 sends the first half to 4, which sends it to 2 and 5, and 2 sends it to 1 and 3. Rank 0 sends the second half to
//! 5, which sends it to 3 and 1, and 3 sends it to 2 and 4. Segments are pipelined.
//!
//! With `k` segments it takes `2 h + 2 k` steps, each on half of the links; `h = ceil(lg P)`. A rank sends at most `S`
//! bytes.

use super::super::double_binary_tree::{self, DoubleBinaryTree, Roots};
use super::super::phases::fan_out;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: double_binary_tree::NAME, generate, cost, uses: Uses::Sizes };

fn cost(case: &Case<'_>) -> Cost {
    double_binary_tree::cost(case, double_binary_tree::broadcast_time(case), 1.0, false)
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let output = shape.output(0);
    let current = if shape.inputs > 0 { shape.input(0) } else { output };
    for position in DoubleBinaryTree::new(shape.size, Roots::Common(shape.root)).positions(shape.rank) {
        let half = current.part(2, position.tree);
        if let Some(parent) = position.parent {
            b.recv(parent, half);
        }
        for child in position.children {
            b.send(child, half);
        }
        if shape.outputs > 0 {
            let output = output.part(2, position.tree);
            b.copy(half, output);
            fan_out(&mut b, shape, output);
        }
    }
    Ok(b.build())
}
