//! Reduction up two binary trees at the same time, each for one half of the data (Sanders, Speck and Träff, "Two-tree
//! algorithms for full bandwidth broadcast, reduction and scan", 2009): best for large buffers on many ranks.
//!
//! Six ranks, root 0 (see [`DoubleBinaryTree`]; with a common root, the second tree is the first shifted by one): for
//! the first half ranks 1 and 3 send to 2, ranks 2 and 5 to 4, and 4 to 0; for the second half 2 and 4 send to 3, ranks
//! 3 and 1 to 5, and 5 to 0. Segments are pipelined.
//!
//! With `k` segments each half takes `2 h + 2 k` steps, each on half of its links; `h = ceil(lg P)`. Every rank but the
//! root sends `S` bytes; a rank receives at most `S`.

use super::super::double_binary_tree::{self, DoubleBinaryTree, Roots};
use super::super::phases::{combine_children, contribution, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, split};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: double_binary_tree::NAME, generate, cost, uses: Uses::Sizes };

fn cost(case: &Case<'_>) -> Cost {
    double_binary_tree::cost(case, double_binary_tree::reduce_time(case), 1.0, true)
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let sources = sources(shape);
    for position in DoubleBinaryTree::new(shape.size, Roots::Common(shape.root)).positions(shape.rank) {
        let (offset, len) = split(shape.count, 2, position.tree);
        let into = match position.parent {
            None => shape.output(0).slice(offset, len),
            Some(_) if position.children.is_empty() && sources.len() == 1 => b.scratch(0),
            Some(_) => b.scratch(len),
        };
        let own = contribution(&mut b, &sources, offset, len, into);
        let current = combine_children(&mut b, position.children_going_up(shape.rank), own, into);
        match position.parent {
            Some(parent) => b.send(parent, current),
            None => {
                b.copy(current, into);
                b.divide(into, shape.divisor());
            }
        }
    }
    Ok(b.build())
}
