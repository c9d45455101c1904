//! What algorithms say they cost is what they cost in the simulator, which plays their schedules on the same model of a network.

use std::collections::BTreeMap;

use super::*;
use crate::schedule::cost::{Link, Network};
use crate::schedule::simulate::{Options, simulate};

const UNCUT: usize = 1 << 40;
const BANDWIDTH: f64 = 10e9;

/// What a price is compared under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum On {
    /// Every rank has a host of its own, their number is a power of two, messages are not cut: where the literature gives
    /// formulas.
    Flat,
    /// As `Flat`, messages cut into segments.
    Cut,
    /// As `Flat`, for numbers that are no powers of two.
    Odd,
    /// All ranks on one host, where every pair has a link of its own; messages not cut.
    Pairs,
    /// Hosts of four, the last one perhaps with fewer; messages not cut.
    Hosts,
    /// Hosts of four or all on one, messages cut.
    HostsCut,
    /// As `Flat`, and ranks are busy with each message.
    Busy,
    /// As `Cut`, likewise.
    BusyCut,
}

/// What part of the simulated time a formula's may be, and why it is not the same. Such formulas are good enough to choose by:
/// `choices_by_price_are_nearly_the_best` shows it for each rank on a host of its own, and the records of algorithms
/// (docs/benchmarks/algorithms.md) where all are on one. Where hosts with several ranks are connected, choices go by the simulator itself
/// as long as there are few messages, and by formulas only beyond.
fn range(on: On, collective: Collective, name: &str) -> (f64, f64) {
    use Collective::*;
    const EXACT: (f64, f64) = (0.95, 1.05);
    match (on, name) {
        // It is for networks where each pair of neighbours has a link of its own. On a card that a rank has for four of them,
        // which messages meet depends on all others.
        (On::Flat, "mesh_2d") => (0.9, 1.07),
        (On::Flat | On::Pairs, _) => EXACT,

        // In segments what is sent at once, or streams, takes as long as its formula says. With slow reductions parts of a
        // ring's allgather, or of a reduction at the root, go on during others.
        (On::Cut, "ring" | "ring_segmented" | "ring_chunked") => (0.95, 1.12),
        (On::Cut, "direct") if collective == ReduceScatter => (0.95, 1.2),
        // A root reduces in the order of ranks, in which segments do not come.
        (On::Cut, "reduce_broadcast" | "hierarchical") => (0.88, 1.05),
        // Two halves that share links: the formulas say how often their segments meet on average.
        (On::Cut, "double_binary_tree") => (0.82, 1.1),
        // Some of the first segments of a step's message are on their way before the last ones of the step before, and others
        // hold these up. Only whole messages have formulas.
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

        // Where the last step is not full, some of what it sends has not waited for the step before.
        (On::Odd, "bruck") if collective == Allgather => (0.95, 1.12),
        (On::Odd, "bruck" | "recursive_doubling") => (0.95, 1.9),
        // Trees are priced as if they were full, blocks of the binary-blocks algorithm as if each waited for all smaller ones.
        (On::Odd, "double_binary_tree") => (0.95, 1.35),
        (On::Odd, "binomial") => (0.95, 1.12),
        (On::Odd, "halving_doubling") => (0.9, 1.2),
        // For prime numbers a line, whose ends have all quarters at once.
        (On::Odd, "mesh_2d") => (0.68, 1.05),
        (On::Odd, _) => EXACT,

        // All on one host: priced as if a rank reduced none of a quarter while segments of others come. Where reductions are
        // slower than links, that is twice as long.
        (On::HostsCut, "mesh_2d") => (0.95, 2.1),
        // On one host with numbers that are no powers of two: lines and uneven rows, as for `Odd`.
        (On::Hosts, "mesh_2d") => (0.89, 1.07),
        // A dimension's messages are priced as if none were under way before those of the one before.
        (On::Hosts, "torus_2d") => (0.95, 1.12),
        (On::Hosts, "torus_nd") => (0.95, 1.32),
        (On::HostsCut, "torus_2d" | "torus_nd") => (0.9, 1.63),
        // The last members' reductions go on while the ring begins.
        (On::HostsCut, "hierarchical") => (0.92, 1.15),
        (On::Hosts | On::HostsCut, _) => (0.95, 1.07),
        // Its messages in one direction leave by one processor, which what comes must wait for.
        (On::Busy | On::BusyCut, "double_binary_tree") => (0.8, 1.25),
        // Where the ranks' own time decides, what makes messages meet on a link counts for nothing.
        (On::BusyCut, "mesh_2d" | "torus_nd") => (0.95, 1.95),
        (On::BusyCut, "torus_2d" | "spanning_trees") => (0.95, 1.3),
        (On::BusyCut, "tree") => (0.85, 1.3),
        (On::BusyCut, "halving_doubling" | "bcube") => (0.75, 1.2),
        // Messages come at twice the speed at which they can be passed on.
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

/// The runs of a test: those that differ, and by how much each algorithm does at most.
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

    /// Prints what `cargo test -- --nocapture` shows, and fails if prices were wrong.
    fn end(self) {
        for ((collective, name), (low, high)) in &self.seen {
            println!("{:?}: {} {name}: {low:.3} to {high:.3}", self.on, collective.name());
        }
        assert!(self.seen.len() >= 4, "little was compared");
        assert!(self.wrong.is_empty(), "{} are wrong:\n{}", self.wrong.len(), self.wrong.join("\n"));
    }
}

/// A network on which a buffer of `bytes` takes `x` latencies, and `reduction` times as long to reduce.
fn flat(bytes: usize, x: f64, reduction: f64) -> Network {
    Network::flat(Link { latency: bytes as f64 / BANDWIDTH / x, bandwidth: BANDWIDTH }, reduction / BANDWIDTH)
}

/// Every algorithm for every number of ranks, as long as its schedules have no more than `steps` steps together, were all like
/// the last rank's.
pub(super) fn every(sizes: &[usize], elements: usize, steps: usize, mut run: impl FnMut(&Calls, &'static Algorithm)) {
    for &collective in Collective::ALL {
        for algorithm in collective.algorithms().iter().filter(|algorithm| algorithm.name != "local") {
            for &size in sizes {
                let exchange = collective == Collective::PairwiseExchange;
                // To know every link, or every count, is for small groups.
                let large = size > 64 && matches!(algorithm.uses, Uses::Links | Uses::Counts);
                if large || exchange && !size.is_power_of_two() {
                    continue;
                }
                // Numbers that the ranks divide, also the powers of two's mesh.
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
fn of_powers_of_two() {
    let mut runs = Runs::new(On::Flat);
    let networks = [(0.2, 0.1), (30.0, 0.0), (10.0, 0.5), (10.0, 1.25), (1000.0, 2.0)];
    every(&[4, 8, 16, 64], ELEMENTS, 13_000, |calls, algorithm| {
        for (x, reduction) in networks {
            runs.compare(calls, algorithm, flat(4 * ELEMENTS, x, reduction), UNCUT);
        }
    });
    every(&[256, 1024, 4096], ELEMENTS, 80_000, |calls, algorithm| {
        // Thousands of ranks' trees take seconds; those of one call are compared beside their bound.
        if algorithm.name == double_binary_tree::NAME && calls.ranks() > 1024 {
            return;
        }
        runs.compare(calls, algorithm, flat(4 * ELEMENTS, 10.0, 1.25), UNCUT);
    });
    runs.end();
}

#[test]
fn of_messages_in_segments() {
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

/// With o and g of LogGP: from what α is made of, to more than the bytes of a message.
#[test]
fn of_ranks_that_are_busy_with_messages() {
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
fn of_any_number_of_ranks() {
    let mut runs = Runs::new(On::Odd);
    every(&[3, 5, 6, 7, 12, 31, 100], ELEMENTS, 20_000, |calls, algorithm| {
        for (x, reduction) in [(0.2, 0.1), (10.0, 0.5), (1000.0, 0.2)] {
            runs.compare(calls, algorithm, flat(4 * ELEMENTS, x, reduction), UNCUT);
        }
    });
    runs.end();
}

#[test]
fn on_hosts() {
    let (remote, local) = (Link { latency: 10e-6, bandwidth: 1e9 }, Link { latency: 1e-6, bandwidth: 20e9 });
    let (mut pairs, mut hosts, mut cut) = (Runs::new(On::Pairs), Runs::new(On::Hosts), Runs::new(On::HostsCut));
    for name in ["hierarchical", "torus_2d", "torus_nd", "mesh_2d", "spanning_trees"] {
        let algorithm = Collective::Allreduce.algorithm(name).unwrap();
        for size in [4, 6, 8, 12, 16, 17, 64] {
            for per_host in [4, size] {
                // The one is `reduce_broadcast` there, see below; the other has no formula here.
                if name == "hierarchical" && per_host >= size || name == "mesh_2d" && per_host < size {
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

/// On one host a root has a link to each rank, and its own work to do for every message, of which the simulator knows nothing:
/// the price lies between what the simulator says of these links and what it says of one card for all of them.
#[test]
fn of_a_root_on_its_host() {
    for (collective, name) in [
        (Collective::Allreduce, "reduce_broadcast"),
        (Collective::Allreduce, "hierarchical"),
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

/// Bases other than two: `bcube` has steps of several messages.
#[test]
fn of_bcubes_with_larger_bases() {
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

/// What the model chooses, and the segments it chooses, take hardly longer in the simulator than any other choice would.
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
        let topology = Topology { hosts: groups.clone(), cores: per_host.unwrap() };
        let network = topology.network(&Tuning::default());
        for collective in [Allreduce, Reduce, Broadcast, ReduceScatter, Allgather, Gather, Scatter] {
            for bytes in [64, 64 << 10, 2 << 20] {
                let (size, max_segment_bytes) = (groups.len(), 1 << 20);
                let question = PricingInput {
                    collective,
                    bytes,
                    size,
                    network: &network,
                    constants: &Constants::BUILT_IN,
                    groups,
                    links: &[],
                    max_segment_bytes,
                };
                let candidates = question.candidates();
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
                // Smaller segments are more messages, and so more work; that alone may make them worse.
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

/// The first decision of a size may take a while, but not so long that a program would notice.
#[test]
#[ignore = "prints how long decisions take"]
#[allow(clippy::disallowed_methods)]
fn how_long_the_first_decision_takes() {
    use crate::tuner::{Tuner, file::Tuning, model::Topology, overrides::Overrides};
    for (hosts, per_host) in [(1, 2), (1, 8), (2, 1), (8, 1), (2, 4), (4, 4), (8, 8), (64, 1), (64, 8), (512, 1)] {
        let size = hosts * per_host;
        let hosts = (0..size).map(|rank| (rank / per_host) as u32).collect();
        let topology = Topology { hosts, cores: per_host };
        for bytes in [64usize, 64 << 10, 4 << 20, 256 << 20] {
            let tuner = Tuner::new(Tuning::default(), Overrides::default(), topology.clone(), 1 << 20);
            let begin = std::time::Instant::now();
            let decision = tuner.decide(&shape(Collective::Allreduce, size, bytes), 1, None).unwrap();
            let took = begin.elapsed().as_secs_f64() * 1e3;
            println!("{size} ranks, {per_host} on a host, {bytes} bytes: {took:.2} ms, {}", decision.algorithm.name);
        }
    }
}

/// Who is alone has nothing to send, and nothing costs nothing.
#[test]
fn of_nothing() {
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
