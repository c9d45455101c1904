//! Reduction up two binary trees at once, each for one half of the data (Sanders, Speck and Träff, "Two-tree algorithms for
//! full bandwidth broadcast, reduction and scan", 2009): best for large buffers on many ranks.
//!
//! Six ranks, root 0 (see [`TwoTrees`]; below a common root the second tree is the first one moved by one): for the first half
//! ranks 1 and 3 send to 2, ranks 2 and 5 to 4, and 4 to 0; for the second, 2 and 4 send to 3, ranks 3 and 1 to 5, and 5 to
//! 0. Segments stream up.
//!
//! Cut into `k` segments, each half takes `2 h + 2 k` steps of half its links, `h = ceil(lg P)`. Every rank but the root sends
//! `S` bytes, and a rank receives `S` at most.

use super::super::phases::{combine_children, contribution, sources};
use super::super::two_trees::{self, Top, TwoTrees};
use super::super::{Algorithm, Case, Shape, Uses};
use crate::error::Result;
use crate::schedule::cost::Cost;
use crate::schedule::{Builder, Schedule, split};

pub(super) const ALGORITHM: Algorithm = Algorithm { name: two_trees::NAME, generate, cost, uses: Uses::Sizes };

fn cost(case: &Case<'_>) -> Cost {
    two_trees::cost(case, two_trees::reduce_time(case), 1.0, true)
}

fn generate(shape: &Shape<'_>) -> Result<Schedule> {
    let mut b = Builder::new();
    let sources = sources(shape);
    for place in TwoTrees::new(shape.size, Top::Both(shape.root)).places(shape.rank) {
        let (offset, len) = split(shape.count, 2, place.tree);
        let into = match place.parent {
            None => shape.output(0).slice(offset, len),
            Some(_) if place.children.is_empty() && sources.len() == 1 => b.scratch(0),
            Some(_) => b.scratch(len),
        };
        let own = contribution(&mut b, &sources, offset, len, into);
        let held = combine_children(&mut b, place.children_going_up(shape.rank), own, into);
        match place.parent {
            Some(parent) => b.send(parent, held),
            None => {
                b.copy(held, into);
                b.divide(into, shape.divisor());
            }
        }
    }
    Ok(b.build())
}
