//! Gather: the root receives the elements of all ranks.

mod binomial;
mod direct;
mod shared_flat;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[direct::ALGORITHM, binomial::ALGORITHM, shared_flat::ALGORITHM];
