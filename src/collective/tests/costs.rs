//! What algorithms say they cost is what they cost in the simulator, which plays their schedules on the same model.

use super::*;
use crate::schedule::cost::Network;
use crate::schedule::simulate::{Options, Simulation, simulate};

const ELEMENT: usize = 4;
/// Cuts nothing.
const WHOLE: usize = 1 << 40;
/// 10 µs, 10 GB/s.
const LINK: Link = Link { latency: 10e-6, bandwidth: 10e9 };

fn played(call: &Shape<'static>, algorithm: &Algorithm, network: Network, segment_bytes: usize) -> Simulation {
    let options = Options { segment_bytes, ..Options::new(network) };
    simulate(call.size, &|rank| (algorithm.generate)(&Shape { rank, ..*call }), &options).unwrap()
}

fn priced(call: &Shape<'_>, algorithm: &Algorithm, network: Network, segment_bytes: usize) -> Cost {
    (algorithm.cost)(&Case { shape: call, element_bytes: ELEMENT, segment_bytes, network: &network })
}

/// In place, of `bytes`.
fn call(collective: Collective, size: usize, bytes: usize) -> Shape<'static> {
    let outputs = usize::from(collective != Collective::Barrier);
    Shape { inputs: 0, outputs, ..Shape::new(collective, 0, size, bytes / ELEMENT) }
}

/// Those whose owner has given them a formula that is checked here.
fn algorithms() -> impl Iterator<Item = (Collective, &'static Algorithm)> {
    use Collective::*;
    let all = [Allreduce, Reduce, Broadcast, Barrier].into_iter();
    let all = all.flat_map(|collective| collective.algorithms().iter().map(move |algorithm| (collective, algorithm)));
    all.filter(|(_, algorithm)| algorithm.name != "local" && algorithm.uses == Uses::Sizes)
}

/// The price is within `below` and `above` of the time, and counts messages and bytes exactly if `exact`.
#[track_caller]
fn agrees(
    call: &Shape<'static>,
    algorithm: &Algorithm,
    gamma: f64,
    segment: usize,
    (below, above): (f64, f64),
    exact: bool,
) {
    let network = Network::flat(LINK, gamma);
    let (played, priced) = (played(call, algorithm, network, segment), priced(call, algorithm, network, segment));
    let what = format!(
        "{} {} of {} ranks, {} elements, segments of {segment}, γ {gamma}",
        call.collective.name(),
        algorithm.name,
        call.size,
        call.count
    );
    let ratio = priced.path / played.seconds;
    assert!((below..=above).contains(&ratio), "{what}: {} s, priced at {} s: {ratio:.3}", played.seconds, priced.path);
    if exact {
        assert_eq!(priced.messages, played.messages as f64, "{what}: messages");
        assert_eq!(priced.sent, played.sent.iter().sum::<u64>() as f64, "{what}: bytes");
        assert_eq!(priced.reduced, played.reduced.iter().sum::<u64>() as f64, "{what}: bytes reduced");
    }
}

#[test]
fn powers_of_two_without_segments() {
    for (collective, algorithm) in algorithms() {
        for size in [2, 4, 8, 16, 64] {
            // Latency counts, both count, bandwidth counts.
            for bytes in [1 << 10, 1 << 16, 1 << 20, 1 << 26] {
                for gamma in [0.0, 2e-11] {
                    agrees(&call(collective, size, bytes), algorithm, gamma, WHOLE, (0.95, 1.05), true);
                }
            }
        }
    }
}

#[test]
fn powers_of_two_with_segments() {
    for (collective, algorithm) in algorithms() {
        let within = match algorithm.name {
            // Their steps stream: one formula for all segment sizes.
            "ring" | "ring_segmented" | "ring_chunked" | "recursive_doubling" | "pipelined_chain" | "one_to_all"
            | "reduce_broadcast" | "flat" | "binomial" => (0.95, 1.05),
            "double_binary_tree" => (0.9, 1.1),
            // What the parts gain or lose by overlapping is not in the formula.
            _ => (0.8, 1.35),
        };
        for size in [4, 8, 64] {
            for bytes in [1 << 20, 1 << 26] {
                agrees(&call(collective, size, bytes), algorithm, 2e-11, 1 << 16, within, true);
            }
        }
    }
}

#[test]
fn any_number_of_ranks() {
    for (collective, algorithm) in algorithms() {
        for size in [3, 5, 6, 7, 12, 31, 100] {
            for bytes in [1 << 10, 1 << 20, 1 << 26] {
                let call = call(collective, size, bytes);
                agrees(&call, algorithm, 2e-11, WHOLE, (0.8, 1.6), false);
            }
        }
    }
}

/// Bases other than two: `bcube` has steps of several messages.
#[test]
fn bcube_of_larger_bases() {
    let bcube = Collective::Allreduce.algorithm("bcube").unwrap();
    for (base, size) in [(4, 4), (4, 16), (4, 64), (8, 64), (3, 27)] {
        for bytes in [1 << 10, 27 << 20] {
            let call = Shape { base, ..call(Collective::Allreduce, size, bytes) };
            agrees(&call, bcube, 0.0, WHOLE, (0.95, 1.05), false);
        }
    }
}

#[test]
fn many_ranks() {
    for (collective, name) in [
        (Collective::Allreduce, "ring_segmented"),
        (Collective::Allreduce, "halving_doubling"),
        (Collective::Allreduce, "double_binary_tree"),
        (Collective::Reduce, "double_binary_tree"),
        (Collective::Broadcast, "double_binary_tree"),
        (Collective::Broadcast, "binomial"),
    ] {
        let algorithm = collective.algorithm(name).unwrap();
        agrees(&call(collective, 1024, 1 << 26), algorithm, 2e-11, WHOLE, (0.95, 1.05), true);
    }
}

/// The bound of Sanders, Speck and Träff's algorithm, with their number of segments.
#[test]
fn two_trees_keep_their_bound() {
    let algorithm = Collective::Allreduce.algorithm("double_binary_tree").unwrap();
    let gamma = 2e-11;
    let network = Network::flat(LINK, gamma);
    for (size, height) in [(4, 2.0), (8, 3.0), (64, 6.0), (100, 7.0), (256, 8.0)] {
        for bytes in [1 << 20, 1 << 24, 1 << 28] {
            let call = call(Collective::Allreduce, size, bytes);
            let case = Case { shape: &call, element_bytes: ELEMENT, segment_bytes: WHOLE, network: &network };
            let segment = algorithm.segment(&case).unwrap() as usize;
            let (n, latency) = (bytes as f64, height * LINK.latency);
            let bound = 4.0 * latency
                + 2.0 * n / LINK.bandwidth
                + 2.0 * (8.0 * latency * n / LINK.bandwidth).sqrt()
                + gamma * (n + (2.0 * latency * n * LINK.bandwidth).sqrt());
            let time = played(&call, algorithm, network, segment).seconds;
            assert!(time <= bound, "{size} ranks, {bytes} bytes: {time} s, {bound} s allowed");
        }
    }
}

/// Who is alone has nothing to send, and nothing costs nothing.
#[test]
fn nothing() {
    let network = Network::flat(LINK, 1e-11);
    for (collective, algorithm) in algorithms() {
        assert_eq!(priced(&call(collective, 1, 1 << 20), algorithm, network, 1 << 16), Cost::default());
        if collective != Collective::Barrier {
            assert_eq!(priced(&call(collective, 8, 0), algorithm, network, 1 << 16), Cost::default());
        }
    }
    let local = Collective::Allreduce.algorithm("local").unwrap();
    let call = Shape { inputs: 6, ..Shape::new(Collective::Allreduce, 0, 1, 250) };
    let cost = priced(&call, local, network, 1 << 16);
    assert_eq!((cost.path, cost.messages, cost.reduced), (5e3 * 1e-11, 0.0, 5e3));
}
