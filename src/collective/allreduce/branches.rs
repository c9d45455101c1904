//! Allreduce over several trees at the same time.

use super::super::Shape;
use super::super::phases::{contribution, fan_out, sources};
use crate::schedule::{Builder, Schedule, Side, Span};
use crate::types::Rank;

/// A rank's position in a tree that reduces and broadcasts one range of the output.
pub(super) struct Branch {
    pub range: Span,
    /// `None` for the root.
    pub parent: Option<Rank>,
    /// In the order in which their data is expected.
    pub children: Vec<Rank>,
}

/// Reduces each range up its tree and then broadcasts it down. The ranges must cover the output. Trees with an edge
/// between the same two ranks must be in the same order on both.
pub(super) fn allreduce(shape: &Shape<'_>, branches: &[Branch]) -> Schedule {
    let mut b = Builder::new();
    let sources = sources(shape);
    for &Branch { range, parent, ref children } in branches {
        let mut current = contribution(&mut b, &sources, range.offset, range.len, range);
        for &child in children {
            b.recv_reduce(child, range, current, Side::Right);
            current = range;
        }
        match parent {
            Some(parent) => b.send(parent, current),
            None => {
                b.copy(current, range);
                b.divide(range, shape.divisor());
            }
        }
    }
    for &Branch { range, parent, ref children } in branches {
        if let Some(parent) = parent {
            b.recv(parent, range);
        }
        for &child in children.iter().rev() {
            b.send(child, range);
        }
        fan_out(&mut b, shape, range);
    }
    b.build()
}
