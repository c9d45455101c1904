//! Scan: rank `r` gets the combination of the ranks up to itself, in their order.

mod recursive_doubling;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[recursive_doubling::ALGORITHM];
