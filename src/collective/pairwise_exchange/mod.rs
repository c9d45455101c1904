//! Pairwise exchange: a communication pattern for bandwidth tests.

// The collective and its only algorithm have the same name.
#[allow(clippy::module_inception)]
mod pairwise_exchange;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[pairwise_exchange::ALGORITHM];
