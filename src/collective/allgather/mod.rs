//! Allgather: everyone's elements, for everyone.

mod ring;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[ring::ALGORITHM];
