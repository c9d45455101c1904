mod files;

use super::*;
use crate::collective::{Calls, Order, Uses};
use crate::schedule::cost::Link;
use crate::schedule::simulate::{Options, simulate};
use crate::testing::tier::Tier;
use crate::types::Rank;

const MIB: usize = 1 << 20;

fn shape(collective: Collective, size: usize, count: usize) -> Shape<'static> {
    Shape::new(collective, 0, size, count)
}

/// A tuner for one host with a core per rank.
fn tuner(size: usize, tuning: Tuning, overrides: &str) -> Tuner {
    Tuner::new(tuning, Overrides::parse(overrides).unwrap(), Topology::one_host(size, size), MIB)
}

fn choice(collective: Collective, ranks: usize, up_to: usize, algorithm: &str) -> Choice {
    Choice { collective, ranks, hosts: None, up_to, algorithm: algorithm.into(), segment_bytes: None }
}

/// The names of the algorithms selected for allreduces of these sizes.
fn names(tuner: &Tuner, bytes: &[usize]) -> Vec<&'static str> {
    let name = |bytes: &usize| {
        let shape = shape(Collective::Allreduce, tuner.topology.hosts.len(), *bytes);
        tuner.decide(&shape, 1, None).unwrap().algorithm.name
    };
    bytes.iter().map(name).collect()
}

#[test]
fn the_selected_algorithm_can_always_run() {
    for &collective in Collective::ALL {
        for size in [1, 2, 3, 8, 100] {
            let tuner = tuner(size, Tuning::default(), "");
            for count in [0, 1, 1000, 10_000_000, usize::MAX] {
                let counts = vec![count / 128; size];
                let shape = Shape { send_counts: &counts, recv_counts: &counts, ..shape(collective, size, count) };
                let Decision { algorithm, segment_bytes, .. } = tuner.decide(&shape, 8, None).unwrap();
                assert!(collective.algorithm(algorithm.name).is_ok());
                assert_eq!(algorithm.name == "local", collective == Collective::Allreduce && size == 1);
                assert!(!matches!(algorithm.uses, Uses::Links | Uses::Counts), "{}", algorithm.name);
                assert!((1..=MIB).contains(&segment_bytes));
            }
        }
    }
}

/// With built-in constants, which are assumptions.
#[test]
fn ranks_that_share_memory_use_it() {
    let choice = |topology: &Topology, collective, bytes: usize| {
        let tuner = Tuner::new(Tuning::default(), Overrides::default(), topology.clone(), MIB);
        let size = topology.hosts.len();
        let each = if collective == Collective::Allreduce { bytes } else { bytes.div_ceil(size) };
        tuner.decide(&shape(collective, size, each), 1, None).unwrap().algorithm.name
    };
    for size in [2, 4, 8] {
        let topology = Topology { shared: true, ..Topology::one_host(size, size) };
        let sizes = [4, 256, MIB, 16 << 20];
        let chosen = sizes.map(|bytes| choice(&topology, Collective::Allreduce, bytes));
        assert_eq!(chosen, ["shared_flat", "shared_flat", "shared_slices", "shared_slices"], "{size} ranks");
        // Beyond the caches, two ranks read and write less if the root reduces all.
        let long = if size == 2 { "shared_flat" } else { "shared_slices" };
        assert_eq!(choice(&topology, Collective::Reduce, 16 << 20), long, "{size} ranks");
        assert!(sizes.iter().all(|bytes| choice(&topology, Collective::Allgather, *bytes) == "shared_flat"));
        // In these topologies not all ranks share memory, or not all are on one host.
        let unshared = [
            Topology { shared: false, ..topology.clone() },
            Topology { hosts: (0..size as u32).collect(), ..topology },
        ];
        for topology in unshared {
            assert!(sizes.iter().all(|bytes| !choice(&topology, Collective::Allreduce, *bytes).starts_with("shared")));
        }
    }
}

/// With built-in constants.
/// Messages looked cheap where the link was measured while the other ranks slept, and a root's reads dear where they
/// counted for each rank on its core.
#[test]
fn ranks_that_share_cores_use_shared_memory_for_small_calls() {
    let numbers = [4, 16, 64].into_iter().take(Tier::from_environment().of(2, 3, 3));
    for (ranks, latency_us) in numbers.flat_map(|ranks| [(ranks, 0.3), (ranks, 1.0), (ranks, 6.0)]) {
        let topology = Topology { shared: true, ..Topology::one_host(ranks, 2) };
        let local = Some(Link { latency: latency_us * 1e-6, bandwidth: 4e9 });
        let tuner = Tuner::new(Tuning { local, ..Tuning::default() }, Overrides::default(), topology, MIB);
        use Collective::*;
        for collective in [Allgather, Allreduce, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scan, Scatter] {
            let chosen = tuner.explain(collective, if collective == Barrier { 0 } else { 16 * ranks }).chosen;
            let name = chosen.algorithm.name;
            assert!(name.starts_with("shared_"), "{collective:?}, {ranks} ranks, {latency_us} µs: {name}");
        }
    }
}

#[test]
fn ranks_of_several_caches_use_the_tree() {
    let together = Topology { shared: true, ..Topology::one_host(16, 16) };
    let domains = (0..16).map(|rank| rank / 4).collect();
    let four_caches = Topology { domains, ..together.clone() };
    let chosen = |topology: &Topology, collective, bytes| {
        let tuner = Tuner::new(Tuning::default(), Overrides::default(), topology.clone(), MIB);
        let input = tuner.explain(collective, bytes);
        (input.chosen.algorithm.name, input.chosen.total)
    };
    for (collective, bytes, name) in [
        (Collective::Allreduce, 4, "shared_hierarchical_flat"),
        (Collective::Allreduce, 1 << 20, "shared_hierarchical_slices"),
        (Collective::Reduce, 64, "shared_hierarchical"),
        (Collective::ReduceScatter, 1 << 20, "shared_hierarchical"),
        (Collective::Allgather, 1 << 16, "shared_hierarchical"),
        (Collective::Allgatherv, 1 << 16, "shared_hierarchical"),
        (Collective::Barrier, 0, "shared_hierarchical"),
    ] {
        let (flat, own) = (chosen(&together, collective, bytes), chosen(&four_caches, collective, bytes));
        assert_eq!(own.0, name);
        assert!(!flat.0.starts_with("shared_hierarchical") && flat.1 < own.1, "{flat:?}, {own:?}");
    }
    // Each rank has a cache of its own, so there is nothing to reduce in one.
    let alone = Topology { domains: (0..16).collect(), ..together };
    assert_eq!(chosen(&alone, Collective::Allreduce, 4).0, "shared_flat");
}

/// On modelled InfiniBand and TCP.
#[test]
fn leaders_send_to_all_others_at_once_where_latency_counts() {
    for (latency, bandwidth, overhead) in [(2e-6, 12e9, 0.3), (20e-6, 1.2e9, 2.0)] {
        let shapes = [(3, 4), (2, 4), (2, 8), (3, 8), (4, 4), (4, 8)];
        for (hosts, per_host) in shapes.into_iter().take(Tier::from_environment().of(2, 6, 6)) {
            let numbers = (0..hosts * per_host).map(|rank| (rank / per_host) as u32).collect();
            let topology = Topology { shared: true, ..Topology::without_shared_memory(numbers, per_host) };
            let constants = [("overhead_us", overhead)].into();
            let tuning = Tuning { remote: Some(Link { latency, bandwidth }), constants, ..Tuning::default() };
            let tuner = Tuner::new(tuning, Overrides::default(), topology, MIB);
            // How long the exchange in one step takes compared to the ring, and whether it is the choice.
            let direct = |bytes: usize| {
                let Explanation { chosen, candidates, .. } = tuner.explain(Collective::Allreduce, bytes);
                let total = |name| candidates.iter().find(|one| one.algorithm.name == name).unwrap().total;
                let ratio = total("hierarchical_direct") / total("hierarchical");
                (ratio, chosen.algorithm.name == "hierarchical_direct")
            };
            let what = |bytes: usize| format!("{latency} s, {hosts}x{per_host}, {bytes} bytes: {:?}", direct(bytes));
            for bytes in [8 << 10, 16 << 10, 32 << 10] {
                assert!(direct(bytes).0 < 1.0, "{}", what(bytes));
            }
            assert!(direct(8 << 10).1, "{}", what(8 << 10));
            for bytes in [MIB, 16 * MIB] {
                let (ratio, chosen) = direct(bytes);
                // Two leaders send as many bytes in either way.
                assert!(!chosen && (hosts == 2 || ratio > 1.03), "{}", what(bytes));
            }
        }
    }
}

/// With built-in constants, which are assumptions.
#[test]
fn hosts_whose_ranks_share_memory_combine_in_it() {
    let mut seen = Vec::new();
    for (hosts, per_host) in [(2, 2), (2, 8), (4, 4)] {
        let numbers = (0..hosts * per_host).map(|rank| (rank / per_host) as u32).collect();
        let unshared = Topology::without_shared_memory(numbers, per_host);
        let together = Topology { shared: true, ..unshared.clone() };
        for bytes in [64 << 10, MIB, 16 * MIB] {
            let [unshared, together] = [&unshared, &together].map(|topology| {
                let tuner = Tuner::new(Tuning::default(), Overrides::default(), topology.clone(), MIB);
                let mut candidates = tuner.explain(Collective::Allreduce, bytes).candidates.into_iter();
                // Simulated messages within a host take no processor time for their bytes, so the segments that a
                // leader of `hierarchical_direct` receives, sends and reduces at the same time are as fast as the
                // network.
                let counts = |one: &PricedAlgorithm| topology.shared || one.algorithm.name != "hierarchical_direct";
                candidates.find(counts).unwrap()
            });
            let ratio = together.total / unshared.total;
            let in_memory =
                ["hierarchical", "hierarchical_direct", "torus_2d", "torus_nd"].contains(&together.algorithm.name);
            let names = (unshared.algorithm.name, together.algorithm.name);
            // Large buffers are pipelined better by messages alone, if a host has few ranks.
            let better = if bytes > MIB { ratio <= 1.0 } else { in_memory && ratio < 0.97 };
            seen.push((better, format!("{hosts}x{per_host}, {bytes}: {ratio:.3}, {names:?}")));
        }
    }
    assert!(seen.iter().all(|(better, _)| *better), "{seen:#?}");
}

#[test]
fn decisions_do_not_depend_on_what_only_one_rank_knows() {
    let tuner = tuner(3, Tuning::default(), "");
    for &collective in Collective::ALL {
        // The root knows and has other things than the other ranks.
        let on = |rank: Rank| {
            let counts: &'static [usize] = if rank == 0 { &[MIB, 0, 7 * MIB] } else { &[] };
            let (recv_counts, send_counts) = match collective {
                Collective::ReduceScatter | Collective::Allgatherv => (&[MIB, 0, 7 * MIB][..], counts),
                _ => (counts, counts),
            };
            let own = matches!(collective, Collective::Gatherv | Collective::Scatterv | Collective::Alltoallv);
            let count = if own { rank * MIB } else { MIB };
            let shape = Shape { rank, send_counts, recv_counts, ..shape(collective, 3, count) };
            let Decision { algorithm, segment_bytes: limit, base } = tuner.decide(&shape, 4, None).unwrap();
            (algorithm.name, limit, base, segment_bytes(&shape, 4, limit))
        };
        assert_eq!(on(0), on(1));
        assert_eq!(on(0), on(2));
    }
}

#[test]
fn cached_decisions_are_unchanged() {
    let algorithms = Collective::Allreduce.algorithms();
    for (position, algorithm) in algorithms.iter().enumerate() {
        for (segment_bytes, base) in [(1, None), (MIB, Some(2)), (u32::MAX as usize, Some(65_535)), (0, None)] {
            let decision = Decision { algorithm, segment_bytes, base };
            let back = unpack(pack(&decision, Collective::Allreduce), algorithms);
            assert!(std::ptr::eq(back.algorithm, &raw const algorithms[position]));
            assert_eq!((back.segment_bytes, back.base), (segment_bytes, base));
        }
    }
    let huge = Decision { algorithm: &algorithms[0], segment_bytes: usize::MAX, base: None };
    assert_eq!(unpack(pack(&huge, Collective::Allreduce), algorithms).segment_bytes, u32::MAX as usize);
}

#[test]
fn each_power_of_two_has_four_size_classes() {
    assert_eq!((bucket(0), first_of(0)), (0, 0));
    assert!(bucket(usize::MAX) < SIZES);
    for power in 0..usize::BITS {
        assert_eq!(first_of(bucket(1 << power)), 1 << power, "powers are exact");
    }
    let mut last = 0;
    for bytes in (1..5000).chain([MIB - 1, MIB, MIB + 1, 5 * MIB / 4 - 1, 5 * MIB / 4, usize::MAX / 3, usize::MAX]) {
        let (size, first) = (bucket(bytes), first_of(bucket(bytes)));
        assert!(size >= last && first <= bytes && bytes - first <= first / 4, "{bytes} count as {first}");
        assert_eq!(bucket(first), size);
        last = size;
    }
    assert_eq!(first_of(bucket(5 * MIB / 4 - 1)), MIB);
    assert_eq!(first_of(bucket(5 * MIB / 4)), 5 * MIB / 4);
}

#[test]
fn the_network_follows_from_the_topology() {
    let network = |hosts: &[u32]| Topology::without_shared_memory(hosts.into(), 2).network(&Tuning::default());
    let shape = |hosts| (network(hosts).per_host, network(hosts).consecutive);
    assert_eq!(shape(&[0, 0, 0]), (3, true));
    assert_eq!(shape(&[0, 0, 1, 1]), (2, true));
    assert_eq!(shape(&[0, 1, 0, 1]), (2, false));
    assert_eq!(shape(&[0, 1, 1, 1, 2]), (3, true));
    assert_eq!(shape(&[0, 1, 2]), (1, true));
    let link = Link { latency: 1.0, bandwidth: 2.0 };
    let tuning = Tuning { local: Some(link), gamma: Some(3.0), ..Tuning::default() };
    let network = Topology::one_host(2, 0).network(&tuning);
    assert_eq!(
        (network.local, network.remote, network.gamma, network.cores),
        (link, Constants::BUILT_IN.remote, 3.0, 1)
    );
}

#[test]
fn segments_are_equal_and_not_too_large() {
    let segment = |size, count, element, max| segment_bytes(&shape(Collective::Allreduce, size, count), element, max);
    assert_eq!(segment(4, 4 * (16 << 10), 4, 32 << 10), 32 << 10, "a chunk of 64 KiB: two pieces");
    assert_eq!(segment(4, 4 * (16 << 10) + 4, 4, 32 << 10), 21848, "a little more: three equal ones");
    assert_eq!(
        segment(4, 256, 4, MIB),
        MIB,
        "a chunk that is short enough: what is longer than a chunk may be cut later"
    );
    assert_eq!(segment(8, 64 * MIB, 4, MIB), MIB, "never above the limit");
    assert_eq!(segment(1, 5 * MIB / 2, 1, MIB), (5 * MIB / 2usize).div_ceil(3), "three equal pieces");
    assert_eq!(segment(2, 1000, 16, 1), 16, "at least an element");
    assert_eq!(segment(2, usize::MAX, 16, 1000), 992, "whole elements");
    assert_eq!(segment(2, 0, 3, 1), 3);
}

/// The number of segments is such that no other number has a much lower cost.
#[test]
fn double_binary_trees_use_the_best_segment_size() {
    let collective = Collective::Allreduce;
    let algorithm = collective.algorithm("double_binary_tree").unwrap();
    let constants = &Constants::BUILT_IN;
    let network = Network::flat(constants.remote, constants.gamma);
    for (size, bytes) in [(4, MIB), (64, MIB), (4, 64 * MIB), (64, 64 * MIB)] {
        let topology = Topology::one_rank_per_host(size);
        let best_up_to = |max_segment_bytes| {
            PricingInput {
                order: Order::Any,
                collective,
                bytes,
                topology: &topology,
                network: &network,
                constants,
                links: &[],
                max_segment_bytes,
            }
            .candidate(algorithm)
        };
        let chosen = best_up_to(MIB);
        let best = (1..=500).map(|chunks| best_up_to((bytes / 2).div_ceil(chunks)).total).fold(f64::INFINITY, f64::min);
        assert!(chosen.total <= 1.06 * best, "{size} ranks, {bytes} bytes: {} s, {best} s would do", chosen.total);
        // Check that the segment size matters.
        let whole = best_up_to(MIB).segment_bytes < bytes / 2;
        assert!(whole || bytes == MIB, "{size} ranks, {bytes} bytes are not cut");
    }
}

/// On 256 hosts, a rank that sends to all others or receives from all has CPU work per message. Without that, which a
/// file can specify, these algorithms would be the cheapest.
#[test]
fn exchanges_with_many_peers_between_hosts_cost_cpu_time_per_message() {
    use Collective::*;
    const RANKS: usize = 256;
    let tuner = |constants: &[(&'static str, f64)]| {
        let tuning = Tuning { constants: constants.iter().copied().collect(), ..Tuning::default() };
        Tuner::new(tuning, Overrides::default(), Topology::one_rank_per_host(RANKS), MIB)
    };
    let busy = tuner(&[("overhead_us", 2.0), ("gap_us", 0.0)]);
    let idle = tuner(&[("overhead_us", 0.0), ("gap_us", 0.0)]);
    let network = *busy.network();
    assert_eq!((network.overhead, idle.network().overhead), (2e-6, 0.0));
    for (collective, name, bytes, each) in [
        (Barrier, "all_to_all", 0, 2.0),
        (Barrier, "all_to_one", 0, 2.0),
        (Allgather, "direct", 8 * RANKS, 2.0),
        (Alltoall, "pairwise", 8 * RANKS, 2.0),
        (Allreduce, "reduce_broadcast", 8, 2.0),
        (Reduce, "flat", 8, 1.0),
        (Broadcast, "one_to_all", 8, 1.0),
        (Gather, "direct", 8 * RANKS, 1.0),
        (Scatter, "direct", 8 * RANKS, 1.0),
    ]
    .into_iter()
    .take(Tier::from_environment().of(3, 9, 9))
    {
        let what = format!("{} {name}", collective.name());
        let price = |tuner: &Tuner| tuner.input(collective, bytes).candidate(collective.algorithm(name).unwrap());
        let messages = (RANKS - 1) as f64;
        let (path, free) = (price(&busy).path, price(&idle).path);
        assert!(path >= messages * each * 2e-6 && free < 60e-6, "{what}: {path} s, {free} s if ranks were not busy");
        let calls = Calls::new(collective, RANKS, bytes, 0);
        let generate = |rank| (collective.algorithm(name).unwrap().generate)(&calls.shape(rank));
        let options = Options { element_bytes: 1, ..Options::new(network) };
        let seconds = simulate(RANKS, &generate, &options).unwrap().seconds;
        assert!((0.95..1.05).contains(&(path / seconds)), "{what}: priced at {path} s, takes {seconds} s");
        let chosen = busy.explain(collective, bytes).chosen;
        assert_ne!(chosen.algorithm.name, name, "{what}");
        assert!(chosen.path < 0.8 * path, "{what}: {} takes {} of {path} s", chosen.algorithm.name, chosen.path);
    }
    let chosen = |tuner: &Tuner, collective| tuner.explain(collective, 8).chosen.algorithm.name;
    assert_eq!((chosen(&busy, Barrier), chosen(&idle, Barrier)), ("dissemination", "all_to_one"));
    assert_eq!((chosen(&busy, Allreduce), chosen(&idle, Allreduce)), ("recursive_doubling", "reduce_broadcast"));
    assert_eq!((chosen(&busy, Broadcast), chosen(&idle, Broadcast)), ("binomial", "one_to_all"));
}

/// The overhead is part of the latency, so it is limited by it whatever a file says.
#[test]
fn the_overhead_is_at_most_half_of_the_latency() {
    let remote = Some(Link { latency: 3e-6, bandwidth: 1e10 });
    let network = |constants: &[(&'static str, f64)]| {
        let tuning = Tuning { remote, constants: constants.iter().copied().collect(), ..Tuning::default() };
        Topology::one_rank_per_host(2).network(&tuning)
    };
    assert_eq!((network(&[]).overhead, network(&[]).gap), (1.5e-6, 0.1e-6));
    assert_eq!(network(&[("overhead_us", 0.5), ("gap_us", 0.75)]).overhead, 0.5e-6);
}

/// A tuner for one host with a core per rank, whose ranks share memory, two in each cache.
fn sharing(size: usize) -> Tuner {
    let domains = if size > 2 { (0..size as u32).map(|rank| rank / 2).collect() } else { Vec::new() };
    let topology = Topology { shared: true, domains, ..Topology::one_host(size, size) };
    Tuner::new(Tuning::default(), Overrides::default(), topology, MIB)
}

#[test]
fn scratch_memory_is_a_cost() {
    let of = |size, bytes, name: &str| {
        let Explanation { chosen, candidates, .. } = sharing(size).explain(Collective::Allreduce, bytes);
        (chosen, *candidates.iter().find(|one| one.algorithm.name == name).unwrap())
    };
    // In place, each rank keeps a copy of all its elements.
    let (chosen, flat) = of(2, 64 * MIB, "shared_flat");
    assert_eq!((chosen.algorithm.name, chosen.scratch, flat.scratch), ("shared_slices", 0, 64 * MIB));
    let fresh = 64.0 * MIB as f64 * 0.25e-9;
    assert!((flat.total - flat.path - flat.work - fresh).abs() < 1e-9, "{} of {}", flat.total, flat.path);
    assert!(flat.total - fresh < chosen.total, "it is the fastest otherwise");
    let (_, flat) = of(2, 8 * MIB, "shared_flat");
    assert!(flat.scratch == 8 * MIB && (flat.total - flat.path - flat.work).abs() < 1e-12, "so much is kept");
    for size in [2, 3, 4, 7, 8, 64].into_iter().take(Tier::from_environment().of(4, 6, 6)) {
        for bytes in [4, 16 * MIB, 256 * MIB, 1 << 30] {
            let (chosen, _) = of(size, bytes, "shared_flat");
            assert!(chosen.scratch <= 8 * MIB, "{size} ranks: {} of {bytes}", chosen.algorithm.name);
        }
    }
    // Ranks of several hosts do not pay.
    let hosts = Topology { shared: true, ..Topology::without_shared_memory(vec![0, 1], 1) };
    let tuner = Tuner::new(Tuning::default(), Overrides::default(), hosts, MIB);
    let one = tuner.explain(Collective::Allreduce, 64 * MIB).candidates;
    let doubling = one.iter().find(|one| one.algorithm.name == "recursive_doubling").unwrap();
    assert!(doubling.scratch == 64 * MIB && doubling.total == doubling.path + doubling.work);
}

#[test]
fn what_is_explained_is_what_is_selected() {
    for &collective in Collective::ALL {
        for size in [4, 2, 8, 16].into_iter().take(Tier::from_environment().of(1, 4, 4)) {
            let tuner = sharing(size);
            for bytes in [0, 4, 96 << 10, 3 * MIB, 7 * MIB, 9 * MIB, 40 * MIB, 320 * MIB, 3 << 30] {
                let (chosen, decision) =
                    (tuner.explain(collective, bytes).chosen, tuner.choose(collective, bytes).unwrap());
                let [explained, selected] = [chosen.algorithm, decision.algorithm].map(|algorithm| algorithm.name);
                assert_eq!(explained, selected, "{} of {bytes}, {size} ranks", collective.name());
                let input = tuner.input(collective, first_of(bucket(bytes)));
                let all = input.complete(&input.candidates());
                let max = all.iter().map(|one| one.scratch).max().unwrap();
                assert!(max <= (size + 1) * bytes.max(64), "{} {size}: {max} of {bytes}", collective.name());
            }
        }
    }
}
/// The numbers in docs/semantics.md, "Memory of a call".
#[test]
fn scratch_memory_is_as_much_as_documented() {
    use Collective::*;
    const BYTES: usize = 240 << 10;
    // The maximum number of buffers of S bytes, out of place and in place, times the divisor.
    let max = |collective: Collective, name: &str, size: usize, inputs: usize| {
        let algorithm = collective.algorithm(name).unwrap();
        let mut calls = Calls::new(collective, size, BYTES, 0);
        calls.shared = true;
        calls.groups = vec![0; size];
        calls.domains = (0..size as u32).map(|rank| rank / 2).collect();
        calls.inputs = inputs;
        let of = |rank| algorithm.scratch(&calls.shape(rank).only(algorithm.uses)).unwrap();
        (0..size).map(of).max().unwrap() as f64 / BYTES as f64
    };
    let log = |size: usize| size.next_power_of_two().ilog2() as f64;
    let all = |_: usize| 1.0;
    let block = |size: usize| 1.0 / size as f64;
    let others = |size: usize| (size - 1) as f64;
    type Unit<'a> = &'a dyn Fn(usize) -> f64;
    let documented: [(Collective, &str, Unit<'_>, f64, f64); 24] = [
        (Allreduce, "shared_slices", &all, 0.0, 0.0),
        (Allreduce, "shared_hierarchical_slices", &all, 0.0, 0.0),
        (Allreduce, "ring_segmented", &all, 0.0, 0.0),
        (Allreduce, "shared_flat", &all, 0.0, 1.0),
        (Allreduce, "recursive_doubling", &all, 1.0, 1.0),
        (Allreduce, "shared_hierarchical_flat", &all, 1.0, 2.0),
        (Allreduce, "ring", &log, 2.0, 2.0),
        (Allreduce, "reduce_broadcast", &others, 1.0, 1.0),
        (Scan, "shared_flat", &all, 0.0, 1.0),
        (Scan, "recursive_doubling", &all, 3.0, 3.0),
        (Exscan, "shared_flat", &all, 0.0, 1.0),
        (Exscan, "recursive_doubling", &all, 3.0, 3.0),
        (Alltoall, "shared_flat", &all, 0.0, 1.0),
        (Alltoall, "pairwise", &|size| others(size) * block(size), 0.0, 1.0),
        (Alltoall, "bruck", &log, 1.0, 1.0),
        (Reduce, "shared_slices", &block, 1.0, 1.0),
        (Reduce, "ring", &block, 2.0, 2.0),
        (Reduce, "double_binary_tree", &all, 0.5, 0.5),
        (Reduce, "shared_hierarchical", &all, 1.0, 1.0),
        (ReduceScatter, "direct", &block, 1.0, 1.0),
        (ReduceScatter, "shared_flat", &block, 0.0, 1.0),
        (ReduceScatter, "ring", &block, 2.0, 0.0),
        (ReduceScatter, "halving_doubling", &all, 1.0, 1.0),
        (ReduceScatter, "shared_hierarchical", &all, 0.67, 1.0),
    ];
    for (collective, name, unit, out_of_place, in_place) in documented {
        for (inputs, expected) in [(1, out_of_place), (0, in_place)] {
            let sizes = [2, 3, 4, 8, 16, 40];
            let found = sizes.map(|size| max(collective, name, size, inputs) / unit(size));
            let largest = found.into_iter().fold(0.0, f64::max);
            let close = largest <= expected + 0.01 && largest >= 0.7 * expected;
            assert!(close, "{} {name}, {inputs} inputs: {found:?}, not {expected}", collective.name());
        }
    }
    for collective in [Broadcast, Allgather, Allgatherv, Gather, Gatherv, Scatter, Scatterv, Alltoallv] {
        let flat = [2, 3, 8, 16].map(|size| max(collective, "shared_flat", size, usize::from(collective != Broadcast)));
        assert_eq!(flat, [0.0; 4], "{}", collective.name());
    }
}
