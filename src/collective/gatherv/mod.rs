//! Gatherv: the root receives the elements of all ranks; each rank has its own count.

mod binomial;
mod direct;
mod shared_flat;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[direct::ALGORITHM, binomial::ALGORITHM, shared_flat::ALGORITHM];
