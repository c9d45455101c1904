//! The expressions by which reductions combine what the ranks contribute, where they determine the bits of the result:
//! in the order of the ranks, all at once, or one expression for all elements.

use super::{Algorithm, Collective, Shape, Uses};

/// What a call asks of the order in which elements are combined. The same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Nothing: that of the algorithm.
    #[default]
    Any,
    /// What the ranks contribute is combined in their order, from the left: `((x0 op x1) op x2) op …`.
    Ranks,
    /// All contributions to an element reach one rank as they are, which combines them at once, by an
    /// [exact](crate::reduce::Exact) sum. So the order counts for nothing. All ranks have as many contributions.
    Reproducible,
}

impl Collective {
    /// Whether its calls may have an [`Order`].
    pub const fn has_order(self) -> bool {
        matches!(self, Self::Allreduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether `algorithm` has schedules for calls with an [`Order`], for all ranks, roots, groups and lengths: in the
    /// order of ranks they are such folds, and in reproducible calls no rank combines fewer than all contributions. The
    /// tests prove both.
    pub fn folds(self, algorithm: &Algorithm) -> bool {
        let names: &[&str] = match self {
            Self::Allreduce => &["bcube", "reduce_broadcast", "local", "shared_flat", "shared_slices"],
            Self::Reduce => &["flat", "shared_flat", "shared_slices"],
            Self::ReduceScatter => &["direct", "shared_flat"],
            _ => &[],
        };
        names.contains(&algorithm.name)
    }

    /// Whether `algorithm` computes every element by one expression, which depends neither on the element's position nor
    /// on the number of elements, so that several calls may be executed as one with the same bits. The tests prove it.
    pub fn is_uniform(self, algorithm: &Algorithm) -> bool {
        let names: &[&str] = match self {
            Self::Allreduce => &[
                "halving_doubling",
                "recursive_doubling",
                "ring",
                "tree",
                "reduce_broadcast",
                "hierarchical_direct",
                "local",
                "shared_flat",
                "shared_slices",
                "shared_hierarchical_flat",
            ],
            _ => &[],
        };
        names.contains(&algorithm.name)
    }
}

impl Shape<'_> {
    /// Whether `algorithm` has a schedule for the order of this call. On shared memory each rank publishes one
    /// contribution.
    pub fn folds(&self, algorithm: &Algorithm) -> bool {
        let is_alone = self.contributions() == 1 || self.size == 1;
        self.collective.folds(algorithm)
            && (self.order != Order::Reproducible || is_alone || algorithm.uses != Uses::SharedMemory)
    }
}
