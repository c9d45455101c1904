//! Steps, messages and bytes of the collectives that move blocks are those of the literature and those of the cost
//! formulas.

use super::formulas::{COUNT, all_send, height};
use super::*;
use crate::schedule::cost::{Link, Network};
use crate::schedule::{Action, Schedule};

/// An allgather, alltoall, ... with `COUNT` elements per rank; gather and scatter with root 0.
fn equal(collective: Collective, name: &str, size: usize) -> Report {
    prove(&calls(collective, &vec![COUNT; size], 0).shapes(), name)
}

/// A call with these block lengths per rank; collectives with a single count use the first.
fn calls(collective: Collective, blocks: &[usize], root: usize) -> Calls {
    use Collective::*;
    match collective {
        Alltoallv => Calls::of_rows(vec![vec![blocks[0]; blocks.len()]; blocks.len()]),
        ReduceScatter | Allgatherv | Gatherv | Scatterv => Calls::of_blocks(collective, blocks.to_vec(), root),
        _ => Calls::of_count(collective, blocks.len(), blocks[0], root),
    }
}

#[test]
fn rings() {
    for size in ranks() {
        for collective in [Collective::ReduceScatter, Collective::Allgather, Collective::Allgatherv] {
            let report = equal(collective, "ring", size);
            assert_eq!(report.steps, size - 1, "{} of {size} ranks", collective.name());
            all_send(&report, size - 1, (size - 1) * COUNT);
            assert!(collective == Collective::ReduceScatter || report.traffic.iter().all(|t| t.scratch == 0));
        }
    }
}

#[test]
fn algorithms_with_one_step() {
    use Collective::*;
    let exchanges = [(ReduceScatter, "direct"), (Allgather, "direct"), (Allgatherv, "direct")];
    for size in ranks() {
        for (collective, name) in exchanges.into_iter().chain([(Alltoall, "pairwise"), (Alltoallv, "pairwise")]) {
            let report = equal(collective, name, size);
            // A rank reduces received blocks one after the other; no message waits for the reductions.
            let steps = if collective == ReduceScatter { size - 1 } else { usize::from(size > 1) };
            assert_eq!(report.steps, steps, "{name}, {size} ranks");
            all_send(&report, size - 1, (size - 1) * COUNT);
            let scratch = if collective == ReduceScatter { COUNT } else { 0 };
            assert!(report.traffic.iter().all(|t| t.scratch <= scratch), "{name}, {size} ranks: more than a block");
        }
        for collective in [Gather, Gatherv, Scatter, Scatterv] {
            assert_eq!(equal(collective, "direct", size).steps, usize::from(size > 1));
        }
    }
}

#[test]
fn reduce_scatter_halving() {
    for size in ranks() {
        let report = equal(Collective::ReduceScatter, "halving_doubling", size);
        let groups = size.count_ones() as usize;
        if groups == 1 {
            assert_eq!(report.steps, height(size));
            all_send(&report, height(size), (size - 1) * COUNT);
        } else {
            assert!(report.steps <= size.ilog2() as usize + groups, "{size} ranks: {} steps", report.steps);
        }
        for t in &report.traffic {
            // All data that is not its own, and at most one block of another rank for which it is responsible.
            assert!(t.elements <= size * COUNT, "{size} ranks: {t:?}");
            assert!(t.scratch == if size <= 2 { 0 } else { size * COUNT });
        }
    }
}

#[test]
fn allgather_in_few_steps() {
    for size in ranks() {
        let bruck = equal(Collective::Allgather, "bruck", size);
        let doubling = equal(Collective::Allgather, "recursive_doubling", size);
        assert_eq!(doubling.steps, height(size), "{size} ranks");
        // The blocks of the last step need not depend on all earlier steps.
        let last = size - (1 << height(size) >> 1);
        let steps = if size < 3 { height(size) } else { (height(size) - 1).max(1 + height(last)) };
        assert_eq!(bruck.steps, steps, "{size} ranks");
        all_send(&bruck, height(size), (size - 1) * COUNT);
        assert!(bruck.traffic.iter().all(|t| t.scratch <= size * COUNT));
        if size.is_power_of_two() {
            all_send(&doubling, height(size), (size - 1) * COUNT);
        }
        assert!(doubling.traffic.iter().all(|t| t.elements <= 2 * size * COUNT && t.scratch == 0));
    }
}

#[test]
fn trees_of_blocks() {
    use Collective::*;
    for size in ranks() {
        for collective in [Gather, Gatherv, Scatter, Scatterv] {
            let report = equal(collective, "binomial", size);
            let sum = |of: fn(&crate::schedule::verify::Traffic) -> usize| report.traffic.iter().map(of).sum::<usize>();
            assert_eq!(sum(|t| t.messages), size - 1);
            assert!(report.steps <= height(size));
            // Every block goes down as many edges as its rank has bits set.
            let edges: usize = (0..size).map(|rank| rank.count_ones() as usize).sum();
            assert_eq!(sum(|t| t.elements), COUNT * edges);
            assert!(!size.is_power_of_two() || report.steps == height(size));
            let root = report.traffic[0];
            assert_eq!(root.scratch, 0);
            if matches!(collective, Scatter | Scatterv) {
                assert_eq!((root.messages, root.elements), (height(size), (size - 1) * COUNT));
            }
        }
    }
}

#[test]
fn prefixes() {
    for size in ranks() {
        for collective in [Collective::Scan, Collective::Exscan] {
            let report = equal(collective, "recursive_doubling", size);
            assert_eq!(report.steps, height(size));
            let messages: usize = report.traffic.iter().map(|t| t.messages).sum();
            // The number of messages of Hillis and Steele's algorithm.
            let known: usize = (0..height(size)).map(|step| size - (1 << step)).sum();
            assert!(messages <= known && (messages == known || !size.is_power_of_two()), "{size} ranks: {messages}");
            assert!(report.traffic.iter().all(|t| t.messages <= height(size) && t.scratch <= 3 * COUNT));
        }
    }
}

#[test]
fn alltoall_bruck() {
    for size in ranks() {
        for collective in [Collective::Alltoall, Collective::Alltoallv] {
            let report = equal(collective, "bruck", size);
            assert!(report.steps <= height(size) && (report.steps == height(size) || !size.is_power_of_two()));
            let bits: usize = (0..size).map(|distance| distance.count_ones() as usize).sum();
            all_send(&report, height(size), bits * COUNT);
            assert!(!size.is_power_of_two() || bits == height(size) * size / 2);
            assert!(report.traffic.iter().all(|t| t.scratch == 2 * bits * COUNT));
        }
    }
}

/// Messages, elements sent and elements reduced by all ranks together.
fn totals(schedules: &[Schedule]) -> (f64, f64, f64) {
    let reduced = |schedule: &Schedule| -> usize {
        use Action::*;
        let is_reduction = |a: &Action| matches!(a, RecvReduce { .. } | Reduce { .. } | FetchReduce { .. });
        schedule.steps.iter().map(|step| step.action).filter(is_reduction).map(|action| action.elements()).sum()
    };
    let moved = |schedule: &Schedule| -> usize {
        let fetches = schedule.steps.iter().filter(|step| step.action.publication().is_some());
        schedule.elements_sent() + fetches.map(|step| step.action.elements()).sum::<usize>()
    };
    let sum = |of: &dyn Fn(&Schedule) -> usize| schedules.iter().map(of).sum::<usize>() as f64;
    (sum(&Schedule::messages_sent), sum(&moved), sum(&reduced))
}

/// The collectives whose cost formulas give the exact numbers of messages and bytes for any number of ranks.
const PRICED: [Collective; 11] = [
    Collective::ReduceScatter,
    Collective::Allgather,
    Collective::Allgatherv,
    Collective::Gather,
    Collective::Gatherv,
    Collective::Scatter,
    Collective::Scatterv,
    Collective::Alltoall,
    Collective::Alltoallv,
    Collective::Scan,
    Collective::Exscan,
];

const FLAT: Network = Network::flat(Link { latency: 1e-5, bandwidth: 1e9 }, 1e-10);

#[track_caller]
fn price(shape: &Shape<'_>, algorithm: &Algorithm) -> Cost {
    (algorithm.cost)(&Case {
        shape,
        element_bytes: 1,
        segment_bytes: usize::MAX,
        network: &FLAT,
        constants: &Constants::BUILT_IN,
    })
}

#[test]
fn prices_count_what_schedules_do() {
    for size in 1..=Tier::from_environment().of(12, 33, 33) {
        for blocks in [vec![0; size], vec![COUNT; size], uneven(size, size), uneven(size, 2)] {
            for collective in PRICED {
                for root in [0, size / 3, size - 1] {
                    let mut calls = calls(collective, &blocks, root);
                    calls.shared = true;
                    let shapes = calls.shapes();
                    for algorithm in collective.algorithms() {
                        let schedules: Vec<_> = shapes.iter().map(|s| (algorithm.generate)(s).unwrap()).collect();
                        let cost = price(&shapes[0], algorithm);
                        assert_eq!(
                            (cost.messages, cost.sent, cost.reduced),
                            totals(&schedules),
                            "{} {}, {size} ranks, root {root}, {blocks:?}",
                            collective.name(),
                            algorithm.name
                        );
                        // Shared memory costs nothing here.
                        let sends = cost.messages > 0.0 || algorithm.uses.needs_shared_memory() && cost.reduced > 0.0;
                        assert_eq!(cost.path > 0.0, sends, "{}", algorithm.name);
                        assert!(shapes.iter().all(|s| price(s, algorithm) == cost), "ranks price differently");
                    }
                }
            }
        }
    }
}

/// The times for powers of two and equal blocks are those of the formulas in the literature.
#[test]
fn prices_are_those_of_the_literature() {
    let (alpha, beta, gamma) = (FLAT.remote.latency, 1.0 / FLAT.remote.bandwidth, FLAT.gamma);
    for bits in 1..=10 {
        let size = 1usize << bits;
        let (p, h, n) = (size as f64, f64::from(bits), 1000.0);
        let blocks = vec![1000; size];
        let near = |name: &str, collective, expected: f64| {
            let algorithm = Collective::algorithm(collective, name).unwrap();
            let path = price(&calls(collective, &blocks, 0).shape(0), algorithm).path;
            assert!((path / expected - 1.0).abs() < 1e-9, "{name}, {size} ranks: {path} instead of {expected}");
        };
        use Collective::*;
        let others = p - 1.0;
        near("ring", ReduceScatter, others * (alpha + n * beta + gamma * n));
        near("halving_doubling", ReduceScatter, h * alpha + others * n * (beta + gamma));
        let after = if size == 2 { 1.0 } else { 2.0 };
        near("direct", ReduceScatter, alpha + others * n * beta + after * gamma * n);
        for collective in [Allgather, Allgatherv] {
            near("ring", collective, others * (alpha + n * beta));
            near("direct", collective, alpha + others * n * beta);
        }
        near("bruck", Allgather, h * alpha + others * n * beta);
        near("recursive_doubling", Allgather, h * alpha + others * n * beta);
        for collective in [Gather, Gatherv, Scatter, Scatterv] {
            near("direct", collective, alpha + others * n * beta);
            near("binomial", collective, h * alpha + others * n * beta);
        }
        near("pairwise", Alltoall, alpha + others * n * beta);
        near("bruck", Alltoall, h * (alpha + p / 2.0 * n * beta));
        near("recursive_doubling", Scan, h * (alpha + n * beta + gamma * n));
        near("recursive_doubling", Exscan, h * (alpha + n * beta + if size == 2 { 0.0 } else { gamma * n }));
    }
}
