//! Scatter down a binomial tree, then a ring allgather (van de Geijn: Barnett, Gupta, Payne, Shuler, van de Geijn and Watts,
//! "Interprocessor collective communication library (InterCom)", 1994). Best for large buffers and moderate numbers of ranks.
//!
//! Ranks are counted from the root, and there is a block for each. Six ranks, root 0: rank 0 sends the blocks 4 and 5 to rank
//! 4, then 2 and 3 to rank 2, then 1 to rank 1; rank 4 sends 5 to rank 5, rank 2 sends 3 to rank 3. Then all blocks go
//! around to the right, as in [`ring_allgather`](super::super::phases::ring_allgather), except to where they have been: rank 0
//! receives none, rank 2 not block 3, rank 4 not block 5 (Zhou, Marjanovic, Niethammer and Gracia, "A bandwidth-saving
//! optimization for MPI broadcast collective operation", 2015).
//!
//! Steps: `ceil(lg P) + P - 1` at most. Ranks receive `S (P - 1) / P` bytes and send less than `2 S`, the root the most.

use super::super::phases::{Binomial, fan_out};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::{Builder, Schedule, Span, split};

pub(super) const ALGORITHM: Algorithm =
    Algorithm { name: "scatter_allgather", generate, cost: |case| Case::unpriced(case), uses: Uses::Sizes };

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
    // What rank `v`, counted from the root, has after the scatter: the blocks of its subtree.
    let end = |v: usize| if v == 0 { size } else { size.min(v + (1 << v.trailing_zeros())) };

    let tree = Binomial::new(shape);
    if let Some(parent) = tree.parent() {
        b.recv(parent, blocks(own, end(own)));
    }
    for child in tree.children().into_iter().rev() {
        b.send(child, blocks(index(child), end(index(child))));
    }

    let (left, right) = (shape.before(1), shape.after(1));
    let has = |v: usize, block: usize| (v..end(v)).contains(&block);
    for step in 0..size - 1 {
        let passed_on = (own + size - step) % size;
        if !has(index(right), passed_on) {
            b.send(right, blocks(passed_on, passed_on + 1));
        }
        let arriving = (own + size - step - 1) % size;
        if !has(own, arriving) {
            b.recv(left, blocks(arriving, arriving + 1));
        }
    }
    if shape.outputs > 0 {
        b.copy(whole, output);
        fan_out(&mut b, shape, output);
    }
    Ok(b.build())
}
