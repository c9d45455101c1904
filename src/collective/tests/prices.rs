//! The cost formulas of the algorithms agree with the simulator, which runs their schedules on the same network model.

use std::collections::BTreeMap;

use super::*;
use crate::schedule::cost::{Link, Network};
use crate::schedule::simulate::{Options, simulate};

const UNCUT: usize = 1 << 40;
const BANDWIDTH: f64 = 10e9;

/// The conditions under which a formula is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum On {
    /// Every rank has its own host, the number of ranks is a power of two, messages have one segment: the case for
    /// which the literature gives formulas.
    Flat,
    /// Like `Flat`, with several segments per message.
    Cut,
    /// Like `Flat`, with a number of ranks that is not a power of two.
    Odd,
    /// All ranks on one host, where every pair has its own link; one segment per message.
    Pairs,
    /// Hosts of four ranks, the last perhaps with fewer; one segment per message.
    Hosts,
    /// Hosts of four ranks or all ranks on one host; several segments per message.
    HostsCut,
    /// Like `Flat`, with CPU time for each message.
    Busy,
    /// Like `Cut`, with CPU time for each message.
    BusyCut,
}

/// The permitted ratios of formula to simulated time, and why they differ from 1. These formulas are accurate enough to
/// choose by: `choices_by_price_are_nearly_the_best` tests it for one rank per host, and docs/benchmarks/algorithms.md
/// records it for one host. With several hosts of several ranks, choices use the simulator itself for few messages, and
/// formulas only for more.
fn range(on: On, collective: Collective, name: &str) -> (f64, f64) {
    use Collective::*;
    const EXACT: (f64, f64) = (0.95, 1.05);
    match (on, name) {
        // The formula is for networks in which each pair of neighbours has its own link. If a rank's four links share a
        // network card, which messages collide depends on all others.
        (On::Flat, "mesh_2d") => (0.9, 1.07),
        (On::Flat | On::Pairs, _) => EXACT,

        // With segments, pipelined and concurrent messages take as long as the formula. With slow reductions parts of a
        // ring's allgather, or of a reduction at the root, overlap with others.
        (On::Cut, "ring" | "ring_segmented" | "ring_chunked") => (0.95, 1.12),
        (On::Cut, "direct") if collective == ReduceScatter => (0.95, 1.2),
        // A root reduces in rank order, which is not the order in which segments arrive.
        (On::Cut, "reduce_broadcast" | "hierarchical" | "hierarchical_direct") => (0.88, 1.05),
        // Two halves share links: the formulas contain the average number of collisions of their segments.
        (On::Cut, "double_binary_tree") => (0.82, 1.1),
        // The first segments of a step's message may be sent before the last ones of the step before, and delay them.
        // The formula is for whole messages.
        (On::Cut, "tree" | "scatter_allgather") => (0.87, 1.22),
        (On::Cut, "recursive_doubling") if collective == Allgather => (0.9, 1.05),
        (On::Cut, "recursive_doubling") if collective == Exscan => (0.95, 1.6),
        (On::Cut, "binomial") if matches!(collective, Gather | Gatherv) => (0.95, 1.3),
        (On::Cut, "binomial") if matches!(collective, Scatter | Scatterv) => (0.82, 1.05),
        (On::Cut, "bruck") => (0.95, 1.35),
        (On::Cut, "bcube") => (0.7, 1.17),
        (On::Cut, "halving_doubling") => (0.8, 1.5),
        (On::Cut, "torus_2d") => (0.95, 1.3),
        (On::Cut, "torus_nd") => (0.95, 1.75),
        (On::Cut, "spanning_trees") => (0.95, 1.45),
        (On::Cut, "mesh_2d") => (0.95, 1.95),
        (On::Cut, _) => EXACT,

        // If the last step is not full, some of its data does not depend on the step before.
        (On::Odd, "bruck") if collective == Allgather => (0.95, 1.12),
        (On::Odd, "bruck" | "recursive_doubling") => (0.95, 1.9),
        // The formulas assume full trees, and for binary blocks that each block waits for all smaller ones.
        (On::Odd, "double_binary_tree") => (0.95, 1.35),
        (On::Odd, "binomial") => (0.95, 1.12),
        (On::Odd, "halving_doubling") => (0.9, 1.2),
        // The mesh of a prime number of ranks is a line, whose ends have all quarters at the same time.
        (On::Odd, "mesh_2d") => (0.68, 1.05),
        (On::Odd, _) => EXACT,

        // All ranks on one host: the formula assumes that a rank reduces no part of a quarter while other segments
        // arrive. If reductions are slower than links, that is up to twice the time.
        (On::HostsCut, "mesh_2d") => (0.95, 2.1),
        // On one host with a number of ranks that is not a power of two: lines and uneven rows, as for `Odd`.
        (On::Hosts, "mesh_2d") => (0.89, 1.07),
        // The formula assumes that messages of consecutive dimensions do not overlap.
        (On::Hosts, "torus_2d") => (0.95, 1.12),
        (On::Hosts, "torus_nd") => (0.95, 1.32),
        (On::HostsCut, "torus_2d" | "torus_nd") => (0.9, 1.63),
        // The last members' reductions overlap with the start of the ring.
        (On::HostsCut, "hierarchical") => (0.92, 1.15),
        // The first segments wait while those that follow from the first members are reduced.
        (On::HostsCut, "hierarchical_direct") => (0.93, 1.05),
        (On::Hosts | On::HostsCut, _) => (0.95, 1.07),
        // Messages in one direction need CPU time, for which incoming messages must wait.
        (On::Busy | On::BusyCut, "double_binary_tree") => (0.8, 1.25),
        // If CPU time is the limit, collisions on a link do not matter.
        (On::BusyCut, "mesh_2d" | "torus_nd") => (0.95, 1.95),
        (On::BusyCut, "torus_2d" | "spanning_trees") => (0.95, 1.3),
        (On::BusyCut, "tree") => (0.85, 1.3),
        (On::BusyCut, "halving_doubling" | "bcube") => (0.75, 1.2),
        // Messages arrive at twice the speed at which they can be forwarded.
        (On::BusyCut, "pipelined_chain") => (0.77, 1.05),
        (On::BusyCut, "binomial") if matches!(collective, Scatter | Scatterv) => (0.8, 1.05),
        (On::BusyCut, "recursive_doubling") if matches!(collective, Scan | Exscan) => (0.95, 1.4),
        (On::Busy, "recursive_doubling") if matches!(collective, Scan | Exscan) => (0.8, 1.05),
        (On::Busy, "scatter_allgather") => (0.8, 1.05),
        (On::Busy, "mesh_2d") => (0.8, 1.07),
        (On::Busy, "ring_chunked") => (0.92, 1.05),
        (On::BusyCut, _) => (0.88, 1.1),
        (On::Busy, _) => EXACT,
    }
}

/// The results of a test: the mismatches, and the largest deviation of each algorithm.
struct Runs {
    on: On,
    wrong: Vec<String>,
    seen: BTreeMap<(Collective, &'static str), (f64, f64)>,
}

impl Runs {
    fn new(on: On) -> Self {
        Self { on, wrong: Vec::new(), seen: BTreeMap::new() }
    }

    fn compare(&mut self, calls: &Calls, algorithm: &'static Algorithm, network: Network, segment_bytes: usize) {
        let collective = calls.collective();
        let options = Options { segment_bytes, ..Options::new(network) };
        let result = simulate(calls.ranks(), &|rank| (algorithm.generate)(&calls.shape(rank)), &options).unwrap();
        let shape = calls.shape(0);
        let cost = (algorithm.cost)(&Case {
            shape: &shape,
            element_bytes: 4,
            segment_bytes,
            network: &network,
            constants: &Constants::BUILT_IN,
        });
        let what = format!("{:?}: {} {} of {} ranks", self.on, collective.name(), algorithm.name, calls.ranks());
        let ratio = cost.path / result.seconds;
        let (low, high) = range(self.on, collective, algorithm.name);
        if !(low..=high).contains(&ratio) {
            let Network { remote: Link { latency, bandwidth }, gamma, .. } = network;
            self.wrong.push(format!(
                "{what}, {} elements, α {latency} s, γB {}, segments of {segment_bytes}: {} s, priced at {}: {ratio:.3}",
                calls.elements(),
                gamma * bandwidth,
                result.seconds,
                cost.path
            ));
        }
        let seen = self.seen.entry((collective, algorithm.name)).or_insert((ratio, ratio));
        *seen = (seen.0.min(ratio), seen.1.max(ratio));
        let bytes = |of: &[u64]| of.iter().sum::<u64>() as f64;
        let counted = (result.messages as f64, bytes(&result.sent), bytes(&result.reduced));
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b;
        if self.on != On::Odd
            && !(near(cost.messages, counted.0) && near(cost.sent, counted.1) && near(cost.reduced, counted.2))
        {
            self.wrong.push(format!("{what}: messages, bytes sent and reduced are {counted:?}, priced are {cost:?}"));
        }
    }

    /// Prints the deviations (see them with `cargo test -- --nocapture`) and fails if there was a mismatch.
    fn end(self) {
        for ((collective, name), (low, high)) in &self.seen {
            println!("{:?}: {} {name}: {low:.3} to {high:.3}", self.on, collective.name());
        }
        assert!(self.seen.len() >= 4, "little was compared");
        assert!(self.wrong.is_empty(), "{} are wrong:\n{}", self.wrong.len(), self.wrong.join("\n"));
    }
}

/// A network on which a buffer of `bytes` takes `x` latencies to send, and `reduction` times as long to reduce.
fn flat(bytes: usize, x: f64, reduction: f64) -> Network {
    Network::flat(Link { latency: bytes as f64 / BANDWIDTH / x, bandwidth: BANDWIDTH }, reduction / BANDWIDTH)
}

/// Runs every algorithm for every number of ranks for which its schedules have at most `steps` steps in total,
/// estimated from the last rank's schedule; in `make check` a sixth of that. Without those on shared memory; the tests in `shared` are about these.
pub(super) fn every(sizes: &[usize], elements: usize, steps: usize, mut run: impl FnMut(&Calls, &'static Algorithm)) {
    let steps = steps / Tier::from_environment().of(6, 1, 1);
    for &collective in Collective::ALL {
        let runs = |algorithm: &&Algorithm| algorithm.name != "local" && !algorithm.uses.needs_shared_memory();
        for algorithm in collective.algorithms().iter().filter(runs) {
            for &size in sizes {
                let exchange = collective == Collective::PairwiseExchange;
                // Algorithms that need all links or all counts are for small groups.
                let large = size > 64 && matches!(algorithm.uses, Uses::Links | Uses::Counts);
                if large || exchange && !size.is_power_of_two() {
                    continue;
                }
                // A number of elements that is divisible by the number of ranks, also for the mesh of a power of two.
                let calls = Calls::new(collective, size, elements.next_multiple_of(4 * size), 0);
                if (algorithm.generate)(&calls.shape(size - 1)).unwrap().steps.len() * size <= steps {
                    run(&calls, algorithm);
                }
            }
        }
    }
}

const ELEMENTS: usize = 1 << 16;

#[test]
fn prices_for_powers_of_two() {
    let mut runs = Runs::new(On::Flat);
    let networks = [(0.2, 0.1), (30.0, 0.0), (10.0, 0.5), (10.0, 1.25), (1000.0, 2.0)];
    let tier = Tier::from_environment();
    every(tier.of(&[4, 8, 16], &[4, 8, 16, 64], &[4, 8, 16, 64]), ELEMENTS, 13_000, |calls, algorithm| {
        for (x, reduction) in networks {
            runs.compare(calls, algorithm, flat(4 * ELEMENTS, x, reduction), UNCUT);
        }
    });
    every(tier.of(&[64][..], &[256, 1024, 4096], &[256, 1024, 4096]), ELEMENTS, 80_000, |calls, algorithm| {
        // The trees of thousands of ranks take seconds; those of a single call are compared in the test of their
        // bound.
        if algorithm.name == double_binary_tree::NAME && calls.ranks() > 1024 {
            return;
        }
        runs.compare(calls, algorithm, flat(4 * ELEMENTS, 10.0, 1.25), UNCUT);
    });
    runs.end();
}

#[test]
fn prices_with_several_segments_per_message() {
    let mut runs = Runs::new(On::Cut);
    every(&[4, 16], ELEMENTS, 1000, |calls, algorithm| {
        for (x, reduction) in [(1.0, 0.1), (10.0, 0.5), (100.0, 0.05), (100.0, 2.0)] {
            for pieces in [16, 128] {
                runs.compare(calls, algorithm, flat(4 * ELEMENTS, x, reduction), 4 * ELEMENTS / pieces);
            }
        }
    });
    runs.end();
}

/// With o and g of LogGP: from the point where latency dominates to beyond the time of a message's bytes.
#[test]
fn prices_with_cpu_time_per_message() {
    let (mut whole, mut cut) = (Runs::new(On::Busy), Runs::new(On::BusyCut));
    every(&[4, 16, 64], ELEMENTS, 13_000, |calls, algorithm| {
        for (x, reduction, overhead, gap) in
            [(0.2, 0.1, 0.4, 0.0), (0.2, 0.0, 0.1, 0.7), (10.0, 0.5, 0.4, 0.3), (1000.0, 0.0, 0.4, 0.0)]
        {
            let network = flat(4 * ELEMENTS, x, reduction);
            let latency = network.remote.latency;
            let network = Network { overhead: overhead * latency, gap: gap * latency, ..network };
            whole.compare(calls, algorithm, network, UNCUT);
            if calls.ranks() <= 16 {
                cut.compare(calls, algorithm, network, 4 * ELEMENTS / 128);
            }
        }
    });
    let wrong: Vec<_> = cut.wrong.drain(..).chain(whole.wrong.drain(..)).collect();
    cut.end();
    whole.end();
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn prices_for_any_number_of_ranks() {
    let mut runs = Runs::new(On::Odd);
    every(&[3, 5, 6, 7, 12, 31, 100], ELEMENTS, 20_000, |calls, algorithm| {
        for (x, reduction) in [(0.2, 0.1), (10.0, 0.5), (1000.0, 0.2)] {
            runs.compare(calls, algorithm, flat(4 * ELEMENTS, x, reduction), UNCUT);
        }
    });
    runs.end();
}

#[test]
fn prices_on_hosts_of_several_ranks() {
    let (remote, local) = (Link { latency: 10e-6, bandwidth: 1e9 }, Link { latency: 1e-6, bandwidth: 20e9 });
    let (mut pairs, mut hosts, mut cut) = (Runs::new(On::Pairs), Runs::new(On::Hosts), Runs::new(On::HostsCut));
    for name in ["hierarchical", "hierarchical_direct", "torus_2d", "torus_nd", "mesh_2d", "spanning_trees"] {
        let algorithm = Collective::Allreduce.algorithm(name).unwrap();
        for size in [4, 6, 8, 12, 16, 17, 64] {
            for per_host in [4, size] {
                // The first is `reduce_broadcast` in this case, see below; the second has no formula here.
                if name.starts_with("hierarchical") && per_host >= size || name == "mesh_2d" && per_host < size {
                    continue;
                }
                for elements in [256 * size, 1 << 18] {
                    for gamma in [0.2e-10, 1e-10] {
                        let network =
                            Network { local, remote, per_host, cores: per_host, ..Network::flat(remote, gamma) };
                        let mut calls = Calls::new(Collective::Allreduce, size, elements.next_multiple_of(4 * size), 0);
                        calls.groups = (0..size).map(|rank| (rank / per_host) as u32).collect();
                        let runs = if per_host == size && size.is_power_of_two() { &mut pairs } else { &mut hosts };
                        runs.compare(&calls, algorithm, network, UNCUT);
                        cut.compare(&calls, algorithm, network, 64 << 10);
                    }
                }
            }
        }
    }
    cut.end();
    hosts.end();
    pairs.end();
}

/// A mesh of one row, all ranks on one host: two quarters follow each other on each link.
#[test]
fn prices_of_a_mesh_of_one_row_on_one_host() {
    let algorithm = Collective::Allreduce.algorithm("mesh_2d").unwrap();
    for size in [2, 3, 5] {
        for (x, reduction) in [(0.2, 0.1), (10.0, 0.1), (10.0, 0.5), (1000.0, 0.1)] {
            let (calls, segment_bytes) = (Calls::new(Collective::Allreduce, size, ELEMENTS, 0), UNCUT);
            let network = Network { per_host: size, ..flat(4 * ELEMENTS, x, reduction) };
            let options = Options { segment_bytes, ..Options::new(network) };
            let simulated = simulate(size, &|rank| (algorithm.generate)(&calls.shape(rank)), &options).unwrap().seconds;
            let (shape, constants) = (calls.shape(0), &Constants::BUILT_IN);
            let case = Case { shape: &shape, element_bytes: 4, segment_bytes, network: &network, constants };
            let ratio = (algorithm.cost)(&case).path / simulated;
            // The second quarter follows the first closely, and hides a part of the latencies and reductions.
            assert!((0.95..1.2).contains(&ratio), "{size} ranks, {x}, {reduction}: {ratio:.3}");
        }
    }
}

/// On one host a root has its own link to each rank, and CPU work for every message, which the simulator does not
/// model: the formula lies between the simulated time with these links and that with one network card for all of them.
#[test]
fn prices_of_a_root_on_one_host() {
    for (collective, name) in [
        (Collective::Allreduce, "reduce_broadcast"),
        (Collective::Allreduce, "hierarchical"),
        (Collective::Allreduce, "hierarchical_direct"),
        (Collective::Reduce, "flat"),
    ] {
        let algorithm = collective.algorithm(name).unwrap();
        for size in [2, 4, 7, 16] {
            for (x, reduction) in [(0.2, 0.1), (10.0, 0.5), (10.0, 1.25), (1000.0, 0.1)] {
                let calls = Calls::new(collective, size, ELEMENTS, 0);
                let card = flat(4 * ELEMENTS, x, reduction);
                let links = Network { per_host: size, ..card };
                let seconds = |network| {
                    let options = Options { segment_bytes: UNCUT, ..Options::new(network) };
                    simulate(size, &|rank| (algorithm.generate)(&calls.shape(rank)), &options).unwrap().seconds
                };
                let (shape, segment_bytes) = (calls.shape(0), UNCUT);
                let price = |network| {
                    (algorithm.cost)(&Case {
                        shape: &shape,
                        element_bytes: 4,
                        segment_bytes,
                        network: &network,
                        constants: &Constants::BUILT_IN,
                    })
                    .path
                };
                let (low, price, high) = (seconds(links), price(links), seconds(card));
                assert!(low * 0.95 < price && price < high * 1.05, "{name}, {size} ranks: {low} {price} {high}");
                let counts = size > 2 && x > 1.0 && reduction < 0.2;
                assert!(
                    !counts || low * 1.1 < price && price * 1.1 < high,
                    "{name}, {size} ranks: {low} {price} {high}"
                );
            }
        }
    }
}

/// Bases other than two: then `bcube` has steps of several messages.
#[test]
fn prices_of_bcube_with_larger_bases() {
    let bcube = Collective::Allreduce.algorithm("bcube").unwrap();
    let mut runs = Runs::new(On::Flat);
    for (base, size) in [(4, 4), (4, 16), (4, 64), (8, 64), (16, 16)] {
        for x in [0.2, 1000.0] {
            let mut calls = Calls::new(Collective::Allreduce, size, ELEMENTS, 0);
            calls.base = base;
            runs.compare(&calls, bcube, flat(4 * ELEMENTS, x, 0.0), UNCUT);
        }
    }
    assert!(runs.wrong.is_empty(), "{:#?}", runs.wrong);
}

/// In the simulator, the model's choice of algorithm and segment size takes hardly longer than any other choice.
#[test]
fn choices_by_price_are_nearly_the_best() {
    use crate::tuner::file::Tuning;
    use crate::tuner::model::{PricingInput, Topology};
    use Collective::*;
    let hosts = |sizes: &[usize]| -> Vec<u32> {
        sizes.iter().zip(0..).flat_map(|(&size, host)| std::iter::repeat_n(host, size)).collect()
    };
    let groups = [hosts(&[1; 8]), hosts(&[1; 12]), hosts(&[4; 2]), hosts(&[4; 3]), hosts(&[5; 3]), hosts(&[4, 2, 3])];
    let (mut worst, mut checked) = (1.0, 0);
    for groups in &groups {
        let per_host = (0..groups.len() as u32).map(|host| groups.iter().filter(|of| **of == host).count()).max();
        let topology = Topology::without_shared_memory(groups.clone(), per_host.unwrap());
        let network = topology.network(&Tuning::default());
        for collective in [Allreduce, Reduce, Broadcast, ReduceScatter, Allgather, Gather, Scatter] {
            for bytes in [64, 64 << 10, 2 << 20] {
                let (size, max_segment_bytes) = (groups.len(), 1 << 20);
                let input = PricingInput {
                    order: Order::Any,
                    collective,
                    bytes,
                    topology: &topology,
                    network: &network,
                    constants: &Constants::BUILT_IN,
                    links: &[],
                    max_segment_bytes,
                };
                let candidates = input.candidates();
                let seconds = |algorithm: &Algorithm, base: Option<usize>, limit: usize| {
                    let mut calls = Calls::new(collective, size, bytes, 0);
                    (calls.groups, calls.base) = (groups.clone(), base.unwrap_or(2));
                    let segment_bytes = crate::tuner::segment_bytes(&calls.shape(0), 1, limit);
                    let options = Options { hosts: groups, element_bytes: 1, segment_bytes, ..Options::new(network) };
                    simulate(size, &|rank| (algorithm.generate)(&calls.shape(rank)), &options).unwrap().seconds
                };
                let chosen = candidates.iter().min_by(|a, b| a.total.total_cmp(&b.total)).unwrap();
                let own = seconds(chosen.algorithm, chosen.base, chosen.segment_bytes) + chosen.work;
                let all = candidates.iter().flat_map(|one| {
                    let limits = (0..6).map(|power| max_segment_bytes >> power);
                    limits.map(move |limit| (one, limit)).collect::<Vec<_>>()
                });
                // Smaller segments mean more messages and so more CPU work; that alone may make them worse.
                let others = all.map(|(one, limit)| {
                    let more = if limit < one.segment_bytes { one.segment_bytes as f64 / limit as f64 } else { 1.0 };
                    (seconds(one.algorithm, one.base, limit) + one.work * more, one.algorithm.name, limit)
                });
                let best = others.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
                let ratio = own / best.0;
                println!("{groups:?} {} {bytes}: {ratio:.3}: {}, {best:?}", collective.name(), chosen.algorithm.name);
                assert!(
                    ratio <= 1.1,
                    "{groups:?}: {} of {bytes}: {} takes {ratio} of {best:?}",
                    collective.name(),
                    chosen.algorithm.name
                );
                worst = ratio.max(worst);
                checked += 1;
            }
        }
    }
    println!("{checked} choices, the worst takes {worst:.3} of the best");
    assert_eq!(checked, groups.len() * 7 * 3);
}

/// The first decision for a size may take a while, but not long enough for a program to notice.
#[test]
#[ignore = "prints how long decisions take"]
#[allow(clippy::disallowed_methods)]
fn the_first_decision_is_fast() {
    use crate::tuner::{Tuner, file::Tuning, model::Topology, overrides::Overrides};
    for (hosts, per_host) in [(1, 2), (1, 8), (2, 1), (8, 1), (2, 4), (4, 4), (8, 8), (64, 1), (64, 8), (512, 1)] {
        let size = hosts * per_host;
        let hosts = (0..size).map(|rank| (rank / per_host) as u32).collect();
        let topology = Topology::without_shared_memory(hosts, per_host);
        for bytes in [64usize, 64 << 10, 4 << 20, 256 << 20] {
            let tuner = Tuner::new(Tuning::default(), Overrides::default(), topology.clone(), 1 << 20);
            let begin = std::time::Instant::now();
            let decision = tuner.decide(&shape(Collective::Allreduce, size, bytes), 1, None).unwrap();
            let took = begin.elapsed().as_secs_f64() * 1e3;
            println!("{size} ranks, {per_host} on a host, {bytes} bytes: {took:.2} ms, {}", decision.algorithm.name);
        }
    }
}

/// A single rank sends nothing, and the cost of nothing is 0.
#[test]
fn empty_calls_cost_nothing() {
    let network = flat(4 * ELEMENTS, 10.0, 0.1);
    let price = |shape: &Shape<'_>, algorithm: &Algorithm| {
        (algorithm.cost)(&Case {
            shape,
            element_bytes: 4,
            segment_bytes: 1 << 16,
            network: &network,
            constants: &Constants::BUILT_IN,
        })
    };
    for &collective in Collective::ALL {
        for algorithm in collective.algorithms().iter().filter(|algorithm| algorithm.name != "local") {
            let alone = Calls::new(collective, 1, 1000, 0);
            assert_eq!(price(&alone.shape(0), algorithm), Cost::default(), "{} {}", collective.name(), algorithm.name);
            let nothing = match collective {
                Collective::ReduceScatter | Collective::Allgatherv | Collective::Gatherv | Collective::Scatterv => {
                    Calls::of_blocks(collective, vec![0; 8], 0)
                }
                Collective::Alltoallv => Calls::of_rows(vec![vec![0; 8]; 8]),
                _ => Calls::of_count(collective, 8, 0, 0),
            };
            if collective != Collective::Barrier {
                let cost = price(&nothing.shape(0), algorithm);
                assert_eq!(cost, Cost::default(), "{} {}", collective.name(), algorithm.name);
            }
        }
    }
    let local = Collective::Allreduce.algorithm("local").unwrap();
    let cost = price(&Shape { inputs: 6, ..shape(Collective::Allreduce, 1, 250) }, local);
    assert_eq!((cost.path, cost.messages, cost.reduced), (5e3 * network.gamma, 0.0, 5e3));
}
