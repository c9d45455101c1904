//! Pairwise exchange: a pattern to test bandwidth with.

#[expect(clippy::module_inception, reason = "the only algorithm bears the collective's name, as files do")]
mod pairwise_exchange;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[pairwise_exchange::ALGORITHM];
