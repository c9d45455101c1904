//! Compares the formulas of the literature with the simulator, and checks that algorithms are faster than others where
//! they should be.

use super::prices::every;
use super::*;
use crate::schedule::cost::{Link, Network};
use crate::schedule::simulate::{Options, Simulation, simulate};

const UNCUT: usize = 1 << 40;
/// 10 µs, 10 GB/s.
const LINK: Link = Link { latency: 10e-6, bandwidth: 10e9 };

fn play(name: &str, call: Shape<'_>, options: &Options<'_>) -> Simulation {
    let algorithm = call.collective.algorithm(name).unwrap();
    simulate(call.size, &|rank| (algorithm.generate)(&Shape { rank, ..call }), options).unwrap()
}

/// The formula of the literature for P ranks (in a grid with n columns, if there is one) and S bytes, and the permitted
/// range of the ratio of simulated time to formula.
fn table(name: &str, p: f64, n: f64, s: f64, link: Link, gamma: f64) -> Option<(f64, f64, f64)> {
    let Link { latency: alpha, bandwidth: b } = link;
    let (h, m) = (p.log2(), p / n);
    let ring = 2.0 * (p - 1.0) * (alpha + s / (p * b)) + gamma * s * (p - 1.0) / p;
    let equal = |seconds| Some((seconds, 0.95, 1.05));
    match name {
        // A rank forwards data before it has reduced it: only the last reductions count.
        "ring" => {
            let max = (p - 1.0) * (alpha + s / b + gamma * s);
            Some((max, 0.95 * (p - 1.0) * (alpha + s / b) / max, 1.05))
        }
        "ring_segmented" => equal(ring),
        // One of its two streams reduces while the other is in transit, so latency and reductions count at most once.
        "ring_chunked" => Some((ring, if alpha > 50.0 * s / (p * b) { 0.95 } else { 0.5 }, 1.05)),
        "halving_doubling" => equal(2.0 * h * alpha + (p - 1.0) / p * (2.0 * s / b + gamma * s)),
        "recursive_doubling" => equal(h * (alpha + s / b + gamma * s)),
        "tree" => equal(h * (2.0 * alpha + 2.0 * s / b + gamma * s)),
        // Reductions overlap with receives, so only the last counts: less than the formula.
        "reduce_broadcast" => {
            let max = 2.0 * (alpha + (p - 1.0) * s / b) + gamma * s * (p - 1.0);
            Some((max, if gamma == 0.0 { 0.95 } else { 2.0 * (alpha + (p - 1.0) * s / b) / max * 0.95 }, 1.05))
        }
        // With its own n as the size of groups, in which each pair of ranks has a link; a leader's own buffer needs no
        // reduction.
        "hierarchical" => {
            let leaders = 2.0 * (m - 1.0) * (alpha + s / (m * b)) + gamma * s * (m - 1.0) / m;
            equal(2.0 * (alpha + s / b) + gamma * (n - 1.0) * s + leaders)
        }
        // Ranks of a group reduce as `hierarchical` does; a leader reduces the sums of all groups.
        "hierarchical_direct" => {
            let leaders = alpha + (m - 1.0) * (s / b + gamma * s);
            equal(2.0 * (alpha + s / b) + gamma * (n - 1.0) * s + leaders)
        }
        "torus_2d" => {
            let row = 2.0 * (n - 1.0) * (alpha + s / (n * b)) + gamma * s * (n - 1.0) / n;
            equal(row + 2.0 * (m - 1.0) * (alpha + s / (n * m * b)) + gamma * s * (m - 1.0) / (n * m))
        }
        // The formula for a buffer that goes to a corner and back, applied to each quarter: four move at the same time,
        // and some ranks reduce two.
        "mesh_2d" => {
            let quarters = (n + m - 2.0) * (2.0 * alpha + s / (2.0 * b) + gamma * s / 4.0);
            Some((quarters, 0.95, 1.05 * (1.0 + gamma * s / 2.0 / quarters)))
        }
        _ => None,
    }
}

/// `make test-more` alone has what takes seconds.
fn of_this_tier<T, const N: usize>(sizes: [(usize, T); N]) -> impl Iterator<Item = (usize, T)> {
    let max = Tier::from_environment().of(256, 1024, usize::MAX);
    sizes.into_iter().filter(move |(size, _)| *size <= max)
}

#[test]
fn simulated_times_are_those_of_the_literature() {
    let mut checked = 0;
    for algorithm in Collective::Allreduce.algorithms() {
        for (size, columns) in of_this_tier([(4, 2), (16, 4), (64, 8), (256, 16), (1024, 32), (4096, 64)]) {
            // In the first case latency and bandwidth matter; in the second latency dominates; in the third bandwidth
            // does.
            for (alpha, bytes, gamma) in [(10e-6, 4 << 20, 5e-11), (50e-6, 64 << 10, 1e-11), (1e-6, 64 << 20, 0.0)] {
                let link = Link { latency: alpha, ..LINK };
                let formula = table(algorithm.name, size as f64, columns as f64, bytes as f64, link, gamma);
                let Some((seconds, low, high)) = formula else { continue };
                let mut calls = Calls::new(Collective::Allreduce, size, bytes / 4, 0);
                let mut network = Network::flat(link, gamma);
                match algorithm.name {
                    "hierarchical" | "hierarchical_direct" => {
                        calls.groups = (0..size).map(|rank| (rank / columns) as u32).collect();
                        network.per_host = columns;
                    }
                    "mesh_2d" => network.per_host = size,
                    _ => {}
                }
                // More would take too long; the tool's tests simulate a ring of 4,096 ranks.
                let steps = (algorithm.generate)(&calls.shape(size - 1)).unwrap().steps.len() * size;
                if steps > if gamma == 0.0 { 300_000 } else { 80_000 } {
                    continue;
                }
                let options = Options { segment_bytes: UNCUT, ..Options::new(network) };
                let generate = |rank| (algorithm.generate)(&calls.shape(rank));
                let part = simulate(size, &generate, &options).unwrap().seconds / seconds;
                let what = format!("{}, {size} ranks, {bytes} bytes, α {alpha} s, γ {gamma}", algorithm.name);
                assert!((low..=high).contains(&part), "{what}: {part} of {seconds} s by the table; {low} to {high}");
                checked += 1;
            }
        }
    }
    assert!(checked > 120, "{checked}");
}

/// The bound from the paper of Sanders, Speck and Träff, with their number of segments.
#[test]
fn double_binary_trees_keep_their_bound() {
    let gamma = 2e-11;
    let heights = [(4, 2.0), (8, 3.0), (64, 6.0), (100, 7.0), (256, 8.0), (1024, 10.0), (4096, 12.0)];
    for (size, height) in of_this_tier(heights) {
        for bytes in [1 << 20, 1 << 24, 1 << 28] {
            if size > 256 && bytes > 1 << 20 {
                continue;
            }
            let (n, latency) = (bytes as f64, height * LINK.latency);
            let chunks = 2.0 * (n * height / (2.0 * LINK.latency * LINK.bandwidth)).sqrt();
            let bound = 4.0 * latency
                + 2.0 * n / LINK.bandwidth
                + 2.0 * (8.0 * latency * n / LINK.bandwidth).sqrt()
                + gamma * (n + (2.0 * latency * n * LINK.bandwidth).sqrt());
            let options = Options { segment_bytes: (n / chunks) as usize, ..Options::new(Network::flat(LINK, gamma)) };
            let call = Shape { inputs: 0, ..shape(Collective::Allreduce, size, bytes / 4) };
            let time = play(double_binary_tree::NAME, call, &options).seconds;
            assert!(time <= bound, "{size} ranks, {bytes} bytes: {time} s, {bound} s allowed");
            let Options { network, segment_bytes, .. } = options;
            let case = Case {
                shape: &call,
                element_bytes: 4,
                segment_bytes,
                network: &network,
                constants: &Constants::BUILT_IN,
            };
            let price = double_binary_tree::allreduce_time(&case);
            let max = if size.is_power_of_two() { 1.1 } else { 1.35 };
            let near = (0.85..=max).contains(&(price / time));
            assert!(near, "{size} ranks, {bytes} bytes: {time} s, priced at {price} s");
        }
    }
}

#[test]
fn local_reductions_take_gamma_each() {
    let call = Shape { inputs: 5, ..shape(Collective::Allreduce, 1, 1000) };
    let result = play("local", call, &Options::new(Network::flat(LINK, 5e-11)));
    assert!((result.seconds / (5e-11 * 4000.0 * 4.0) - 1.0).abs() < 1e-9, "γ S (N - 1): {}", result.seconds);
}

#[test]
fn steps_and_bytes_are_those_that_the_verifier_counts() {
    every(&[4, 8, 16, 64], 64, 2_000, |calls, algorithm| {
        let verified = verify(&calls.shapes(), algorithm).unwrap();
        let generate = |rank| (algorithm.generate)(&calls.shape(rank));
        let result = simulate(calls.ranks(), &generate, &Options::new(Network::flat(LINK, 5e-11))).unwrap();
        let sent: Vec<_> = verified.traffic.iter().map(|traffic| traffic.elements as u64 * 4).collect();
        let messages: usize = verified.traffic.iter().map(|traffic| traffic.messages).sum();
        let what = format!("{} {}, {} ranks", calls.collective().name(), algorithm.name, calls.ranks());
        assert_eq!((result.steps, result.sent, result.messages), (verified.steps, sent, messages as u64), "{what}");
        let scratch = verified.traffic.iter().map(|traffic| traffic.scratch * 4).max();
        assert_eq!(Some(result.scratch_bytes), scratch, "{what}");
    });
}

/// Two hosts of four ranks on a network of 1 Gbit/s: the speed-up claimed in the paper.
#[test]
fn hosts_of_several_ranks_are_faster_in_groups_than_in_a_ring() {
    let remote = Link { latency: 50e-6, bandwidth: 125e6 };
    let local = Link { latency: 1e-6, bandwidth: 20e9 };
    let network = Network { local, remote, per_host: 4, cores: 4, ..Network::flat(remote, 0.05e-9) };
    let options = Options { segment_bytes: 256 << 10, ..Options::new(network) };
    let groups = [0, 0, 0, 0, 1, 1, 1, 1];
    let call = Shape { groups: &groups, ..shape(Collective::Allreduce, 8, 16 << 20) };
    let ring = play("ring_segmented", call, &options).seconds;
    // Over the network card: 2S(P-1)/P in the ring, 2S(m-1)/m in groups; the time within hosts is small.
    let max = (2.0 * 7.0 / 8.0) / (2.0 / 2.0);
    for name in ["hierarchical", "hierarchical_direct", "torus_2d", "torus_nd"] {
        let gain = ring / play(name, call, &options).seconds;
        assert!((0.9 * max..1.05 * max).contains(&gain), "{name}: {gain} of {max}");
    }
}

/// With one slow link, trees are faster than the ring and within 15 % of the bound from the graph's cuts.
#[test]
fn spanning_trees_beat_the_ring_around_a_slow_link() {
    let (fast, slow) = (1000, 100);
    let size = 8;
    let between = |pair: usize| (pair / size, pair % size);
    let is_slow = |(a, b): (usize, usize)| (a.min(b), a.max(b)) == (0, 1);
    let complete = |pair| if is_slow(between(pair)) { slow } else { fast };
    let next = |(a, b): (usize, usize)| (a + 1) % size == b || (b + 1) % size == a;
    let neighbours = |pair| if next(between(pair)) { complete(pair) } else { 0 };
    let graphs: [&dyn Fn(usize) -> u32; 2] = [&complete, &neighbours];
    for graph in graphs {
        let links: Vec<u32> = (0..size * size).map(graph).collect();
        let bandwidths: Vec<f64> = links.iter().map(|link| f64::from(*link) * 1e6).collect();
        let network = Network::flat(Link { latency: 5e-6, bandwidth: 1e9 }, 0.01e-9);
        let options = Options { links: &bandwidths, segment_bytes: 64 << 10, ..Options::new(network) };
        let call = Shape { links: &links, ..shape(Collective::Allreduce, size, 16 << 20) };
        // Lower bound for any algorithm: each part of the graph needs data from all others, so S crosses at least P - 1
        // links in each direction (Tutte, Nash-Williams).
        let all: f64 = (0..size * size).filter(|pair| between(*pair).0 < between(*pair).1).map(|p| bandwidths[p]).sum();
        let bound = (64 << 20) as f64 * (size as f64 - 1.0) / all;
        let (ring, trees) =
            (play("ring_segmented", call, &options).seconds, play("spanning_trees", call, &options).seconds);
        assert!(trees >= bound && trees <= 1.15 * bound, "{trees} s, the bound is {bound} s");
        // The ring sends 2(P - 1)/P of its bytes over the slow link.
        let by_slow = 2.0 * 7.0 / 8.0 * (64 << 20) as f64 / (f64::from(slow) * 1e6);
        assert!((by_slow..1.05 * by_slow).contains(&ring), "{ring} s, the slow link takes {by_slow} s");
        let case = Case {
            shape: &call,
            element_bytes: 4,
            segment_bytes: 64 << 10,
            network: &network,
            constants: &Constants::BUILT_IN,
        };
        let priced = (call.collective.algorithm("spanning_trees").unwrap().cost)(&case).path;
        assert!((0.85..1.15).contains(&(priced / trees)), "{priced} s, takes {trees} s");
    }
}
