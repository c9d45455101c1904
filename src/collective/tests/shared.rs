//! The algorithms on shared memory.

use std::collections::BTreeSet;

use super::calls::{Sample, forms};
use super::topology::{groupings, in_topologies};
use super::*;
use crate::error::ErrorKind;
use crate::schedule::Action;
use crate::schedule::cost::{Access, Cost, Link, Network, SharedMemory};
use crate::schedule::simulate::{Options, Simulation, simulate};
use crate::sys::topology::domain;

/// The algorithms on shared memory, of all collectives.
pub(super) fn all() -> impl Iterator<Item = (Collective, &'static Algorithm)> {
    let of = |&collective: &Collective| collective.algorithms().iter().map(move |algorithm| (collective, algorithm));
    Collective::ALL.iter().flat_map(of).filter(|(_, algorithm)| algorithm.uses.needs_shared_memory())
}

#[test]
fn few_ranks_in_every_form_reduce_in_rank_order() {
    for (collective, algorithm) in all() {
        for size in 1..=Tier::from_environment().of(6, 9, 9) {
            for form in forms(collective, algorithm, size) {
                let Some(sample) = Sample::new(collective, algorithm, size, form) else { continue };
                let report = verify_all(&sample.shapes(), algorithm);
                let report =
                    report.unwrap_or_else(|e| panic!("{} {}, {form:?}: {e}", collective.name(), algorithm.name));
                assert!(report.in_order, "{} {}, {form:?}", collective.name(), algorithm.name);
                assert!(report.traffic.iter().all(|traffic| traffic.messages == 0));
            }
        }
    }
}

/// Caches of ranks, as [`Shape::domains`]: of equal size or not, consecutive or not, in one socket or several.
fn caches(size: usize) -> Vec<Vec<u32>> {
    let numbers = |of: fn(u32, u32) -> u32| (0..size as u32).map(|rank| of(rank, size as u32)).collect::<Vec<_>>();
    vec![
        Vec::new(),
        numbers(|rank, _| rank / 2),
        numbers(|rank, size| u32::from(2 * rank >= size)),
        numbers(|rank, _| rank % 2),
        numbers(|rank, _| rank.isqrt()),
        numbers(|rank, size| u32::from(rank + 1 < size)),
        numbers(|rank, _| rank),
        // In sockets.
        numbers(|rank, size| domain(rank * 4 / size / 2, rank * 4 / size)),
        numbers(|rank, _| domain(rank / 6, rank / 2)),
        numbers(|rank, _| domain(rank % 2, rank % 6)),
        numbers(|rank, _| domain(rank.isqrt(), rank / 2)),
        numbers(|rank, size| domain(u32::from(2 * rank >= size), 0)),
    ]
}

#[test]
fn ranks_of_several_caches_reduce_in_the_order_of_caches() {
    let mut several = 0;
    for (collective, algorithm) in all().filter(|(_, algorithm)| algorithm.name.starts_with("shared_hierarchical")) {
        for size in (1..=9).chain([12]).take(Tier::from_environment().of(5, 10, 10)) {
            for domains in caches(size) {
                // Every rank comes after those of the same cache, and every cache after those of the same socket.
                let consecutive = |shift: u32| {
                    let units: Vec<u32> = domains.iter().map(|domain| domain >> shift).collect();
                    let begins = units.windows(2).filter(|pair| pair[0] != pair[1]).count() + 1;
                    begins <= units.iter().collect::<BTreeSet<_>>().len().max(1)
                };
                for form in forms(collective, algorithm, size) {
                    let Some(sample) = Sample::new(collective, algorithm, size, form) else { continue };
                    let shapes: Vec<_> =
                        sample.shapes().into_iter().map(|shape| Shape { domains: &domains, ..shape }).collect();
                    let context = || format!("{} {}, {domains:?}, {form:?}", collective.name(), algorithm.name);
                    let report = verify_all(&shapes, algorithm).unwrap_or_else(|e| panic!("{}: {e}", context()));
                    assert!(report.in_order || !consecutive(0) || !consecutive(16), "{}", context());
                    assert!(report.traffic.iter().all(|traffic| traffic.messages == 0));
                    several += usize::from(!report.in_order);
                }
            }
        }
    }
    assert!(several > 0, "with other orders, operands are exchanged");
}

/// Returns each rank's fetches from ranks of other caches, and their elements.
fn far(shapes: &[Shape<'_>], algorithm: &Algorithm) -> Vec<(usize, usize)> {
    let of = |shape: &Shape<'_>| {
        let steps = (algorithm.generate)(shape).unwrap().steps;
        let fetched = steps.iter().filter_map(|step| Some((step.action.publication()?.0, step.action.elements())));
        let far = fetched.filter(|(from, _)| shape.domains[*from] != shape.domains[shape.rank]);
        far.fold((0, 0), |(number, sum), (_, elements)| (number + 1, sum + elements))
    };
    shapes.iter().map(of).collect()
}

#[test]
fn little_is_fetched_from_other_caches() {
    // Two sockets, each of two caches of four ranks.
    let (size, count) = (16, 160);
    let shapes = |collective| {
        let mut calls = Calls::new(collective, size, count, 0);
        calls.shared = true;
        calls.domains = (0..size as u32).map(|rank| domain(rank / 8, rank / 4)).collect();
        calls
    };
    let each = |collective: Collective, name: &str| {
        let calls = shapes(collective);
        let all = far(&calls.shapes(), collective.algorithm(name).unwrap());
        assert!(all.iter().all(|rank| *rank == all[0]), "{name}: {all:?}");
        all[0]
    };
    assert_eq!(each(Collective::Allreduce, "shared_flat"), (12, 12 * count));
    assert_eq!(each(Collective::Allreduce, "shared_hierarchical_flat"), (2, 2 * count));
    // A quarter is halved twice, down and up.
    assert_eq!(each(Collective::Allreduce, "shared_slices"), (24, 24 * count / 16));
    assert_eq!(each(Collective::Allreduce, "shared_hierarchical_slices"), (4, 2 * (count / 8 + count / 16)));
    assert_eq!(each(Collective::Barrier, "shared_flat"), (12, 0));
    assert_eq!(each(Collective::Barrier, "shared_hierarchical"), (2, 0));
    // A block of each of 12 ranks; or two of the other cache of the socket, for this rank and for one of the other
    // socket, and one of the other socket.
    for collective in [Collective::ReduceScatter, Collective::Allgather] {
        assert_eq!(each(collective, "shared_flat"), (12, 12 * count / 16));
        assert_eq!(each(collective, "shared_hierarchical"), (3, 3 * count / 16));
    }
    let calls = shapes(Collective::Reduce);
    let root = |name: &str| far(&calls.shapes(), Collective::Reduce.algorithm(name).unwrap())[0];
    assert_eq!(root("shared_flat"), (12, 12 * count));
    assert_eq!(root("shared_hierarchical"), (2, 2 * count));
}

#[test]
fn ranks_without_shared_memory_are_refused() {
    for (collective, algorithm) in all() {
        let mut call = Calls::new(collective, 2, 8, 0);
        let error = (algorithm.generate)(&call.shape(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let why = format!("{} on rank 1: this algorithm needs shared memory", collective.name());
        assert!(error.message().starts_with(&why), "{error}");
        call.shared = true;
        (algorithm.generate)(&call.shape(1)).unwrap();
        // A single rank shares with nobody.
        (algorithm.generate)(&Calls::new(collective, 1, 8, 0).shape(0)).unwrap();
    }
}

const MEMORY: SharedMemory = SharedMemory {
    near: Access { signal: 2e-7, fetch: 5e-8, copy: 1e-10 },
    far: Access { signal: 6e-7, fetch: 2e-7, copy: 4e-10 },
    call: 1e-6,
    copy: 1e-10,
    read: 1.5e-10,
    by_value: 0.0,
    streams: false,
    by_value_alone: 0.0,
    by_reference: 0.0,
};

/// What calls of elements of 4 bytes take in the simulator, and by the algorithm's formula.
fn simulated_and_priced(
    size: usize,
    calls: &Calls,
    algorithm: &Algorithm,
    options: &Options<'_>,
) -> (Simulation, Cost) {
    let result = simulate(size, &|rank| (algorithm.generate)(&calls.shape(rank)), options).unwrap();
    let cost = (algorithm.cost)(&Case {
        shape: &calls.shape(0),
        element_bytes: 4,
        segment_bytes: options.segment_bytes,
        network: &options.network,
        // The simulator has no caches.
        constants: &Constants { memory_again_ns: 0.0, ..Constants::BUILT_IN },
    });
    (result, cost)
}

#[test]
fn formulas_agree_with_the_simulator() {
    let by_reference = SharedMemory { by_value: 4096.0, ..MEMORY };
    let streams = SharedMemory { streams: true, by_value_alone: 1024.0, ..by_reference };
    let mixed = SharedMemory { by_reference: 65536.0, ..streams };
    let link = Link { latency: 1e-5, bandwidth: 1e9 };
    let mut compared = 0;
    let mut wrong = Vec::new();
    let alike = |size: usize, each: usize, socket: usize| {
        let number = move |rank: usize| domain((rank / socket) as u32, (rank / each) as u32);
        (size, (0..size).map(number).collect::<Vec<_>>())
    };
    let one = [2, 4, 7, 16].map(|size| (size, Vec::new()));
    let several = [alike(2, 1, 2), alike(4, 2, 4), alike(16, 4, 16), alike(16, 1, 4), alike(16, 2, 8)];
    for (collective, algorithm) in all() {
        for (size, domains) in one.iter().chain(&several) {
            for (elements, gamma, memory) in [(64, 1e-10), (1024, 0.0), (1 << 18, 1e-10)]
                .into_iter()
                .flat_map(|(elements, gamma)| [by_reference, streams, mixed].map(|memory| (elements, gamma, memory)))
            {
                let size = *size;
                let mut calls = Calls::new(collective, size, elements * size, 0);
                calls.shared = true;
                calls.domains = domains.clone();
                let network = Network { per_host: size, cores: size, memory, ..Network::flat(link, gamma) };
                let options = Options { domains, ..Options::new(network) };
                let (result, cost) = simulated_and_priced(size, &calls, algorithm, &options);
                let ratio = cost.path / result.seconds;
                let moved = [&result.sent, &result.reduced].map(|bytes| bytes.iter().sum::<u64>() as f64);
                let priced = [cost.sent, cost.reduced];
                let same = moved.iter().zip(priced).all(|(a, b)| (a - b).abs() <= 1e-9 * b);
                // What several caches delay depends on the order of the fetches, which only the formulas of the tree
                // know.
                let max = match algorithm.name {
                    // All read what rank 0 has published first, but the formula lets it wait for the last.
                    "shared_flat"
                        if matches!(collective, Collective::Scan | Collective::Exscan) && domains.is_empty() =>
                    {
                        1.09
                    }
                    _ if domains.is_empty() => 1.05,
                    // The last rank of a group has little left to fetch when it publishes.
                    "shared_hierarchical_slices" => 1.06,
                    // The first blocks have arrived when a rank has published its last.
                    "shared_hierarchical" if collective == Collective::ReduceScatter => 1.07,
                    name if name.starts_with("shared_hierarchical") => 1.05,
                    _ => 1.2,
                };
                if !(0.95..max).contains(&ratio) || !same || (result.messages, cost.messages) != (0, 0.0) {
                    wrong.push(format!(
                        "{} {}, {size} ranks {domains:?}, {elements}: {} s, {moved:?} bytes, priced at {cost:?}: {ratio:.3}",
                        collective.name(),
                        algorithm.name,
                        result.seconds,
                    ));
                }
                compared += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 100);
}

/// The algorithms on several hosts whose ranks share memory.
const BETWEEN_HOSTS: [&str; 4] = ["hierarchical", "hierarchical_direct", "torus_2d", "torus_nd"];

/// Whether ranks send messages only to other hosts.
fn sends_to_other_hosts_only(shapes: &[Shape<'_>], algorithm: &Algorithm) -> bool {
    let groups = shapes[0].groups;
    let mut sends = shapes.iter().flat_map(|shape| {
        let steps = (algorithm.generate)(shape).unwrap().steps;
        steps.into_iter().filter_map(|step| Some((shape.rank, step.action.destination()?))).collect::<Vec<_>>()
    });
    sends.all(|(from, to)| groups[from] != groups[to])
}

#[test]
fn hosts_of_ranks_that_share_memory_exchange_messages_with_other_hosts_only() {
    for name in BETWEEN_HOSTS {
        let algorithm = Collective::Allreduce.algorithm(name).unwrap();
        for size in ranks() {
            fn set<'a>(call: Shape<'a>, groups: &'a Vec<u32>) -> Shape<'a> {
                Shape { groups, shared: true, ..call }
            }
            in_topologies(size, &groupings(size), set, |shapes, groups| {
                let of_functions = || {
                    let generate = |shape| (algorithm.generate)(shape).unwrap().without_receive_and_reduce();
                    prove_schedules(shapes.iter().map(generate), &CollectiveContract::new(shapes))
                };
                let checked = verify_all(shapes, algorithm).and_then(|_| {
                    if size <= Tier::from_environment().of(4, 9, 9) { of_functions().map(drop) } else { Ok(()) }
                });
                if let Err(error) = checked {
                    panic!("{name}, {size} ranks in {groups:?}, {:?}: {error}", shapes[0]);
                }
                let hosts: BTreeSet<_> = groups.iter().collect();
                if hosts.len() > 1 && hosts.len() < size {
                    assert!(sends_to_other_hosts_only(shapes, algorithm), "{name}, {groups:?}");
                }
            });
        }
    }
}

/// The other tests have too few elements for several parts.
#[test]
fn a_leader_combines_and_publishes_long_buffers_in_parts() {
    let algorithm = Collective::Allreduce.algorithm("hierarchical_direct").unwrap();
    for size in Tier::from_environment().of(&[3][..], &[3], &[3, 6]).iter().copied() {
        for groups in groupings(size) {
            let calls = [(3 << 13, 0, 1), ((5 << 13) + 7, 1, 1), (50 << 13, 0, 2), (4 << 13, 3, 2)];
            for (count, inputs, outputs) in calls.into_iter().take(Tier::from_environment().of(2, 4, 4)) {
                let call = shape(Collective::Allreduce, size, count);
                let call = Shape { groups: &groups, shared: true, inputs, outputs, average: size % 2 == 0, ..call };
                let shapes = all_ranks(call, |_| ());
                let report = verify_all(&shapes, algorithm);
                report.unwrap_or_else(|e| panic!("{size} ranks in {groups:?}, {count} elements: {e}"));
            }
        }
    }
    let published = |count| {
        let groups = [0, 0, 1, 1];
        let call = Shape { groups: &groups, shared: true, ..shape(Collective::Allreduce, 4, count) };
        let steps = (algorithm.generate)(&call).unwrap().steps;
        steps.iter().filter(|step| matches!(step.action, Action::Publish { .. })).count()
    };
    assert_eq!([1, 2 << 13, 5 << 13, 1 << 30].map(published), [1, 2, 5, 32]);
}

#[test]
fn formulas_for_several_hosts_agree_with_the_simulator() {
    let memory = SharedMemory { by_value: 1e6, ..MEMORY };
    let tcp = (Link { latency: 2e-5, bandwidth: 1e9 }, 0.0);
    let infiniband = (Link { latency: 2e-6, bandwidth: 12e9 }, 3e-7);
    let mut wrong = Vec::new();
    let on_tcp = ["hierarchical", "hierarchical_direct", "torus_2d"].map(|name| (name, tcp));
    for (name, (remote, overhead)) in on_tcp.into_iter().chain([("hierarchical_direct", infiniband)]) {
        let algorithm = Collective::Allreduce.algorithm(name).unwrap();
        for (hosts, per_host) in [(2, 2), (2, 4), (4, 2), (8, 8)] {
            for (bytes, gamma) in [(1 << 10, 1e-10), (1 << 16, 0.0), (1 << 20, 1e-10), (1 << 24, 1e-10)] {
                let size = hosts * per_host;
                let mut calls = Calls::new(Collective::Allreduce, size, bytes / 4, 0);
                calls.groups = (0..size).map(|rank| (rank / per_host) as u32).collect();
                calls.shared = true;
                let network = Network { per_host, cores: per_host, memory, overhead, ..Network::flat(remote, gamma) };
                let options = Options { hosts: &calls.groups, ..Options::new(network) };
                let (result, cost) = simulated_and_priced(size, &calls, algorithm, &options);
                let ratio = cost.path / result.seconds;
                let sent = result.sent.iter().sum::<u64>() as f64;
                let reduced = result.reduced.iter().sum::<u64>() as f64;
                let moved = (cost.sent / sent, cost.reduced / reduced, cost.messages / result.messages as f64);
                // The formula of the torus assumes that rows and columns do not overlap.
                if !(0.93..1.25).contains(&ratio) || [moved.0, moved.1, moved.2].iter().any(|r| (r - 1.0).abs() > 1e-6)
                {
                    wrong.push(format!("{name} {hosts}x{per_host} {bytes} {gamma}: {ratio:.3}, {moved:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
