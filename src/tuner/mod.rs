//! Chooses algorithms and segment sizes. All ranks must choose the same without a word, so both are pure functions of what
//! every rank knows: never of the rank, nor of counts or buffers that only a root has.

pub mod file;

use crate::collective::{Algorithm, Collective, Shape};

/// Up to here latency is all that counts.
const SHORT: usize = 4 << 10;
/// The same for two ranks, where a butterfly sends no more than a ring does.
const SHORT_FOR_TWO: usize = 128 << 10;
/// From here on a rank's share of the buffer takes longer on the wire than a ring's many messages cost.
const LONG_SHARE: usize = 32 << 10;
/// From here on a step is worth cutting in two, so that one half is reduced or passed on while the other is on its way.
const WORTH_CUTTING: usize = 64 << 10;

/// The algorithm for a call with elements of `element_bytes`.
///
/// Allreduce: one process alone needs no network; up to 4 KiB (two ranks: 128 KiB) the fewest steps win; from 32 KiB for each
/// rank on the fewest bytes, in neighbourly rings; between them halving and doubling, with few steps and few bytes. Reduce: a
/// tree, but a ring from 32 KiB for each of at least three ranks on, since a tree's root receives the whole several times.
/// Broadcast: a tree. Barrier: dissemination. The others have one algorithm.
pub fn choose(shape: &Shape<'_>, element_bytes: usize) -> &'static Algorithm {
    let Shape { collective, size, count, .. } = *shape;
    let bytes = count.saturating_mul(element_bytes);
    let long = bytes / size.max(1) >= LONG_SHARE;
    let name = match collective {
        Collective::Allreduce if size <= 1 => "local",
        Collective::Allreduce if bytes <= if size == 2 { SHORT_FOR_TWO } else { SHORT } => "recursive_doubling",
        Collective::Allreduce if long => "ring_segmented",
        Collective::Allreduce => "halving_doubling",
        Collective::Reduce if long && size > 2 => "ring",
        Collective::Reduce | Collective::Broadcast => "binomial",
        Collective::Barrier => "dissemination",
        _ => "",
    };
    let algorithms = collective.algorithms();
    algorithms.iter().find(|algorithm| algorithm.name == name).unwrap_or(&algorithms[0])
}

/// Bytes of the pieces in which steps are worked through: a multiple of `element_bytes`, and at most `max` if an element is.
///
/// A ring's chunk of 64 KiB or more is cut into at least two pieces, and into equal ones. Steps longer than a chunk, as trees
/// have them, are cut into more, but not below 32 KiB. Where blocks differ in length and only some ranks know how long they
/// are, it is `max`.
pub fn segment_bytes(shape: &Shape<'_>, element_bytes: usize, max: usize) -> usize {
    use Collective::*;
    let element_bytes = element_bytes.max(1);
    let most = (max / element_bytes).max(1);
    let chunk = match shape.collective {
        Allreduce | Reduce | Broadcast | Scan | Exscan => shape.count.div_ceil(shape.size.max(1)),
        Allgather => shape.count.saturating_mul(shape.inputs.max(1)),
        Gather | Scatter | Alltoall | PairwiseExchange => shape.count,
        ReduceScatter | Allgatherv => shape.recv_counts.iter().copied().max().unwrap_or(0),
        Gatherv | Scatterv | Alltoallv => return most * element_bytes,
        Barrier => 1,
    };
    let least = (WORTH_CUTTING / 2 / element_bytes).max(1);
    let pieces = if chunk.saturating_mul(element_bytes) >= WORTH_CUTTING { chunk.div_ceil(most).max(2) } else { 1 };
    chunk.div_ceil(pieces).max(least).min(most) * element_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Rank;

    const MIB: usize = 1 << 20;

    fn shape(collective: Collective, size: usize, count: usize) -> Shape<'static> {
        Shape::new(collective, 0, size, count)
    }

    #[test]
    fn the_rule() {
        let name = |collective, size, bytes: usize| choose(&shape(collective, size, bytes / 4), 4).name;
        assert_eq!(name(Collective::Allreduce, 1, MIB), "local");
        assert_eq!(name(Collective::Allreduce, 2, 128 << 10), "recursive_doubling");
        assert_eq!(name(Collective::Allreduce, 2, (128 << 10) + 4), "ring_segmented");
        assert_eq!(name(Collective::Allreduce, 2, MIB), "ring_segmented");
        assert_eq!(name(Collective::Allreduce, 64, 8), "recursive_doubling");
        assert_eq!(name(Collective::Allreduce, 64, MIB), "halving_doubling");
        assert_eq!(name(Collective::Allreduce, 64, 256 * MIB), "ring_segmented");
        assert_eq!(name(Collective::Reduce, 8, 8), "binomial");
        assert_eq!(name(Collective::Reduce, 2, 256 * MIB), "binomial");
        assert_eq!(name(Collective::Reduce, 8, 256 * MIB), "ring");
        assert_eq!(name(Collective::Broadcast, 8, 8), "binomial");
        assert_eq!(name(Collective::Barrier, 8, 0), "dissemination");
    }

    #[test]
    fn it_always_chooses_what_can_run() {
        for &collective in Collective::ALL {
            for size in [1, 2, 3, 8, 100] {
                for count in [0, 1, 1000, 10_000_000, usize::MAX] {
                    let chosen = choose(&shape(collective, size, count), 8);
                    assert!(collective.algorithm(chosen.name).is_ok());
                    assert_eq!(chosen.name == "local", collective == Collective::Allreduce && size == 1);
                }
            }
        }
    }

    #[test]
    fn all_ranks_agree() {
        for &collective in Collective::ALL {
            // What the root knows and has differs from what others do.
            let on = |rank: Rank| {
                let counts: &'static [usize] = if rank == 0 { &[MIB, 0, 7 * MIB] } else { &[] };
                let (recv_counts, send_counts) = match collective {
                    Collective::ReduceScatter | Collective::Allgatherv => (&[MIB, 0, 7 * MIB][..], counts),
                    _ => (counts, counts),
                };
                let own = matches!(collective, Collective::Gatherv | Collective::Scatterv | Collective::Alltoallv);
                let count = if own { rank * MIB } else { MIB };
                let shape = Shape { rank, send_counts, recv_counts, ..shape(collective, 3, count) };
                (choose(&shape, 4).name, segment_bytes(&shape, 4, MIB))
            };
            assert_eq!(on(0), on(1));
            assert_eq!(on(0), on(2));
        }
    }

    #[test]
    fn pieces_are_equal_and_neither_too_small_nor_too_large() {
        let segment =
            |size, count, element, max| segment_bytes(&shape(Collective::Allreduce, size, count), element, max);
        assert_eq!(segment(4, 4 * (16 << 10), 4, MIB), 32 << 10, "a chunk of 64 KiB: two pieces");
        assert_eq!(segment(4, 4 * (16 << 10) - 4, 4, MIB), (64 << 10) - 4, "a smaller one: one piece");
        assert_eq!(segment(4, 256, 4, MIB), 32 << 10, "never below 32 KiB");
        assert_eq!(segment(8, 64 * MIB, 4, MIB), MIB, "never above the limit");
        assert_eq!(segment(1, 5 * MIB / 2, 1, MIB), (5 * MIB / 2usize).div_ceil(3), "three equal pieces");
        assert_eq!(segment(2, 1000, 16, 1), 16, "at least an element");
        assert_eq!(segment(2, usize::MAX, 16, 1000), 992, "whole elements");
        assert_eq!(segment(2, 0, 3, 0), 3);
    }
}
