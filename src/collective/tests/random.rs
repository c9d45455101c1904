//! Randomly generated calls.

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: Tier::from_environment().of(20, 50, 200), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn uneven_blocks(counts in prop::collection::vec(prop_oneof![Just(0), 0..8usize, 20..40usize], 1..14), seed: prop::sample::Index, in_place: bool) {
        let size = counts.len();
        let root = seed.index(size);
        let inputs = usize::from(!in_place);
        for collective in [Collective::ReduceScatter, Collective::Allgatherv] {
            let call = Shape { recv_counts: &counts, inputs, ..shape(collective, size, 0) };
            for name in names(collective) {
                prove(&all_ranks(call, |_| ()), name);
            }
        }
        for collective in [Collective::Gatherv, Collective::Scatterv] {
            for algorithm in collective.algorithms() {
                prove_rooted(collective, algorithm, &counts, root, in_place);
            }
        }
    }

    #[test]
    fn blocks_of_all_lengths_between_all_ranks(sent in (1..9usize).prop_flat_map(|size| prop::collection::vec(prop::collection::vec(0..9usize, size), size))) {
        for algorithm in Collective::Alltoallv.algorithms() {
            prove_alltoallv(&sent, algorithm);
        }
    }

    #[test]
    fn reductions(size in 1..Tier::from_environment().of(17, 40, 40usize), count in 0..150usize, inputs in 0..4usize, outputs in 1..4usize, average: bool, base in 2..12usize, root: prop::sample::Index) {
        let root = root.index(size);
        let call = Shape { inputs, outputs, average, base, ..shape(Collective::Allreduce, size, count) };
        for name in names(Collective::Allreduce).into_iter().filter(|name| *name != "local") {
            prove(&all_ranks(call, |_| ()), name);
        }
        for name in names(Collective::Reduce) {
            prove(&all_ranks(Shape { collective: Collective::Reduce, outputs: 1, root, ..call }, |_| ()), name);
        }
    }
}
