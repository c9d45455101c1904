//! Broadcast down a chain of ranks, each of which forwards what it receives. Segments are pipelined; with many of them
//! the total time is little more than that of one message: best for large buffers and few ranks. (The pipeline of
//! Pjesivac-Grbovic et al., "Performance analysis of MPI collective operations", 2005.)
//!
//! Six ranks, root 0: rank 0 sends the first segment to 1; while it sends the second, 1 sends the first to 2; and so on
//! to 5.
//!
//! Steps: `P - 1` with one segment, `P - 2 + k` with `k` segments. Every rank but the last sends `S` bytes.

use super::super::phases::fan_out;
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: "pipelined_chain", generate, cost, uses: Uses::Sizes };

/// `(P - 1) (α + S/B)` with one segment; a little more than `(P - 1) α + S/B` with many.
fn cost(case: &Case<'_>) -> Cost {
    let (bytes, others, link) = (case.bytes(), case.ranks() - 1.0, case.link(1));
    let first = (others - 1.0) * link.time(case.segment(bytes));
    let path = if case.is_empty() { 0.0 } else { first + case.stream(link, 1.0, bytes, 0.0) };
    Cost { path, messages: others * case.pieces(bytes), sent: others * bytes, reduced: 0.0 }
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let output = shape.output(0);
    let current = if shape.inputs > 0 { shape.input(0) } else { output };
    if shape.rank != shape.root {
        b.recv(shape.before(1), current);
    }
    if shape.after(1) != shape.root {
        b.send(shape.after(1), current);
    }
    if shape.outputs > 0 {
        b.copy(current, output);
        fan_out(&mut b, shape, output);
    }
    Ok(b.build())
}
