//! Pairwise exchange: a pattern to test bandwidth with.

mod pairwise_exchange;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[pairwise_exchange::ALGORITHM];
