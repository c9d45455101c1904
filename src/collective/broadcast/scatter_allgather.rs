//! Scatter down a binomial tree, then a ring allgather (van de Geijn: Barnett, Gupta, Payne, Shuler, van de Geijn and
//! Watts, "Interprocessor collective communication library (InterCom)", 1994). Best for large buffers and moderate
//! numbers of ranks.
//!
//! There is one block per rank, and ranks are relative to the root. Six ranks, root 0: rank 0 sends blocks 4 and 5 to
//! rank 4, then 2 and 3 to rank 2, then 1 to rank 1; rank 4 sends 5 to rank 5, rank 2 sends 3 to rank 3. Then all
//! blocks move around the ring as in [`ring_allgather`](super::super::phases::ring_allgather), but not to the root,
//! which has them: rank 0 sends 0, then 5, 4, 3, 2 to rank 1, and rank 5 sends nothing.
//!
//! Steps: at most `ceil(lg P) + P - 1`. The root sends `2 S (P - 1) / P` bytes, the other ranks less.

use super::super::phases::{Binomial, fan_out, rounds};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, Span, split};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "scatter_allgather", generate, cost, uses: Uses::Sizes };

/// `(P - 1) S/(PB) + (P - 1) (α + S/(PB))`: the root starts the allgather as soon as it has sent the blocks of all
/// subtrees.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others) = (case.bytes(), case.ranks() - 1.0);
    let block = bytes / case.ranks();
    let top = case.lone_link(case.shape.size / 2);
    let pieces = if case.later(block) > 0.0 { others * case.pieces(block) } else { f64::from(rounds(case.shape.size)) };
    let scattered = (others * block / top.bandwidth).max(pieces * top.turn());
    // If `P` is a power of two, `P / 2^(i + 1)` ranks have a subtree of `2^i`.
    let around = others * others;
    let (mut messages, mut sent) = (around * case.pieces(block), around * block);
    for bit in 0..rounds(case.shape.size) {
        let (subtrees, blocks) = (case.ranks() / f64::from(2 << bit), f64::from(1 << bit));
        messages += subtrees * case.pieces(blocks * block);
        sent += subtrees * blocks * block;
    }
    let path = scattered + case.stream(case.link(1), others, block, 0.0);
    Cost { path, messages, sent, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let Shape { size, root, count, .. } = *shape;
    let output = shape.output(0);
    let whole = if shape.inputs > 0 { shape.input(0) } else { output };
    let index = |rank: usize| (rank + size - root) % size;
    let own = index(shape.rank);
    let blocks = |first: usize, end: usize| -> Span {
        let start = split(count, size, first).0;
        let end = if end < size { split(count, size, end).0 } else { count };
        whole.slice(start, end - start)
    };
    // After the scatter, rank `v` (relative to the root) has the blocks `v..end(v)` of its subtree.
    let end = |v: usize| if v == 0 { size } else { size.min(v + (1 << v.trailing_zeros())) };

    let tree = Binomial::new(shape);
    if let Some(parent) = tree.parent() {
        b.recv(parent, blocks(own, end(own)));
    }
    for child in tree.children().into_iter().rev() {
        b.send(child, blocks(index(child), end(index(child))));
    }

    // Blocks that a rank already has from the scatter are received again, which keeps the steps of all ranks aligned.
    let (left, right) = (shape.before(1), shape.after(1));
    for step in 0..size - 1 {
        if right != root {
            let block = (own + size - step) % size;
            b.send(right, blocks(block, block + 1));
        }
        if shape.rank != root {
            let block = (own + size - step - 1) % size;
            b.recv(left, blocks(block, block + 1));
        }
    }
    if shape.outputs > 0 {
        b.copy(whole, output);
        fan_out(&mut b, shape, output);
    }
    Ok(b.build())
}
