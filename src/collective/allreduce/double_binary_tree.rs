//! Two binary trees at the same time, each for one half of the data: a reduction to the roots, then a broadcast
//! (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; NCCL 2.4).
//! It has the latency of a tree with nearly the bandwidth of a ring: best for large buffers on many ranks.
//!
//! Six ranks (see [`DoubleBinaryTree`]): in the first tree ranks 1 and 3 send the first half to 2, ranks 2 and 5 to 4,
//! and 4 to 0; in the second, 0 and 3 send the second half to 1, 2 and 4 to 3, and 1 to 5. Each half then returns along
//! the same edges. Segments are pipelined in both directions: all ranks send and receive all the time.
//!
//! With `k` segments each half is reduced in `2 h + 2 k` steps, each on half of its links, where `h = ceil(lg P)`, and
//! broadcast in as many. A rank sends at most `2 S` bytes. A subtree consists of consecutive ranks, so the operation
//! need not commute.

use super::super::double_binary_tree::{self, DoubleBinaryTree, Roots, TreePosition};
use super::super::phases::{combine_children, contribution, fan_out, sources};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Span};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: double_binary_tree::NAME, generate, cost, uses: Uses::Sizes };

fn cost(case: &Case<'_>) -> Cost {
    double_binary_tree::cost(case, double_binary_tree::allreduce_time(case), 2.0, true)
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let sources = sources(shape);
    let positions = DoubleBinaryTree::new(shape.size, Roots::Ends).positions(shape.rank);
    let half = |position: &TreePosition| -> Span { shape.output(0).part(2, position.tree) };
    for position in &positions {
        let half = half(position);
        let own = contribution(&mut b, &sources, half.offset, half.len, half);
        let current = combine_children(&mut b, position.children_going_up(shape.rank), own, half);
        match position.parent {
            Some(parent) => b.send(parent, current),
            None => {
                b.copy(current, half);
                b.divide(half, shape.divisor());
            }
        }
    }
    for position in &positions {
        let half = half(position);
        if let Some(parent) = position.parent {
            b.recv(parent, half);
        }
        for &child in &position.children {
            b.send(child, half);
        }
        fan_out(&mut b, shape, half);
    }
    Ok(b.build())
}
