//! Broadcast: the root's elements, for everyone.

mod binomial;
mod one_to_all;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[binomial::ALGORITHM, one_to_all::ALGORITHM];
