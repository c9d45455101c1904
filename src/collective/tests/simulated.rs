//! Prices and the formulas of the literature against the simulator, on networks where every rank has a host of its own.

use super::*;
use crate::schedule::cost::{Link, Network};
use crate::schedule::simulate::{Options, Simulation, simulate};

const RANKS: [usize; 7] = [4, 8, 16, 64, 256, 1024, 4096];
const UNCUT: usize = 1 << 40;

/// α and bandwidth and reductions count for something on the first; on the others one of them, or all but reductions.
const NETWORKS: [(f64, f64, f64); 4] =
    [(10e-6, 25e9, 5e-11), (50e-6, 100e9, 1e-12), (1e-6, 1e9, 5e-10), (5e-6, 10e9, 0.0)];

fn network((latency, bandwidth, gamma): (f64, f64, f64)) -> Network {
    Network::flat(Link { latency, bandwidth }, gamma)
}

/// All ranks' calls of an algorithm, with equal counts.
struct Calls {
    call: Shape<'static>,
    algorithm: &'static Algorithm,
    counts: Vec<usize>,
    all_counts: Vec<usize>,
}

impl Calls {
    /// `elements` of the larger buffer, a multiple of `size`.
    fn new(collective: Collective, algorithm: &'static Algorithm, size: usize, elements: usize) -> Self {
        use Collective::*;
        let whole = matches!(collective, Allreduce | Reduce | Broadcast | Scan | Exscan);
        let count = if whole { elements } else { elements / size };
        let counts = vec![count; size];
        Self {
            call: Shape { destinations: size.ilog2() as usize, ..Shape::new(collective, 0, size, count) },
            algorithm,
            // What ranks tell one another before such a call.
            all_counts: match collective {
                Alltoallv if size <= 1024 => counts.repeat(size),
                Gatherv | Scatterv => counts.clone(),
                _ => Vec::new(),
            },
            counts,
        }
    }

    fn shape(&self, rank: usize) -> Shape<'_> {
        use Collective::*;
        let root = rank == 0;
        let collective = self.call.collective;
        let (inputs, outputs) = match collective {
            Reduce | Gather | Gatherv => (1, usize::from(root)),
            Broadcast => (0, 1),
            Scatter | Scatterv => (usize::from(root), 1),
            Barrier => (0, 0),
            _ => (1, 1),
        };
        let sends = matches!(collective, Alltoallv | Scatterv);
        let receives = matches!(collective, Alltoallv | ReduceScatter | Allgatherv | Gatherv);
        Shape {
            rank,
            inputs,
            outputs,
            send_counts: if sends { &self.counts } else { &[] },
            recv_counts: if receives { &self.counts } else { &[] },
            counts: &self.all_counts,
            ..self.call
        }
    }

    fn schedule(&self, rank: usize) -> Result<Schedule> {
        let shape = self.shape(rank);
        shape.check()?;
        (self.algorithm.generate)(&shape)
    }

    fn simulate(&self, network: &Network, segment_bytes: usize) -> Simulation {
        let options = Options { segment_bytes, ..Options::new(*network) };
        simulate(self.call.size, &|rank| self.schedule(rank), &options)
            .unwrap_or_else(|e| panic!("{}: {e}", self.name()))
    }

    fn cost(&self, network: &Network, segment_bytes: usize) -> Cost {
        let shape = self.shape(0);
        (self.algorithm.cost)(&Case { shape: &shape, element_bytes: 4, segment_bytes, network })
    }

    fn name(&self) -> String {
        let Shape { collective, size, count, .. } = self.call;
        format!("{} {}, {size} ranks, {count} elements", collective.name(), self.algorithm.name)
    }
}

/// Every algorithm for every number of ranks, as long as its schedules have no more than `steps` steps together.
fn every_algorithm(steps: usize, elements: usize, mut check: impl FnMut(&Calls)) {
    for &collective in Collective::ALL {
        for algorithm in collective.algorithms() {
            // Knowing every link, or every count, is for small groups.
            let most = if matches!(algorithm.uses, Uses::Links | Uses::Counts) { 64 } else { usize::MAX };
            for size in RANKS.into_iter().filter(|&size| size <= most) {
                let calls = Calls::new(collective, algorithm, size, elements.max(size));
                match calls.schedule(0) {
                    Ok(schedule) if schedule.steps.len() * size <= steps => check(&calls),
                    Ok(_) => {}
                    Err(error) => assert_eq!(algorithm.name, "local", "{error}"),
                }
            }
        }
    }
}

fn near(a: f64, b: f64, part: f64) -> bool {
    (a - b).abs() <= part * b.abs()
}

/// How much of the simulated time a price may lack, and have too much.
fn tolerance(calls: &Calls, network: &Network) -> (f64, f64) {
    // Where to reduce takes less than half as long as to send, nothing waits for reductions.
    let reductions_keep_up = network.gamma * network.remote.bandwidth < 0.5;
    match calls.algorithm.name {
        // For other networks than these: an estimate from above where all messages share a card.
        "mesh_2d" => (0.05, 0.7),
        // Which of the messages that are under way at the same time is reduced first is not in the formula.
        "spanning_trees" => (0.07, 0.05),
        "ring" | "recursive_doubling" | "double_binary_tree" if !reductions_keep_up => (0.22, 0.06),
        _ => (0.05, 0.05),
    }
}

#[test]
fn prices_are_what_the_simulator_says() {
    let mut wrong = Vec::new();
    for (steps, elements, networks) in
        [(40_000, 1 << 20, &NETWORKS[..]), (200_000, 1 << 14, &NETWORKS[..1]), (300_000, 1 << 24, &NETWORKS[..1])]
    {
        every_algorithm(steps, elements, |calls| {
            for network in networks.iter().map(|&numbers| network(numbers)) {
                let cost = calls.cost(&network, UNCUT);
                if !cost.path.is_finite() {
                    continue;
                }
                let result = calls.simulate(&network, UNCUT);
                let exact = (1e-9, 1e-9);
                let pairs = [
                    ("seconds", cost.path, result.seconds, tolerance(calls, &network)),
                    ("messages", cost.messages, result.messages as f64, exact),
                    ("bytes sent", cost.sent, result.sent.iter().sum::<u64>() as f64, exact),
                    ("bytes reduced", cost.reduced, result.reduced.iter().sum::<u64>() as f64, exact),
                ];
                for (what, price, simulated, (below, above)) in pairs {
                    if !((1.0 - below) * simulated..=(1.0 + above) * simulated).contains(&price) {
                        wrong.push(format!("{}: {what} {price}, but {simulated} simulated", calls.name()));
                    }
                }
            }
        });
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The table of the literature, for S bytes: seconds, and between what parts of that the simulated time must be.
fn table(name: &str, p: f64, s: f64, (alpha, b, gamma): (f64, f64, f64)) -> Option<(f64, f64, f64)> {
    let h = p.log2();
    let ring = 2.0 * (p - 1.0) * (alpha + s / (p * b)) + gamma * s * (p - 1.0) / p;
    let equal = |seconds| Some((seconds, 0.95, 1.05));
    match name {
        // A rank passes on what has come before it has reduced it: only the last reduction counts.
        "ring" => {
            let most = (p - 1.0) * (alpha + s / b + gamma * s);
            Some((most, 0.95 * (p - 1.0) * (alpha + s / b) / most, 1.05))
        }
        "ring_segmented" => equal(ring),
        // Of its two streams one reduces while the other is on its way, so that latency and reductions count once, if at all.
        "ring_chunked" => Some((ring, if alpha > 50.0 * s / (p * b) { 0.95 } else { 0.5 }, 1.05)),
        "halving_doubling" => equal(2.0 * h * alpha + (p - 1.0) / p * (2.0 * s / b + gamma * s)),
        "recursive_doubling" => equal(h * (alpha + s / b + gamma * s)),
        "tree" => equal(h * (2.0 * alpha + 2.0 * s / b + gamma * s)),
        // Reductions of what has come go on while the rest comes, so only the last counts: less than the table says.
        "reduce_broadcast" => {
            let most = 2.0 * (alpha + (p - 1.0) * s / b) + gamma * s * (p - 1.0);
            Some((most, if gamma == 0.0 { 0.95 } else { 0.0 }, 1.05))
        }
        _ => None,
    }
}

#[test]
fn the_tables_formulas_are_what_the_simulator_says() {
    let mut checked = 0;
    for algorithm in Collective::Allreduce.algorithms() {
        for size in RANKS {
            for (elements, numbers) in [(1 << 20, NETWORKS[0]), (1 << 14, NETWORKS[1]), (1 << 18, NETWORKS[3])] {
                let calls = Calls::new(Collective::Allreduce, algorithm, size, elements.max(size));
                let bytes = calls.call.count as f64 * 4.0;
                let Some((seconds, low, high)) = table(algorithm.name, size as f64, bytes, numbers) else { continue };
                if calls.schedule(0).unwrap().steps.len() * size > 300_000 {
                    continue;
                }
                let simulated = calls.simulate(&network(numbers), UNCUT).seconds;
                let fine = (low..=high).contains(&(simulated / seconds));
                assert!(fine, "{}: {seconds} by the table, but {simulated} simulated", calls.name());
                checked += 1;
            }
        }
    }
    assert!(checked > 70, "{checked}");
}

#[test]
fn local_reductions_take_gamma_each() {
    let local = Collective::Allreduce.algorithm("local").unwrap();
    let generate = |_| (local.generate)(&Shape { inputs: 5, ..shape(Collective::Allreduce, 1, 1000) });
    let result = simulate(1, &generate, &Options::new(network(NETWORKS[0]))).unwrap();
    assert!(near(result.seconds, 5e-11 * 4000.0 * 4.0, 1e-9), "γ S (N - 1): {}", result.seconds);
}

#[test]
fn steps_and_bytes_are_those_that_are_proven() {
    every_algorithm(2_000, 64, |calls| {
        let shapes: Vec<_> = (0..calls.call.size).map(|rank| calls.shape(rank)).collect();
        let proven = verify(&shapes, calls.algorithm).unwrap();
        let result = calls.simulate(&network(NETWORKS[0]), UNCUT);
        let sent: Vec<_> = proven.traffic.iter().map(|traffic| traffic.elements as u64 * 4).collect();
        let messages: usize = proven.traffic.iter().map(|traffic| traffic.messages).sum();
        assert_eq!(
            (result.steps, result.sent, result.messages),
            (proven.steps, sent, messages as u64),
            "{}",
            calls.name()
        );
        assert_eq!(result.scratch_bytes, proven.traffic.iter().map(|traffic| traffic.scratch * 4).max().unwrap());
    });
}
