//! Scatterv: every rank receives one block of the root's elements; each block has its own length.

mod binomial;
mod direct;
mod shared_flat;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[direct::ALGORITHM, binomial::ALGORITHM, shared_flat::ALGORITHM];
