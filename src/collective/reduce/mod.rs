//! Reduce: the combination of everyone's elements, for the root. Other ranks' outputs are left alone.

mod binomial;
mod double_binary_tree;
mod flat;
mod ring;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] =
    &[ring::ALGORITHM, binomial::ALGORITHM, double_binary_tree::ALGORITHM, flat::ALGORITHM];
