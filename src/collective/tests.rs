//! Verifies every algorithm; `schedule::verify` says what is checked. This file has the tests that are specific to a
//! collective, for up to 64 ranks. `sweep` verifies all listed algorithms.

mod blocks;
mod calls;
mod compiled;
mod formulas;
mod mutations;
mod prices;
mod random;
mod shapes;
mod shared;
mod simulated;
mod sweep;
mod topology;
mod weights;

use super::*;
use crate::schedule::verify as prove_schedules;
use crate::schedule::verify::Report;
use crate::testing::tier::Tier;

/// The largest number of ranks, unless a test says otherwise.
fn max_ranks() -> usize {
    Tier::from_environment().of(16, 64, 64)
}

/// Numbers of ranks, unless a test says otherwise. `make check` and `make test` take some of the larger ones, since
/// [`sweep`] takes all up to 16 and 128.
fn ranks() -> impl Iterator<Item = usize> {
    let tier = Tier::from_environment();
    (1..=max_ranks()).filter(move |size| match tier {
        Tier::Check => *size <= 9 || *size == 16,
        Tier::Test => *size <= 24 || matches!(size, 31..=33 | 64),
        Tier::More => true,
    })
}

/// The shape on rank 0 of a call with one input, one output and no average.
fn shape(collective: Collective, size: usize, count: usize) -> Shape<'static> {
    Shape::new(collective, 0, size, count)
}

/// The shapes of all ranks: `call`, changed by `adjust` for each rank.
fn all_ranks<'a>(call: Shape<'a>, adjust: impl Fn(&mut Shape<'a>)) -> Vec<Shape<'a>> {
    let one = |rank| {
        let mut shape = Shape { rank, ..call };
        adjust(&mut shape);
        shape
    };
    (0..call.size).map(one).collect()
}

/// Counts that are and that are not multiples of `size`.
fn counts(size: usize) -> [usize; 6] {
    [0, 1, size - 1, size, 2 * size + 1, 3 * size - 1]
}

/// Uneven counts: some are 0, some are much larger than the others.
fn uneven(size: usize, seed: usize) -> Vec<usize> {
    (0..size).map(|i| [3, 0, 1, 9, 2][(i * 7 + seed) % 5]).collect()
}

fn prove(shapes: &[Shape<'_>], name: &str) -> Report {
    let algorithm = shapes[0].collective.algorithm(name).expect("the algorithm is in the list");
    let shared = algorithm.uses.needs_shared_memory();
    let shapes = &shapes.iter().map(|shape| Shape { shared, ..*shape }).collect::<Vec<_>>()[..];
    verify_all(shapes, algorithm).unwrap_or_else(|e| panic!("{name}, {} ranks, {:?}: {e}", shapes.len(), shapes[0]))
}

/// Like [`verify`], but trees computed from given links are computed only twice instead of once per rank.
fn verify_all(shapes: &[Shape<'_>], algorithm: &Algorithm) -> Result<Report> {
    if algorithm.uses != Uses::Links || shapes[0].links.is_empty() {
        return verify(shapes, algorithm);
    }
    shapes.iter().try_for_each(Shape::check)?;
    let schedules = allreduce::spanning_trees::generate_all(shapes)?;
    let one = shapes.len() / 3;
    assert_eq!((algorithm.generate)(&shapes[one])?, schedules[one]);
    prove_schedules(schedules, &CollectiveContract::new(shapes))
}

fn names(collective: Collective) -> Vec<&'static str> {
    collective.algorithms().iter().map(|a| a.name).collect()
}

/// Some roots to test.
fn roots(size: usize) -> Vec<usize> {
    let mut roots = vec![0, size / 2, size - 1];
    roots.dedup();
    roots
}

fn prove_allreduce(name: &str, bases: &[usize]) {
    for size in ranks() {
        for (n, count) in counts(size).into_iter().enumerate() {
            let forms = [(1, 1), (0, 1), (2, 1), (3, 2), (1, 3), (0, 2), (0, 3)];
            // All forms with each count for few ranks; for more ranks, different forms with each count.
            let some = match size {
                1..=12 => 0..forms.len(),
                13..=24 => n..n + 2,
                _ => (n + size) % forms.len()..(n + size) % forms.len() + 1,
            };
            for (inputs, outputs) in forms[some].iter().copied() {
                let bases = if size <= 12 { bases } else { &bases[n % bases.len()..][..1] };
                for &base in bases {
                    let average = (size + count + inputs).is_multiple_of(2);
                    let call = Shape { inputs, outputs, average, base, ..shape(Collective::Allreduce, size, count) };
                    let report = prove(&all_ranks(call, |_| ()), name);
                    assert!(report.in_order || name.starts_with("ring_"), "{name}, {size} ranks: out of order");
                }
            }
        }
    }
}

#[test]
fn allreduce_ring_segmented() {
    prove_allreduce("ring_segmented", &[2]);
}

#[test]
fn allreduce_ring_chunked() {
    prove_allreduce("ring_chunked", &[2]);
}

#[test]
fn allreduce_halving_doubling() {
    prove_allreduce("halving_doubling", &[2]);
}

#[test]
fn allreduce_recursive_doubling() {
    prove_allreduce("recursive_doubling", &[2]);
}

#[test]
fn allreduce_bcube() {
    prove_allreduce("bcube", &[2, 3, 4, 8]);
}

#[test]
fn allreduce_ring() {
    prove_allreduce("ring", &[2]);
}

#[test]
fn allreduce_tree() {
    prove_allreduce("tree", &[2]);
}

#[test]
fn allreduce_reduce_broadcast() {
    prove_allreduce("reduce_broadcast", &[2]);
}

#[test]
fn allreduce_double_binary_tree() {
    prove_allreduce("double_binary_tree", &[2]);
}

#[test]
fn allreduce_local() {
    for count in [0, 1, 10] {
        for (inputs, outputs) in [(1, 1), (0, 1), (2, 1), (3, 2), (1, 3), (0, 2), (0, 3), (6, 1)] {
            for average in [false, true] {
                let call = Shape { inputs, outputs, average, ..shape(Collective::Allreduce, 1, count) };
                assert_eq!(prove(&[call], "local").steps, 0);
            }
        }
    }
    let error = verify(
        &all_ranks(shape(Collective::Allreduce, 2, 1), |_| ()),
        Collective::Allreduce.algorithm("local").unwrap(),
    );
    assert!(error.unwrap_err().message().contains("size is 2"));
}

#[test]
fn reduce() {
    for name in names(Collective::Reduce) {
        for size in ranks() {
            for count in counts(size) {
                for root in roots(size) {
                    let n = (size + count + root) % 4;
                    let average = (size + root).is_multiple_of(2);
                    let call = Shape { inputs: n, root, average, ..shape(Collective::Reduce, size, count) };
                    // If the call is not in place, non-root ranks may or may not have an output.
                    prove(
                        &all_ranks(call, |s| s.outputs = usize::from(n == 0 || s.rank == root || s.rank % 2 == 1)),
                        name,
                    );
                }
            }
        }
    }
}

#[test]
fn reduce_scatter() {
    for name in names(Collective::ReduceScatter) {
        for size in ranks() {
            for recv_counts in [vec![0; size], vec![1; size], vec![3; size], uneven(size, size), uneven(size, size + 3)]
            {
                for inputs in 0..=if size <= 16 { 3 } else { 1 } {
                    let average = (size + inputs).is_multiple_of(2);
                    let call = Shape {
                        inputs,
                        average,
                        recv_counts: &recv_counts,
                        ..shape(Collective::ReduceScatter, size, 0)
                    };
                    let report = prove(&all_ranks(call, |_| ()), name);
                    assert!(report.in_order || name == "ring", "{name}, {size} ranks: out of order");
                }
            }
        }
    }
}

#[test]
fn broadcast() {
    for name in names(Collective::Broadcast) {
        for size in ranks() {
            for count in [0, 1, 10] {
                for root in roots(size) {
                    for (inputs, outputs) in [(0, 1), (0, 3), (1, 1), (1, 2)] {
                        let call = Shape { root, outputs, ..shape(Collective::Broadcast, size, count) };
                        prove(&all_ranks(call, |s| s.inputs = if s.rank == root { inputs } else { 0 }), name);
                    }
                    // A root without an output.
                    let call = Shape { root, ..shape(Collective::Broadcast, size, count) };
                    let only_input = |s: &mut Shape<'_>| {
                        (s.inputs, s.outputs) = if s.rank == root { (1, 0) } else { (0, 1) };
                    };
                    prove(&all_ranks(call, only_input), name);
                }
            }
        }
    }
}

#[test]
fn allgather() {
    for name in names(Collective::Allgather) {
        for size in ranks() {
            for count in [0, 1, 3] {
                for inputs in 0..=if size <= 16 { 3 } else { 1 } {
                    prove(&all_ranks(Shape { inputs, ..shape(Collective::Allgather, size, count) }, |_| ()), name);
                }
            }
        }
    }
}

#[test]
fn allgatherv() {
    for name in names(Collective::Allgatherv) {
        for size in ranks() {
            for recv_counts in [vec![0; size], vec![2; size], uneven(size, size)] {
                for inputs in 0..=1 {
                    let call = Shape { inputs, recv_counts: &recv_counts, ..shape(Collective::Allgatherv, size, 0) };
                    prove(&all_ranks(call, |_| ()), name);
                }
            }
        }
    }
}

#[test]
fn gather_and_scatter() {
    for size in ranks() {
        for count in [0, 1, 3] {
            for root in roots(size) {
                for in_place in [false, true] {
                    let call = Shape { root, ..shape(Collective::Gather, size, count) };
                    let adjust = |s: &mut Shape<'_>| {
                        (s.inputs, s.outputs) = if s.rank == root { (usize::from(!in_place), 1) } else { (1, 0) };
                    };
                    names(Collective::Gather).iter().for_each(|name| drop(prove(&all_ranks(call, adjust), name)));
                }
                for inputs in [0, 1, size] {
                    let call = Shape { root, ..shape(Collective::Scatter, size, count) };
                    let adjust = |s: &mut Shape<'_>| s.inputs = if s.rank == root { inputs } else { 0 };
                    names(Collective::Scatter).iter().for_each(|name| drop(prove(&all_ranks(call, adjust), name)));
                }
            }
        }
    }
}

/// Verifies a gatherv or scatterv of `counts`; only the root has them unless the algorithm needs them on all ranks.
fn prove_rooted(collective: Collective, algorithm: &Algorithm, counts: &[usize], root: usize, in_place: bool) {
    let mut calls = Calls::of_blocks(collective, counts.to_vec(), root);
    calls.inputs = usize::from(!in_place);
    prove(&calls::needed(&calls, algorithm.uses), algorithm.name);
}

#[test]
fn gatherv_and_scatterv() {
    for size in ranks() {
        for counts in [vec![0; size], vec![2; size], uneven(size, size), uneven(size, size + 1)] {
            for root in roots(size) {
                for in_place in [false, true] {
                    for collective in [Collective::Gatherv, Collective::Scatterv] {
                        for algorithm in collective.algorithms() {
                            prove_rooted(collective, algorithm, &counts, root, in_place);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn alltoall() {
    for name in names(Collective::Alltoall) {
        for size in ranks() {
            for count in [0, 1, 3] {
                for inputs in 0..=1 {
                    let call = Shape { inputs, ..shape(Collective::Alltoall, size, count) };
                    prove(&all_ranks(call, |_| ()), name);
                }
            }
        }
    }
}

/// Verifies an alltoallv in which rank `i` sends the counts in row `i` of `sent`.
fn prove_alltoallv(sent: &[Vec<usize>], algorithm: &Algorithm) {
    prove(&calls::needed(&Calls::of_rows(sent.to_vec()), algorithm.uses), algorithm.name);
}

#[test]
fn alltoallv() {
    for algorithm in Collective::Alltoallv.algorithms() {
        for size in ranks() {
            let sent: Vec<Vec<usize>> = (0..size).map(|rank| uneven(size, 3 * rank)).collect();
            prove_alltoallv(&sent, algorithm);
        }
    }
}

#[test]
fn barrier() {
    for name in names(Collective::Barrier) {
        for size in ranks() {
            for root in roots(size) {
                let call = Shape { inputs: 0, outputs: 0, root, ..shape(Collective::Barrier, size, 0) };
                let steps = prove(&all_ranks(call, |_| ()), name).steps;
                let expected = match name {
                    _ if size == 1 => 0,
                    "dissemination" => size.next_power_of_two().ilog2() as usize,
                    // Without caches, the tree is flat.
                    "all_to_all" | "shared_flat" | "shared_hierarchical" => 1,
                    _ => 2,
                };
                assert_eq!(steps, expected, "{name}, {size} ranks");
            }
        }
    }
}

#[test]
fn pairwise_exchange() {
    for bits in 0..=6 {
        for destinations in 0..=bits {
            for count in [0, 1, 5] {
                let call = Shape { destinations, ..shape(Collective::PairwiseExchange, 1 << bits, count) };
                let report = prove(&all_ranks(call, |_| ()), "pairwise_exchange");
                assert!(report.traffic.iter().all(|t| t.elements == destinations * count));
            }
        }
    }
}

#[test]
fn scan_and_exscan() {
    for collective in [Collective::Scan, Collective::Exscan] {
        for name in names(collective) {
            for size in ranks() {
                for count in [0, 1, 20] {
                    for inputs in 0..=1 {
                        let report =
                            prove(&all_ranks(Shape { inputs, ..shape(collective, size, count) }, |_| ()), name);
                        let steps = match name {
                            _ if count == 0 => 0,
                            "shared_flat" => size - 1,
                            _ => size.next_power_of_two().ilog2() as usize,
                        };
                        assert_eq!(report.steps, steps, "{name}, {size} ranks");
                        assert!(report.in_order);
                    }
                }
            }
        }
    }
}
