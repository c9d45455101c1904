//! Allreduces over trees, several at once.

use super::super::Shape;
use super::super::phases::{contribution, fan_out, sources};
use crate::schedule::{Builder, Schedule, Side, Span};
use crate::types::Rank;

/// A rank's place in a tree that combines and spreads a range of the output.
pub(super) struct Branch {
    pub range: Span,
    /// `None` for the root.
    pub parent: Option<Rank>,
    /// The one that is ready first comes first.
    pub children: Vec<Rank>,
}

/// Each range is combined up its tree and then spread down. The ranges are all of the output. Any two ranks have the trees
/// that join them in the same order.
pub(super) fn allreduce(shape: &Shape<'_>, branches: &[Branch]) -> Schedule {
    let mut b = Builder::new();
    let sources = sources(shape);
    for &Branch { range, parent, ref children } in branches {
        let mut held = contribution(&mut b, &sources, range.offset, range.len, range);
        for &child in children {
            b.recv_reduce(child, range, held, Side::Right);
            held = range;
        }
        match parent {
            Some(parent) => b.send(parent, held),
            None => {
                b.copy(held, range);
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
