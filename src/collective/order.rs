//! Reductions that combine what the ranks contribute in their order, from the left: `((x0 op x1) op x2) op …`.

use super::{Algorithm, Collective};

impl Collective {
    /// Whether its calls may be [ordered](super::Shape::ordered).
    pub const fn has_order(self) -> bool {
        matches!(self, Self::Allreduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether the schedules of `algorithm` for [ordered](super::Shape::ordered) calls are such folds, for all ranks,
    /// roots, groups and lengths. The tests prove it.
    pub fn folds(self, algorithm: &Algorithm) -> bool {
        let names: &[&str] = match self {
            Self::Allreduce => &["bcube", "reduce_broadcast", "local", "shared_flat", "shared_slices"],
            Self::Reduce => &["flat", "shared_flat", "shared_slices"],
            Self::ReduceScatter => &["direct", "shared_flat"],
            _ => &[],
        };
        names.contains(&algorithm.name)
    }
}
