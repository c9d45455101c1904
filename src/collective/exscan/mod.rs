//! Exclusive scan: rank `r` receives the reduction over the ranks before it, in rank order. Rank 0's output is not
//! written.

mod recursive_doubling;
mod shared_flat;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[recursive_doubling::ALGORITHM, shared_flat::ALGORITHM];
