//! Exclusive scan: rank `r` gets the combination of the ranks before itself, in their order; rank 0 gets nothing.

mod recursive_doubling;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[recursive_doubling::ALGORITHM];
