//! Pairwise exchange: a pattern to test bandwidth with.

// The collective and its one algorithm have one name.
#[allow(clippy::module_inception)]
mod pairwise_exchange;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[pairwise_exchange::ALGORITHM];
