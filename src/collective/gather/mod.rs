//! Gather: everyone's elements, for the root.

mod direct;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[direct::ALGORITHM];
