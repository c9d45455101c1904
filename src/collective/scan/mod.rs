//! Inclusive scan: rank `r` receives the reduction over ranks 0 to `r`, in rank order.

mod recursive_doubling;
mod shared_flat;

use super::Algorithm;

pub(super) static ALGORITHMS: &[Algorithm] = &[recursive_doubling::ALGORITHM, shared_flat::ALGORITHM];
